//! The directory of a run inside of the scratch directory: made at start, gone at the end.

use std::io;
use std::path::{Path, PathBuf};

use nvx_host::{Directory, FileLock, random_name, try_lock_exclusive};

/// Start of its name.
const PREFIX: &str = ".nvx-bench-";

/// A directory that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub(crate) struct WorkDir {
    path: PathBuf,
    /// Its lock tells other runs that somebody still uses it.
    lock: Option<Directory>,
}

impl WorkDir {
    /// Makes one, after removing those of runs that were killed.
    pub(crate) fn create(scratch: &Path) -> io::Result<Self> {
        remove_abandoned(scratch)?;
        let path = scratch.join(random_name(PREFIX)?);
        std::fs::create_dir(&path)?;
        let lock = Directory::open(&path).map_err(io::Error::other)?;
        try_lock_exclusive(&lock)?;
        Ok(Self {
            path,
            lock: Some(lock),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            remove_locked(&self.path, lock);
        }
    }
}

/// Removes a directory whose lock is held. What cannot be removed now is removed by the next run.
fn remove_locked(path: &Path, lock: Directory) {
    if std::fs::remove_dir_all(path).is_err() {
        // Where a lock keeps its directory (Windows), it is empty by now and goes without.
        drop(lock);
        let _ = std::fs::remove_dir_all(path);
    }
}

fn remove_abandoned(scratch: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(scratch)? {
        let entry = entry?;
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if !ours || !entry.file_type()?.is_dir() {
            continue;
        }
        let free = Directory::open(&entry.path()).ok().and_then(|directory| {
            try_lock_exclusive(&directory)
                .ok()
                .map(|lock| (lock, directory))
        });
        if let Some((FileLock::Taken, directory)) = free {
            remove_locked(&entry.path(), directory);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_directories_are_removed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let abandoned = scratch.path().join(format!("{PREFIX}0123456789abcdef"));
        std::fs::create_dir(&abandoned).expect("a directory");
        let first = WorkDir::create(scratch.path()).expect("a directory");
        assert!(!abandoned.exists());
        let second = WorkDir::create(scratch.path()).expect("a directory");
        assert!(first.path().exists() && second.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists() && first.path().exists());
    }
}
