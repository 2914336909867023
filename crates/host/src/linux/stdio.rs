//! Standard input and output as a guest's console.
//!
//! Output must never hold a monitor that is asked to end, whatever reads it. Being told that a
//! descriptor is writable is not enough: a terminal takes less than it is given once its user stops
//! it (Ctrl-S) or its buffer fills, and a pipe may be filled by another writer in between. So writes
//! go through a descriptor that does not block where one can be had, without changing the flags of
//! the one that was given: those are shared with whoever started this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::wait::{WaitSource, Waitable, wait_any};
use crate::{InputRead, Interest};

/// The most that one write hands over: a pipe that is writable at all takes this much without
/// blocking (pipe(7), PIPE_BUF).
const WRITE_CHUNK_BYTES: usize = 4096;

/// How long to leave an output alone that claims to be writable and takes nothing, such as a
/// terminal with room for half of a line end.
const REFUSED_PAUSE: Duration = Duration::from_millis(5);

/// Device number of `/dev/ptmx`: major 5, minor 2 (the kernel's devices.txt). Opening it makes a new
/// terminal.
const TERMINAL_MULTIPLEXER: (u32, u32) = (5, 2);

/// Where a guest's console input comes from.
pub struct ConsoleInput {
    descriptor: OwnedFd,
}

impl ConsoleInput {
    /// Standard input.
    ///
    /// # Errors
    /// The system has no descriptor left, or standard input is closed.
    pub fn stdin() -> io::Result<Self> {
        Ok(Self::from_descriptor(rustix::io::fcntl_dupfd_cloexec(
            rustix::stdio::stdin(),
            3,
        )?))
    }

    /// Any open descriptor.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Reads what is there. To be called when [`wait_any`] says that the input is readable, and
    /// then does not block.
    pub fn read(&self, buffer: &mut [u8]) -> InputRead {
        match rustix::io::read(&self.descriptor, buffer) {
            Ok(0) => InputRead::End,
            Ok(length) => InputRead::Data(length),
            Err(Errno::INTR | Errno::AGAIN) => InputRead::Nothing,
            // A terminal that went away or a descriptor that cannot be read: no input will come.
            Err(_) => InputRead::End,
        }
    }
}

impl Waitable for ConsoleInput {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.descriptor)
    }
}

/// Where a guest's console output goes.
pub struct ConsoleOutput {
    descriptor: OwnedFd,
    is_socket: bool,
    broken: bool,
}

impl ConsoleOutput {
    /// Standard output.
    ///
    /// # Errors
    /// The system has no descriptor left, or standard output is closed.
    pub fn stdout() -> io::Result<Self> {
        Ok(Self::from_descriptor(rustix::io::fcntl_dupfd_cloexec(
            rustix::stdio::stdout(),
            3,
        )?))
    }

    /// Any open descriptor. Its flags are not changed.
    fn from_descriptor(descriptor: OwnedFd) -> Self {
        let kind = rustix::fs::fstat(&descriptor)
            .map(|status| FileType::from_raw_mode(status.st_mode))
            .ok();
        Self {
            is_socket: kind == Some(FileType::Socket),
            descriptor: reopened_without_blocking(&descriptor).unwrap_or(descriptor),
            broken: false,
        }
    }

    /// Writes as much of `bytes` as can be written before `stop` is readable, and says how much
    /// that was. A reader that reads nothing holds this call, but never beyond a stop. Once the
    /// reader has gone away everything counts as written.
    ///
    /// A regular file is written at the speed of its device. A terminal that this process may not
    /// open again (another user's, or without `/proc`) can hold a write that has begun when its user
    /// stops it.
    pub fn write_until(&mut self, bytes: &[u8], stop: impl Waitable) -> usize {
        let mut written = 0;
        while written < bytes.len() && !self.broken {
            let ready = wait_any(
                [
                    (WaitSource::of(&self.descriptor), Interest::Writable),
                    (stop.source(), Interest::Readable),
                ],
                None,
            );
            match ready {
                Ok([true, _]) => match self.write_chunk(&bytes[written..]) {
                    0 if !self.broken => {
                        let pause = [(stop.source(), Interest::Readable)];
                        if let Ok([true]) = wait_any(pause, Some(REFUSED_PAUSE)) {
                            return written;
                        }
                    }
                    length => written += length,
                },
                Ok([false, true]) => return written,
                Ok([false, false]) => {}
                Err(_) => self.broken = true,
            }
        }
        bytes.len()
    }

    fn write_chunk(&mut self, bytes: &[u8]) -> usize {
        let chunk = &bytes[..bytes.len().min(WRITE_CHUNK_BYTES)];
        let written = if self.is_socket {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::send(&self.descriptor, chunk, flags)
        } else {
            rustix::io::write(&self.descriptor, chunk)
        };
        match written {
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(_) => {
                self.broken = true;
                0
            }
        }
    }
}

/// The same pipe or terminal, opened anew so that writes to it do not block; `None` if it is neither
/// or cannot be opened.
fn reopened_without_blocking(descriptor: &OwnedFd) -> Option<OwnedFd> {
    let status = rustix::fs::fstat(descriptor).ok()?;
    let is_terminal = || {
        let number = status.st_rdev;
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        device != TERMINAL_MULTIPLEXER && rustix::termios::isatty(descriptor)
    };
    let can_be_reopened = match FileType::from_raw_mode(status.st_mode) {
        FileType::Fifo => true,
        FileType::CharacterDevice => is_terminal(),
        _ => false,
    };
    if !can_be_reopened {
        return None;
    }
    rustix::fs::open(
        format!("/proc/self/fd/{}", descriptor.as_raw_fd()),
        OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()
}

#[cfg(test)]
mod tests {
    use super::super::wait::Waker;
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn output_arrives_and_a_reader_that_left_does_not_hold_it() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let stop = Waker::new().expect("a descriptor");
        let mut output = ConsoleOutput::from_descriptor(writer);
        assert_eq!(output.write_until(b"hello", &stop), 5);
        let mut buffer = [0; 16];
        let input = ConsoleInput::from_descriptor(reader);
        assert_eq!(input.read(&mut buffer), InputRead::Data(5));
        assert_eq!(&buffer[..5], b"hello");
        drop(input);
        assert_eq!(output.write_until(&[0; 100_000], &stop), 100_000);
    }

    /// Writes to `output` until a stop, which comes once it is held, and says whether the write
    /// ended; `free` must end a write that the stop did not.
    fn stop_ends_write(output: OwnedFd, hold: impl FnOnce(), free: impl FnOnce()) -> bool {
        let stop = Waker::new().expect("a descriptor");
        let mut output = ConsoleOutput::from_descriptor(output);
        let bytes = vec![b'\n'; 1 << 20];
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let written = output.write_until(&bytes, &stop);
                let _ = sender.send(written);
            });
            std::thread::sleep(Duration::from_millis(20));
            hold();
            std::thread::sleep(Duration::from_millis(20));
            stop.raise();
            let written = ended.recv_timeout(Duration::from_secs(10));
            free();
            written.is_ok_and(|written| written > 0 && written < bytes.len())
        })
    }

    fn flags_of(descriptor: &impl AsFd) -> OFlags {
        rustix::fs::fcntl_getfl(descriptor).expect("flags")
    }

    /// The two ends of a terminal: its screen and keyboard, and what a program writes to.
    fn terminal() -> (OwnedFd, OwnedFd) {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).expect("a terminal");
        grantpt(&screen).expect("rights");
        unlockpt(&screen).expect("unlocked");
        let name = ptsname(&screen, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program = rustix::fs::open(&*name, flags, Mode::empty()).expect("its other end");
        (screen, program)
    }

    #[test]
    fn a_stop_ends_a_write_that_no_pipe_takes() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let flags = flags_of(&writer);
        let shared = writer.try_clone().expect("a descriptor");
        assert!(stop_ends_write(writer, || {}, || drop(reader)));
        assert_eq!(flags_of(&shared), flags);
    }

    #[test]
    fn a_stop_ends_a_write_that_no_socket_takes() {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let flags = flags_of(&writer);
        let shared = writer.try_clone().expect("a descriptor");
        assert!(stop_ends_write(writer.into(), || {}, || drop(reader)));
        assert_eq!(flags_of(&shared), flags);
    }

    #[test]
    fn a_stop_ends_a_write_to_a_terminal_that_shows_nothing() {
        let (screen, program) = terminal();
        let flags = flags_of(&program);
        let shared = program.try_clone().expect("a descriptor");
        assert!(stop_ends_write(program, || {}, || drop(screen)));
        assert_eq!(flags_of(&shared), flags);
    }

    #[test]
    fn a_stop_ends_a_write_to_a_terminal_that_its_user_stopped() {
        use rustix::termios::{Action, tcflow};
        let (screen, program) = terminal();
        let keyboard = program.try_clone().expect("a descriptor");
        let input = ConsoleInput::from_descriptor(screen);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let source = [(input.source(), Interest::Readable)];
                    if let Ok([true]) = wait_any(source, Some(Duration::from_millis(1))) {
                        input.read(&mut [0; 16]);
                    }
                }
            });
            let hold = || tcflow(&keyboard, Action::OOff).expect("a stopped terminal");
            let ended = stop_ends_write(program, hold, || {
                // The reader is slow, so a held write is ended by throwing away what it wrote.
                let _ = tcflow(&keyboard, Action::OOn);
            });
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            ended
        });
        assert!(ended);
    }

    #[test]
    fn the_end_of_input_is_told() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(writer);
        let input = ConsoleInput::from_descriptor(reader);
        assert_eq!(input.read(&mut [0; 4]), InputRead::End);
    }
}
