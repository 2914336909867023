//! The file in which a VM's RAM lives.
//!
//! It is born without a name where the file system can do that, and gets one only by being
//! published; a crash then leaves nothing behind. Where it cannot, the file has a name of the form
//! `.nvx-ram-<random>` and holds an exclusive lock as long as any descriptor of it is open: whoever
//! gets the lock of such a file knows that it is a leftover.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, ftruncate, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

/// How the name of a named RAM file begins.
pub const RAM_FILE_PREFIX: &str = ".nvx-ram-";

/// Names tried before giving up; a second one is needed only if a cleaner catches the file between
/// its creation and its lock.
const MAX_NAMES: u32 = 16;

/// Read and write for the owner: guest RAM holds the guest's secrets.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

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
    #[error("cannot open directory {} for a RAM file", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be made.
    #[error("cannot create a RAM file in {}", directory.display())]
    Create {
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
    directory: OwnedFd,
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
        ftruncate(&ram_file.file, size_bytes).map_err(|error| RamFileError::Resize {
            name: ram_file.display_name.clone(),
            size_bytes,
            source: error.into(),
        })?;
        Ok(ram_file)
    }

    fn create_empty(path: &Path) -> Result<Self, RamFileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            RamFileError::Directory {
                directory: path.to_owned(),
                source: error.into(),
            }
        })?;
        // Never with O_EXCL, which would forbid ever giving the file a name.
        let nameless = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&directory, ".", nameless, MODE) {
            Ok(file) => Ok(Self {
                file: file.into(),
                directory,
                display_name: path.join("(nameless)"),
                entry: None,
            }),
            // What file systems and kernels without O_TMPFILE answer.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                Self::create_named(path, directory)
            }
            Err(error) => Err(RamFileError::Create {
                directory: path.to_owned(),
                source: error.into(),
            }),
        }
    }

    fn create_named(path: &Path, directory: OwnedFd) -> Result<Self, RamFileError> {
        let failed = |error: Errno| RamFileError::Create {
            directory: path.to_owned(),
            source: error.into(),
        };
        for _ in 0..MAX_NAMES {
            let entry = random_name().map_err(failed)?;
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file: File = match openat(&directory, &entry, flags, MODE) {
                Ok(file) => file.into(),
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(failed(error)),
            };
            let display_name = path.join(&entry);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // A cleaner took the file for a leftover and is about to remove it.
                Err(Errno::WOULDBLOCK) => continue,
                Err(error) => {
                    // The name is fresh and ours; nothing else could be done about a failure.
                    let _ = unlinkat(&directory, &entry, AtFlags::empty());
                    return Err(RamFileError::Lock {
                        name: display_name,
                        source: error.into(),
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
        Err(failed(Errno::EXIST))
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
            let _ = unlinkat(&self.directory, entry, AtFlags::empty());
        }
    }
}

/// Whether `entry` of `directory` still is `file`.
fn names_file(directory: &OwnedFd, entry: &str, file: &File) -> bool {
    let named = statat(directory.as_fd(), entry, AtFlags::SYMLINK_NOFOLLOW);
    match (named, file.metadata()) {
        (Ok(named), Ok(open)) => (named.st_dev, named.st_ino) == (open.dev(), open.ino()),
        _ => false,
    }
}

fn random_name() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        // At most 256 bytes are never cut short once the pool is ready; the loop ends either way.
        filled += getrandom(
            bytes.get_mut(filled..).unwrap_or_default(),
            GetRandomFlags::empty(),
        )?;
    }
    Ok(format!(
        "{RAM_FILE_PREFIX}{:016x}",
        u64::from_ne_bytes(bytes)
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn named_in(directory: &Path) -> RamFile {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let handle = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        RamFile::create_named(directory, handle).unwrap()
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
        use std::os::fd::AsRawFd;
        let target = directory.path().join("memory.bin");
        let link = format!("/proc/self/fd/{}", ram.file().as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            link,
            rustix::fs::CWD,
            &target,
            AtFlags::SYMLINK_FOLLOW,
        )
        .unwrap();
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
        assert!(
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(RAM_FILE_PREFIX)
        );
        let mode = ram.file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let other = File::open(&path).unwrap();
        let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(Errno::WOULDBLOCK));
        let view = ram.try_clone_file().unwrap();
        drop(ram);
        assert!(!path.exists());
        assert_eq!(
            lock(),
            Err(Errno::WOULDBLOCK),
            "the view's descriptor shares the lock"
        );
        drop(view);
        assert_eq!(lock(), Ok(()));
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
        assert!(matches!(error, RamFileError::Directory { .. }));
        assert!(error.to_string().contains("/nonexistent/ram"));
    }
}
