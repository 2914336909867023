//! Loads an uncompressed ELF file by the PVH boot protocol (Xen's `docs/misc/pvh.pandoc` and the public headers
//! `elfnote.h`, `arch-x86/hvm/start_info.h`).
//!
//! The file's note of type 18 names a 32-bit entry point. The guest starts there in protected mode with flat
//! segments, paging and interrupts off, and EBX pointing at `hvm_start_info`, which in turn points at the
//! memory map and the command line.

use nvx_memory::{AccessError, GuestAddress, GuestMemory};

use crate::kernel::{Kernel, KernelEntry, KernelError};
use crate::layout::{
    BOOT_DATA_BYTES, BOOT_DATA_START, COMMAND_LINE, COMMAND_LINE_MAX_BYTES, MEMORY_MAP, START_INFO,
};

const START_INFO_MAGIC: u32 = 0x336e_c578;
/// Version 1 is the one that has a memory map.
const START_INFO_VERSION: u32 = 1;
const MEMORY_MAP_KIND_RAM: u32 = 1;
const MEMORY_MAP_ENTRY_BYTES: usize = 24;

const _: () = assert!(
    nvx_memory::MAX_RANGES * MEMORY_MAP_ENTRY_BYTES <= (COMMAND_LINE.0 - MEMORY_MAP.0) as usize,
    "the memory map must end before the command line"
);

/// How the first vCPU begins: 32-bit protected mode, flat segments, no paging, interrupts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// Guest physical address of the first instruction, below 4 GiB.
    pub rip: u64,
    /// Address of `hvm_start_info`, which EBX must hold.
    pub start_info: GuestAddress,
}

/// Why a guest image cannot be loaded. Guest RAM is unchanged then, unless the error is
/// [`Write`](Self::Write).
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The image is no kernel that this protocol can start; the message says why.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A segment does not lie in one range of guest RAM.
    #[error("segment {index}: {memory_bytes} bytes at {address} are not all guest RAM")]
    OutsideRam {
        /// Position in the program header table.
        index: usize,
        /// `p_paddr`.
        address: GuestAddress,
        /// `p_memsz`.
        memory_bytes: u64,
    },
    /// A segment lies where the boot data goes.
    #[error(
        "segment {index} at {address} lies over the boot data ({BOOT_DATA_START}, {BOOT_DATA_BYTES} bytes)"
    )]
    OverBootData {
        /// Position in the program header table.
        index: usize,
        /// `p_paddr`.
        address: GuestAddress,
    },
    /// The command line is too long.
    #[error("the command line has {bytes} bytes; at most {COMMAND_LINE_MAX_BYTES} are possible")]
    CommandLineTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The command line holds a NUL, which would end it.
    #[error("the command line holds a NUL byte at position {position}")]
    CommandLineNul {
        /// Where.
        position: usize,
    },
    /// Guest RAM refused a write.
    #[error("{what} cannot be written to guest RAM")]
    Write {
        /// What was to be written.
        what: &'static str,
        /// What guest memory said.
        #[source]
        source: AccessError,
    },
}

/// Loads `image` and the boot data into `memory`, which is new: bytes that no segment fills must read as zero.
///
/// # Errors
/// [`LoadError`] when the image or the command line cannot be used; everything is checked before the first write.
pub fn load_pvh(
    memory: &GuestMemory,
    image: &[u8],
    command_line: &str,
) -> Result<EntryState, LoadError> {
    check_command_line(command_line)?;
    let kernel = Kernel::parse_elf(image)?;
    let KernelEntry::Pvh32 { entry } = *kernel.entry() else {
        return Err(KernelError::NoEntryNote.into());
    };
    kernel.load(memory)?;
    write_boot_data(memory, command_line)?;
    Ok(EntryState {
        rip: u64::from(entry),
        start_info: START_INFO,
    })
}

fn check_command_line(command_line: &str) -> Result<(), LoadError> {
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

fn write_boot_data(memory: &GuestMemory, command_line: &str) -> Result<(), LoadError> {
    let ranges = memory.layout().ranges();
    let mut map = Vec::with_capacity(ranges.len() * MEMORY_MAP_ENTRY_BYTES);
    for range in ranges {
        map.extend_from_slice(&range.start.0.to_le_bytes());
        map.extend_from_slice(&range.size_bytes.to_le_bytes());
        map.extend_from_slice(&MEMORY_MAP_KIND_RAM.to_le_bytes());
        map.extend_from_slice(&0u32.to_le_bytes());
    }

    let mut info = Vec::with_capacity(56);
    info.extend_from_slice(&START_INFO_MAGIC.to_le_bytes());
    info.extend_from_slice(&START_INFO_VERSION.to_le_bytes());
    info.extend_from_slice(&0u32.to_le_bytes()); // flags
    info.extend_from_slice(&0u32.to_le_bytes()); // modules
    info.extend_from_slice(&0u64.to_le_bytes()); // module list
    info.extend_from_slice(&COMMAND_LINE.0.to_le_bytes());
    info.extend_from_slice(&0u64.to_le_bytes()); // RSDP
    info.extend_from_slice(&MEMORY_MAP.0.to_le_bytes());
    info.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
    info.extend_from_slice(&0u32.to_le_bytes());

    write(memory, "the start info", START_INFO, &info)?;
    write(memory, "the memory map", MEMORY_MAP, &map)?;
    // RAM is zero, so the NUL is there already.
    write(
        memory,
        "the command line",
        COMMAND_LINE,
        command_line.as_bytes(),
    )
}

fn write(
    memory: &GuestMemory,
    what: &'static str,
    address: GuestAddress,
    bytes: &[u8],
) -> Result<(), LoadError> {
    memory
        .write(address, bytes)
        .map_err(|source| LoadError::Write { what, source })
}

#[cfg(test)]
mod tests;
