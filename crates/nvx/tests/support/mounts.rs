//! Small file systems to run out of.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted tmpfs; dropping it unmounts it.
pub struct Tmpfs {
    directory: TempDir,
}

impl Tmpfs {
    /// Mounts one with these options; `None` where that is not permitted.
    pub fn mount(options: &str) -> Option<Self> {
        if !super::is_root() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(directory.path())
            .output()
            .is_ok_and(|done| done.status.success());
        mounted.then_some(Self { directory })
    }

    /// Changes its options.
    pub fn remount(&self, options: &str) {
        let done = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily, so that a process that is about to end cannot hold it.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
