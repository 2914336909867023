//! Where `nvx guest snapshot` meets the init, which has the control line.
//!
//! Both are in the guest, so a connection between them is captured and restored with them: the client in
//! the copy gets its answer from the copy's init, once that has repaired the copy.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::init::Event;
use crate::SnapshotOutcome;

/// Where the init listens. Root's alone, as its directory is.
const SOCKET: &str = "/.nvx/run/init.sock";
/// A client's first byte: it asks the monitor itself, and waits for the outcome only.
const ASKS_ITSELF: u8 = b'p';
/// A client's first byte: the init is to ask.
const INIT_ASKS: u8 = b'l';
/// The init's first answer: the client is among those who wait.
const NOTED: u8 = b'n';
/// How long the init waits for a client's first byte.
const KIND_TIMEOUT: Duration = Duration::from_secs(1);
/// Most clients that wait; more are turned away.
const MAX_CLIENTS: usize = 64;
/// How long a client waits for its answer, on the guest's clock, which stands still during a capture:
/// longer than the command after a restore may take.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients whose snapshot is not decided.
#[derive(Default)]
pub(super) struct Clients {
    streams: Vec<UnixStream>,
}

impl Clients {
    /// A thread that posts each client.
    pub(super) fn listen(events: Sender<Event>) -> io::Result<()> {
        let socket = Path::new(SOCKET);
        if let Some(directory) = socket.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
        }
        let listener = UnixListener::bind(socket)?;
        std::thread::Builder::new()
            .name("clients".to_owned())
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    // Said at once by whoever is no fool; nobody else waits long for one who is.
                    let _ = stream.set_read_timeout(Some(KIND_TIMEOUT));
                    let mut kind = [0];
                    if (&stream).read_exact(&mut kind).is_err() {
                        continue;
                    }
                    let asks_itself = kind == [ASKS_ITSELF];
                    let client = Event::Client {
                        stream,
                        asks_itself,
                    };
                    if events.send(client).is_err() {
                        return;
                    }
                }
            })?;
        Ok(())
    }

    /// Lets one more wait, as long as there are not too many, and tells it so.
    pub(super) fn add(&mut self, mut stream: UnixStream) {
        // One byte fits into any socket; a client that has gone needs none.
        if self.streams.len() < MAX_CLIENTS && stream.write_all(&[NOTED]).is_ok() {
            self.streams.push(stream);
        }
    }

    /// Lets all that wait with `others` wait here.
    pub(super) fn take_over(&mut self, others: &mut Self) {
        self.streams.append(&mut others.streams);
    }

    /// Answers all, who then wait no more.
    pub(super) fn answer(&mut self, outcome: SnapshotOutcome) {
        for mut stream in self.streams.drain(..) {
            // One byte fits into any socket; a client that has gone needs no answer.
            let _ = stream.write_all(&[outcome.exit_code()]);
        }
    }
}

/// A client's connection to the init.
pub(super) struct Waiting {
    stream: UnixStream,
}

impl Waiting {
    /// Waits with the init for what becomes of the next request; none if this guest has another init. Unless the
    /// client `asks_itself`, the init asks the monitor.
    pub(super) fn begin(asks_itself: bool) -> io::Result<Option<Self>> {
        let mut stream = match UnixStream::connect(SOCKET) {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let kind = if asks_itself { ASKS_ITSELF } else { INIT_ASKS };
        stream.write_all(&[kind])?;
        let mut noted = [0];
        stream.read_exact(&mut noted)?;
        if noted != [NOTED] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some(Self { stream }))
    }

    /// Waits for the outcome.
    pub(super) fn outcome(mut self) -> io::Result<SnapshotOutcome> {
        let mut answer = [0];
        self.stream.read_exact(&mut answer)?;
        let outcomes = [
            SnapshotOutcome::Restored,
            SnapshotOutcome::Refused,
            SnapshotOutcome::Source,
        ];
        outcomes
            .into_iter()
            .find(|outcome| outcome.exit_code() == answer[0])
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
