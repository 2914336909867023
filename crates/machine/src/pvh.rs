//! Loads an uncompressed ELF file by the PVH boot protocol (Xen's `docs/misc/pvh.pandoc` and the public headers
//! `elfnote.h`, `arch-x86/hvm/start_info.h`).
//!
//! The file's note of type 18 names a 32-bit entry point. The guest starts there in protected mode with flat
//! segments, paging and interrupts off, and EBX pointing at `hvm_start_info`, which in turn points at the
//! memory map and the command line.

use nvx_memory::{AccessError, GuestAddress, GuestMemory};

use crate::kernel::{Kernel, KernelEntry, KernelError};
use crate::layout::{BOOT_DATA_BYTES, BOOT_DATA_START, COMMAND_LINE_MAX_BYTES, START_INFO};
use crate::start_info::{MapEntry, StartInfo, check_command_line};

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
    let ranges = memory.layout().ranges();
    let map: Vec<_> = ranges.iter().map(MapEntry::ram).collect();
    StartInfo {
        map: &map,
        command_line,
        module: None,
        acpi_root: GuestAddress(0),
    }
    .write(memory)?;
    Ok(EntryState {
        rip: u64::from(entry),
        start_info: START_INFO,
    })
}

#[cfg(test)]
mod tests;
