//! What Linux tells of a directory's file system and of the block device below it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(super) use nvx_host::available_bytes;
use nvx_host::{FileSystem, FileSystemKind};

/// The unit in which `/sys/block/*/stat` counts, whatever the device's own sector size is
/// (Linux, Documentation/block/stat.rst).
const SECTOR_BYTES: u64 = 512;

/// What a block device has written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceCounts {
    /// Write requests completed.
    pub(super) requests: u64,
    /// Bytes of them.
    pub(super) bytes: u64,
}

/// The counter of a block device, or of a partition or loop device.
#[derive(Debug)]
pub(super) struct DeviceCounter {
    /// The device's name, such as `loop0` or `vda1`.
    pub(super) name: String,
    file: PathBuf,
}

impl DeviceCounter {
    /// The counter of the device that holds `file`.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub(super) fn of(file: &File) -> Result<Self, String> {
        if FileSystem::of(file).is_ok_and(FileSystem::is_memory) {
            return Err("the file system is in memory".to_owned());
        }
        let device = file.metadata().map_err(|error| error.to_string())?.dev();
        let number = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        Self::of_number(&number)
            .ok_or_else(|| format!("the file system's device {number} is no block device"))
    }

    fn of_number(number: &str) -> Option<Self> {
        // A link to ../../devices/.../block/vda/vda1: its last component is the name.
        let link = Path::new("/sys/dev/block").join(number);
        let target = std::fs::read_link(&link).ok()?;
        let counter = Self {
            name: target.file_name()?.to_str()?.to_owned(),
            file: link.join("stat"),
        };
        counter.read().is_ok().then_some(counter)
    }

    pub(super) fn read(&self) -> io::Result<DeviceCounts> {
        let text = std::fs::read_to_string(&self.file)?;
        parse(&text)
            .ok_or_else(|| io::Error::other(format!("{} is malformed", self.file.display())))
    }
}

/// The fifth field counts write requests, the seventh sectors written.
fn parse(stat: &str) -> Option<DeviceCounts> {
    let mut fields = stat.split_ascii_whitespace().skip(4);
    let requests = fields.next()?.parse().ok()?;
    let sectors: u64 = fields.nth(1)?.parse().ok()?;
    Some(DeviceCounts {
        requests,
        bytes: sectors.checked_mul(SECTOR_BYTES)?,
    })
}

/// Has a FUSE server's device written out: what the server was given is in the cache of the block
/// device, where a sync of the file need not reach it. Other file systems' data is on the device once
/// the file is synced.
pub(super) fn sync_server(file: &File) -> io::Result<()> {
    if FileSystem::of(file)?.kind == FileSystemKind::Fuse {
        rustix::fs::syncfs(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_file_is_read() {
        let text = "   10 1 888 9    21   3   4096  77   0   5 6  1 2 3 4\n";
        let counts = DeviceCounts {
            requests: 21,
            bytes: 4096 * 512,
        };
        assert_eq!(parse(text), Some(counts));
        assert_eq!(parse("1 2 3 4 5 6"), None);
        assert_eq!(parse("1 2 3 4 x 6 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn memory_has_no_device() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let reason = DeviceCounter::of(&file).unwrap_err();
        assert!(reason.contains("memory"), "{reason}");
    }
}
