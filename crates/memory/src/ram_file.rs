//! The file in which a VM's RAM lives.
//!
//! It is born without a name where the file system can do that, and gets one only by being
//! published; a crash then leaves nothing behind. Where it cannot, the file has a name of the form
//! `.nvx-ram-<random>` and holds an exclusive lock as long as any descriptor of it is open: whoever
//! gets the lock of such a file knows that it is a leftover.
//!
//! A user may also hand over a file that was prepared beforehand ([`RamFile::open_prepared`]), such as
//! one whose blocks were allocated by a tool of its file system. It is used as it is, stays when the VM
//! ends, and loses its name only when it has become a snapshot's memory, which must not be written to
//! again.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nvx_host::{
    CreateError, Directory, FileIdentity, FileLock, OpenError, RAM_FILE_PREFIX, random_name,
    try_lock_exclusive,
};
use thiserror::Error;

use crate::choice::RamFileChoice;
use crate::os;

/// Names tried before giving up; a second one is needed only if a cleaner catches the file between
/// its creation and its lock.
const MAX_NAMES: u32 = 16;

/// Whether a RAM file has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RamFileKind {
    /// Made by `O_TMPFILE`; can be given a name by linking `/proc/self/fd/N`.
    Nameless,
    /// Has a name in its directory, since the file system knows no nameless files.
    Named,
    /// The user's file.
    Prepared,
}

/// Why there is no RAM file.
#[derive(Debug, Error)]
pub enum RamFileError {
    /// The directory cannot be opened.
    #[error("no directory for a RAM file")]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The file cannot be made.
    #[error("cannot create a RAM file in {}", directory.display())]
    Create {
        /// The directory.
        directory: PathBuf,
        /// Why.
        source: CreateError,
    },
    /// There is no random name to be had for the file.
    #[error("cannot find a name for a RAM file in {}", directory.display())]
    Name {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be locked.
    #[error("cannot lock RAM file {}", name.display())]
    Lock {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be given its length.
    #[error("cannot give RAM file {} a length of {size_bytes} bytes", name.display())]
    Resize {
        /// The file.
        name: PathBuf,
        /// The wanted length in bytes.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The file's blocks cannot be allocated. Where the file system knows no such request, NVX does
    /// not imitate it by writing: that would write the whole file once before it is used.
    #[error("cannot allocate {size_bytes} bytes for RAM file {}", name.display())]
    Allocate {
        /// The file.
        name: PathBuf,
        /// The wanted length in bytes.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The path of a prepared file ends in no file name.
    #[error("{} names no prepared RAM file", path.display())]
    PreparedName {
        /// The path.
        path: PathBuf,
    },
    /// The prepared file cannot be opened for reading and writing; a symbolic link is refused.
    #[error("cannot open prepared RAM file {}", path.display())]
    OpenPrepared {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The prepared file is a directory, a device or the like.
    #[error("prepared RAM file {} is not a regular file", path.display())]
    PreparedKind {
        /// The file.
        path: PathBuf,
    },
    /// The prepared file has another length than RAM.
    #[error("prepared RAM file {} has {length_bytes} bytes, but guest RAM needs {needed_bytes}", path.display())]
    PreparedLength {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        length_bytes: u64,
        /// The length of guest RAM in the file, in bytes.
        needed_bytes: u64,
    },
    /// Another process holds the prepared file's lock.
    #[error("prepared RAM file {} is in use", path.display())]
    PreparedInUse {
        /// The file.
        path: PathBuf,
    },
    /// The prepared file has a second name: it may be a snapshot's memory.
    #[error("prepared RAM file {} has {links} names; it may be the memory of a snapshot", path.display())]
    PreparedShared {
        /// The file.
        path: PathBuf,
        /// The number of its names.
        links: u64,
    },
    /// The prepared file holds something.
    #[error("prepared RAM file {} is not empty at offset {offset_bytes}, but guest RAM begins as zeros", path.display())]
    PreparedContent {
        /// The file.
        path: PathBuf,
        /// Start of the first piece, at most a mebibyte long, that is not all zeros.
        offset_bytes: u64,
    },
    /// The prepared file cannot be read.
    #[error("cannot read prepared RAM file {}", path.display())]
    ReadPrepared {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The descriptor cannot be duplicated.
    #[error("cannot duplicate the descriptor of RAM file {}", name.display())]
    Duplicate {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A RAM file; a new one has mode 0600 and is nobody else's.
///
/// Dropping it removes a named file's name, if that name still is this file's: a file published by
/// a link keeps its published name, one published by renaming is not touched. A prepared file's name
/// is removed only if the file has been published by a link.
#[derive(Debug)]
pub struct RamFile {
    file: File,
    directory: Directory,
    display_name: PathBuf,
    /// The name in `directory` of a named or prepared file.
    entry: Option<OsString>,
    kind: RamFileKind,
}

impl RamFile {
    /// Makes a sparse RAM file of `size_bytes` bytes in `directory`.
    ///
    /// # Errors
    /// [`RamFileError`].
    pub fn create(directory: &Path, size_bytes: u64) -> Result<Self, RamFileError> {
        let ram_file = Self::create_empty(directory)?;
        ram_file
            .file
            .set_len(size_bytes)
            .map_err(|source| RamFileError::Resize {
                name: ram_file.display_name.clone(),
                size_bytes,
                source,
            })?;
        Ok(ram_file)
    }

    /// Makes a RAM file of `size_bytes` bytes in `directory`, all of whose blocks are allocated.
    ///
    /// # Errors
    /// [`RamFileError`]; [`Allocate`](RamFileError::Allocate) where the file system is full or knows
    /// no such request.
    pub fn create_dense(directory: &Path, size_bytes: u64) -> Result<Self, RamFileError> {
        let ram_file = Self::create_empty(directory)?;
        os::storage::allocate(&ram_file.file, size_bytes).map_err(|source| {
            RamFileError::Allocate {
                name: ram_file.display_name.clone(),
                size_bytes,
                source,
            }
        })?;
        Ok(ram_file)
    }

    /// Makes or opens the RAM file that the user chose; a new one in `directory`.
    ///
    /// # Errors
    /// [`RamFileError`].
    pub fn obtain(
        choice: &RamFileChoice,
        directory: &Path,
        size_bytes: u64,
    ) -> Result<Self, RamFileError> {
        match choice {
            RamFileChoice::Auto | RamFileChoice::Sparse => Self::create(directory, size_bytes),
            RamFileChoice::Dense => Self::create_dense(directory, size_bytes),
            RamFileChoice::Prepared(path) => Self::open_prepared(path, size_bytes),
        }
    }

    /// Opens a file that the user prepared, and locks it for as long as a descriptor of it is open.
    /// What it holds is what guest RAM holds at first.
    ///
    /// # Errors
    /// [`RamFileError`]: not a regular file of exactly `size_bytes` bytes, in use, or known by a
    /// second name. Then the file is as before.
    pub fn open_prepared(path: &Path, size_bytes: u64) -> Result<Self, RamFileError> {
        let entry =
            path.file_name()
                .map(OsStr::to_owned)
                .ok_or_else(|| RamFileError::PreparedName {
                    path: path.to_owned(),
                })?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory =
            Directory::open_following(parent).map_err(|source| RamFileError::Directory {
                directory: parent.to_owned(),
                source,
            })?;
        let failed = |source| RamFileError::OpenPrepared {
            path: path.to_owned(),
            source,
        };
        let file = os::open_for_update(&directory, &entry).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(RamFileError::PreparedKind {
                path: path.to_owned(),
            });
        }
        if metadata.len() != size_bytes {
            return Err(RamFileError::PreparedLength {
                path: path.to_owned(),
                length_bytes: metadata.len(),
                needed_bytes: size_bytes,
            });
        }
        match try_lock_exclusive(&file) {
            Ok(FileLock::Taken | FileLock::Unsupported) => {}
            Ok(FileLock::HeldElsewhere) => {
                return Err(RamFileError::PreparedInUse {
                    path: path.to_owned(),
                });
            }
            Err(source) => {
                return Err(RamFileError::Lock {
                    name: path.to_owned(),
                    source,
                });
            }
        }
        let links = os::link_count(&file).map_err(failed)?;
        if links != 1 {
            return Err(RamFileError::PreparedShared {
                path: path.to_owned(),
                links,
            });
        }
        Ok(Self {
            file,
            directory,
            display_name: path.to_owned(),
            entry: Some(entry),
            kind: RamFileKind::Prepared,
        })
    }

    /// Checks that the file is fit to be a new machine's RAM: that it reads as zeros; and lets nobody
    /// but its owner read it from now on. A file that NVX made is both.
    ///
    /// # Errors
    /// [`RamFileError`]: a prepared file holds something, or cannot be read.
    pub fn claim_for_new_machine(&self) -> Result<(), RamFileError> {
        if self.kind != RamFileKind::Prepared {
            return Ok(());
        }
        let failed = |source| RamFileError::ReadPrepared {
            path: self.display_name.clone(),
            source,
        };
        let length_bytes = self.file.metadata().map_err(failed)?.len();
        if let Some(offset_bytes) =
            os::storage::find_content(&self.file, length_bytes).map_err(failed)?
        {
            return Err(RamFileError::PreparedContent {
                path: self.display_name.clone(),
                offset_bytes,
            });
        }
        // Some file systems have one mode for all files; whoever mounts them decides then.
        let _ = os::restrict_to_owner(&self.file);
        Ok(())
    }

    fn create_empty(path: &Path) -> Result<Self, RamFileError> {
        let directory =
            Directory::open_following(path).map_err(|source| RamFileError::Directory {
                directory: path.to_owned(),
                source,
            })?;
        match directory.create_nameless() {
            Ok(Some(file)) => Ok(Self {
                file,
                directory,
                display_name: path.join("(nameless)"),
                entry: None,
                kind: RamFileKind::Nameless,
            }),
            Ok(None) => Self::create_named(directory),
            Err(source) => Err(RamFileError::Create {
                directory: path.to_owned(),
                source,
            }),
        }
    }

    fn create_named(directory: Directory) -> Result<Self, RamFileError> {
        let path = directory.path().to_owned();
        let failed = |source| RamFileError::Create {
            directory: path.clone(),
            source,
        };
        for _ in 0..MAX_NAMES {
            let entry = random_name(RAM_FILE_PREFIX).map_err(|source| RamFileError::Name {
                directory: path.clone(),
                source,
            })?;
            let file = match directory.create_new(&entry) {
                Ok(file) => file,
                Err(CreateError::Exists { .. }) => continue,
                Err(error) => return Err(failed(error)),
            };
            let display_name = path.join(&entry);
            match try_lock_exclusive(&file) {
                // Where there are no locks nobody gets one, and so nobody removes the file.
                Ok(FileLock::Taken | FileLock::Unsupported) => {}
                // A cleaner took the file for a leftover and is about to remove it.
                Ok(FileLock::HeldElsewhere) => continue,
                Err(source) => {
                    // The name is fresh and ours; nothing else could be done about a failure.
                    let _ = directory.remove_file(&entry);
                    return Err(RamFileError::Lock {
                        name: display_name,
                        source,
                    });
                }
            }
            // A cleaner may have removed the name before the lock was ours.
            if names_file(&directory, entry.as_ref(), &file) {
                return Ok(Self {
                    file,
                    directory,
                    display_name,
                    entry: Some(entry.into()),
                    kind: RamFileKind::Named,
                });
            }
        }
        Err(failed(CreateError::NoFreeName {
            path: path.clone(),
            prefix: RAM_FILE_PREFIX,
            attempts: MAX_NAMES,
        }))
    }

    /// The file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A second descriptor of the file, for a view; it shares the lock of a named file.
    ///
    /// # Errors
    /// [`RamFileError::Duplicate`].
    pub fn try_clone_file(&self) -> Result<File, RamFileError> {
        self.file
            .try_clone()
            .map_err(|source| RamFileError::Duplicate {
                name: self.display_name.clone(),
                source,
            })
    }

    /// Whether the file has a name, and whose it is.
    pub fn kind(&self) -> RamFileKind {
        self.kind
    }

    /// The path of a named or prepared file, as long as nobody renames it.
    pub fn path(&self) -> Option<&Path> {
        self.entry.as_ref().map(|_| self.display_name.as_path())
    }

    /// What to call the file in messages; not the path of anything if it is nameless.
    pub fn display_name(&self) -> &Path {
        &self.display_name
    }
}

impl Drop for RamFile {
    fn drop(&mut self) {
        let ours = match self.kind {
            RamFileKind::Nameless => false,
            RamFileKind::Named => true,
            RamFileKind::Prepared => os::link_count(&self.file).is_ok_and(|links| links > 1),
        };
        if let Some(entry) = &self.entry
            && ours
            && names_file(&self.directory, entry, &self.file)
        {
            // After a privilege drop it may be refused; then the next start's cleaner removes it.
            let _ = self.directory.remove_file(entry);
        }
    }
}

/// Whether `entry` of `directory` still is `file`.
fn names_file(directory: &Directory, entry: &OsStr, file: &File) -> bool {
    match (directory.identity_of(entry), FileIdentity::of(file)) {
        (Ok(Some(named)), Ok(open)) => named == open,
        _ => false,
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
