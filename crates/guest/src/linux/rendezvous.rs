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
                    if events.send(Event::Client(stream)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Lets one more wait, as long as there are not too many.
    pub(super) fn add(&mut self, stream: UnixStream) {
        if self.streams.len() < MAX_CLIENTS {
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

/// Asks the init for a snapshot; none if this guest has another init.
pub(super) fn ask_init() -> io::Result<Option<SnapshotOutcome>> {
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
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    let outcomes = [
        SnapshotOutcome::Restored,
        SnapshotOutcome::Refused,
        SnapshotOutcome::Source,
    ];
    let outcome = outcomes
        .into_iter()
        .find(|outcome| outcome.exit_code() == answer[0]);
    Ok(Some(outcome.ok_or(io::ErrorKind::InvalidData)?))
}
