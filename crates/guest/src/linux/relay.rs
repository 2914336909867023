//! The console as a stream: between the serial line and the pipes of the command.
//!
//! A serial line is a terminal to whoever holds it and cannot be at its end. So where the user has no
//! terminal the command gets pipes, as it would on the host, and these threads carry the bytes.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::OwnedFd;

/// Bytes that are carried at a time.
const CHUNK_BYTES: usize = 4096;
/// Bytes that may still be carried once the command has ended: what its pipe can hold (pipe(7)). A
/// process that it left behind could write for ever.
const LAST_BYTES: usize = 64 << 10;
/// How long the line must be silent before input counts as ended although bytes are missing: they were
/// lost, and a command that waits for its input's end must get it.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// A flag that a polling thread sees.
#[derive(Clone)]
struct Flag(Arc<OwnedFd>);

impl Flag {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(eventfd(0, flags)?)))
    }

    fn raise(&self) {
        // Fails only if it is raised already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Which of two descriptors can be read, after `timeout` at the latest.
fn wait(one: impl AsFd, other: impl AsFd, timeout: Option<Duration>) -> io::Result<[bool; 2]> {
    let mut entries = [
        PollFd::new(&one, PollFlags::IN),
        PollFd::new(&other, PollFlags::IN),
    ];
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut entries, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(entries.map(|entry| !entry.revents().is_empty()))
}

/// The command's output on its way to the console.
pub(super) struct OutputRelay {
    ended: Flag,
    thread: JoinHandle<()>,
}

impl OutputRelay {
    pub(super) fn start(pipe: PipeReader, console: File) -> io::Result<Self> {
        let ended = Flag::new()?;
        let flag = ended.clone();
        let thread = std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                // The console takes everything as long as the machine runs.
                let _ = relay_output(pipe, &console, &flag);
            })?;
        Ok(Self { ended, thread })
    }

    /// Waits until everything that the command wrote is with the console.
    pub(super) fn finish(self) {
        self.ended.raise();
        // It never panics, and nothing could be done about it.
        let _ = self.thread.join();
    }
}

fn relay_output(mut pipe: PipeReader, mut console: &File, ended: &Flag) -> io::Result<()> {
    let mut buffer = [0; CHUNK_BYTES];
    let mut left = None;
    loop {
        let [readable, has_ended] = wait(&pipe, &ended.0, None)?;
        if has_ended && left.is_none() {
            left = Some(LAST_BYTES);
        }
        if readable && left != Some(0) {
            match pipe.read(&mut buffer)? {
                0 => return Ok(()),
                length => {
                    console.write_all(&buffer[..length])?;
                    left = left.map(|left| left.saturating_sub(length));
                }
            }
        } else if has_ended {
            return Ok(());
        }
    }
}

/// The console's input on its way to the command.
pub(super) struct InputRelay {
    end: Arc<Mutex<Option<u64>>>,
    told: Flag,
}

impl InputRelay {
    pub(super) fn start(console: File, pipe: PipeWriter) -> io::Result<Self> {
        let relay = Self {
            end: Arc::default(),
            told: Flag::new()?,
        };
        let (end, told) = (Arc::clone(&relay.end), relay.told.clone());
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || {
                let _ = relay_input(&console, pipe, &end, &told);
            })?;
        Ok(relay)
    }

    /// The input ends with the byte that makes `bytes` of them since the machine was booted.
    pub(super) fn end_after(&self, bytes: u64) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        self.told.raise();
    }
}

fn relay_input(
    mut console: &File,
    pipe: PipeWriter,
    end: &Mutex<Option<u64>>,
    told: &Flag,
) -> io::Result<()> {
    let mut pipe = Some(pipe);
    let mut buffer = [0; CHUNK_BYTES];
    let mut taken = 0;
    loop {
        let end = *end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_some_and(|end| taken >= end) {
            // Closes it: the command sees the end. A restored copy may be told of input again, which
            // nobody waits for.
            pipe = None;
        }
        let timeout = end.filter(|_| pipe.is_some()).map(|_| LOST_AFTER);
        let [readable, is_told] = wait(console, &told.0, timeout)?;
        if is_told {
            told.lower();
        }
        if readable {
            let length = console.read(&mut buffer)?;
            taken += length as u64;
            if let Some(writer) = &mut pipe
                && writer.write_all(&buffer[..length]).is_err()
            {
                // The command reads no more.
                pipe = None;
            }
        } else if !is_told && timeout.is_some() {
            pipe = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two ends of what stands for the serial line.
    fn line() -> (File, File) {
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        (OwnedFd::from(one).into(), OwnedFd::from(other).into())
    }

    #[test]
    fn output_is_complete_although_another_process_holds_the_pipe() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let (ours, mut theirs) = line();
        let text = vec![b'x'; 50_000];
        writer.write_all(&text).expect("written");
        let relay = OutputRelay::start(reader, ours).expect("a thread");
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            theirs.read_to_end(&mut bytes).expect("read");
            bytes
        });
        relay.finish();
        assert!(reading.join().expect("read") == text);
        drop(writer);
    }

    #[test]
    fn input_ends_after_the_bytes_that_were_announced() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let (ours, mut theirs) = line();
        let relay = InputRelay::start(ours, writer).expect("a thread");
        relay.end_after(10);
        let reading = std::thread::spawn(move || io::read_to_string(reader).expect("read"));
        for part in ["hello ", "all", "!"] {
            theirs.write_all(part.as_bytes()).expect("written");
        }
        assert_eq!(reading.join().expect("read"), "hello all!");
    }

    #[test]
    fn input_ends_at_once_where_there_is_none() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let (ours, _theirs) = line();
        let relay = InputRelay::start(ours, writer).expect("a thread");
        relay.end_after(0);
        assert_eq!(io::read_to_string(reader).expect("read"), "");
    }

    #[test]
    fn input_that_was_lost_does_not_hold_its_end_for_ever() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let (ours, mut theirs) = line();
        let relay = InputRelay::start(ours, writer).expect("a thread");
        theirs.write_all(b"hello").expect("written");
        relay.end_after(6);
        assert_eq!(io::read_to_string(reader).expect("read"), "hello");
    }
}
