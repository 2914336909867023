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

/// A kind of file system that can live in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// Shares blocks between files.
    Xfs,
    /// Shares blocks between files.
    Btrfs,
    /// By FUSE: knows neither nameless files nor renames that replace nothing.
    Ntfs,
}

impl VolumeKind {
    /// The least size in MiB that its tools accept, with some room.
    fn size_mib(self) -> u64 {
        match self {
            Self::Xfs => 320,
            Self::Btrfs => 128,
            Self::Ntfs => 96,
        }
    }

    /// The command that makes it, and the package that has it.
    fn maker(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Xfs => (&["mkfs.xfs", "-q", "-m", "reflink=1"], "xfsprogs"),
            Self::Btrfs => (&["mkfs.btrfs", "-q"], "btrfs-progs"),
            Self::Ntfs => (&["mkntfs", "-F", "-Q", "-q"], "ntfs-3g"),
        }
    }

    /// The command that mounts an image.
    fn mounter(self) -> &'static [&'static str] {
        match self {
            // The kernel lets go of the loop device together with the mount.
            Self::Xfs | Self::Btrfs => &["mount", "-o", "loop"],
            Self::Ntfs => &["ntfs-3g"],
        }
    }
}

/// A file system in a file of its own, mounted; dropping it unmounts it.
pub struct Volume {
    /// Holds the image and the mount point.
    directory: TempDir,
}

impl Volume {
    /// Makes and mounts one.
    ///
    /// # Errors
    /// Why there is none on this machine.
    pub fn mount(kind: VolumeKind) -> Result<Self, String> {
        if !super::is_root() {
            return Err("mounting needs root".to_owned());
        }
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let size_bytes = kind.size_mib() << 20;
        let sparse = std::fs::File::create(&image).unwrap();
        sparse.set_len(size_bytes).unwrap();
        drop(sparse);
        std::fs::create_dir(directory.path().join("mount")).unwrap();
        let (maker, package) = kind.maker();
        carry_out(maker, &[&image])
            .map_err(|reason| format!("no {kind:?} (Debian package {package}): {reason}"))?;
        carry_out(kind.mounter(), &[&image, &directory.path().join("mount")])
            .map_err(|reason| format!("{kind:?} cannot be mounted: {reason}"))?;
        Ok(Self { directory })
    }

    /// Its root.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // A process that is about to end may hold it still.
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }
}

fn carry_out(words: &[&str], paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(paths);
    match command.output() {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr)
            .trim()
            .replace('\n', " ")),
        Err(error) => Err(format!("{}: {error}", words[0])),
    }
}
