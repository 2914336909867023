//! Standard input and output as a guest's console.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::wait::{Interest, wait_any};

/// The most that one write hands over: a pipe that is writable at all takes this much without
/// blocking (pipe(7), PIPE_BUF).
const WRITE_CHUNK_BYTES: usize = 4096;

/// Where a guest's console input comes from.
pub struct ConsoleInput {
    descriptor: OwnedFd,
}

/// What reading console input gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRead {
    /// This many bytes, more than 0.
    Data(usize),
    /// Nothing at the moment.
    Nothing,
    /// The input has ended.
    End,
}

impl ConsoleInput {
    /// Standard input.
    ///
    /// # Errors
    /// The system has no descriptor left, or standard input is closed.
    pub fn stdin() -> io::Result<Self> {
        Ok(Self {
            descriptor: rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?,
        })
    }

    /// Any open descriptor.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
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

impl AsFd for ConsoleInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Where a guest's console output goes.
pub struct ConsoleOutput {
    descriptor: OwnedFd,
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

    /// Any open descriptor.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            broken: false,
        }
    }

    /// Writes as much of `bytes` as can be written before `stop` is readable, and says how much
    /// that was. A reader that reads nothing holds this call, but never beyond a stop. Once the
    /// reader has gone away everything counts as written.
    pub fn write_until(&mut self, bytes: &[u8], stop: impl AsFd) -> usize {
        let mut written = 0;
        while written < bytes.len() && !self.broken {
            let ready = wait_any(
                [
                    (self.descriptor.as_fd(), Interest::Writable),
                    (stop.as_fd(), Interest::Readable),
                ],
                None,
            );
            match ready {
                Ok([true, _]) => written += self.write_chunk(&bytes[written..]),
                Ok([false, true]) => return written,
                Ok([false, false]) => {}
                Err(_) => self.broken = true,
            }
        }
        bytes.len()
    }

    fn write_chunk(&mut self, bytes: &[u8]) -> usize {
        let chunk = &bytes[..bytes.len().min(WRITE_CHUNK_BYTES)];
        match rustix::io::write(&self.descriptor, chunk) {
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(_) => {
                self.broken = true;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wait::Waker;
    use super::*;
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

    #[test]
    fn a_stop_ends_a_write_that_nobody_reads() {
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let stop = Waker::new().expect("a descriptor");
        let mut output = ConsoleOutput::from_descriptor(writer);
        let bytes = vec![0; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.raise();
            });
            let written = output.write_until(&bytes, &stop);
            assert!(written > 0 && written < bytes.len(), "{written}");
        });
    }

    #[test]
    fn the_end_of_input_is_told() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(writer);
        let input = ConsoleInput::from_descriptor(reader);
        assert_eq!(input.read(&mut [0; 4]), InputRead::End);
    }
}
