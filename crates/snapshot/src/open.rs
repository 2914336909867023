//! Opening a snapshot.
//!
//! The directory is opened first and everything else relative to it, so that a snapshot whose path is
//! swapped meanwhile is read from one directory or not at all. Only regular files are opened, no
//! symbolic link is followed, and sizes are bounded before anything is read or allocated. Memory content
//! is never read here.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use nvx_host::{Directory, FileKind};

use crate::manifest::limits::MAX_MANIFEST_BYTES;
use crate::manifest::{Manifest, ManifestError};
use crate::state::{MAX_STATE_BYTES, StateError, StateReader, StateTable};
use crate::{Digest, MANIFEST_FILE, MEMORY_FILE, STATE_FILE};

/// Why a snapshot could not be opened. Every text starts with the path of the file at fault.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no such directory.
    #[error("{}: does not exist", path.display())]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The path leads to something else than a directory; a symbolic link to one is not followed.
    #[error("{}: is {found}, not a directory", path.display())]
    NotDirectory {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        found: FileKind,
    },
    /// The directory is empty: the mark of a capture that was cut off at its commit, on a file system
    /// where that takes two steps.
    #[error("{}: no snapshot, the directory is empty", path.display())]
    NoSnapshot {
        /// The path as given.
        path: PathBuf,
    },
    /// A file that every snapshot has is not there.
    #[error("{}: does not exist", path.display())]
    Missing {
        /// The file's path.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
    },
    /// Something else stands in a file's place.
    #[error("{}: is {found}, not a regular file", path.display())]
    NotRegular {
        /// The file's path.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
        /// What it is.
        found: FileKind,
    },
    /// A file is longer than any such file may be.
    #[error("{}: {length_bytes} bytes, more than the limit of {limit_bytes}", path.display())]
    TooLarge {
        /// The file's path.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
        /// Its length in bytes.
        length_bytes: u64,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A file has another length than the manifest says.
    #[error("{}: {length_bytes} bytes, manifest says {recorded_bytes}", path.display())]
    Length {
        /// The file's path.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
        /// Its length in bytes.
        length_bytes: u64,
        /// The length in bytes that the manifest gives.
        recorded_bytes: u64,
    },
    /// A file became longer or shorter while it was read.
    #[error("{}: its length changed while it was read", path.display())]
    Changed {
        /// The file's path.
        path: PathBuf,
        /// The file's name.
        file: &'static str,
    },
    /// The snapshot was written with a schema version that this build cannot read.
    #[error(
        "{}: schema_version {found}, this build reads {supported}; the snapshot was written by {producer}",
        path.display()
    )]
    VersionMismatch {
        /// The manifest's path.
        path: PathBuf,
        /// The version in the manifest.
        found: u64,
        /// The version that this build reads.
        supported: u32,
        /// Who wrote it, as far as the manifest says so.
        producer: String,
    },
    /// The manifest is not valid.
    #[error("{}: not valid", path.display())]
    Manifest {
        /// The manifest's path.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// The state does not have the digest that the manifest gives.
    #[error("{}: does not match the digest in the manifest", path.display())]
    StateDigest {
        /// The state's path.
        path: PathBuf,
    },
    /// The state is not a state file, though it is the one that the manifest means.
    #[error("{}: not valid", path.display())]
    State {
        /// The state's path.
        path: PathBuf,
        /// What is wrong.
        source: StateError,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    Io {
        /// The path of the directory or file.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// An opened and checked snapshot.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    manifest: Manifest,
    state: Vec<u8>,
    state_table: StateTable,
    memory: File,
}

impl Snapshot {
    /// Opens the snapshot in the directory `path` and checks all that can be checked without reading
    /// memory content: the manifest as a whole, the state's length, digest and envelope, the memory
    /// file's length.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. A path without anything is [`OpenError::NotFound`], an empty directory
    /// [`OpenError::NoSnapshot`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_in(&open_directory(path)?)
    }

    /// As [`open`](Self::open), in a directory that is open already.
    pub(crate) fn open_in(directory: &Directory) -> Result<Self, OpenError> {
        let manifest = read_manifest(directory)?;
        let (state, state_table) = read_state(directory, &manifest)?;
        let memory = open_memory(directory, &manifest)?;
        Ok(Self {
            path: directory.path().to_path_buf(),
            manifest,
            state,
            state_table,
            memory,
        })
    }

    /// The directory's path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the memory file, for messages.
    #[must_use]
    pub fn memory_path(&self) -> PathBuf {
        self.path.join(MEMORY_FILE)
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A reader over the state, with nothing taken yet.
    ///
    /// # Errors
    ///
    /// None in practice: the envelope was checked when the snapshot was opened.
    pub fn state(&self) -> Result<StateReader<'_>, StateError> {
        self.state_table.reader(&self.state)
    }

    /// Checks each payload of the state against its own digest. Opening has compared the whole file
    /// with the manifest, so this finds only what was wrong when the snapshot was written.
    ///
    /// # Errors
    ///
    /// [`StateError::PayloadDigest`].
    pub fn verify_state(&self) -> Result<(), StateError> {
        self.state_table.verify(&self.state)
    }

    /// The memory file, open for reading only.
    #[must_use]
    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Gives up the snapshot and keeps its memory file.
    #[must_use]
    pub fn into_memory(self) -> File {
        self.memory
    }
}

pub(crate) fn open_directory(path: &Path) -> Result<Directory, OpenError> {
    Directory::open(path).map_err(|error| match error {
        nvx_host::OpenError::NotFound { path } => OpenError::NotFound { path },
        nvx_host::OpenError::WrongKind { path, found, .. } => {
            OpenError::NotDirectory { path, found }
        }
        nvx_host::OpenError::InvalidName { path } => OpenError::NotFound { path },
        nvx_host::OpenError::System {
            path,
            operation,
            source,
        } => OpenError::Io {
            path,
            operation,
            source,
        },
    })
}

/// Opens a regular file of the snapshot and measures it.
fn open_file(
    directory: &Directory,
    file: &'static str,
    limit_bytes: u64,
) -> Result<(File, u64), OpenError> {
    let opened = directory.open_regular(file).map_err(|error| match error {
        nvx_host::OpenError::NotFound { path } | nvx_host::OpenError::InvalidName { path } => {
            OpenError::Missing { path, file }
        }
        nvx_host::OpenError::WrongKind { path, found, .. } => {
            OpenError::NotRegular { path, file, found }
        }
        nvx_host::OpenError::System {
            path,
            operation,
            source,
        } => OpenError::Io {
            path,
            operation,
            source,
        },
    })?;
    let path = || directory.path().join(file);
    let metadata = opened.metadata().map_err(|source| OpenError::Io {
        path: path(),
        operation: "examine",
        source,
    })?;
    let length_bytes = metadata.len();
    if length_bytes > limit_bytes {
        return Err(OpenError::TooLarge {
            path: path(),
            file,
            length_bytes,
            limit_bytes,
        });
    }
    Ok((opened, length_bytes))
}

/// Reads a whole file whose length is known and bounded.
fn read_whole(
    directory: &Directory,
    file: &'static str,
    opened: File,
    length_bytes: u64,
) -> Result<Vec<u8>, OpenError> {
    let path = || directory.path().join(file);
    // One byte more than expected, so that a file that grows is noticed and cannot grow without end.
    let mut bytes = Vec::with_capacity(length_bytes as usize + 1);
    opened
        .take(length_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| OpenError::Io {
            path: path(),
            operation: "read",
            source,
        })?;
    if bytes.len() as u64 != length_bytes {
        return Err(OpenError::Changed { path: path(), file });
    }
    Ok(bytes)
}

fn check_length(
    directory: &Directory,
    file: &'static str,
    length_bytes: u64,
    recorded_bytes: u64,
) -> Result<(), OpenError> {
    if length_bytes == recorded_bytes {
        return Ok(());
    }
    Err(OpenError::Length {
        path: directory.path().join(file),
        file,
        length_bytes,
        recorded_bytes,
    })
}

fn read_manifest(directory: &Directory) -> Result<Manifest, OpenError> {
    let opened = open_file(directory, MANIFEST_FILE, MAX_MANIFEST_BYTES as u64);
    if matches!(opened, Err(OpenError::Missing { .. })) {
        let path = directory.path().to_path_buf();
        match directory.is_empty() {
            Ok(true) => return Err(OpenError::NoSnapshot { path }),
            Ok(false) => {}
            Err(source) => {
                return Err(OpenError::Io {
                    path,
                    operation: "list",
                    source,
                });
            }
        }
    }
    let (file, length_bytes) = opened?;
    let bytes = read_whole(directory, MANIFEST_FILE, file, length_bytes)?;
    let path = || directory.path().join(MANIFEST_FILE);
    Manifest::decode(&bytes).map_err(|error| match error {
        ManifestError::VersionMismatch {
            found,
            supported,
            producer,
        } => OpenError::VersionMismatch {
            path: path(),
            found,
            supported,
            producer,
        },
        source => OpenError::Manifest {
            path: path(),
            source,
        },
    })
}

fn read_state(
    directory: &Directory,
    manifest: &Manifest,
) -> Result<(Vec<u8>, StateTable), OpenError> {
    let (file, length_bytes) = open_file(directory, STATE_FILE, MAX_STATE_BYTES as u64)?;
    check_length(
        directory,
        STATE_FILE,
        length_bytes,
        manifest.state.length_bytes,
    )?;
    let bytes = read_whole(directory, STATE_FILE, file, length_bytes)?;
    let path = || directory.path().join(STATE_FILE);
    if Digest::of(&bytes) != manifest.state.digest {
        return Err(OpenError::StateDigest { path: path() });
    }
    // The digest covers every payload, so that their own need not be made again.
    let table = StateTable::parse(&bytes).map_err(|source| OpenError::State {
        path: path(),
        source,
    })?;
    Ok((bytes, table))
}

fn open_memory(directory: &Directory, manifest: &Manifest) -> Result<File, OpenError> {
    // Validation left exactly one layer, whose file has this name; its length is bounded by equality.
    let (file, length_bytes) = open_file(directory, MEMORY_FILE, u64::MAX)?;
    let recorded_bytes = manifest
        .memory
        .first()
        .map_or(0, |layer| layer.length_bytes);
    check_length(directory, MEMORY_FILE, length_bytes, recorded_bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests;
