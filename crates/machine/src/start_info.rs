//! `hvm_start_info` and what it points to: memory map, command line, module, ACPI (Xen's public header
//! `arch-x86/hvm/start_info.h`).

use nvx_memory::{GuestAddress, GuestMemory, RamRange};

use crate::layout::{COMMAND_LINE, COMMAND_LINE_MAX_BYTES, MEMORY_MAP, MODULE_LIST, START_INFO};
use crate::pvh::LoadError;

const MAGIC: u32 = 0x336e_c578;
/// Version 1 is the one that has a memory map.
const VERSION: u32 = 1;
/// Number of RAM in memory maps, of this protocol as of E820.
const MAP_KIND_RAM: u32 = 1;
/// Number of memory that the guest must leave alone.
const MAP_KIND_RESERVED: u32 = 2;
const MAP_ENTRY_BYTES: usize = 24;
const MODULE_ENTRY_BYTES: usize = 32;
/// Ranges that a stock kernel's map has beside those of RAM.
const EXTRA_MAP_ENTRIES: usize = 2;

const _: () = assert!(
    (nvx_memory::MAX_RANGES + EXTRA_MAP_ENTRIES) * MAP_ENTRY_BYTES
        <= (MODULE_LIST.0 - MEMORY_MAP.0) as usize
        && MODULE_LIST.0 as usize + MODULE_ENTRY_BYTES <= COMMAND_LINE.0 as usize,
    "the memory map must end before the module list, and that before the command line"
);

/// One range of the memory map that a guest is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapEntry {
    pub(crate) start: GuestAddress,
    pub(crate) size_bytes: u64,
    pub(crate) kind: u32,
}

impl MapEntry {
    pub(crate) fn ram(range: &RamRange) -> Self {
        Self {
            start: range.start,
            size_bytes: range.size_bytes,
            kind: MAP_KIND_RAM,
        }
    }

    pub(crate) fn reserved(start: GuestAddress, end: GuestAddress) -> Self {
        Self {
            start,
            size_bytes: end.0 - start.0,
            kind: MAP_KIND_RESERVED,
        }
    }
}

/// A file that the guest is given in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) start: GuestAddress,
    pub(crate) size_bytes: u64,
}

/// What `hvm_start_info` says.
pub(crate) struct StartInfo<'a> {
    pub(crate) map: &'a [MapEntry],
    pub(crate) command_line: &'a str,
    pub(crate) module: Option<Module>,
    /// Address of ACPI's root pointer; 0 for none.
    pub(crate) acpi_root: GuestAddress,
}

impl StartInfo<'_> {
    pub(crate) fn write(&self, memory: &GuestMemory) -> Result<(), LoadError> {
        let mut map = Vec::with_capacity(self.map.len() * MAP_ENTRY_BYTES);
        for entry in self.map {
            map.extend_from_slice(&entry.start.0.to_le_bytes());
            map.extend_from_slice(&entry.size_bytes.to_le_bytes());
            map.extend_from_slice(&entry.kind.to_le_bytes());
            map.extend_from_slice(&0u32.to_le_bytes());
        }
        let module_list = match self.module {
            Some(_) => MODULE_LIST,
            None => GuestAddress(0),
        };

        let mut info = Vec::with_capacity(56);
        info.extend_from_slice(&MAGIC.to_le_bytes());
        info.extend_from_slice(&VERSION.to_le_bytes());
        info.extend_from_slice(&0u32.to_le_bytes()); // flags
        info.extend_from_slice(&u32::from(self.module.is_some()).to_le_bytes());
        info.extend_from_slice(&module_list.0.to_le_bytes());
        info.extend_from_slice(&COMMAND_LINE.0.to_le_bytes());
        info.extend_from_slice(&self.acpi_root.0.to_le_bytes());
        info.extend_from_slice(&MEMORY_MAP.0.to_le_bytes());
        info.extend_from_slice(&(self.map.len() as u32).to_le_bytes());
        info.extend_from_slice(&0u32.to_le_bytes());

        write(memory, "the start info", START_INFO, &info)?;
        write(memory, "the memory map", MEMORY_MAP, &map)?;
        if let Some(module) = self.module {
            let mut entry = Vec::with_capacity(MODULE_ENTRY_BYTES);
            entry.extend_from_slice(&module.start.0.to_le_bytes());
            entry.extend_from_slice(&module.size_bytes.to_le_bytes());
            // Neither a command line of its own nor anything else.
            entry.resize(MODULE_ENTRY_BYTES, 0);
            write(memory, "the module list", MODULE_LIST, &entry)?;
        }
        write_command_line(memory, self.command_line)
    }
}

pub(crate) fn check_command_line(command_line: &str) -> Result<(), LoadError> {
    if command_line.len() > COMMAND_LINE_MAX_BYTES {
        return Err(LoadError::CommandLineTooLong {
            bytes: command_line.len(),
        });
    }
    match command_line.bytes().position(|byte| byte == 0) {
        Some(position) => Err(LoadError::CommandLineNul { position }),
        None => Ok(()),
    }
}

/// RAM is zero, so the NUL at its end is there already.
pub(crate) fn write_command_line(
    memory: &GuestMemory,
    command_line: &str,
) -> Result<(), LoadError> {
    write(
        memory,
        "the command line",
        COMMAND_LINE,
        command_line.as_bytes(),
    )
}

pub(crate) fn write(
    memory: &GuestMemory,
    what: &'static str,
    address: GuestAddress,
    bytes: &[u8],
) -> Result<(), LoadError> {
    memory
        .write(address, bytes)
        .map_err(|source| LoadError::Write { what, source })
}
