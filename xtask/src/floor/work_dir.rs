//! Directories that the measurement works in, removed when it ends.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::rows::Place;
use super::shown;

/// The file system in memory; the system's own, present on every Linux.
const TMPFS: &str = "/dev/shm";

/// Directories are named by this and the process that works in them.
const PREFIX: &str = "nvx-floor-";

/// One directory in memory and one on disk.
pub struct WorkDirs {
    memory: ScratchDir,
    disk: ScratchDir,
    disk_file_system: String,
}

impl WorkDirs {
    /// Creates both; `disk` is the directory that holds the second.
    pub fn create(disk: &Path) -> Result<Self> {
        std::fs::create_dir_all(disk).with_context(|| format!("cannot create {}", shown(disk)))?;
        let disk = disk.canonicalize()?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let disk_file_system = file_system(&mounts, &disk).unwrap_or("unknown file system");
        for parent in [Path::new(TMPFS), &disk] {
            remove_abandoned(parent);
        }
        let name = format!("{PREFIX}{}", std::process::id());
        Ok(Self {
            memory: ScratchDir::create(Path::new(TMPFS).join(&name))?,
            disk_file_system: disk_file_system.to_owned(),
            disk: ScratchDir::create(disk.join(&name))?,
        })
    }

    /// The directory on disk.
    pub fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// What is mounted where the disk directory lies, such as `ext4`.
    pub fn disk_file_system(&self) -> &str {
        &self.disk_file_system
    }

    /// An empty directory for one sample.
    pub fn scratch(&self, place: Place) -> Result<ScratchDir> {
        let parent = match place {
            Place::Memory => &self.memory,
            Place::Disk => &self.disk,
        };
        ScratchDir::create(parent.path().join("sample"))
    }
}

/// A directory that is removed with all that is in it.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    fn create(path: PathBuf) -> Result<Self> {
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", shown(&path)))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("xtask: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Removes what measurements that were interrupted have left in `parent`, as far as it can be removed.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process: Option<u32> = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The type of the file system that holds `path`, from the text of /proc/self/mounts.
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let mount = Path::new(fields.next()?);
            let kind = fields.next()?;
            path.starts_with(mount)
                .then(|| (mount.components().count(), kind))
        })
        // The last of equals: what was mounted later lies on top.
        .max_by_key(|&(depth, _)| depth)
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deepest_and_latest_mount_wins() {
        let mounts =
            "a / ext4 rw 0 0\nb /tmp xfs rw 0 0\nc /tmp tmpfs rw 0 0\nd /tmpx btrfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/tmp/a")), Some("tmpfs"));
        assert_eq!(file_system(mounts, Path::new("/home")), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn scratch_and_what_was_abandoned_are_removed() {
        // No process has this number: the kernel's limit is 2^22.
        let abandoned = Path::new(TMPFS).join(format!("{PREFIX}{}", u32::MAX));
        std::fs::create_dir_all(abandoned.join("sample")).unwrap();
        let dirs = WorkDirs::create(&std::env::temp_dir()).unwrap();
        assert!(!abandoned.exists());
        let (memory, disk) = (dirs.memory.path().to_owned(), dirs.disk().to_owned());
        std::fs::write(dirs.scratch(Place::Disk).unwrap().path().join("x"), "x").unwrap();
        assert!(memory.is_dir() && disk.is_dir());
        assert!(!disk.join("sample").exists());
        drop(dirs);
        assert!(!memory.exists() && !disk.exists());
    }
}
