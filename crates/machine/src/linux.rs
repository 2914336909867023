//! Places a stock Linux kernel, its initramfs and what the boot protocol hands over into new guest RAM.
//!
//! The guest is told of all RAM but the area between 0xa0000 and 1 MiB, of which the upper part is
//! *reserved*: ACPI tables and the generation ID live there, in RAM that the guest may not use otherwise.
//! The initramfs lies at the end of low RAM, as far from the kernel as possible: a kernel that moves
//! itself moves upwards.

use std::fs::File;
use std::io::{self, Read as _, Write};

use nvx_devices::numbers;
use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES};

use crate::acpi::acpi_tables;
use crate::initramfs::Initramfs;
use crate::kernel::{Kernel, KernelEntry};
use crate::layout::{
    ACPI_TABLES, BOOT_DESCRIPTORS, FIRMWARE_ENTRY, GENERATION_ID, HIGH_MEMORY_START,
    LOW_MEMORY_END, MMIO_GAP_START, PAGE_TABLES, START_INFO, ZERO_PAGE,
};
use crate::pvh::{EntryState, LoadError};
use crate::start_info::{MapEntry, Module, StartInfo, check_command_line, write};
use crate::zero_page::{DESCRIPTORS_LIMIT, initramfs_address_max, write_zero_page};

/// How much of a file is in memory at a time.
const COPY_CHUNK_BYTES: usize = 256 << 10;

/// An initramfs that is written into guest RAM piece by piece.
pub trait InitramfsSource {
    /// Its size in bytes.
    fn size_bytes(&self) -> u64;

    /// Writes exactly [`Self::size_bytes`] bytes.
    ///
    /// # Errors
    /// What the source or the sink says.
    fn write_to(&mut self, sink: &mut dyn Write) -> io::Result<()>;
}

/// Bytes in memory.
impl InitramfsSource for &[u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn write_to(&mut self, sink: &mut dyn Write) -> io::Result<()> {
        sink.write_all(self)
    }
}

/// One that is packed as it is written.
impl InitramfsSource for Initramfs {
    fn size_bytes(&self) -> u64 {
        Initramfs::size_bytes(self)
    }

    fn write_to(&mut self, sink: &mut dyn Write) -> io::Result<()> {
        Initramfs::write_to(self, sink).map_err(io::Error::other)
    }
}

/// A file that is an initramfs already.
#[derive(Debug)]
pub struct InitramfsFile {
    file: File,
    size_bytes: u64,
}

impl InitramfsFile {
    /// Takes the file as it is now; it may not change its length until it was written.
    ///
    /// # Errors
    /// Its length cannot be told, or it is no regular file.
    pub fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Self {
            file,
            size_bytes: metadata.len(),
        })
    }
}

impl InitramfsSource for InitramfsFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn write_to(&mut self, sink: &mut dyn Write) -> io::Result<()> {
        let mut chunk = vec![0; COPY_CHUNK_BYTES];
        loop {
            match self.file.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(length) => sink.write_all(&chunk[..length])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What stands at the entry of firmware, in real mode: `mov al, 1; mov dx, 0x602; out dx, al`, then `hlt` for
/// ever. Linux takes a hardware-reduced machine for one with EFI, finds none when it reboots or panics,
/// and as a last resort goes back to firmware.
const FIRMWARE_RESET: [u8; 9] = {
    let [low, high] = numbers::RESET_CONTROL.to_le_bytes();
    [
        0xb0,
        numbers::RESET_VALUE,
        0xba,
        low,
        high,
        0xee,
        0xf4,
        0xeb,
        0xfd,
    ]
};

/// A stock kernel and what it is started with.
pub struct LinuxGuest<'a> {
    /// The kernel.
    pub kernel: &'a Kernel<'a>,
    /// Its initramfs, if it gets one.
    pub initramfs: Option<&'a mut dyn InitramfsSource>,
    /// What it is told.
    pub command_line: &'a str,
    /// How many processors it is told of.
    pub vcpus: u8,
}

/// How the first vCPU begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinuxEntry {
    /// By the PVH protocol.
    Pvh(EntryState),
    /// By Linux's 64-bit boot protocol.
    Boot64(Boot64State),
}

/// The state of the 64-bit boot protocol: long mode, interrupts off, flat segments with the selectors 0x10
/// (code) and 0x18 (data).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot64State {
    /// Guest physical address of the first instruction.
    pub rip: u64,
    /// Address of the zero page, which RSI must hold.
    pub zero_page: GuestAddress,
    /// Page tables, for CR3.
    pub page_tables: GuestAddress,
    /// Descriptor table, for GDTR.
    pub descriptors: GuestAddress,
    /// Limit of the descriptor table.
    pub descriptors_limit: u32,
}

/// Why a Linux guest cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LinuxLoadError {
    /// The kernel or the command line cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel begins where the guest has something else.
    #[error("the kernel begins at {start}; the first MiB is not free for it")]
    KernelTooLow {
        /// Where its lowest segment begins.
        start: GuestAddress,
    },
    /// The initramfs does not fit.
    #[error(
        "the initramfs has {size_bytes} bytes; behind the kernel, where it may lie, there are {free_bytes}"
    )]
    InitramfsTooLarge {
        /// Its length.
        size_bytes: u64,
        /// What there is room for.
        free_bytes: u64,
    },
    /// The initramfs cannot be read, or has another length than was said before.
    #[error("the initramfs cannot be written to guest RAM")]
    Initramfs(#[source] io::Error),
}

/// Loads a kernel with all that it is handed. `memory` is new: what nothing fills must read as zero.
///
/// # Errors
/// [`LinuxLoadError`] when a part of the guest cannot be used.
pub fn load_linux(
    memory: &GuestMemory,
    guest: LinuxGuest<'_>,
) -> Result<LinuxEntry, LinuxLoadError> {
    let kernel = guest.kernel;
    check_command_line(guest.command_line)?;
    if kernel.lowest_address() < HIGH_MEMORY_START {
        return Err(LinuxLoadError::KernelTooLow {
            start: kernel.lowest_address(),
        });
    }
    kernel.load(memory)?;
    let address_max = match kernel.entry() {
        KernelEntry::Pvh32 { .. } => u64::from(u32::MAX),
        KernelEntry::Boot64 { setup_header, .. } => initramfs_address_max(setup_header.as_ref()),
    };
    let module = guest
        .initramfs
        .map(|initramfs| place_initramfs(memory, initramfs, kernel.end_address(), address_max))
        .transpose()?;
    write(
        memory,
        "the ACPI tables",
        ACPI_TABLES,
        &acpi_tables(guest.vcpus),
    )?;
    write(
        memory,
        "the entry of firmware",
        FIRMWARE_ENTRY,
        &FIRMWARE_RESET,
    )?;
    let info = StartInfo {
        map: &memory_map(memory),
        command_line: guest.command_line,
        module,
        acpi_root: ACPI_TABLES,
    };
    match kernel.entry() {
        KernelEntry::Pvh32 { entry } => {
            info.write(memory)?;
            Ok(LinuxEntry::Pvh(EntryState {
                rip: u64::from(*entry),
                start_info: START_INFO,
            }))
        }
        KernelEntry::Boot64 {
            entry,
            setup_header,
        } => {
            write_zero_page(memory, setup_header.as_ref(), &info)?;
            Ok(LinuxEntry::Boot64(Boot64State {
                rip: *entry,
                zero_page: ZERO_PAGE,
                page_tables: PAGE_TABLES,
                descriptors: BOOT_DESCRIPTORS,
                descriptors_limit: DESCRIPTORS_LIMIT,
            }))
        }
    }
}

/// All RAM, without what lies between the end of low memory and 1 MiB.
fn memory_map(memory: &GuestMemory) -> Vec<MapEntry> {
    let mut map = Vec::new();
    for range in memory.layout().ranges() {
        let mut entry = MapEntry::ram(range);
        if range.start == GuestAddress(0) {
            map.push(MapEntry {
                size_bytes: LOW_MEMORY_END.0,
                ..entry
            });
            map.push(MapEntry::reserved(ACPI_TABLES, HIGH_MEMORY_START));
            entry.start = HIGH_MEMORY_START;
            entry.size_bytes = range.size_bytes - HIGH_MEMORY_START.0;
        }
        map.push(entry);
    }
    map
}

const _: () = assert!(
    GENERATION_ID.0 > ACPI_TABLES.0 && GENERATION_ID.0 < HIGH_MEMORY_START.0,
    "the generation ID lies in the reserved range"
);

/// Writes the initramfs to the end of low RAM, above `kernel_end`.
fn place_initramfs(
    memory: &GuestMemory,
    initramfs: &mut dyn InitramfsSource,
    kernel_end: GuestAddress,
    address_max: u64,
) -> Result<Module, LinuxLoadError> {
    let low_end = memory
        .layout()
        .ranges()
        .first()
        .map_or(0, |range| range.size_bytes.min(MMIO_GAP_START.0))
        .min(address_max.saturating_add(1));
    let floor = kernel_end.0.next_multiple_of(PAGE_SIZE_BYTES);
    let size_bytes = initramfs.size_bytes();
    let start = low_end
        .checked_sub(size_bytes)
        .map(|start| start - start % PAGE_SIZE_BYTES)
        .filter(|start| *start >= floor)
        .ok_or(LinuxLoadError::InitramfsTooLarge {
            size_bytes,
            free_bytes: low_end.saturating_sub(floor),
        })?;
    let mut sink = RamSink {
        memory,
        next: start,
        end: start + size_bytes,
    };
    initramfs
        .write_to(&mut sink)
        .map_err(LinuxLoadError::Initramfs)?;
    if sink.next != sink.end {
        let missing = format!("{} bytes fewer than it has", sink.end - sink.next);
        return Err(LinuxLoadError::Initramfs(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            missing,
        )));
    }
    Ok(Module {
        start: GuestAddress(start),
        size_bytes,
    })
}

/// Writes to a range of guest RAM in order.
struct RamSink<'a> {
    memory: &'a GuestMemory,
    next: u64,
    end: u64,
}

impl Write for RamSink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len() as u64;
        if length > self.end - self.next {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "more bytes than it has",
            ));
        }
        self.memory
            .write(GuestAddress(self.next), bytes)
            .map_err(io::Error::other)?;
        self.next += length;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
