//! Local sockets by which other processes of the same user control a VM.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::files::FileIdentity;
use super::wait::{WaitSource, Waitable};
use crate::{ControlSocketError, StreamRead};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

/// Longest path of a socket: `sun_path` less its terminating zero (unix(7)).
pub const MAX_CONTROL_PATH_BYTES: usize = 107;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

fn system_error(path: &Path, what: &'static str) -> impl Fn(Errno) -> ControlSocketError {
    let path = path.to_owned();
    move |errno| ControlSocketError::System {
        path: path.clone(),
        what,
        source: errno.into(),
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, ControlSocketError> {
    let length_bytes = path.as_os_str().len();
    if length_bytes > MAX_CONTROL_PATH_BYTES {
        return Err(ControlSocketError::PathTooLong {
            path: path.to_owned(),
            length_bytes,
            limit_bytes: MAX_CONTROL_PATH_BYTES,
        });
    }
    SocketAddrUnix::new(path).map_err(system_error(path, "use the path"))
}

fn new_socket(path: &Path, flags: SocketFlags) -> Result<OwnedFd, ControlSocketError> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags | SocketFlags::CLOEXEC,
        None,
    )
    .map_err(system_error(path, "make a socket"))
}

/// A socket that waits for connections. Dropping it removes its name.
#[derive(Debug)]
pub struct ControlListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Of the name in the file system, so that another's socket is never removed.
    identity: FileIdentity,
}

impl ControlListener {
    /// Listens at `path`, for this user alone (mode 0600). A socket that a dead process left
    /// there is replaced.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn bind(path: &Path) -> Result<Self, ControlSocketError> {
        let address = address(path)?;
        // Held while the name is looked at and taken, so that two processes that find the same
        // stale socket do not remove each other's new one.
        let _guard = lock_parent(path)?;
        remove_if_stale(path, &address)?;
        let socket = new_socket(path, SocketFlags::NONBLOCK)?;
        // Linux gives the name the mode of the socket's own inode, so it is never open to others.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)
            .map_err(system_error(path, "protect the socket"))?;
        bind(&socket, &address).map_err(system_error(path, "create the socket"))?;
        let identity = rustix::fs::lstat(path)
            .map(|status| FileIdentity {
                device: status.st_dev,
                inode: status.st_ino,
            })
            .map_err(system_error(path, "inspect the socket"))?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            identity,
        };
        listen(&listener.socket, BACKLOG).map_err(system_error(path, "listen"))?;
        Ok(listener)
    }

    /// Takes one connection that waits, if any. Never blocks.
    pub fn accept(&self) -> Option<ControlStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = accept_with(&self.socket, flags).ok()?;
        Some(ControlStream { socket })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Waitable for ControlListener {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.socket)
    }
}

impl Drop for ControlListener {
    fn drop(&mut self) {
        let still_ours = rustix::fs::lstat(&self.path).is_ok_and(|status| {
            (status.st_dev, status.st_ino) == (self.identity.device, self.identity.inode)
        });
        if still_ours {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Locks the directory of `path` until the result is dropped.
fn lock_parent(path: &Path) -> Result<OwnedFd, ControlSocketError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = rustix::fs::open(
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(system_error(path, "open the socket's directory"))?;
    // A file system without locks only loses the protection against a simultaneous start.
    let _ = rustix::fs::flock(&directory, FlockOperation::LockExclusive);
    Ok(directory)
}

fn remove_if_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ControlSocketError> {
    let status = match rustix::fs::lstat(path) {
        Ok(status) => status,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(system_error(path, "inspect the path")(errno)),
    };
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(ControlSocketError::NotASocket {
            path: path.to_owned(),
        });
    }
    let probe = new_socket(path, SocketFlags::NONBLOCK)?;
    match connect(&probe, address) {
        // Nobody has the socket open any more.
        Err(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(system_error(path, "remove the stale socket"))
        }
        Err(Errno::NOENT) => Ok(()),
        // Connected, or somebody is too busy to accept.
        _ => Err(ControlSocketError::InUse {
            path: path.to_owned(),
        }),
    }
}

/// One connection.
#[derive(Debug)]
pub struct ControlStream {
    socket: OwnedFd,
}

impl ControlStream {
    /// Connects to the VM that listens at `path`. Reads and writes of the result block.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn connect(path: &Path) -> Result<Self, ControlSocketError> {
        let address = address(path)?;
        let socket = new_socket(path, SocketFlags::empty())?;
        match connect(&socket, &address) {
            Ok(()) => Ok(Self { socket }),
            Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
                Err(ControlSocketError::NobodyListens {
                    path: path.to_owned(),
                    source: errno.into(),
                })
            }
            Err(errno) => Err(system_error(path, "connect")(errno)),
        }
    }

    /// Reads what is there. An accepted connection never blocks.
    pub fn read(&self, buffer: &mut [u8]) -> StreamRead {
        match rustix::io::read(&self.socket, buffer) {
            Ok(0) => StreamRead::End,
            Ok(length) => StreamRead::Data(length),
            Err(Errno::AGAIN | Errno::INTR) => StreamRead::Nothing,
            Err(_) => StreamRead::End,
        }
    }

    /// Writes what the other side has room for and says how much that was; `None` once it has
    /// gone away. An accepted connection never blocks.
    pub fn write(&self, bytes: &[u8]) -> Option<usize> {
        // Without MSG_NOSIGNAL a peer that went away would raise SIGPIPE.
        match rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL) {
            Ok(length) => Some(length),
            Err(Errno::AGAIN | Errno::INTR) => Some(0),
            Err(_) => None,
        }
    }
}

impl Waitable for ControlStream {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};

    #[test]
    fn a_listener_is_private_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let listener = ControlListener::bind(&path).expect("a listener");
        let metadata = std::fs::symlink_metadata(&path).expect("a name");
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(listener.accept().is_none());
        let client = ControlStream::connect(&path).expect("a connection");
        let server = listener.accept().expect("a connection");
        assert_eq!(client.write(b"hello"), Some(5));
        let mut buffer = [0; 16];
        assert_eq!(server.read(&mut buffer), StreamRead::Data(5));
        assert_eq!(server.read(&mut buffer), StreamRead::Nothing);
        drop(client);
        assert_eq!(server.read(&mut buffer), StreamRead::End);
        assert_eq!(server.write(b"x"), None);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let stale = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        drop(stale);
        let live = ControlListener::bind(&path).expect("the stale one is replaced");
        let error = ControlListener::bind(&path).expect_err("in use");
        assert!(matches!(error, ControlSocketError::InUse { .. }), "{error}");
        assert!(live.accept().is_some(), "the probe's connection");
        assert!(path.exists());
    }

    #[test]
    fn what_cannot_be_a_socket_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "kept").expect("a file");
        let error = ControlListener::bind(&file).expect_err("no socket");
        assert!(
            matches!(error, ControlSocketError::NotASocket { .. }),
            "{error}"
        );
        assert_eq!(std::fs::read(&file).expect("a file"), b"kept");
        let long = directory.path().join("x".repeat(200));
        let error = ControlListener::bind(&long).expect_err("too long");
        assert!(
            matches!(error, ControlSocketError::PathTooLong { .. }),
            "{error}"
        );
        let missing = directory.path().join("no/such/directory");
        assert!(ControlListener::bind(&missing).is_err());
        let error = ControlStream::connect(&directory.path().join("none")).expect_err("nobody");
        assert!(
            matches!(error, ControlSocketError::NobodyListens { .. }),
            "{error}"
        );
    }
}
