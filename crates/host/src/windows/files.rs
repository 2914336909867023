//! Directories by handle, and what may be opened or created in them.
//!
//! A [`Directory`] is a handle. Names given to it are single components and are opened relative to it;
//! a reparse point (symbolic link, junction, mount point) is never followed, it is an error that says
//! so.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::windows::io::{AsHandle, BorrowedHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use windows_sys::Wdk::Storage::FileSystem::{FILE_CREATE, FILE_OPEN};
use windows_sys::Win32::Foundation::{
    GENERIC_READ, GENERIC_WRITE, NTSTATUS, STATUS_FILE_IS_A_DIRECTORY, STATUS_NOT_A_DIRECTORY,
    STATUS_OBJECT_NAME_COLLISION, STATUS_OBJECT_NAME_NOT_FOUND, STATUS_OBJECT_PATH_NOT_FOUND,
    STATUS_SHARING_VIOLATION,
};
use windows_sys::Win32::Storage::FileSystem::{
    DELETE, FILE_ADD_FILE, FILE_ADD_SUBDIRECTORY, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES, FILE_SHARE_DELETE,
    FILE_SHARE_MODE, FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_TRAVERSE, SYNCHRONIZE,
};

use super::facts;
use super::nt::{self, Opening, error_of};
use crate::{CreateError, DirectorySync, FileKind, FileLock, FileSystemKind, OpenError};

pub(super) const SHARE_ALL: FILE_SHARE_MODE =
    FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
/// Rights of an open directory: its entries can be listed and reached.
const DIRECTORY_ACCESS: u32 = FILE_LIST_DIRECTORY | FILE_TRAVERSE | FILE_READ_ATTRIBUTES;

/// An open directory. Everything in it is reached relative to the handle.
#[derive(Debug)]
pub struct Directory {
    handle: OwnedHandle,
    path: PathBuf,
    /// Holds the right to delete the directory, which nobody else then gets.
    claim: OnceLock<OwnedHandle>,
}

/// What makes a file one and the same: two names with equal identities are one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Serial number of the volume.
    pub volume: u64,
    /// Number of the file on that volume.
    pub file: u128,
}

impl Directory {
    /// Opens the directory at `path`, whose last component must not be a reparse point.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], [`OpenError::WrongKind`] with what is there instead, or
    /// [`OpenError::System`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_path(path, FILE_FLAG_OPEN_REPARSE_POINT)
    }

    /// Opens the directory at `path`, which may be a symbolic link or junction to one. For a place that
    /// the user chose, such as the parent of a new snapshot.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn open_following(path: &Path) -> Result<Self, OpenError> {
        Self::open_path(path, 0)
    }

    fn open_path(path: &Path, extra: u32) -> Result<Self, OpenError> {
        let system = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::NotFound {
                path: path.to_path_buf(),
            },
            _ => OpenError::System {
                path: path.to_path_buf(),
                operation: "open",
                source,
            },
        };
        // First without rights to the content, so that what is no directory can be told by its kind.
        let open = |access: u32| {
            OpenOptions::new()
                .access_mode(access | SYNCHRONIZE)
                .share_mode(SHARE_ALL)
                .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | extra)
                .open(path)
        };
        let looked_at = open(FILE_READ_ATTRIBUTES).map_err(system)?;
        let found = facts::kind_of(looked_at.as_handle()).map_err(system)?;
        if found != FileKind::Directory {
            return Err(OpenError::WrongKind {
                path: path.to_path_buf(),
                found,
                wanted: FileKind::Directory,
            });
        }
        // The same object, whatever the path leads to by now.
        let handle = nt::open_at(
            looked_at.as_handle(),
            OsStr::new(""),
            Opening {
                access: DIRECTORY_ACCESS,
                share: SHARE_ALL,
                disposition: FILE_OPEN,
                directory: true,
            },
        )
        .map_err(|status| system(error_of(status)))?;
        Ok(Self {
            handle,
            path: path.to_path_buf(),
            claim: OnceLock::new(),
        })
    }

    /// Tries to be the only one with the right to delete the directory, for as long as this value lives.
    pub(super) fn claim(&self) -> io::Result<FileLock> {
        if self.claim.get().is_some() {
            return Ok(FileLock::Taken);
        }
        let opening = Opening {
            access: DELETE,
            share: FILE_SHARE_READ | FILE_SHARE_WRITE,
            disposition: FILE_OPEN,
            directory: true,
        };
        match nt::open_at(self.as_handle(), OsStr::new(""), opening) {
            Ok(claim) => {
                self.claim.get_or_init(|| claim);
                Ok(FileLock::Taken)
            }
            Err(STATUS_SHARING_VIOLATION) => Ok(FileLock::HeldElsewhere),
            Err(status) => Err(error_of(status)),
        }
    }

    /// The path that the directory was opened by, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the subdirectory `name`.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`], and [`OpenError::InvalidName`].
    pub fn open_subdirectory(&self, name: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        self.open_subdirectory_as(name.as_ref(), DIRECTORY_ACCESS, SHARE_ALL)
    }

    /// As [`Directory::open_subdirectory`], with these rights and this sharing.
    pub(super) fn open_subdirectory_as(
        &self,
        name: &OsStr,
        access: u32,
        share: FILE_SHARE_MODE,
    ) -> Result<Self, OpenError> {
        let handle = self.open_entry(
            name,
            FileKind::Directory,
            Opening {
                access,
                share,
                disposition: FILE_OPEN,
                directory: true,
            },
        )?;
        Ok(Self {
            handle,
            path: self.path.join(name),
            claim: OnceLock::new(),
        })
    }

    /// Creates the subdirectory `name` for this user alone and opens it.
    ///
    /// # Errors
    ///
    /// [`CreateError::Exists`] if anything has the name, [`CreateError::InvalidName`] or
    /// [`CreateError::System`].
    pub fn create_subdirectory(&self, name: impl AsRef<OsStr>) -> Result<Self, CreateError> {
        self.create_subdirectory_as(name.as_ref(), DIRECTORY_ACCESS)
    }

    /// As [`Directory::create_subdirectory`]; the handle also has the right to rename and remove the
    /// directory, which shows to others that it has an owner.
    pub(super) fn create_owned_subdirectory(&self, name: &OsStr) -> Result<Self, CreateError> {
        self.create_subdirectory_as(name, DIRECTORY_ACCESS | DELETE)
    }

    fn create_subdirectory_as(&self, name: &OsStr, access: u32) -> Result<Self, CreateError> {
        let opening = Opening {
            access,
            share: SHARE_ALL,
            disposition: FILE_CREATE,
            directory: true,
        };
        Ok(Self {
            handle: self.create_entry(name, "create the directory", opening)?,
            path: self.path.join(name),
            claim: OnceLock::new(),
        })
    }

    /// Opens the regular file `name` for reading. While it is open nobody can open it for writing.
    ///
    /// # Errors
    ///
    /// [`OpenError::WrongKind`] for anything but a regular file, reparse points included;
    /// [`OpenError::NotFound`], [`OpenError::InvalidName`], [`OpenError::System`], also if somebody has
    /// it open for writing.
    pub fn open_regular(&self, name: impl AsRef<OsStr>) -> Result<File, OpenError> {
        self.open_regular_as(
            name.as_ref(),
            GENERIC_READ,
            FILE_SHARE_READ | FILE_SHARE_DELETE,
        )
    }

    /// As [`Directory::open_regular`], with these rights and this sharing.
    pub(super) fn open_regular_as(
        &self,
        name: &OsStr,
        access: u32,
        share: FILE_SHARE_MODE,
    ) -> Result<File, OpenError> {
        let opening = Opening {
            access,
            share,
            disposition: FILE_OPEN,
            directory: false,
        };
        let handle = self.open_entry(name, FileKind::Regular, opening)?;
        Ok(File::from(handle))
    }

    /// Opens the regular file `name` for reading and writing, sharing it with everybody; for a file that
    /// a user prepared, which has a lock of its own.
    ///
    /// # Errors
    ///
    /// As [`Directory::open_regular`].
    pub fn open_for_update(&self, name: impl AsRef<OsStr>) -> Result<File, OpenError> {
        self.open_regular_as(name.as_ref(), GENERIC_READ | GENERIC_WRITE, SHARE_ALL)
    }

    /// Creates the regular file `name` for this user alone, open for reading and writing. While it is open nobody else can
    /// open it for writing.
    ///
    /// # Errors
    ///
    /// [`CreateError::Exists`] if anything has the name; [`CreateError::InvalidName`] or
    /// [`CreateError::System`].
    pub fn create_new(&self, name: impl AsRef<OsStr>) -> Result<File, CreateError> {
        let opening = Opening {
            access: GENERIC_READ | GENERIC_WRITE | DELETE,
            share: FILE_SHARE_READ | FILE_SHARE_DELETE,
            disposition: FILE_CREATE,
            directory: false,
        };
        let handle = self.create_entry(name.as_ref(), "create the file", opening)?;
        Ok(File::from(handle))
    }

    /// `None`: Windows has no files without a name.
    ///
    /// # Errors
    ///
    /// None; as on other systems.
    pub fn create_nameless(&self) -> Result<Option<File>, CreateError> {
        Ok(None)
    }

    /// What has the name `name`, without following a reparse point; `None` if nothing has.
    ///
    /// # Errors
    ///
    /// [`OpenError::InvalidName`] or [`OpenError::System`].
    pub fn kind(&self, name: impl AsRef<OsStr>) -> Result<Option<FileKind>, OpenError> {
        self.examine(name.as_ref(), facts::kind_of)
    }

    /// The identity of what has the name `name`, without following a reparse point; `None` if nothing
    /// has.
    ///
    /// # Errors
    ///
    /// As [`Directory::kind`].
    pub fn identity_of(&self, name: impl AsRef<OsStr>) -> Result<Option<FileIdentity>, OpenError> {
        self.examine(name.as_ref(), facts::identity_of)
    }

    /// The length in bytes of what has the name `name`; `None` if nothing has.
    ///
    /// # Errors
    ///
    /// As [`Directory::kind`].
    pub fn length_bytes_of(&self, name: impl AsRef<OsStr>) -> Result<Option<u64>, OpenError> {
        self.examine(name.as_ref(), |handle| {
            facts::standard(handle).map(|facts| facts.EndOfFile.cast_unsigned())
        })
    }

    /// The directory's own identity.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn identity(&self) -> io::Result<FileIdentity> {
        FileIdentity::of(self)
    }

    /// True if the directory has no entries.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(facts::entries(self.as_handle(), 1)?.names.is_empty())
    }

    /// Removes the file `name`; a directory of that name is refused.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref();
        let entry = self
            .open_for_removal(name, false)
            .map_err(io::Error::from)?;
        match facts::kind_of(entry.as_handle())? {
            FileKind::Directory => Err(io::ErrorKind::IsADirectory.into()),
            _ => nt::delete(entry.as_handle()),
        }
    }

    /// Removes the directory `name`, which must be empty.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove_empty_subdirectory(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let entry = self
            .open_for_removal(name.as_ref(), true)
            .map_err(io::Error::from)?;
        nt::delete(entry.as_handle())
    }

    fn open_for_removal(&self, name: &OsStr, directory: bool) -> Result<OwnedHandle, Refused> {
        if !is_one_component(name) {
            return Err(Refused::Name);
        }
        let opening = Opening {
            access: DELETE | FILE_READ_ATTRIBUTES,
            share: SHARE_ALL,
            disposition: FILE_OPEN,
            directory,
        };
        nt::open_at(self.as_handle(), name, opening).map_err(Refused::Status)
    }

    /// Asks the system whether this process may create entries here.
    ///
    /// # Errors
    ///
    /// The operating system's reason why not.
    pub fn check_writable(&self) -> io::Result<()> {
        let opening = Opening {
            access: FILE_ADD_FILE | FILE_ADD_SUBDIRECTORY,
            share: SHARE_ALL,
            disposition: FILE_OPEN,
            directory: true,
        };
        nt::open_at(self.as_handle(), OsStr::new(""), opening)
            .map(drop)
            .map_err(error_of)
    }

    /// [`DirectorySync::Unsupported`]: Windows documents no way to bring a directory's entries to
    /// stable storage. NTFS and ReFS log changes of names and keep their order.
    ///
    /// # Errors
    ///
    /// None; as on other systems.
    pub fn sync(&self) -> io::Result<DirectorySync> {
        Ok(DirectorySync::Unsupported)
    }

    /// The file system that the directory lies on.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn file_system(&self) -> io::Result<FileSystem> {
        FileSystem::of(self)
    }

    /// True if `file` lies on the directory's volume, so that it can be linked into it.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn same_file_system(&self, file: impl AsHandle) -> io::Result<bool> {
        Ok(self.identity()?.volume == FileIdentity::of(file)?.volume)
    }

    fn examine<T>(
        &self,
        name: &OsStr,
        look: impl FnOnce(BorrowedHandle<'_>) -> io::Result<T>,
    ) -> Result<Option<T>, OpenError> {
        let path = || self.path.join(name);
        if !is_one_component(name) {
            return Err(OpenError::InvalidName { path: path() });
        }
        let opening = Opening {
            access: FILE_READ_ATTRIBUTES,
            share: SHARE_ALL,
            disposition: FILE_OPEN,
            directory: false,
        };
        let failed = |source| OpenError::System {
            path: path(),
            operation: "examine",
            source,
        };
        match nt::open_at(self.as_handle(), name, opening) {
            Ok(entry) => look(entry.as_handle()).map(Some).map_err(failed),
            Err(status) if is_absent(status) => Ok(None),
            Err(status) => Err(failed(error_of(status))),
        }
    }

    fn open_entry(
        &self,
        name: &OsStr,
        wanted: FileKind,
        opening: Opening,
    ) -> Result<OwnedHandle, OpenError> {
        let path = || self.path.join(name);
        if !is_one_component(name) {
            return Err(OpenError::InvalidName { path: path() });
        }
        let system = |operation: &'static str, source| OpenError::System {
            path: path(),
            operation,
            source,
        };
        let wrong_kind = |found| OpenError::WrongKind {
            path: path(),
            found,
            wanted,
        };
        let entry = match nt::open_at(self.as_handle(), name, opening) {
            Ok(entry) => entry,
            Err(status) if is_absent(status) => return Err(OpenError::NotFound { path: path() }),
            Err(status) => {
                // Looked at once more: this decides no more than the wording.
                let tells_kind =
                    [STATUS_NOT_A_DIRECTORY, STATUS_FILE_IS_A_DIRECTORY].contains(&status);
                return Err(match self.kind(name) {
                    Ok(Some(found)) if tells_kind && found != wanted => wrong_kind(found),
                    _ => system("open", error_of(status)),
                });
            }
        };
        match facts::kind_of(entry.as_handle()) {
            Ok(found) if found == wanted => Ok(entry),
            Ok(found) => Err(wrong_kind(found)),
            Err(source) => Err(system("examine", source)),
        }
    }

    fn create_entry(
        &self,
        name: &OsStr,
        operation: &'static str,
        opening: Opening,
    ) -> Result<OwnedHandle, CreateError> {
        let path = || self.path.join(name);
        if !is_one_component(name) {
            return Err(CreateError::InvalidName { path: path() });
        }
        nt::open_at(self.as_handle(), name, opening).map_err(|status| match status {
            STATUS_OBJECT_NAME_COLLISION => CreateError::Exists { path: path() },
            _ => CreateError::System {
                path: path(),
                operation,
                source: error_of(status),
            },
        })
    }
}

/// Why an entry could not be opened to be removed.
enum Refused {
    Name,
    Status(NTSTATUS),
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Name => io::ErrorKind::InvalidInput.into(),
            Refused::Status(status) => error_of(status),
        }
    }
}

impl AsHandle for Directory {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.handle.as_handle()
    }
}

impl FileIdentity {
    /// The identity of an open file or directory.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn of(file: impl AsHandle) -> io::Result<Self> {
        facts::identity_of(file.as_handle())
    }
}

/// A file system, as its volume describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSystem {
    /// Which one it is.
    pub kind: FileSystemKind,
}

/// Names by which `GetVolumeInformationByHandleW` tells file systems.
const FILE_SYSTEMS: &[(&str, FileSystemKind)] = &[
    ("NTFS", FileSystemKind::Ntfs),
    ("ReFS", FileSystemKind::Refs),
    ("exFAT", FileSystemKind::Exfat),
    ("FAT32", FileSystemKind::Fat),
    ("FAT", FileSystemKind::Fat),
];

impl FileSystem {
    /// The file system of an open file or directory.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn of(file: impl AsHandle) -> io::Result<Self> {
        let name = facts::file_system_name(file.as_handle())?;
        let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == name);
        Ok(Self {
            kind: known.map_or(FileSystemKind::Other, |(_, kind)| *kind),
        })
    }

    /// The usual name, such as `NTFS`; `unknown` for one that is not in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        FILE_SYSTEMS
            .iter()
            .find(|(_, kind)| *kind == self.kind)
            .map_or("unknown", |(name, _)| *name)
    }

    /// False: Windows has no file system in memory of its own.
    #[must_use]
    pub fn is_memory(self) -> bool {
        false
    }
}

/// Reads all of `target` from a place in a file. On some systems this moves the file's position.
///
/// # Errors
///
/// The operating system's; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
pub fn read_exact_at(file: &File, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = target.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.seek_read(rest, offset_bytes + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_absent(status: NTSTATUS) -> bool {
    [STATUS_OBJECT_NAME_NOT_FOUND, STATUS_OBJECT_PATH_NOT_FOUND].contains(&status)
}

/// True for a name that stays inside its directory and means the same to every program: the native
/// interface would make names that Win32 cannot reach (Microsoft's "Naming Files, Paths, and
/// Namespaces").
pub(super) fn is_one_component(name: &OsStr) -> bool {
    let units: Vec<u16> = name.encode_wide().collect();
    let forbidden = |unit: &u16| {
        *unit < 32 || char::from_u32(u32::from(*unit)).is_some_and(|c| "<>:\"/\\|?*".contains(c))
    };
    let ends_badly = units
        .last()
        .is_none_or(|last| [u16::from(b'.'), u16::from(b' ')].contains(last));
    !ends_badly && !units.iter().any(forbidden) && !is_device(name)
}

/// `CON`, `NUL`, `COM1` and the like, with any extension.
fn is_device(name: &OsStr) -> bool {
    let text = name.to_string_lossy().to_ascii_uppercase();
    let stem = text.split('.').next().unwrap_or_default().trim_end();
    match stem {
        "CON" | "PRN" | "AUX" | "NUL" => true,
        _ => {
            let digit = stem
                .strip_prefix("COM")
                .or_else(|| stem.strip_prefix("LPT"));
            digit.is_some_and(|rest| rest.len() == 1 && rest.as_bytes()[0].is_ascii_digit())
        }
    }
}
