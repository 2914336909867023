//! Where `nvx guest snapshot` waits for the init's repair of a restored copy.
//!
//! Both are in the guest, so a connection between them is captured and restored with them. The init
//! says how many restores it has heard of when a client connects, and again after each repair; a client
//! whose snapshot was restored waits for a number above the one it was greeted with.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::init::Event;

/// Where the init listens. Root's alone, as its directory is.
const SOCKET: &str = "/.nvx/run/init.sock";
/// Most clients that wait; more are turned away.
const MAX_CLIENTS: usize = 64;
/// How long the init holds itself up for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a client waits for a repair: longer than the command after a restore may take.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(30);

/// The init's side.
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

    /// Greets a client.
    pub(super) fn admit(&mut self, stream: UnixStream, restores: u64) {
        if self.streams.len() >= MAX_CLIENTS {
            // Those that have gone are noticed by writing to them.
            self.streams.retain(|stream| tell(stream, restores));
        }
        let has_room = self.streams.len() < MAX_CLIENTS;
        if has_room
            && stream.set_write_timeout(Some(WRITE_TIMEOUT)).is_ok()
            && tell(&stream, restores)
        {
            self.streams.push(stream);
        }
    }

    /// Tells everyone that restore number `restores` is repaired.
    pub(super) fn tell_repaired(&mut self, restores: u64) {
        self.streams.retain(|stream| tell(stream, restores));
    }
}

fn tell(mut stream: &UnixStream, restores: u64) -> bool {
    stream.write_all(format!("{restores}\n").as_bytes()).is_ok()
}

/// A client's side: a connection to the init, made before a snapshot is asked for.
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
    restores_before: u64,
}

impl Connection {
    /// Connects; none if this guest has another init.
    pub(super) fn open() -> io::Result<Option<Self>> {
        let stream = match UnixStream::connect(SOCKET) {
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
        stream.set_read_timeout(Some(REPAIR_TIMEOUT))?;
        let mut connection = Self {
            stream: BufReader::new(stream),
            restores_before: 0,
        };
        connection.restores_before = connection.restores()?;
        Ok(Some(connection))
    }

    /// Waits until a restore that came after the connection is repaired.
    pub(super) fn wait_for_repair(mut self) -> io::Result<()> {
        while self.restores()? <= self.restores_before {}
        Ok(())
    }

    fn restores(&mut self) -> io::Result<u64> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.trim_end().parse().map_err(io::Error::other)
    }
}
