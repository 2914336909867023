//! A peer's socket: text out, lines or counted bytes in, every wait bounded.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvx_host::{ControlSocketError, ControlStream, Interest, StreamRead, Waitable as _, wait_any};

/// Time between two attempts to reach a process that does not listen yet.
const CONNECT_INTERVAL: Duration = Duration::from_micros(100);
/// How much is read at once.
const PIECE_BYTES: usize = 4096;
/// No answer that is waited for here is longer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// What went wrong with a socket.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Nobody can be reached.
    #[error("socket {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: ControlSocketError,
    },
    /// The other side closed the connection.
    #[error("socket {}: closed by the other side", path.display())]
    Closed {
        /// The socket.
        path: PathBuf,
    },
    /// No answer came in time, or one without end.
    #[error("socket {}: no whole answer within {} s", path.display(), limit.as_secs())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The system refuses to wait.
    #[error("socket {}", path.display())]
    Wait {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A connection to a peer.
pub(super) struct Connection {
    stream: ControlStream,
    path: PathBuf,
    limit: Duration,
    received: Vec<u8>,
}

impl Connection {
    /// Connects to whoever listens at `path`, or will within `limit`, which bounds all later waits too.
    /// `alive` tells whether it is still worth waiting.
    pub(super) fn open(
        path: &Path,
        limit: Duration,
        mut alive: impl FnMut() -> bool,
    ) -> Result<Self, ConnectionError> {
        let deadline = Instant::now() + limit;
        loop {
            match ControlStream::connect(path) {
                Ok(stream) => {
                    return Ok(Self {
                        stream,
                        path: path.to_owned(),
                        limit,
                        received: Vec::new(),
                    });
                }
                Err(ControlSocketError::NobodyListens { .. })
                    if Instant::now() < deadline && alive() =>
                {
                    std::thread::sleep(CONNECT_INTERVAL);
                }
                Err(source) => {
                    return Err(ConnectionError::Connect {
                        path: path.to_owned(),
                        source,
                    });
                }
            }
        }
    }

    /// Sends all of `text`.
    pub(super) fn send(&mut self, text: &str) -> Result<(), ConnectionError> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // The stream blocks, so there is progress or an end.
            let written = self.stream.write(rest).ok_or_else(|| self.closed())?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Result<String, ConnectionError> {
        let deadline = Instant::now() + self.limit;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            self.receive(deadline)?;
        }
    }

    /// The next `length` bytes as text.
    pub(super) fn text(&mut self, length: usize) -> Result<String, ConnectionError> {
        let deadline = Instant::now() + self.limit;
        while self.received.len() < length {
            self.receive(deadline)?;
        }
        let text: Vec<u8> = self.received.drain(..length).collect();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), ConnectionError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let source = (self.stream.source(), Interest::Readable);
        let [ready] = wait_any([source], Some(left)).map_err(|source| ConnectionError::Wait {
            path: self.path.clone(),
            source,
        })?;
        if !ready {
            // A signal may have ended the wait early.
            return match Instant::now() < deadline {
                true => Ok(()),
                false => Err(self.no_answer()),
            };
        }
        let mut piece = [0; PIECE_BYTES];
        match self.stream.read(&mut piece) {
            StreamRead::Data(length) => self.received.extend_from_slice(&piece[..length]),
            StreamRead::Nothing => {}
            StreamRead::End => return Err(self.closed()),
        }
        match self.received.len() > MAX_ANSWER_BYTES {
            true => Err(self.no_answer()),
            false => Ok(()),
        }
    }

    fn closed(&self) -> ConnectionError {
        ConnectionError::Closed {
            path: self.path.clone(),
        }
    }

    fn no_answer(&self) -> ConnectionError {
        ConnectionError::NoAnswer {
            path: self.path.clone(),
            limit: self.limit,
        }
    }
}
