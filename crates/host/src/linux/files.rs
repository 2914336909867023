//! Directories by handle, and what may be opened or created in them.
//!
//! A [`Directory`] is a descriptor. Names given to it are single components, are never followed when
//! they are symbolic links, and never block: a FIFO or a device in place of a file is an error that
//! says so, not a hang.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::faults::{self, StepKind};
use crate::{CreateError, DirectorySync, FileKind, FileSystemKind, OpenError};

/// Rights of directories that NVX makes: nobody but the owner.
const DIRECTORY_MODE: Mode = Mode::RWXU;
/// Rights of files that NVX makes: nobody but the owner.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open directory. Everything in it is reached relative to the descriptor.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// What makes a file one and the same: two names with equal identities are one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number on that file system.
    pub inode: u64,
}

impl Directory {
    /// Opens the directory at `path`, whose last component must not be a symbolic link.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotFound`], [`OpenError::WrongKind`] with what is there instead, or
    /// [`OpenError::System`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_path(path, OFlags::NOFOLLOW)
    }

    /// Opens the directory at `path`, which may be a symbolic link to one. For a place that the user
    /// chose, such as the parent of a new snapshot.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn open_following(path: &Path) -> Result<Self, OpenError> {
        Self::open_path(path, OFlags::empty())
    }

    fn open_path(path: &Path, extra: OFlags) -> Result<Self, OpenError> {
        // `link/` would be followed in spite of O_NOFOLLOW; `components` drops the trailing separator.
        let trimmed = path.components().as_path();
        open_directory_at(CWD, trimmed, extra, path)
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
        let name = name.as_ref();
        let path = self.path.join(name);
        if !is_one_component(name) {
            return Err(OpenError::InvalidName { path });
        }
        open_directory_at(self.as_fd(), Path::new(name), OFlags::NOFOLLOW, &path)
    }

    /// Creates the subdirectory `name` with rights 0700 and opens it.
    ///
    /// # Errors
    ///
    /// [`CreateError::Exists`] if anything has the name, [`CreateError::InvalidName`],
    /// [`CreateError::Open`] or [`CreateError::System`].
    pub fn create_subdirectory(&self, name: impl AsRef<OsStr>) -> Result<Self, CreateError> {
        let name = name.as_ref();
        self.check_new_name(name)?;
        make_directory_at(self, name)
            .map_err(|errno| self.create_error(name, "create the directory", errno))?;
        self.open_subdirectory(name).map_err(CreateError::Open)
    }

    /// Opens the regular file `name` for reading.
    ///
    /// # Errors
    ///
    /// [`OpenError::WrongKind`] for anything but a regular file, symbolic links included;
    /// [`OpenError::NotFound`], [`OpenError::InvalidName`], [`OpenError::System`].
    pub fn open_regular(&self, name: impl AsRef<OsStr>) -> Result<File, OpenError> {
        let name = name.as_ref();
        let path = self.path.join(name);
        if !is_one_component(name) {
            return Err(OpenError::InvalidName { path });
        }
        // O_NONBLOCK: opening a FIFO must not wait for its other end. It has no effect on a file.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(self, name, flags, Mode::empty()).map_err(|errno| {
            open_error(
                self.as_fd(),
                Path::new(name),
                FileKind::Regular,
                path.clone(),
                errno,
            )
        })?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| OpenError::System {
            path: path.clone(),
            operation: "examine",
            source: errno.into(),
        })?;
        match kind_of(&stat) {
            FileKind::Regular => Ok(File::from(descriptor)),
            found => Err(OpenError::WrongKind {
                path,
                found,
                wanted: FileKind::Regular,
            }),
        }
    }

    /// Creates the regular file `name` with rights 0600, open for reading and writing.
    ///
    /// # Errors
    ///
    /// [`CreateError::Exists`] if anything has the name, even a dangling symbolic link;
    /// [`CreateError::InvalidName`] or [`CreateError::System`].
    pub fn create_new(&self, name: impl AsRef<OsStr>) -> Result<File, CreateError> {
        let name = name.as_ref();
        self.check_new_name(name)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        faults::step(StepKind::CreateFile, &self.path, name)
            .and_then(|()| rustix::fs::openat(self, name, flags, FILE_MODE))
            .map(File::from)
            .map_err(|errno| self.create_error(name, "create the file", errno))
    }

    /// Creates a regular file without a name on the directory's file system, with rights 0600, open
    /// for reading and writing; `None` if the file system has no such files. It can be given a name by
    /// [`link_open_file`](crate::link_open_file).
    ///
    /// # Errors
    ///
    /// [`CreateError::System`].
    pub fn create_nameless(&self) -> Result<Option<File>, CreateError> {
        // Never with O_EXCL, which would forbid ever giving the file a name.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(self, ".", flags, FILE_MODE) {
            Ok(descriptor) => Ok(Some(File::from(descriptor))),
            // What file systems and kernels without O_TMPFILE answer.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            Err(errno) => Err(CreateError::System {
                path: self.path.clone(),
                operation: "create a file in it",
                source: errno.into(),
            }),
        }
    }

    /// What has the name `name`, without following a symbolic link; `None` if nothing has.
    ///
    /// # Errors
    ///
    /// [`OpenError::InvalidName`] or [`OpenError::System`].
    pub fn kind(&self, name: impl AsRef<OsStr>) -> Result<Option<FileKind>, OpenError> {
        Ok(self.stat(name.as_ref())?.map(|stat| kind_of(&stat)))
    }

    /// The identity of what has the name `name`, without following a symbolic link; `None` if nothing
    /// has.
    ///
    /// # Errors
    ///
    /// As [`Directory::kind`].
    pub fn identity_of(&self, name: impl AsRef<OsStr>) -> Result<Option<FileIdentity>, OpenError> {
        Ok(self.stat(name.as_ref())?.map(|stat| identity_in(&stat)))
    }

    /// The length in bytes of what has the name `name`; `None` if nothing has.
    ///
    /// # Errors
    ///
    /// As [`Directory::kind`].
    pub fn length_bytes_of(&self, name: impl AsRef<OsStr>) -> Result<Option<u64>, OpenError> {
        Ok(self
            .stat(name.as_ref())?
            .map(|stat| stat.st_size.cast_unsigned()))
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
        for entry in rustix::fs::Dir::read_from(self)? {
            if !is_self_or_parent(entry?.file_name().to_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the file `name`; a directory of that name is refused by the operating system.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        faults::step(StepKind::Remove, &self.path, name.as_ref())?;
        Ok(rustix::fs::unlinkat(self, name.as_ref(), AtFlags::empty())?)
    }

    /// Removes the directory `name`, which must be empty.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove_empty_subdirectory(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        faults::step(StepKind::Remove, &self.path, name.as_ref())?;
        Ok(rustix::fs::unlinkat(
            self,
            name.as_ref(),
            AtFlags::REMOVEDIR,
        )?)
    }

    /// Asks the kernel whether this process may create entries here: rights and read-only mounts, not
    /// quotas or security modules.
    ///
    /// # Errors
    ///
    /// The operating system's reason why not.
    pub fn check_writable(&self) -> io::Result<()> {
        use rustix::fs::Access;
        let access = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::accessat(self, ".", access, AtFlags::EACCESS) {
            // A kernel without faccessat2 cannot be asked; creating will tell.
            Ok(()) | Err(Errno::NOSYS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Brings the directory's entries to stable storage.
    ///
    /// # Errors
    ///
    /// The operating system's, except that a file system without this operation is an answer.
    pub fn sync(&self) -> io::Result<DirectorySync> {
        faults::step(StepKind::SyncDirectory, &self.path, OsStr::new(""))?;
        match rustix::fs::fsync(self) {
            Ok(()) => Ok(DirectorySync::Done),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(DirectorySync::Unsupported),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The file system that the directory lies on.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn file_system(&self) -> io::Result<FileSystem> {
        FileSystem::of(self)
    }

    /// True if `file` lies on the directory's file system, so that it can be linked into it.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn same_file_system(&self, file: impl AsFd) -> io::Result<bool> {
        Ok(self.identity()?.device == FileIdentity::of(file)?.device)
    }

    fn stat(&self, name: &OsStr) -> Result<Option<Stat>, OpenError> {
        let path = || self.path.join(name);
        if !is_one_component(name) {
            return Err(OpenError::InvalidName { path: path() });
        }
        match rustix::fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(OpenError::System {
                path: path(),
                operation: "examine",
                source: errno.into(),
            }),
        }
    }

    fn check_new_name(&self, name: &OsStr) -> Result<(), CreateError> {
        if is_one_component(name) {
            return Ok(());
        }
        Err(CreateError::InvalidName {
            path: self.path.join(name),
        })
    }

    fn create_error(&self, name: &OsStr, operation: &'static str, errno: Errno) -> CreateError {
        let path = self.path.join(name);
        match errno {
            Errno::EXIST => CreateError::Exists { path },
            _ => CreateError::System {
                path,
                operation,
                source: errno.into(),
            },
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl FileIdentity {
    /// The identity of an open file or directory.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(identity_in(&rustix::fs::fstat(file)?))
    }
}

/// A file system, as `statfs` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSystem {
    /// Which one it is.
    pub kind: FileSystemKind,
    /// The magic number (`f_type`) by which it was recognised.
    pub magic: u64,
}

/// `f_type` values: `include/uapi/linux/magic.h` and the file systems' own headers.
const FILE_SYSTEMS: &[(u64, FileSystemKind, &str)] = &[
    (0x0102_1994, FileSystemKind::Tmpfs, "tmpfs"),
    (0x8584_58f6, FileSystemKind::Ramfs, "ramfs"),
    (0x9584_58f6, FileSystemKind::Hugetlbfs, "hugetlbfs"),
    (0x0000_ef53, FileSystemKind::Ext4, "ext4"),
    (0x5846_5342, FileSystemKind::Xfs, "xfs"),
    (0x9123_683e, FileSystemKind::Btrfs, "btrfs"),
    (0xf2f5_2010, FileSystemKind::F2fs, "f2fs"),
    (0x2fc1_2fc1, FileSystemKind::Zfs, "zfs"),
    (0xca45_1a4e, FileSystemKind::Bcachefs, "bcachefs"),
    (0x794c_7630, FileSystemKind::Overlay, "overlay"),
    (0x6573_5546, FileSystemKind::Fuse, "fuse"),
    (0x7366_746e, FileSystemKind::Ntfs3, "ntfs3"),
    (0x2011_bab0, FileSystemKind::Exfat, "exfat"),
    (0x0000_4d44, FileSystemKind::Fat, "vfat"),
    (0x0000_6969, FileSystemKind::Nfs, "nfs"),
    (0xff53_4d42, FileSystemKind::Smb, "cifs"),
    (0xfe53_4d42, FileSystemKind::Smb, "smb2"),
    (0x0102_1997, FileSystemKind::NineP, "9p"),
];

impl FileSystem {
    /// The file system of an open file or directory.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        let raw = rustix::fs::fstatfs(file)?.f_type;
        // The kernel's value has 32 bits; on some architectures it arrives sign-extended.
        Ok(Self::from_magic((raw as u64) & 0xffff_ffff))
    }

    fn from_magic(magic: u64) -> Self {
        let kind = FILE_SYSTEMS
            .iter()
            .find(|(known, ..)| *known == magic)
            .map_or(FileSystemKind::Other, |(_, kind, _)| *kind);
        Self { kind, magic }
    }

    /// The usual name, such as `ext4`; `unknown` for one that is not in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        FILE_SYSTEMS
            .iter()
            .find(|(known, ..)| *known == self.magic)
            .map_or("unknown", |(_, _, name)| *name)
    }

    /// True if file contents live in memory only, so that nothing has to be written back.
    #[must_use]
    pub fn is_memory(self) -> bool {
        matches!(
            self.kind,
            FileSystemKind::Tmpfs | FileSystemKind::Ramfs | FileSystemKind::Hugetlbfs
        )
    }
}

/// Reads all of `target` from a place in a file. On some systems this moves the file's position.
///
/// # Errors
///
/// The operating system's; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
pub fn read_exact_at(file: &File, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, offset_bytes)
}

/// Creates a directory without opening it.
pub(super) fn make_directory_at(parent: &Directory, name: &OsStr) -> Result<(), rustix::io::Errno> {
    faults::step(StepKind::CreateDirectory, &parent.path, name)?;
    rustix::fs::mkdirat(parent, name, DIRECTORY_MODE)
}

/// True for a name that stays inside its directory.
pub(super) fn is_one_component(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && !is_self_or_parent(bytes) && !bytes.iter().any(|b| matches!(b, b'/' | 0))
}

/// True for the two entries that every directory has.
pub(super) fn is_self_or_parent(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// What a file is, from its mode.
pub(super) fn kind_of(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => FileKind::Unknown,
    }
}

/// The identity in a `stat` answer.
pub(super) fn identity_in(stat: &Stat) -> FileIdentity {
    FileIdentity {
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

fn open_directory_at(
    parent: BorrowedFd<'_>,
    name: &Path,
    extra: OFlags,
    path: &Path,
) -> Result<Directory, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | extra;
    let descriptor = rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|errno| {
        open_error(parent, name, FileKind::Directory, path.to_path_buf(), errno)
    })?;
    Ok(Directory {
        descriptor,
        path: path.to_path_buf(),
    })
}

/// Turns a refused `openat` into what the user needs to know. The kernel's code alone (ELOOP, ENOTDIR,
/// ENXIO) does not say what is in the way, so it is looked at once more; this decides no more than the
/// wording.
fn open_error(
    parent: BorrowedFd<'_>,
    name: &Path,
    wanted: FileKind,
    path: PathBuf,
    errno: Errno,
) -> OpenError {
    if errno == Errno::NOENT {
        return OpenError::NotFound { path };
    }
    if matches!(
        errno,
        Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::NODEV
    ) && let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
    {
        let found = kind_of(&stat);
        if found != wanted {
            return OpenError::WrongKind {
                path,
                found,
                wanted,
            };
        }
    }
    OpenError::System {
        path,
        operation: "open",
        source: errno.into(),
    }
}
