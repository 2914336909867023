//! Named pipes by which other processes of the same user control a VM.
//!
//! A pipe's name is `\\.\pipe\NAME`; the bare NAME is taken for it. The server's end works with
//! *overlapped* operations: one read and one write of each connection are always on their way, in
//! buffers that live until the system is done with them, and events say when they have arrived.
#![expect(
    unsafe_code,
    reason = "overlapped operations keep addresses of buffers"
)]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::windows::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_IO_INCOMPLETE, ERROR_IO_PENDING, ERROR_PIPE_BUSY,
    ERROR_PIPE_CONNECTED, ERROR_SEM_TIMEOUT, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_OVERLAPPED, PIPE_ACCESS_DUPLEX, ReadFile,
    SECURITY_IDENTIFICATION, WriteFile,
};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::{
    ConnectNamedPipe, CreateNamedPipeW, PIPE_READMODE_BYTE, PIPE_REJECT_REMOTE_CLIENTS,
    PIPE_TYPE_BYTE, PIPE_UNLIMITED_INSTANCES, PIPE_WAIT, WaitNamedPipeW,
};

use super::event::Event;
use super::security::OwnerOnly;
use super::wait::{WaitSource, Waitable};
use crate::{ControlSocketError, StreamRead};

/// Longest name of a pipe (`CreateNamedPipeW`), in characters.
pub const MAX_CONTROL_PATH_BYTES: usize = 256;
/// What every pipe's name begins with.
const PIPE_DIRECTORY: &str = r"\\.\pipe\";
/// Bytes that the system keeps in either direction, and that one operation takes.
const BUFFER_BYTES: u32 = 64 << 10;
/// How long a client waits for a server that is about to accept another connection.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_INTERVAL: Duration = Duration::from_millis(10);

/// The name of the pipe that `path` means.
fn pipe_name(path: &Path) -> Result<Vec<u16>, ControlSocketError> {
    let text = path.as_os_str().to_string_lossy();
    let slashes = text.replace('/', "\\");
    let lower = slashes.to_ascii_lowercase();
    let name = if lower.starts_with(PIPE_DIRECTORY) {
        slashes.get(PIPE_DIRECTORY.len()..).unwrap_or_default()
    } else {
        slashes.as_str()
    };
    if name.is_empty() || name.contains(['\\', ':', '\0']) {
        return Err(ControlSocketError::NotASocket {
            path: path.to_owned(),
        });
    }
    let whole = format!("{PIPE_DIRECTORY}{name}");
    if whole.len() > MAX_CONTROL_PATH_BYTES {
        return Err(ControlSocketError::PathTooLong {
            path: path.to_owned(),
            length_bytes: whole.len(),
            limit_bytes: MAX_CONTROL_PATH_BYTES,
        });
    }
    Ok(std::ffi::OsStr::new(&whole)
        .encode_wide()
        .chain([0])
        .collect())
}

fn system_error(path: &Path, what: &'static str) -> impl Fn(io::Error) -> ControlSocketError {
    let path = path.to_owned();
    move |source| ControlSocketError::System {
        path: path.clone(),
        what,
        source,
    }
}

fn code_of(error: &io::Error) -> Option<u32> {
    error.raw_os_error().map(i32::cast_unsigned)
}

/// Whether somebody serves a pipe of this name. Two that ask at the same time are told apart when they
/// create it, where the system knows FILE_FLAG_FIRST_PIPE_INSTANCE (Wine does not).
fn exists(name: &[u16]) -> bool {
    const SHORTEST_WAIT_MS: u32 = 1;
    // SAFETY: the name ends with a zero and lives until the call returns.
    let free_instance = unsafe { WaitNamedPipeW(name.as_ptr(), SHORTEST_WAIT_MS) } != 0;
    free_instance || code_of(&io::Error::last_os_error()) == Some(ERROR_SEM_TIMEOUT)
}

/// One operation on its way, with what the system needs until it is over. Boxed: it must not move.
struct Operation {
    overlapped: OVERLAPPED,
    buffer: [u8; BUFFER_BYTES as usize],
}

// SAFETY: the raw pointers in the structure are to the event, which any thread may use, and to nothing
// else; the buffer is plain data.
unsafe impl Send for Operation {}

/// How an operation stands.
enum Progress {
    /// The system has not finished it.
    Pending,
    /// It has moved this many bytes.
    Done(usize),
    /// It failed, or there is none.
    Failed,
}

/// The operation of one direction of a pipe's server end.
struct Direction {
    /// Raised while no operation is on its way.
    done: Event,
    operation: Box<Operation>,
    pending: bool,
}

impl Direction {
    fn new(done: &Event) -> Self {
        Self {
            done: done.clone(),
            operation: Box::new(Operation {
                overlapped: OVERLAPPED {
                    hEvent: done.handle(),
                    ..Default::default()
                },
                buffer: [0; BUFFER_BYTES as usize],
            }),
            pending: false,
        }
    }

    /// Waits for a client.
    fn connect(&mut self, pipe: &OwnedHandle) -> io::Result<()> {
        // SAFETY: the structure lives, unmoved, until the operation is over: whoever owns this calls
        // `end` before it goes.
        let answer =
            unsafe { ConnectNamedPipe(pipe.as_raw_handle(), &raw mut self.operation.overlapped) };
        match self.begun(answer) {
            // Somebody was quicker than this call, which then raises no event.
            Some(ERROR_PIPE_CONNECTED) => {
                self.done.raise();
                Ok(())
            }
            Some(code) => Err(io::Error::from_raw_os_error(code.cast_signed())),
            None => Ok(()),
        }
    }

    /// Begins to read; what it has read is in the buffer when the event is raised.
    fn read(&mut self, pipe: &OwnedHandle) {
        let Operation { overlapped, buffer } = &mut *self.operation;
        // SAFETY: buffer and structure live, unmoved, until the operation is over: whoever owns this
        // calls `end` before it goes.
        let answer = unsafe {
            ReadFile(
                pipe.as_raw_handle(),
                buffer.as_mut_ptr(),
                BUFFER_BYTES,
                std::ptr::null_mut(),
                overlapped,
            )
        };
        self.begun(answer);
    }

    /// Begins to write the first bytes of `bytes`; tells how many, or `None` if the client is gone.
    fn write(&mut self, pipe: &OwnedHandle, bytes: &[u8]) -> Option<usize> {
        let Operation { overlapped, buffer } = &mut *self.operation;
        let length = bytes.len().min(buffer.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
        // SAFETY: as in `read`; the length is at most the buffer's.
        let answer = unsafe {
            WriteFile(
                pipe.as_raw_handle(),
                buffer.as_ptr(),
                length as u32,
                std::ptr::null_mut(),
                overlapped,
            )
        };
        self.begun(answer).is_none().then_some(length)
    }

    /// Notes what a call that begins an operation has answered; gives the code of a failure.
    fn begun(&mut self, answer: i32) -> Option<u32> {
        let code = match answer {
            0 => code_of(&io::Error::last_os_error()).unwrap_or(ERROR_ACCESS_DENIED),
            _ => ERROR_IO_PENDING,
        };
        self.pending = code == ERROR_IO_PENDING;
        if self.pending {
            return None;
        }
        self.done.raise();
        Some(code)
    }

    fn progress(&mut self, pipe: &OwnedHandle) -> Progress {
        if !self.pending {
            return Progress::Failed;
        }
        let mut length = 0;
        // SAFETY: the structure is that of the operation on its way; 0 = do not wait.
        let done = unsafe {
            GetOverlappedResult(
                pipe.as_raw_handle(),
                &raw const self.operation.overlapped,
                &raw mut length,
                0,
            )
        };
        if done == 0 && code_of(&io::Error::last_os_error()) == Some(ERROR_IO_INCOMPLETE) {
            return Progress::Pending;
        }
        self.pending = false;
        self.done.raise();
        if done == 0 {
            return Progress::Failed;
        }
        Progress::Done(length as usize)
    }

    /// Ends the operation, so that its memory may go.
    fn end(&mut self, pipe: &OwnedHandle) {
        if !self.pending {
            return;
        }
        let mut length = 0;
        // SAFETY: the structure is that of the operation on its way. The second call waits until the
        // system is done with it, which after the first is soon.
        unsafe {
            CancelIoEx(pipe.as_raw_handle(), &raw const self.operation.overlapped);
            GetOverlappedResult(
                pipe.as_raw_handle(),
                &raw const self.operation.overlapped,
                &raw mut length,
                1,
            );
        }
        self.pending = false;
    }
}

/// An instance of the pipe that waits for a client.
struct Instance {
    /// `None` once it has been handed on.
    pipe: Option<OwnedHandle>,
    connecting: Direction,
}

impl Instance {
    /// A new instance; the event is raised when it has a client. `first`: nobody else may have a pipe of
    /// this name.
    fn new(name: &[u16], owner: &OwnerOnly, connected: &Event, first: bool) -> io::Result<Self> {
        let mut open_mode = PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED;
        if first {
            open_mode |= FILE_FLAG_FIRST_PIPE_INSTANCE;
        }
        // SAFETY: the name ends with a zero and the attributes live until the call returns.
        let handle = unsafe {
            CreateNamedPipeW(
                name.as_ptr(),
                open_mode,
                PIPE_TYPE_BYTE | PIPE_READMODE_BYTE | PIPE_WAIT | PIPE_REJECT_REMOTE_CLIENTS,
                PIPE_UNLIMITED_INSTANCES,
                BUFFER_BYTES,
                BUFFER_BYTES,
                0,
                owner.attributes(),
            )
        };
        if handle == INVALID_HANDLE_VALUE {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the handle is open and nobody else owns it.
        let pipe = unsafe { OwnedHandle::from_raw_handle(handle) };
        let mut connecting = Direction::new(connected);
        connecting.connect(&pipe)?;
        Ok(Self {
            pipe: Some(pipe),
            connecting,
        })
    }

    /// Whether a client has come (or has come and gone).
    fn is_connected(&mut self) -> bool {
        match &self.pipe {
            Some(pipe) if self.connecting.pending => {
                !matches!(self.connecting.progress(pipe), Progress::Pending)
            }
            _ => true,
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(pipe) = &self.pipe {
            self.connecting.end(pipe);
        }
    }
}

/// A pipe that waits for connections. Its name goes with it.
pub struct ControlListener {
    path: PathBuf,
    name: Vec<u16>,
    owner: OwnerOnly,
    /// `None` after the system refused another instance: then nobody else can connect.
    waiting: Mutex<Option<Instance>>,
    /// Raised while a client waits to be accepted.
    connected: Event,
}

impl std::fmt::Debug for ControlListener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ControlListener")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl ControlListener {
    /// Listens at the pipe `path` (`\\.\pipe\NAME` or NAME), for this user alone and this machine only.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn bind(path: &Path) -> Result<Self, ControlSocketError> {
        let name = pipe_name(path)?;
        let in_use = || ControlSocketError::InUse {
            path: path.to_owned(),
        };
        if exists(&name) {
            return Err(in_use());
        }
        let owner = OwnerOnly::new().map_err(system_error(path, "protect the pipe"))?;
        let connected = Event::new(false).map_err(system_error(path, "make an event"))?;
        let instance = Instance::new(&name, &owner, &connected, true).map_err(|error| {
            match code_of(&error) {
                // How the system refuses to be the first where there is one (CreateNamedPipeW,
                // FILE_FLAG_FIRST_PIPE_INSTANCE); busy: its instances are limited.
                Some(ERROR_ACCESS_DENIED | ERROR_PIPE_BUSY) => in_use(),
                _ => system_error(path, "create the pipe")(error),
            }
        })?;
        Ok(Self {
            path: path.to_owned(),
            name,
            owner,
            waiting: Mutex::new(Some(instance)),
            connected,
        })
    }

    /// Takes one connection that waits, if any. Never blocks.
    pub fn accept(&self) -> Option<ControlStream> {
        let mut waiting = lock(&self.waiting);
        let mut instance = waiting.take()?;
        if !instance.is_connected() {
            *waiting = Some(instance);
            return None;
        }
        self.connected.lower();
        let pipe = instance.pipe.take()?;
        // The name stays taken meanwhile, by the accepted instance.
        *waiting = Instance::new(&self.name, &self.owner, &self.connected, false).ok();
        ControlStream::of_server(pipe).ok()
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Waitable for ControlListener {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.connected)
    }
}

/// One connection.
pub struct ControlStream {
    end: End,
}

impl std::fmt::Debug for ControlStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ControlStream")
    }
}

enum End {
    /// Reads and writes block.
    Client { pipe: File, never: Event },
    /// They never do.
    Server {
        readable: Event,
        writable: Event,
        io: Mutex<ServerIo>,
    },
}

struct ServerIo {
    pipe: OwnedHandle,
    reading: Direction,
    writing: Direction,
    /// The part of the read buffer that was read and not taken.
    untaken: Range<usize>,
}

impl Drop for ServerIo {
    fn drop(&mut self) {
        self.reading.end(&self.pipe);
        self.writing.end(&self.pipe);
    }
}

impl ControlStream {
    fn of_server(pipe: OwnedHandle) -> io::Result<Self> {
        let readable = Event::new(false)?;
        let writable = Event::new(true)?;
        let mut reading = Direction::new(&readable);
        reading.read(&pipe);
        let io = ServerIo {
            reading,
            writing: Direction::new(&writable),
            pipe,
            untaken: 0..0,
        };
        Ok(Self {
            end: End::Server {
                readable,
                writable,
                io: Mutex::new(io),
            },
        })
    }

    /// Connects to the VM that listens at `path`. Reads and writes of the result block.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn connect(path: &Path) -> Result<Self, ControlSocketError> {
        let mut name = pipe_name(path)?;
        name.pop();
        let name = OsString::from_wide(&name);
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                // The server may learn who asks, and not act in their name.
                .security_qos_flags(SECURITY_IDENTIFICATION)
                .open(&name);
            let error = match opened {
                Ok(pipe) => {
                    let never = Event::new(false).map_err(system_error(path, "make an event"))?;
                    return Ok(Self {
                        end: End::Client { pipe, never },
                    });
                }
                Err(error) => error,
            };
            match code_of(&error) {
                Some(ERROR_PIPE_BUSY) if Instant::now() < deadline => {
                    std::thread::sleep(BUSY_INTERVAL);
                }
                _ if error.kind() == io::ErrorKind::NotFound => {
                    return Err(ControlSocketError::NobodyListens {
                        path: path.to_owned(),
                        source: error,
                    });
                }
                _ => return Err(system_error(path, "connect")(error)),
            }
        }
    }

    /// Reads what is there. An accepted connection never blocks.
    pub fn read(&self, buffer: &mut [u8]) -> StreamRead {
        match &self.end {
            End::Client { pipe, .. } => {
                let mut pipe: &File = pipe;
                match pipe.read(buffer) {
                    Ok(0) => StreamRead::End,
                    Ok(length) => StreamRead::Data(length),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => StreamRead::Nothing,
                    Err(_) => StreamRead::End,
                }
            }
            End::Server { io, .. } => lock(io).read(buffer),
        }
    }

    /// Writes what the other side has room for and says how much that was; `None` once it has
    /// gone away. An accepted connection never blocks.
    pub fn write(&self, bytes: &[u8]) -> Option<usize> {
        match &self.end {
            End::Client { pipe, .. } => {
                let mut pipe: &File = pipe;
                match pipe.write(bytes) {
                    Ok(length) => Some(length),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => Some(0),
                    Err(_) => None,
                }
            }
            End::Server { io, .. } => lock(io).write(bytes),
        }
    }
}

impl ServerIo {
    fn read(&mut self, target: &mut [u8]) -> StreamRead {
        if self.untaken.is_empty() {
            match self.reading.progress(&self.pipe) {
                Progress::Pending => return StreamRead::Nothing,
                Progress::Failed => return StreamRead::End,
                Progress::Done(length) => self.untaken = 0..length,
            }
        }
        let length = self.untaken.len().min(target.len());
        let from = self.untaken.start;
        let bytes = self.reading.operation.buffer.get(from..from + length);
        if let Some(bytes) = bytes {
            target[..length].copy_from_slice(bytes);
        }
        self.untaken.start += length;
        if self.untaken.is_empty() {
            self.reading.read(&self.pipe);
        }
        match length {
            // A client may write nothing at all.
            0 => StreamRead::Nothing,
            length => StreamRead::Data(length),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.writing.pending {
            match self.writing.progress(&self.pipe) {
                Progress::Pending => return Some(0),
                Progress::Failed => return None,
                Progress::Done(_) => {}
            }
        }
        let written = self.writing.write(&self.pipe, bytes)?;
        // Mostly it is over at once; a client that is gone is better noticed now than at the next write.
        match self.writing.progress(&self.pipe) {
            Progress::Failed => None,
            Progress::Pending | Progress::Done(_) => Some(written),
        }
    }
}

impl Waitable for ControlStream {
    fn source(&self) -> WaitSource<'_> {
        match &self.end {
            // Nobody waits for a client's end, whose reads block.
            End::Client { never, .. } => WaitSource::of(never),
            End::Server {
                readable, writable, ..
            } => WaitSource::of_both(readable, writable),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked is valid between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::wait::wait_any;
    use super::*;
    use crate::Interest;

    fn name(test: &str) -> PathBuf {
        format!("nvx-test-{test}-{}", std::process::id()).into()
    }

    fn wait_for(source: WaitSource<'_>, interest: Interest) {
        let ready = wait_any([(source, interest)], Some(Duration::from_secs(20)));
        assert_eq!(ready.expect("a wait"), [true]);
    }

    #[test]
    fn a_listener_serves_one_after_the_other() {
        let listener = ControlListener::bind(&name("serves")).expect("a pipe");
        for _ in 0..3 {
            assert!(listener.accept().is_none());
            let client = ControlStream::connect(listener.path()).expect("a connection");
            wait_for(listener.source(), Interest::Readable);
            let server = listener.accept().expect("a connection");
            let mut buffer = [0; 16];
            assert_eq!(server.read(&mut buffer), StreamRead::Nothing);
            assert_eq!(client.write(b"hello"), Some(5));
            wait_for(server.source(), Interest::Readable);
            // In pieces, since a reader's buffer may be shorter than what came.
            assert_eq!(server.read(&mut buffer[..3]), StreamRead::Data(3));
            assert_eq!(server.read(&mut buffer[3..]), StreamRead::Data(2));
            assert_eq!(&buffer[..5], b"hello");
            assert_eq!(server.read(&mut buffer), StreamRead::Nothing);
            assert_eq!(server.write(b"hi"), Some(2));
            assert_eq!(client.read(&mut buffer), StreamRead::Data(2));
            wait_for(server.source(), Interest::Writable);
            drop(client);
            wait_for(server.source(), Interest::Readable);
            assert_eq!(server.read(&mut buffer), StreamRead::End);
            assert_eq!(server.write(b"x"), None);
        }
    }

    #[test]
    fn a_client_that_does_not_read_holds_nobody() {
        let listener = ControlListener::bind(&name("deaf")).expect("a pipe");
        let client = ControlStream::connect(listener.path()).expect("a connection");
        wait_for(listener.source(), Interest::Readable);
        let server = listener.accept().expect("a connection");
        let block = [7; 32 << 10];
        let mut written = 0;
        let mut refused = 0;
        while refused < 3 {
            match server.write(&block).expect("a client") {
                0 => refused += 1,
                length => written += length,
            }
            assert!(written < 8 << 20, "a pipe without end");
        }
        let mut read = 0;
        let mut buffer = [0; 4096];
        while read < written {
            match client.read(&mut buffer) {
                StreamRead::Data(length) => read += length,
                other => panic!("{other:?} after {read} of {written}"),
            }
        }
        wait_for(server.source(), Interest::Writable);
    }

    #[test]
    fn what_was_sent_before_the_end_arrives() {
        let listener = ControlListener::bind(&name("last")).expect("a pipe");
        let client = ControlStream::connect(listener.path()).expect("a connection");
        wait_for(listener.source(), Interest::Readable);
        let server = listener.accept().expect("a connection");
        assert_eq!(server.write(b"bye"), Some(3));
        drop((server, listener));
        let mut buffer = [0; 8];
        assert_eq!(client.read(&mut buffer), StreamRead::Data(3));
        assert_eq!(client.read(&mut buffer), StreamRead::End);
    }

    #[test]
    fn a_name_is_served_once_and_free_afterwards() {
        let path = name("once");
        let first = ControlListener::bind(&path).expect("a pipe");
        let error = ControlListener::bind(&path).expect_err("in use");
        assert!(matches!(error, ControlSocketError::InUse { .. }), "{error}");
        drop(first);
        let error = ControlStream::connect(&path).expect_err("nobody");
        assert!(
            matches!(error, ControlSocketError::NobodyListens { .. }),
            "{error}"
        );
        ControlListener::bind(&path).expect("free again");
    }

    #[test]
    fn what_cannot_be_a_pipe_is_named() {
        for bad in [r"C:\temp\control", r"\\.\pipe\", "", "a/b"] {
            let error = ControlListener::bind(Path::new(bad)).expect_err(bad);
            assert!(
                matches!(error, ControlSocketError::NotASocket { .. }),
                "{error}"
            );
        }
        let error = ControlListener::bind(Path::new(&"x".repeat(300))).expect_err("too long");
        assert!(
            matches!(error, ControlSocketError::PathTooLong { .. }),
            "{error}"
        );
        let whole = pipe_name(Path::new(r"//./PIPE/nvx")).expect("a name");
        assert_eq!(whole, pipe_name(Path::new("nvx")).expect("a name"));
    }
}
