//! The control socket's side of the monitor. Every buffer is bounded, nothing blocks, and no
//! client can do more harm than lose its own connection.

use std::collections::VecDeque;
use std::path::Path;

use nvx_host::{ControlListener, ControlStream, Interest, StreamRead, WaitSet, Waitable as _};

use super::protocol::{Command, ErrorCode, MAX_LINE_BYTES, Response, parse_request, response_line};

/// Connections at a time; further ones are told that the VM is busy.
const MAX_CLIENTS: usize = 8;
/// Responses that are kept for a client that does not read; beyond it the connection is closed.
const MAX_UNREAD_BYTES: usize = 256 << 10;
/// Bytes read at a time.
const READ_CHUNK_BYTES: usize = 4096;

/// A request and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    client: u64,
    /// The request's identifier.
    pub(crate) id: Option<String>,
    /// What is asked for.
    pub(crate) command: Command,
}

struct Client {
    number: u64,
    stream: ControlStream,
    unparsed: Vec<u8>,
    unsent: Vec<u8>,
    /// Will send no more, or is to be closed once it has its responses.
    ending: bool,
    gone: bool,
}

/// The server of one VM.
pub(crate) struct ControlServer {
    listener: ControlListener,
    clients: Vec<Client>,
    next_number: u64,
    asked: VecDeque<Asked>,
}

impl ControlServer {
    /// The socket.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    pub(crate) fn new(listener: ControlListener) -> Self {
        Self {
            listener,
            clients: Vec::new(),
            next_number: 0,
            asked: VecDeque::new(),
        }
    }

    /// Brings what `sources` waits for up to date with what could be done.
    pub(crate) fn watch(&self, sources: &WaitSet) -> std::io::Result<()> {
        sources.watch(self.listener.source(), Interest::Readable)?;
        for client in &self.clients {
            let interest = if client.unsent.is_empty() {
                Interest::Readable
            } else {
                Interest::Writable
            };
            sources.watch(client.stream.source(), interest)?;
        }
        Ok(())
    }

    /// Does what can be done without waiting: accepts, reads, writes.
    pub(crate) fn progress(&mut self) {
        // Before anybody new is let in: who has left gives a place free.
        self.serve_clients();
        while let Some(stream) = self.listener.accept() {
            self.admit(stream);
        }
        self.serve_clients();
    }

    fn serve_clients(&mut self) {
        for client in &mut self.clients {
            client.send();
            if client.unsent.is_empty() && !client.ending {
                client.receive(&mut self.asked);
                client.send();
            }
        }
        self.clients
            .retain(|client| !client.gone && (!client.ending || !client.unsent.is_empty()));
    }

    fn admit(&mut self, stream: ControlStream) {
        if self.clients.len() >= MAX_CLIENTS {
            let response = Response::error(
                None,
                ErrorCode::Busy,
                format!("{MAX_CLIENTS} connections are open already"),
            );
            // A line of this length fits any new connection's buffer.
            let _ = stream.write(&response_line(&response));
            return;
        }
        self.clients.push(Client {
            number: self.next_number,
            stream,
            unparsed: Vec::new(),
            unsent: Vec::new(),
            ending: false,
            gone: false,
        });
        self.next_number += 1;
    }

    /// The oldest request that has not been taken.
    pub(crate) fn take_request(&mut self) -> Option<Asked> {
        self.asked.pop_front()
    }

    /// Answers a request.
    pub(crate) fn respond(&mut self, asked: &Asked, response: &Response) {
        let client = self
            .clients
            .iter_mut()
            .find(|client| client.number == asked.client);
        if let Some(client) = client {
            client.queue(response);
            client.send();
        }
    }

    /// Tells everybody whose request was not carried out that the VM has ended.
    pub(crate) fn end(&mut self) {
        self.progress();
        while let Some(asked) = self.take_request() {
            let response = Response::error(asked.id.clone(), ErrorCode::Ended, "the VM has ended");
            self.respond(&asked, &response);
        }
    }
}

impl Client {
    fn queue(&mut self, response: &Response) {
        self.unsent.extend(response_line(response));
        if self.unsent.len() > MAX_UNREAD_BYTES {
            self.gone = true;
        }
    }

    fn send(&mut self) {
        if self.unsent.is_empty() || self.gone {
            return;
        }
        match self.stream.write(&self.unsent) {
            Some(length) => drop(self.unsent.drain(..length)),
            None => self.gone = true,
        }
    }

    fn receive(&mut self, asked: &mut VecDeque<Asked>) {
        let mut chunk = [0; READ_CHUNK_BYTES];
        match self.stream.read(&mut chunk) {
            StreamRead::Data(length) => self.unparsed.extend_from_slice(&chunk[..length]),
            StreamRead::Nothing => return,
            // Half a line is no request.
            StreamRead::End => {
                self.ending = true;
                return;
            }
        }
        while let Some(at) = self.unparsed.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unparsed.drain(..=at).collect();
            match parse_request(line.trim_ascii()) {
                Ok((id, command)) => asked.push_back(Asked {
                    client: self.number,
                    id,
                    command,
                }),
                Err(bad) => {
                    self.queue(&Response::error(bad.id, ErrorCode::BadRequest, bad.message));
                }
            }
        }
        if self.unparsed.len() >= MAX_LINE_BYTES {
            self.queue(&Response::error(
                None,
                ErrorCode::TooLong,
                format!("a line has at most {MAX_LINE_BYTES} bytes"),
            ));
            self.ending = true;
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::control::protocol::{CONTROL_VERSION, ResponseResult};
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    struct Rig {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
        server: ControlServer,
    }

    impl Rig {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("control");
            let listener = ControlListener::bind(&path).expect("a listener");
            Self {
                _directory: directory,
                path,
                server: ControlServer::new(listener),
            }
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).expect("a connection");
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .expect("a time limit");
            stream
        }

        fn answer_all(&mut self) {
            while let Some(asked) = self.server.take_request() {
                let response = Response {
                    version: CONTROL_VERSION,
                    id: asked.id.clone(),
                    result: ResponseResult::Done {},
                };
                self.server.respond(&asked, &response);
            }
        }
    }

    const PAUSE: &[u8] = b"{\"version\":1,\"id\":\"p\",\"command\":\"pause\"}\n";

    fn read_line(stream: &UnixStream) -> Response {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("a response")
    }

    #[test]
    fn requests_in_pieces_are_put_together_and_answered_in_order() {
        let mut rig = Rig::new();
        let mut client = rig.connect();
        for piece in PAUSE.chunks(7) {
            client.write_all(piece).expect("a reader");
            rig.server.progress();
        }
        rig.answer_all();
        let response = read_line(&client);
        assert_eq!(response.id.as_deref(), Some("p"));
        assert_eq!(response.result, ResponseResult::Done {});
    }

    #[test]
    fn garbage_is_answered_and_the_next_request_is_served() {
        let mut rig = Rig::new();
        let mut client = rig.connect();
        client.write_all(b"\x00\xff garbage\n").expect("a reader");
        rig.server.progress();
        let ResponseResult::Error { code, .. } = read_line(&client).result else {
            panic!("an error");
        };
        assert_eq!(code, ErrorCode::BadRequest);
        client.write_all(PAUSE).expect("a reader");
        rig.server.progress();
        rig.answer_all();
        assert_eq!(read_line(&client).result, ResponseResult::Done {});
    }

    #[test]
    fn an_endless_line_ends_the_connection() {
        let mut rig = Rig::new();
        let mut client = rig.connect();
        client.set_nonblocking(true).expect("a socket");
        for _ in 0..2000 {
            // 10 MiB would be 160 rounds; the server stops reading far earlier.
            let _ = client.write(&[b'x'; 65536]);
            rig.server.progress();
        }
        assert!(rig.server.clients.is_empty());
        client.set_nonblocking(false).expect("a socket");
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        assert!(text.is_empty() || text.contains("too-long"), "{text}");
    }

    #[test]
    fn a_client_that_never_reads_is_dropped_and_others_are_served() {
        let mut rig = Rig::new();
        let mut deaf = rig.connect();
        deaf.set_nonblocking(true).expect("a socket");
        let mut other = rig.connect();
        for _ in 0..20_000 {
            let _ = deaf.write(PAUSE);
            rig.server.progress();
            rig.answer_all();
        }
        let unsent: usize = rig.server.clients.iter().map(|c| c.unsent.len()).sum();
        assert!(unsent <= MAX_UNREAD_BYTES, "{unsent}");
        other.write_all(PAUSE).expect("a reader");
        rig.server.progress();
        rig.answer_all();
        assert_eq!(read_line(&other).result, ResponseResult::Done {});
    }

    #[test]
    fn too_many_connections_are_told_so() {
        let mut rig = Rig::new();
        let clients: Vec<UnixStream> = (0..MAX_CLIENTS).map(|_| rig.connect()).collect();
        rig.server.progress();
        let surplus = rig.connect();
        rig.server.progress();
        let ResponseResult::Error { code, .. } = read_line(&surplus).result else {
            panic!("an error");
        };
        assert_eq!(code, ErrorCode::Busy);
        drop(clients);
        // Their places are free for the next one at once.
        let mut next = rig.connect();
        next.write_all(PAUSE).expect("a reader");
        rig.server.progress();
        rig.answer_all();
        assert_eq!(read_line(&next).result, ResponseResult::Done {});
        assert_eq!(rig.server.clients.len(), 1);
    }

    #[test]
    fn half_a_line_is_no_request_and_the_end_is_told() {
        let mut rig = Rig::new();
        let mut half = rig.connect();
        half.write_all(b"{\"version\":1").expect("a reader");
        let mut waiting = rig.connect();
        waiting.write_all(PAUSE).expect("a reader");
        half.shutdown(std::net::Shutdown::Write).expect("a socket");
        rig.server.end();
        let ResponseResult::Error { code, .. } = read_line(&waiting).result else {
            panic!("an error");
        };
        assert_eq!(code, ErrorCode::Ended);
        rig.server.progress();
        assert_eq!(rig.server.clients.len(), 1);
    }
}
