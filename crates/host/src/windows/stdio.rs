//! Standard input and output as a guest's console.
//!
//! Neither a console nor an anonymous pipe can be waited for together with other things, and a write to
//! either may block for as long as its reader likes. So each has a thread that does the blocking call,
//! and an event that says how it stands. The threads end with the process.
#![expect(
    unsafe_code,
    reason = "console modes and code pages are set by raw handles"
)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, OwnedHandle};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetConsoleOutputCP, SetConsoleMode,
    SetConsoleOutputCP,
};

use super::event::Event;
use super::wait::{WaitSource, Waitable, wait_any};
use crate::{InputRead, Interest};

/// The code page of UTF-8 (Microsoft's "Code Page Identifiers").
const CP_UTF8: u32 = 65001;
/// Input that is read ahead of the guest.
const INPUT_BYTES: usize = 64 << 10;
/// The most that one write hands over.
const WRITE_CHUNK_BYTES: usize = 4096;
/// How long a reader that reads nothing holds the end of the output.
const LAST_WRITE_PATIENCE: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks protect is valid between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a guest's console input comes from.
pub struct ConsoleInput {
    shared: Arc<Input>,
}

struct Input {
    state: Mutex<InputState>,
    /// There is room again.
    room: Condvar,
    /// Raised while there is data, or once there will be no more.
    readable: Event,
}

#[derive(Default)]
struct InputState {
    bytes: VecDeque<u8>,
    ended: bool,
}

impl ConsoleInput {
    /// Standard input, whose lines end as the guest expects: a console's `\r\n` becomes `\n`.
    ///
    /// # Errors
    /// The system has no handle or thread left, or there is no standard input.
    pub fn stdin() -> io::Result<Self> {
        let stdin = io::stdin();
        if stdin.as_raw_handle().is_null() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_console = stdin.is_terminal();
        Self::from_reader(stdin, is_console)
    }

    fn from_reader(
        mut reader: impl io::Read + Send + 'static,
        is_console: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Input {
            state: Mutex::default(),
            room: Condvar::new(),
            readable: Event::new(false)?,
        });
        let filled = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("console input".to_owned())
            .spawn(move || filled.fill(&mut reader, is_console))?;
        Ok(Self { shared })
    }

    /// Reads what is there. Never blocks.
    pub fn read(&self, buffer: &mut [u8]) -> InputRead {
        let mut state = lock(&self.shared.state);
        let length = state.bytes.len().min(buffer.len());
        if length == 0 {
            return match state.ended {
                true => InputRead::End,
                false => InputRead::Nothing,
            };
        }
        for (target, byte) in buffer.iter_mut().zip(state.bytes.drain(..length)) {
            *target = byte;
        }
        if state.bytes.is_empty() && !state.ended {
            self.shared.readable.lower();
        }
        self.shared.room.notify_one();
        InputRead::Data(length)
    }
}

impl Waitable for ConsoleInput {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.shared.readable)
    }
}

impl Input {
    /// The reading thread's body.
    fn fill(&self, reader: &mut impl io::Read, is_console: bool) {
        let mut buffer = [0; 4096];
        loop {
            let length = match reader.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A pipe whose writer is gone: no input will come.
                Err(_) => 0,
            };
            let mut state = lock(&self.state);
            while state.bytes.len() >= INPUT_BYTES {
                state = self
                    .room
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let bytes = buffer.get(..length).unwrap_or_default();
            let kept = bytes.iter().filter(|byte| !is_console || **byte != b'\r');
            state.bytes.extend(kept);
            state.ended = length == 0;
            if state.ended || !state.bytes.is_empty() {
                self.readable.raise();
            }
            if state.ended {
                return;
            }
        }
    }
}

/// Where a guest's console output goes.
pub struct ConsoleOutput {
    shared: Arc<Output>,
    _console: Option<ConsoleModes>,
}

struct Output {
    state: Mutex<OutputState>,
    /// There is something to write.
    work: Condvar,
    /// Raised while nothing is being written.
    idle: Event,
}

#[derive(Default)]
struct OutputState {
    chunk: Vec<u8>,
    broken: bool,
    ending: bool,
}

impl ConsoleOutput {
    /// Standard output. A console shows UTF-8 and obeys escape sequences until this is dropped.
    ///
    /// # Errors
    /// The system has no handle or thread left, or there is no standard output.
    pub fn stdout() -> io::Result<Self> {
        let stdout = io::stdout();
        if stdout.as_raw_handle().is_null() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let handle = stdout.as_handle().try_clone_to_owned()?;
        let modes = ConsoleModes::set(&handle);
        Self::from_handle(handle, modes)
    }

    fn from_handle(handle: OwnedHandle, console: Option<ConsoleModes>) -> io::Result<Self> {
        let shared = Arc::new(Output {
            state: Mutex::default(),
            work: Condvar::new(),
            idle: Event::new(true)?,
        });
        let emptied = Arc::clone(&shared);
        let mut file = File::from(handle);
        std::thread::Builder::new()
            .name("console output".to_owned())
            .spawn(move || emptied.empty(&mut file))?;
        Ok(Self {
            shared,
            _console: console,
        })
    }

    /// Writes as much of `bytes` as can be written before `stop` is readable, and says how much
    /// that was; what its last write of up to 4 KiB has begun counts as written. A reader that reads
    /// nothing holds this call, but never beyond a stop. Once the reader has gone away everything
    /// counts as written.
    pub fn write_until(&mut self, bytes: &[u8], stop: impl Waitable) -> usize {
        let mut written = 0;
        loop {
            let ready = wait_any(
                [
                    (WaitSource::of(&self.shared.idle), Interest::Readable),
                    (stop.source(), Interest::Readable),
                ],
                None,
            );
            match ready {
                Ok([true, _]) => {}
                Ok([false, true]) => return written,
                Ok([false, false]) => continue,
                Err(_) => return bytes.len(),
            }
            let rest = bytes.get(written..).unwrap_or_default();
            if rest.is_empty() || !self.shared.hand_over(rest, &mut written) {
                return bytes.len();
            }
        }
    }
}

impl Output {
    /// Gives the writing thread, which is idle, the next chunk; false if the reader is gone.
    fn hand_over(&self, bytes: &[u8], written: &mut usize) -> bool {
        let mut state = lock(&self.state);
        if state.broken {
            return false;
        }
        let chunk = &bytes[..bytes.len().min(WRITE_CHUNK_BYTES)];
        state.chunk.extend_from_slice(chunk);
        *written += chunk.len();
        self.idle.lower();
        self.work.notify_one();
        true
    }

    /// The writing thread's body.
    fn empty(&self, file: &mut File) {
        let mut state = lock(&self.state);
        loop {
            if state.chunk.is_empty() {
                if state.ending {
                    return;
                }
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let chunk = std::mem::take(&mut state.chunk);
            drop(state);
            let result = file.write_all(&chunk);
            state = lock(&self.state);
            state.broken |= result.is_err();
            self.idle.raise();
        }
    }
}

impl Drop for ConsoleOutput {
    fn drop(&mut self) {
        let idle = [(WaitSource::of(&self.shared.idle), Interest::Readable)];
        // A reader that reads nothing is given up.
        let _ = wait_any(idle, Some(LAST_WRITE_PATIENCE));
        lock(&self.shared.state).ending = true;
        self.shared.work.notify_one();
    }
}

/// How a console was before this process changed it; restored on drop.
struct ConsoleModes {
    handle: OwnedHandle,
    mode: u32,
    code_page: u32,
}

impl ConsoleModes {
    /// Makes the console show UTF-8 and obey escape sequences; `None` if the output is no console.
    fn set(output: &OwnedHandle) -> Option<Self> {
        let handle = output.try_clone().ok()?;
        let mut mode = 0;
        // SAFETY: the handle is open and the mode lives until the call returns.
        if unsafe { GetConsoleMode(handle.as_raw_handle(), &raw mut mode) } == 0 {
            return None;
        }
        // SAFETY: the calls take an open handle and numbers. A console that refuses stays as it is.
        let code_page = unsafe {
            let code_page = GetConsoleOutputCP();
            SetConsoleMode(
                handle.as_raw_handle(),
                mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING,
            );
            SetConsoleOutputCP(CP_UTF8);
            code_page
        };
        Some(Self {
            handle,
            mode,
            code_page,
        })
    }
}

impl Drop for ConsoleModes {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            SetConsoleMode(self.handle.as_raw_handle(), self.mode);
            SetConsoleOutputCP(self.code_page);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::wait::Waker;
    use super::*;

    #[test]
    fn output_arrives_and_a_reader_that_left_does_not_hold_it() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let stop = Waker::new().expect("an event");
        let mut output = ConsoleOutput::from_handle(writer.into(), None).expect("a thread");
        assert_eq!(output.write_until(b"hello", &stop), 5);
        let mut buffer = [0; 5];
        reader.read_exact(&mut buffer).expect("the text");
        assert_eq!(&buffer, b"hello");
        drop(reader);
        assert_eq!(output.write_until(&[0; 100_000], &stop), 100_000);
    }

    #[test]
    fn a_stop_ends_a_write_that_no_pipe_takes() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let stop = Waker::new().expect("an event");
        let mut output = ConsoleOutput::from_handle(writer.into(), None).expect("a thread");
        let bytes = vec![b'\n'; 1 << 20];
        let written = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.raise();
            });
            output.write_until(&bytes, &stop)
        });
        assert!(written > 0 && written < bytes.len(), "{written}");
        drop(reader);
    }

    #[test]
    fn input_comes_in_order_and_its_end_is_told() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let input = ConsoleInput::from_reader(reader, true).expect("a thread");
        let mut buffer = [0; 16];
        assert_eq!(input.read(&mut buffer), InputRead::Nothing);
        writer.write_all(b"one\r\n").expect("a reader");
        let wait = || {
            let source = [(input.source(), Interest::Readable)];
            wait_any(source, Some(Duration::from_secs(20))).expect("a wait")
        };
        assert_eq!(wait(), [true]);
        assert_eq!(input.read(&mut buffer), InputRead::Data(4));
        assert_eq!(&buffer[..4], b"one\n");
        drop(writer);
        assert_eq!(wait(), [true]);
        assert_eq!(input.read(&mut buffer), InputRead::End);
        assert_eq!(wait(), [true]);
    }
}
