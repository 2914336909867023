//! What Linux tells of itself, of a directory's volume, and of a block device's work.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nvx_host::FileSystem;

use super::ScratchVolume;

/// The unit of `/sys/block/*/stat` (Linux, Documentation/block/stat.rst).
const SECTOR_BYTES: u64 = 512;
/// File systems whose contents are on another machine, as mount types.
const NETWORK_TYPES: [&str; 19] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "afs",
    "lustre",
    "glusterfs",
    "beegfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.juicefs",
    "fuse.davfs",
];

/// Whether what is on such a file system is on another machine, as far as its name tells.
fn is_network(file_system: &str) -> bool {
    NETWORK_TYPES.contains(&file_system)
}

/// Facts about the machine.
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) cpu_model: String,
    pub(super) logical_processors: u64,
    pub(super) memory_bytes: u64,
    pub(super) vendor: Option<String>,
    pub(super) under_hypervisor: bool,
    pub(super) load_1min: f64,
}

/// Looks at the machine. What cannot be read is left empty: a result without it is still one.
pub(super) fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let name = rustix::system::uname();
    let vendor = read("/sys/class/dmi/id/sys_vendor").trim().to_owned();
    let flags = cpu_line(&cpu, "flags").unwrap_or_default();
    Machine {
        name: name.nodename().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        cpu_model: cpu_line(&cpu, "model name").unwrap_or("unknown").to_owned(),
        logical_processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        memory_bytes: memory_total_bytes(&read("/proc/meminfo")).unwrap_or_default(),
        vendor: (!vendor.is_empty()).then_some(vendor),
        under_hypervisor: flags.split(' ').any(|flag| flag == "hypervisor"),
        load_1min: read("/proc/loadavg")
            .split(' ')
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or_default(),
    }
}

fn cpu_line<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim_end() == name).then(|| value.trim())
    })
}

fn memory_total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Describes the volume of a directory.
pub(super) fn scratch_volume(directory: &Path) -> io::Result<ScratchVolume> {
    let directory = std::fs::canonicalize(directory)?;
    let handle = File::open(&directory)?;
    let system = FileSystem::of(&handle)?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount_type = mount_type(&mounts, &directory);
    let file_system = mount_type.unwrap_or_else(|| system.name().to_owned());
    Ok(ScratchVolume {
        device: open_device(&directory).map(|device| device.name),
        in_memory: system.is_memory(),
        network: is_network(&file_system),
        file_system,
        directory,
    })
}

/// The type of the mount that holds a directory: the one with the longest mount point above it, and of
/// those the last (proc_pid_mountinfo(5)).
fn mount_type(mountinfo: &str, directory: &Path) -> Option<String> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            let kind = system.split(' ').next()?;
            directory.starts_with(&point).then_some((point.len(), kind))
        })
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind.to_owned())
}

/// A block device whose work can be read.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// Its name, such as `vda1`.
    pub name: String,
    counters: PathBuf,
}

/// Cumulative counters of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceCounters {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) busy_ms: u64,
}

/// The block device below a directory; none where there is none or it cannot be told.
pub fn open_device(directory: &Path) -> Option<BlockDevice> {
    let number = std::fs::metadata(directory).ok()?.dev();
    let link = PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    ));
    let name = std::fs::read_link(&link).ok()?;
    Some(BlockDevice {
        name: name.file_name()?.to_str()?.to_owned(),
        counters: link.join("stat"),
    })
}

impl BlockDevice {
    pub(crate) fn counters(&self) -> Option<DeviceCounters> {
        device_counters(&std::fs::read_to_string(&self.counters).ok()?)
    }
}

/// Fields 3, 7 and 10 of the counters: sectors read, sectors written, milliseconds busy.
fn device_counters(stat: &str) -> Option<DeviceCounters> {
    let fields: Vec<u64> = stat
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    Some(DeviceCounters {
        read_bytes: fields.get(2)?.checked_mul(SECTOR_BYTES)?,
        written_bytes: fields.get(6)?.checked_mul(SECTOR_BYTES)?,
        busy_ms: *fields.get(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found() {
        let cpu = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpu_line(cpu, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_line(cpu, "model"), None);
        assert_eq!(memory_total_bytes("MemTotal:       2 kB\n"), Some(2048));
        assert_eq!(memory_total_bytes(""), None);
    }

    #[test]
    fn the_longest_and_last_mount_counts() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /tmp rw shared:1 - tmpfs t rw\n\
                      3 1 0:6 / /tmp rw - nfs4 host:/x rw\n4 1 0:7 / /tm rw - xfs x rw\n";
        assert_eq!(
            mount_type(mounts, Path::new("/tmp/x")).as_deref(),
            Some("nfs4")
        );
        assert_eq!(
            mount_type(mounts, Path::new("/home")).as_deref(),
            Some("ext4")
        );
        assert_eq!(mount_type("", Path::new("/")), None);
    }

    #[test]
    fn file_systems_of_other_machines_are_known_by_their_types() {
        for name in [
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "9p",
            "ceph",
            "fuse.sshfs",
            "fuse.rclone",
        ] {
            assert!(is_network(name), "{name}");
        }
        // fuseblk is NTFS by FUSE on a device of this machine, virtiofs a directory of the host's.
        for name in [
            "ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk", "virtiofs",
        ] {
            assert!(!is_network(name), "{name}");
        }
    }

    #[test]
    fn counters_are_read() {
        let stat = "10 1 8 9 21 3 4096 77 0 55 6 1 2 3 4\n";
        let counters = device_counters(stat).expect("counters");
        assert_eq!(
            (
                counters.read_bytes,
                counters.written_bytes,
                counters.busy_ms
            ),
            (4096, 4096 * 512, 55)
        );
        assert_eq!(device_counters("1 2 3"), None);
    }
}
