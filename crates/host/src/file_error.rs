//! What can go wrong with a name in a directory, one type per operation.
//!
//! Every error holds the whole path that it is about; the operating system's own words stay in the
//! source.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO (named pipe).
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Something that the operating system does not name.
    Unknown,
}

impl fmt::Display for FileKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FileKind::Regular => "a regular file",
            FileKind::Directory => "a directory",
            FileKind::Symlink => "a symbolic link",
            FileKind::Fifo => "a FIFO",
            FileKind::Socket => "a socket",
            FileKind::CharacterDevice => "a character device",
            FileKind::BlockDevice => "a block device",
            FileKind::Unknown => "of an unknown kind",
        })
    }
}

/// Why an existing file or directory could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nothing has this name.
    #[error("{}: does not exist", path.display())]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The name belongs to something else than what was asked for.
    #[error("{}: is {found}, not {wanted}", path.display())]
    WrongKind {
        /// The path that was asked for.
        path: PathBuf,
        /// What it is.
        found: FileKind,
        /// What it must be.
        wanted: FileKind,
    },
    /// The name is empty, is `.` or `..`, or has a separator or a NUL in it.
    #[error("{}: not a name of one component", path.display())]
    InvalidName {
        /// The directory joined with the name.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    System {
        /// The path that was asked for.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// Why a new file or directory could not be created.
#[derive(Debug, Error)]
pub enum CreateError {
    /// Something already has this name; nothing was changed.
    #[error("{}: already exists", path.display())]
    Exists {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The name is empty, is `.` or `..`, or has a separator or a NUL in it.
    #[error("{}: not a name of one component", path.display())]
    InvalidName {
        /// The directory joined with the name.
        path: PathBuf,
    },
    /// What was just made could not be opened.
    #[error("cannot open what was just created")]
    Open(#[source] OpenError),
    /// Names were tried until the limit, and each was taken or vanished at once.
    #[error("{}: no free name starting with {prefix} after {attempts} attempts", path.display())]
    NoFreeName {
        /// The directory in which the name was to be.
        path: PathBuf,
        /// The fixed part of the name.
        prefix: &'static str,
        /// How many names were tried.
        attempts: u32,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    System {
        /// The path that was asked for.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// Why an open file could not be given a name.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Something already has this name; nothing was changed.
    #[error("{}: already exists", path.display())]
    Exists {
        /// The name that was wanted.
        path: PathBuf,
    },
    /// The file lies on another file system than the directory.
    #[error("{}: the file to link lies on another file system", path.display())]
    OtherFileSystem {
        /// The name that was wanted.
        path: PathBuf,
    },
    /// The file had a name once and has none now. Linux lets a nameless file be linked only once, so a
    /// file whose link was taken back can be published by copying only.
    #[error("{}: the file to link has lost its last name and cannot get another", path.display())]
    NotLinkable {
        /// The name that was wanted.
        path: PathBuf,
    },
    /// The name was made, but it stands for another file than the one given.
    #[error("{}: the name does not stand for the file that was linked", path.display())]
    NotTheSameFile {
        /// The name that was wanted.
        path: PathBuf,
    },
    /// The name is empty, is `.` or `..`, or has a separator or a NUL in it.
    #[error("{}: not a name of one component", path.display())]
    InvalidName {
        /// The directory joined with the name.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    System {
        /// The name that was wanted.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// Why a file could not be made a reflink of another: a file of its own that shares the other's blocks
/// until one of the two is written.
#[derive(Debug, Error)]
pub enum ReflinkError {
    /// The file system, or the kernel's code for it, cannot share blocks between files.
    #[error("the file system cannot share blocks between files")]
    Unsupported,
    /// The two files lie on different file systems.
    #[error("the files lie on different file systems")]
    OtherFileSystem,
    /// The operating system refused.
    #[error("cannot share the file's blocks")]
    System(#[source] io::Error),
}

/// Why a directory could not be renamed without replacing anything.
#[derive(Debug, Error)]
pub enum RenameError {
    /// Something already has the new name; nothing was changed.
    #[error("{}: already exists", path.display())]
    Exists {
        /// The new path.
        path: PathBuf,
    },
    /// A name is empty, is `.` or `..`, or has a separator or a NUL in it.
    #[error("{}: not a name of one component", path.display())]
    InvalidName {
        /// The directory joined with the name.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    System {
        /// The new path.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}
