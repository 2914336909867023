//! What the file system of a directory can do, by trying it with a few small files.
#![expect(
    unsafe_code,
    reason = "a shared mapping is tried by making and removing one"
)]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::probe::{ScratchError, ScratchFacts, Support};
use crate::{
    CreateError, Directory, DirectorySync, FileLock, FileSystem, FileSystemKind, LockedDirectory,
    ReflinkError, STAGING_PREFIX, create_locked_directory, link_open_file, reflink,
    try_lock_exclusive,
};

/// Content of the trial file: several blocks of any file system.
const TRIAL_BYTES: usize = 64 * 1024;
/// Names in the trial directory.
const CONTENT: &str = "content";
const CLONE: &str = "clone";
const LINKED: &str = "linked";
/// A boot sector, of which the file system's name is the start.
const BOOT_SECTOR_BYTES: usize = 512;

/// Examines the directory at `path`, which may be a symbolic link to one, and tries on its file
/// system what RAM files and publications need. Nothing of it stays behind.
///
/// # Errors
///
/// [`ScratchError`] if the directory cannot be used at all.
pub fn scratch(path: &Path) -> Result<ScratchFacts, ScratchError> {
    let directory = Directory::open_following(path).map_err(ScratchError::Open)?;
    let examine = |source| ScratchError::Examine {
        path: path.to_owned(),
        source,
    };
    let file_system = directory.file_system().map_err(examine)?;
    let space = rustix::fs::fstatvfs(&directory).map_err(|errno| examine(errno.into()))?;
    if space.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(examine(Errno::ROFS.into()));
    }
    let mount = Mount::of(&directory);
    let behind = Behind::of(file_system, mount.as_ref());

    let trial = Trial::begin(&directory).map_err(ScratchError::Create)?;
    let content = trial.content().map_err(|source| ScratchError::Write {
        path: path.to_owned(),
        source,
    })?;
    Ok(ScratchFacts {
        path: path.to_owned(),
        file_system,
        driver: behind.name(file_system),
        valid_data_length: behind.valid_data_length(file_system),
        source: mount.map(|mount| mount.source),
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        nameless_files: trial.nameless_files(),
        rename_method: trial.own.rename_method,
        locks: trial.locks(),
        shared_mapping: shared_mapping(&content),
        reflink: trial.reflink(&content),
        hole_punching: hole_punching(&content),
        directory_sync: match trial.own.directory.sync() {
            Ok(DirectorySync::Done) => Support::Yes,
            Ok(DirectorySync::Unsupported) => Support::No,
            Err(error) => unclear(&error),
        },
    })
}

/// A staging directory for trials; dropping it removes what they made. If the process is killed the
/// next clean-up removes it, as it does any other.
struct Trial<'a> {
    parent: &'a Directory,
    own: LockedDirectory,
}

impl<'a> Trial<'a> {
    fn begin(parent: &'a Directory) -> Result<Self, CreateError> {
        let own = create_locked_directory(parent, STAGING_PREFIX)?;
        Ok(Self { parent, own })
    }

    /// A file with something in it.
    fn content(&self) -> io::Result<File> {
        let mut file = self.create(CONTENT)?;
        file.write_all(&[0x5a; TRIAL_BYTES])?;
        Ok(file)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.own.directory.create_new(name).map_err(|error| {
            let text = error.to_string();
            match error {
                CreateError::System { source, .. } => source,
                _ => io::Error::other(text),
            }
        })
    }

    fn nameless_files(&self) -> Support {
        match self.own.directory.create_nameless() {
            Ok(Some(file)) => match link_open_file(&file, &self.own.directory, LINKED) {
                Ok(()) => Support::Yes,
                Err(error) => unclear(&error),
            },
            Ok(None) => Support::No,
            Err(error) => unclear(&error),
        }
    }

    fn locks(&self) -> Support {
        // The lock is this descriptor's own already, so that only its absence can be found.
        match try_lock_exclusive(&self.own.directory) {
            Ok(FileLock::Taken | FileLock::HeldElsewhere) => Support::Yes,
            Ok(FileLock::Unsupported) => Support::No,
            Err(error) => unclear(&error),
        }
    }

    fn reflink(&self, content: &File) -> Support {
        let clone = match self.create(CLONE) {
            Ok(clone) => clone,
            Err(error) => return unclear(&error),
        };
        match reflink(content, &clone) {
            Ok(()) => {
                let mut byte = [0];
                match clone.read_exact_at(&mut byte, TRIAL_BYTES as u64 - 1) {
                    Ok(()) if byte == [0x5a] => Support::Yes,
                    Ok(()) => unclear(&"the clone has other content"),
                    Err(error) => unclear(&error),
                }
            }
            Err(ReflinkError::System(error)) if error.raw_os_error() != Some(libc::EINVAL) => {
                unclear(&error)
            }
            // EINVAL: XFS without the feature answers so.
            Err(_) => Support::No,
        }
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        for name in [CONTENT, CLONE, LINKED] {
            // Most trials make only some of them.
            let _ = self.own.directory.remove_file(name);
        }
        let _ = self.parent.remove_empty_subdirectory(&self.own.name);
    }
}

fn unclear(reason: &impl std::fmt::Display) -> Support {
    Support::Unclear {
        reason: reason.to_string(),
    }
}

fn shared_mapping(file: &File) -> Support {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            TRIAL_BYTES,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )
    };
    match mapped {
        Ok(address) => {
            // SAFETY: the mapping was made above with this length, and nothing refers to it.
            let _ = unsafe { munmap(address, TRIAL_BYTES) };
            Support::Yes
        }
        Err(Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP) => Support::No,
        Err(errno) => unclear(&io::Error::from(errno)),
    }
}

fn hole_punching(file: &File) -> Support {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, mode, 0, TRIAL_BYTES as u64) {
        Ok(()) => Support::Yes,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Support::No,
        Err(errno) => unclear(&io::Error::from(errno)),
    }
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    kind: String,
    source: String,
}

impl Mount {
    /// The mount that `directory` is reached by; `None` where the kernel does not tell.
    fn of(directory: &Directory) -> Option<Self> {
        let wanted = StatxFlags::MNT_ID;
        let found = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, wanted).ok()?;
        if found.stx_mask & wanted.bits() == 0 {
            return None;
        }
        Self::from_table(
            &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
            found.stx_mnt_id,
        )
    }

    fn from_table(table: &str, mount_id: u64) -> Option<Self> {
        let id = mount_id.to_string();
        let line = table
            .lines()
            .find(|line| line.split(' ').next() == Some(&id))?;
        // Optional fields of any number stand before the separator.
        let (_, rest) = line.split_once(" - ")?;
        let mut fields = rest.split(' ');
        Some(Self {
            kind: fields.next()?.to_owned(),
            source: unescape(fields.next()?),
        })
    }
}

/// Octal escapes of spaces and the like.
fn unescape(text: &str) -> String {
    [
        (r"\040", " "),
        (r"\011", "\t"),
        (r"\012", "\n"),
        (r"\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// What is behind a FUSE file system on a block device.
#[derive(Debug, PartialEq, Eq)]
enum Behind {
    /// The driver is what it says.
    Itself,
    /// A volume with this format.
    Volume(&'static str),
    /// A volume, and why its format is unknown.
    Unreadable(String),
    /// A FUSE file system without a block device; the mount type where it is known.
    Server(Option<String>),
}

impl Behind {
    fn of(file_system: FileSystem, mount: Option<&Mount>) -> Self {
        if file_system.kind != FileSystemKind::Fuse {
            return Self::Itself;
        }
        match mount {
            Some(mount) if mount.kind == "fuseblk" => match boot_sector(Path::new(&mount.source)) {
                Ok(sector) => match volume_format(&sector) {
                    Some(format) => Self::Volume(format),
                    None => Self::Unreadable(format!("{} has no known format", mount.source)),
                },
                Err(error) => Self::Unreadable(format!("{}: {error}", mount.source)),
            },
            Some(mount) => Self::Server(Some(mount.kind.clone())),
            None => Self::Server(None),
        }
    }

    fn name(&self, file_system: FileSystem) -> String {
        match self {
            Self::Itself => file_system.name().to_owned(),
            Self::Volume(format) => format!("{format} by FUSE"),
            Self::Unreadable(_) => "a volume by FUSE".to_owned(),
            Self::Server(kind) => kind.clone().unwrap_or_else(|| "fuse".to_owned()),
        }
    }

    fn valid_data_length(&self, file_system: FileSystem) -> Support {
        match (self, file_system.kind) {
            (Self::Itself, FileSystemKind::Ntfs3 | FileSystemKind::Exfat) => Support::Yes,
            (Self::Volume(_), _) => Support::Yes,
            (Self::Unreadable(reason), _) => unclear(reason),
            (Self::Server(_), _) => unclear(&"a FUSE file system does not tell"),
            (Self::Itself, FileSystemKind::Other) => unclear(&"unknown file system"),
            (Self::Itself, FileSystemKind::Nfs | FileSystemKind::Smb | FileSystemKind::NineP) => {
                unclear(&"the server does not tell")
            }
            (Self::Itself, _) => Support::No,
        }
    }
}

/// The formats with a valid data length, by the name in the boot sector at offset 3 (exFAT
/// specification, section 3.1.2; NTFS alike).
fn volume_format(sector: &[u8; BOOT_SECTOR_BYTES]) -> Option<&'static str> {
    match &sector[3..11] {
        b"NTFS    " => Some("ntfs"),
        b"EXFAT   " => Some("exfat"),
        _ => None,
    }
}

fn boot_sector(device: &Path) -> io::Result<[u8; BOOT_SECTOR_BYTES]> {
    // A mount's source is a text that the mounting program chose: nothing but a block device is read.
    let mut file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(device)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::other("not a block device"));
    }
    let mut sector = [0; BOOT_SECTOR_BYTES];
    file.read_exact(&mut sector)?;
    Ok(sector)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn names(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn trials_leave_nothing_behind_and_find_what_is_there() {
        for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
            let directory = tempfile::tempdir_in(parent).unwrap();
            let facts = scratch(directory.path()).unwrap();
            assert_eq!(names(directory.path()), 0);
            assert_eq!(facts.shared_mapping, Support::Yes, "{facts:?}");
            assert!(facts.free_bytes > 0, "{facts:?}");
            assert!(!facts.driver.is_empty());
            if facts.file_system.kind == FileSystemKind::Tmpfs {
                assert_eq!(facts.reflink, Support::No, "{facts:?}");
                assert_eq!(facts.nameless_files, Support::Yes, "{facts:?}");
                assert_eq!(facts.hole_punching, Support::Yes, "{facts:?}");
                assert_eq!(facts.valid_data_length, Support::No, "{facts:?}");
                assert_eq!(facts.source.as_deref(), Some("tmpfs"), "{facts:?}");
            }
        }
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [&directory.path().join("gone"), &file] {
            let error = scratch(path).unwrap_err();
            assert!(matches!(error, ScratchError::Open(_)), "{error:?}");
        }
        let error = scratch(Path::new("/proc")).unwrap_err();
        assert!(matches!(error, ScratchError::Create(_)), "{error:?}");
        assert_eq!(names(directory.path()), 1);
    }

    #[test]
    fn the_mount_is_found_by_its_number() {
        let table = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
                     221 27 7:1 / /mnt/a\\040b rw shared:5 master:1 - fuseblk /dev/my\\040disk rw\n";
        let mount = Mount::from_table(table, 221).unwrap();
        assert_eq!(mount.kind, "fuseblk");
        assert_eq!(mount.source, "/dev/my disk");
        assert_eq!(Mount::from_table(table, 2), None);
    }

    #[test]
    fn formats_are_named_by_the_boot_sector() {
        let sector = |name: &[u8; 8]| {
            let mut sector = [0; BOOT_SECTOR_BYTES];
            sector[3..11].copy_from_slice(name);
            sector
        };
        assert_eq!(volume_format(&sector(b"NTFS    ")), Some("ntfs"));
        assert_eq!(volume_format(&sector(b"EXFAT   ")), Some("exfat"));
        assert_eq!(volume_format(&sector(b"MSDOS5.0")), None);
    }

    #[test]
    fn a_source_that_is_no_block_device_is_not_read() {
        assert!(boot_sector(Path::new("/dev/zero")).is_err());
        assert!(boot_sector(Path::new("/proc/self/mountinfo")).is_err());
    }

    #[test]
    fn what_fuse_hides_is_said() {
        let fuse = FileSystem {
            kind: FileSystemKind::Fuse,
            magic: 0x6573_5546,
        };
        let mount = |kind: &str, source: &str| Mount {
            kind: kind.to_owned(),
            source: source.to_owned(),
        };
        let server = Behind::of(fuse, Some(&mount("fuse.sshfs", "host:")));
        assert_eq!(server.name(fuse), "fuse.sshfs");
        let volume = Behind::of(fuse, Some(&mount("fuseblk", "/dev/no-such-device")));
        let Support::Unclear { reason } = volume.valid_data_length(fuse) else {
            panic!("{volume:?}");
        };
        assert!(reason.contains("/dev/no-such-device"), "{reason}");
        let ntfs = Behind::Volume("ntfs");
        assert_eq!(ntfs.valid_data_length(fuse), Support::Yes);
        assert_eq!(ntfs.name(fuse), "ntfs by FUSE");
    }
}
