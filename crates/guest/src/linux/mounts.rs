//! The file systems that every program expects.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

/// One file system of the kernel's.
struct Mount {
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: Option<&'static std::ffi::CStr>,
    /// A kernel may be built without it, and few programs miss it.
    optional: bool,
}

const NO_PROGRAMS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);
const NO_DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

const MOUNTS: [Mount; 6] = [
    Mount {
        kind: "devtmpfs",
        target: "/dev",
        flags: MountFlags::NOSUID,
        options: None,
        optional: false,
    },
    Mount {
        kind: "proc",
        target: "/proc",
        flags: NO_PROGRAMS,
        options: None,
        optional: false,
    },
    Mount {
        kind: "sysfs",
        target: "/sys",
        flags: NO_PROGRAMS,
        options: None,
        optional: false,
    },
    Mount {
        kind: "devpts",
        target: "/dev/pts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        options: Some(c"mode=620,ptmxmode=666"),
        optional: true,
    },
    Mount {
        kind: "tmpfs",
        target: "/dev/shm",
        flags: NO_DEVICES,
        options: Some(c"mode=1777"),
        optional: true,
    },
    Mount {
        kind: "tmpfs",
        target: "/tmp",
        flags: NO_DEVICES,
        options: Some(c"mode=1777"),
        optional: false,
    },
];

/// Why the guest's root is not complete.
#[derive(Debug, thiserror::Error)]
#[error("cannot mount {kind} at {target}")]
pub(super) struct MountError {
    kind: &'static str,
    target: &'static str,
    source: io::Error,
}

/// Mounts them.
pub(super) fn mount_all() -> Result<(), MountError> {
    for mount in &MOUNTS {
        let mounted = mount.mount();
        if let Err(source) = mounted
            && !mount.optional
        {
            return Err(MountError {
                kind: mount.kind,
                target: mount.target,
                source,
            });
        }
    }
    // Programs open these by name; devtmpfs has only devices.
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        // There already, or nobody will miss it.
        let _ = std::os::unix::fs::symlink(target, link);
    }
    Ok(())
}

impl Mount {
    fn mount(&self) -> io::Result<()> {
        if self.target == "/tmp" && has_entries(Path::new(self.target)) {
            // What the user put there is not to be hidden; the root is memory as well.
            return Ok(());
        }
        fs::create_dir_all(self.target)?;
        match rustix::mount::mount(self.kind, self.target, self.kind, self.flags, self.options) {
            // The kernel may have mounted it by itself (CONFIG_DEVTMPFS_MOUNT).
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn has_entries(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}
