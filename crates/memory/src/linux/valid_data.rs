//! Whether the file system of a file keeps a valid data length.
//!
//! Kernel drivers are told by their magic number. A FUSE server such as ntfs-3g shows nothing of the
//! file system behind it; where it serves a block device (`fuseblk`), the device's boot sector names
//! the file system, if this process may read it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nvx_host::{FileSystem, FileSystemKind};

use crate::choice::ValidData;

/// Offset of the name of the file system in a boot sector: the "OEM ID" of NTFS, the
/// "FileSystemName" of the exFAT specification, section 3.1.2.
const NAME_OFFSET: usize = 3;
/// Length of that name.
const NAME_BYTES: usize = 8;
/// Length of the part of the boot sector that is read.
const BOOT_SECTOR_BYTES: usize = 512;

/// Whether all of the file's blocks are allocated. A file that cannot be inspected counts as sparse.
pub(crate) fn is_dense(file: &File) -> bool {
    match (nvx_host::allocated_bytes(file), file.metadata()) {
        (Ok(allocated_bytes), Ok(metadata)) => allocated_bytes >= metadata.len(),
        _ => false,
    }
}

/// What is known of the file system of `file`.
pub(crate) fn of(file: impl AsFd) -> ValidData {
    let file_system = match FileSystem::of(file.as_fd()) {
        Ok(file_system) => file_system,
        Err(error) => {
            return ValidData::Unknown {
                obstacle: format!("statfs: {error}"),
            };
        }
    };
    match file_system.kind {
        FileSystemKind::Ntfs3 | FileSystemKind::Exfat => ValidData::Kept {
            file_system: file_system.name().to_owned(),
        },
        FileSystemKind::Fuse => behind_fuse(file.as_fd()),
        _ => ValidData::NotKept {
            file_system: match file_system.name() {
                "unknown" => format!("file system {:#x}", file_system.magic),
                name => name.to_owned(),
            },
        },
    }
}

fn behind_fuse(file: BorrowedFd<'_>) -> ValidData {
    let obstacle = match served_device(file) {
        Ok(Some(device)) => match boot_sector(&device) {
            Ok(sector) => return from_boot_sector(&sector, &device),
            Err(error) => format!("fuseblk, and {} cannot be read: {error}", device.display()),
        },
        Ok(None) => "FUSE without a block device".to_owned(),
        Err(error) => format!("FUSE, and its mount cannot be found: {error}"),
    };
    ValidData::Unknown { obstacle }
}

/// The block device that a FUSE server serves; `None` if it serves something else.
fn served_device(file: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
    let device = rustix::fs::fstat(file)?.st_dev;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let number = (rustix::fs::major(device), rustix::fs::minor(device));
    let Some(source) = mount_source(&mounts, number) else {
        return Ok(None);
    };
    // The name may have been given to another device since the mount.
    let metadata = std::fs::metadata(&source)?;
    let same = metadata.file_type().is_block_device() && metadata.rdev() == device;
    Ok(same.then_some(source))
}

/// The source of the `fuseblk` mount of a device, from the text of `/proc/self/mountinfo`
/// (proc(5): `id parent major:minor root mountpoint options fields... - type source options`).
fn mount_source(mounts: &str, (major, minor): (u32, u32)) -> Option<PathBuf> {
    let number = format!("{major}:{minor}");
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        if mount.split(' ').nth(2)? != number {
            return None;
        }
        let mut fields = file_system.split(' ');
        (fields.next()? == "fuseblk").then_some(())?;
        Some(PathBuf::from(unescape(fields.next()?)))
    })
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

fn boot_sector(device: &Path) -> io::Result<[u8; BOOT_SECTOR_BYTES]> {
    let mut sector = [0; BOOT_SECTOR_BYTES];
    File::open(device)?.read_exact_at(&mut sector, 0)?;
    Ok(sector)
}

fn from_boot_sector(sector: &[u8; BOOT_SECTOR_BYTES], device: &Path) -> ValidData {
    match &sector[NAME_OFFSET..NAME_OFFSET + NAME_BYTES] {
        b"NTFS    " => ValidData::Kept {
            file_system: "ntfs (by FUSE)".to_owned(),
        },
        b"EXFAT   " => ValidData::Kept {
            file_system: "exfat (by FUSE)".to_owned(),
        },
        _ => ValidData::Unknown {
            obstacle: format!(
                "fuseblk, and the boot sector of {} names neither NTFS nor exFAT",
                device.display()
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_sectors_are_told_apart() {
        let sector = |name: &[u8; 8]| {
            let mut sector = [0; BOOT_SECTOR_BYTES];
            sector[3..11].copy_from_slice(name);
            from_boot_sector(&sector, Path::new("/dev/loop9"))
        };
        for name in [b"NTFS    ", b"EXFAT   "] {
            assert!(matches!(sector(name), ValidData::Kept { .. }));
        }
        let ValidData::Unknown { obstacle } = sector(b"MSDOS5.0") else {
            panic!("FAT keeps no valid data length");
        };
        assert!(obstacle.contains("/dev/loop9"), "{obstacle}");
    }

    #[test]
    fn the_mount_of_a_device_is_found() {
        let mounts = "\
            25 27 7:1 / /mnt/a rw - ext4 /dev/loop1 rw\n\
            nonsense\n\
            26 27 7:0 / /mnt/a\\040b rw,nosuid shared:5 - fuseblk /dev/my\\040disk rw,user_id=0\n\
            27 27 0:55 / /mnt/c rw - fuse.sshfs host: rw\n";
        let found = |number| mount_source(mounts, number);
        assert_eq!(found((7, 0)), Some("/dev/my disk".into()));
        assert_eq!(found((7, 1)), None);
        assert_eq!(found((0, 55)), None);
        assert_eq!(found((8, 0)), None);
    }

    #[test]
    fn density_is_by_allocated_blocks() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(!is_dense(&file));
        file.write_all_at(&[1; 1 << 20], 0).unwrap();
        file.sync_data().unwrap();
        assert!(is_dense(&file));
    }
}
