//! What Windows tells of itself and of a directory's volume.

use std::io;
use std::path::Path;

use nvx_host::{Directory, probe};

use super::ScratchVolume;

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

/// Looks at the machine. Windows itself runs under its hypervisor where WHP is on, so that the
/// processor's hypervisor bit does not tell a virtual machine from such a host.
pub(super) fn machine() -> Machine {
    let facts = probe::machine();
    let processor = probe::processor();
    Machine {
        name: std::env::var("COMPUTERNAME").unwrap_or_default(),
        kernel: probe::kernel().release,
        under_hypervisor: processor
            .as_ref()
            .is_some_and(|processor| processor.virtualization != probe::Virtualization::BareMetal),
        cpu_model: processor.map_or_else(|| "unknown".to_owned(), |processor| processor.model),
        logical_processors: facts.processors.unwrap_or(1) as u64,
        memory_bytes: facts.memory_bytes.unwrap_or_default(),
        vendor: None,
        load_1min: 0.0,
    }
}

/// Describes the volume of a directory.
pub(super) fn scratch_volume(directory: &Path) -> io::Result<ScratchVolume> {
    let directory = std::fs::canonicalize(directory)?;
    let handle = Directory::open_following(&directory).map_err(io::Error::other)?;
    let system = handle.file_system()?;
    Ok(ScratchVolume {
        device: None,
        in_memory: system.is_memory(),
        network: directory.to_string_lossy().starts_with(r"\\?\UNC\"),
        file_system: system.name().to_owned(),
        directory,
    })
}

/// A block device whose work can be read. There is none here; see `storage/windows.rs`.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    /// Its name.
    pub name: String,
}

/// None: its work could not be read.
pub fn open_device(_directory: &Path) -> Option<BlockDevice> {
    None
}
