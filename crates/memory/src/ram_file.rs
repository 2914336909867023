//! The file in which a VM's RAM lives.
//!
//! It is born without a name where the file system can do that, and gets one only by being
//! published; a crash then leaves nothing behind. Where it cannot, the file has a name of the form
//! `.nvx-ram-<random>` and holds an exclusive lock as long as any descriptor of it is open: whoever
//! gets the lock of such a file knows that it is a leftover.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nvx_host::{
    CreateError, Directory, FileIdentity, FileLock, OpenError, RAM_FILE_PREFIX, random_name,
    try_lock_exclusive,
};
use thiserror::Error;

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
    /// The descriptor cannot be duplicated.
    #[error("cannot duplicate the descriptor of RAM file {}", name.display())]
    Duplicate {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A new RAM file: sparse, mode 0600, nobody else's.
///
/// Dropping it removes a named file's name, if that name still is this file's: a file published by
/// a link keeps its published name, one published by renaming is not touched.
#[derive(Debug)]
pub struct RamFile {
    file: File,
    directory: Directory,
    display_name: PathBuf,
    /// The name in `directory` of a named file.
    entry: Option<String>,
}

impl RamFile {
    /// Makes a RAM file of `size_bytes` bytes in `directory`.
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
            if names_file(&directory, &entry, &file) {
                return Ok(Self {
                    file,
                    directory,
                    display_name,
                    entry: Some(entry),
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

    /// Whether the file has a name.
    pub fn kind(&self) -> RamFileKind {
        match self.entry {
            Some(_) => RamFileKind::Named,
            None => RamFileKind::Nameless,
        }
    }

    /// The path of a named file, as long as nobody renames it.
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
        if let Some(entry) = &self.entry
            && names_file(&self.directory, entry, &self.file)
        {
            // After a privilege drop it may be refused; then the next start's cleaner removes it.
            let _ = self.directory.remove_file(entry);
        }
    }
}

/// Whether `entry` of `directory` still is `file`.
fn names_file(directory: &Directory, entry: &str, file: &File) -> bool {
    match (directory.identity_of(entry), FileIdentity::of(file)) {
        (Ok(Some(named)), Ok(open)) => named == open,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn named_in(directory: &Path) -> RamFile {
        RamFile::create_named(Directory::open(directory).unwrap()).unwrap()
    }

    fn entries(directory: &Path) -> Vec<String> {
        let names = std::fs::read_dir(directory).unwrap();
        names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_ram_file_is_sparse_private_and_leaves_nothing_behind() {
        for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
            let directory = tempfile::tempdir_in(parent).unwrap();
            let ram = RamFile::create(directory.path(), SIZE).unwrap();
            let metadata = ram.file().metadata().unwrap();
            assert_eq!((metadata.len(), metadata.blocks()), (SIZE, 0));
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
            if ram.kind() == RamFileKind::Nameless {
                assert_eq!(ram.path(), None);
                assert_eq!(metadata.nlink(), 0);
                assert_eq!(entries(directory.path()), [""; 0]);
            }
            drop(ram);
            assert_eq!(entries(directory.path()), [""; 0]);
        }
    }

    #[test]
    fn a_nameless_file_can_be_given_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let ram = RamFile::create(directory.path(), SIZE).unwrap();
        if ram.kind() != RamFileKind::Nameless {
            println!("skipped: no O_TMPFILE in {}", directory.path().display());
            return;
        }
        let target = directory.path().join("memory.bin");
        let parent = Directory::open(directory.path()).unwrap();
        nvx_host::link_open_file(ram.file(), &parent, "memory.bin").unwrap();
        ram.file().write_all_at(b"ram", 0).unwrap();
        drop(ram);
        assert_eq!(&std::fs::read(&target).unwrap()[..3], b"ram");
    }

    #[test]
    fn a_named_file_is_locked_while_it_lives_and_then_removed() {
        let directory = tempfile::tempdir().unwrap();
        let ram = named_in(directory.path());
        assert_eq!(ram.kind(), RamFileKind::Named);
        let path = ram.path().unwrap().to_owned();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(RAM_FILE_PREFIX));
        let mode = ram.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let other = File::open(&path).unwrap();
        let lock = || try_lock_exclusive(&other).unwrap();
        assert_eq!(lock(), FileLock::HeldElsewhere);
        let view = ram.try_clone_file().unwrap();
        drop(ram);
        assert!(!path.exists());
        assert_eq!(
            lock(),
            FileLock::HeldElsewhere,
            "the view's descriptor shares the lock"
        );
        drop(view);
        assert_eq!(lock(), FileLock::Taken);
    }

    #[test]
    fn publishing_a_named_file_keeps_the_published_name_only() {
        let directory = tempfile::tempdir().unwrap();
        let linked = named_in(directory.path());
        std::fs::hard_link(linked.path().unwrap(), directory.path().join("linked")).unwrap();
        let renamed = named_in(directory.path());
        std::fs::rename(renamed.path().unwrap(), directory.path().join("renamed")).unwrap();
        // Somebody else's file under our old name stays.
        let foreign = renamed.path().unwrap().to_owned();
        std::fs::write(&foreign, b"foreign").unwrap();
        drop((linked, renamed));
        let mut left = entries(directory.path());
        left.sort();
        let foreign = foreign.file_name().unwrap().to_str().unwrap();
        assert_eq!(left, [foreign, "linked", "renamed"]);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = RamFile::create(Path::new("/nonexistent/ram"), SIZE).unwrap_err();
        let RamFileError::Directory { directory, source } = error else {
            panic!("{error}");
        };
        assert_eq!(directory, Path::new("/nonexistent/ram"));
        assert!(source.to_string().contains("/nonexistent/ram"));
    }
}
