//! Why processes cannot reach each other by a control socket.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a control socket cannot be used.
#[derive(Debug, Error)]
pub enum ControlSocketError {
    /// The path is longer than a socket's address can be.
    #[error("{}: {length_bytes} bytes are too long for a socket (at most {limit_bytes})", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length_bytes: usize,
        /// The longest that there can be.
        limit_bytes: usize,
    },
    /// Another process serves this socket.
    #[error("{}: in use by a running VM", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is no socket has this name.
    #[error("{}: exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Nothing serves this socket.
    #[error("{}: no VM listens here", path.display())]
    NobodyListens {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another step failed.
    #[error("{}: cannot {what}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// What was being done, as a verb.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
