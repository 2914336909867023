//! The guest's physical address space.
//!
//! ```text
//! 0            RAM; one page at 0x6000 holds what the boot protocol hands over
//! 0xc0000000   gap for memory-mapped devices (virtio-mmio slots from 0xd0000000), to 4 GiB
//! 0x100000000  RAM that does not fit below the gap
//! ```
//!
//! For a stock kernel the first MiB is divided further:
//!
//! ```text
//! 0x7000       zero page of the 64-bit boot protocol
//! 0x8000       page tables and descriptor table that it is entered with, to 0xf000
//! 0xa0000      nothing: kernels do not use it, whatever a memory map says
//! 0xe0000      ACPI tables
//! 0xf0000      VM generation ID
//! 0xffff0      entry of firmware that is not there: resets the machine
//! ```
//!
//! A snapshot records [`CONTRACT_VERSION`]; any change here that a restored guest could notice raises it.

use nvx_memory::{GuestAddress, LayoutError, PAGE_SIZE_BYTES, RamLayout, RamRange};

/// Version of the machine contract.
pub const CONTRACT_VERSION: u32 = 1;

/// Start of the gap in RAM for memory-mapped devices (3 GiB); RAM below it is "low RAM".
pub const MMIO_GAP_START: GuestAddress = GuestAddress(0xc000_0000);
/// End of the gap (4 GiB), where the rest of RAM goes on.
pub const MMIO_GAP_END: GuestAddress = GuestAddress(0x1_0000_0000);
/// First virtio-mmio slot.
pub const VIRTIO_MMIO_START: GuestAddress = GuestAddress(0xd000_0000);
/// Size of a virtio-mmio slot in bytes, and distance from one to the next.
pub const VIRTIO_MMIO_SLOT_BYTES: u64 = 4096;

/// The least guest RAM in bytes: room for the boot data, a small guest at 1 MiB and its data.
pub const MIN_MEMORY_BYTES: u64 = 4 << 20;
/// The most guest RAM in bytes (1 TiB).
pub const MAX_MEMORY_BYTES: u64 = 1 << 40;

/// The page that holds all boot data, so that a boot touches one page for it.
pub const BOOT_DATA_START: GuestAddress = GuestAddress(0x6000);
/// Size of the boot data in bytes.
pub const BOOT_DATA_BYTES: u64 = PAGE_SIZE_BYTES;
/// `hvm_start_info`.
pub const START_INFO: GuestAddress = BOOT_DATA_START;
/// Memory map that `hvm_start_info` points to.
pub const MEMORY_MAP: GuestAddress = GuestAddress(BOOT_DATA_START.0 + 0x40);
/// List of modules that `hvm_start_info` points to.
pub const MODULE_LIST: GuestAddress = GuestAddress(BOOT_DATA_START.0 + 0x7c0);
/// Command line that `hvm_start_info` points to.
pub const COMMAND_LINE: GuestAddress = GuestAddress(BOOT_DATA_START.0 + 0x800);
/// Longest command line in bytes, without the NUL at its end. Linux on x86 keeps 2048 bytes with it
/// (`COMMAND_LINE_SIZE`) and would quietly cut what is longer.
pub const COMMAND_LINE_MAX_BYTES: usize = 2047;

/// Zero page (`boot_params`) of the 64-bit boot protocol.
pub const ZERO_PAGE: GuestAddress = GuestAddress(0x7000);
/// First of the page tables that the 64-bit boot protocol asks for.
pub const PAGE_TABLES: GuestAddress = GuestAddress(0x8000);
/// Bytes of the page tables: the top, one table below it, and four that each map 1 GiB.
pub const PAGE_TABLES_BYTES: u64 = 6 * PAGE_SIZE_BYTES;
/// Descriptor table of the 64-bit boot protocol.
pub const BOOT_DESCRIPTORS: GuestAddress = GuestAddress(PAGE_TABLES.0 + PAGE_TABLES_BYTES);
/// End of the memory below the hole that PCs have had for adapters.
pub const LOW_MEMORY_END: GuestAddress = GuestAddress(0xa_0000);
/// ACPI tables, beginning with the root pointer: in the area where kernels look for it.
pub const ACPI_TABLES: GuestAddress = GuestAddress(0xe_0000);
/// Most bytes of all ACPI tables together.
pub const ACPI_TABLES_MAX_BYTES: u64 = 0x1_0000;
/// VM generation ID.
pub const GENERATION_ID: GuestAddress = GuestAddress(0xf_0000);
/// Where a processor in real mode that is sent back to firmware goes on.
pub const FIRMWARE_ENTRY: GuestAddress = GuestAddress(0xf_fff0);
/// End of the first MiB, from which on a kernel is loaded.
pub const HIGH_MEMORY_START: GuestAddress = GuestAddress(0x10_0000);

/// The local APICs, one at each vCPU (Intel SDM volume 3, section 12.4.1).
pub const LOCAL_APIC: GuestAddress = GuestAddress(0xfee0_0000);
/// The IOAPIC, where PCs have it.
pub const IOAPIC: GuestAddress = GuestAddress(0xfec0_0000);
/// The IOAPIC's ID: above every vCPU's.
pub const IOAPIC_ID: u8 = 8;
/// Interrupt of the serial port that is the console, edge-triggered.
pub const SERIAL_CONSOLE_IRQ: u32 = 4;
/// Interrupt of the serial port that is the control line, edge-triggered.
pub const SERIAL_CONTROL_LINE_IRQ: u32 = crate::control_line::IRQ;
/// Interrupt of the generic event device, edge-triggered.
pub const EVENT_IRQ: u32 = 9;
/// Interrupt of virtio-mmio slot 0, level-triggered; slot n has the n-th after it.
pub const VIRTIO_IRQ_START: u32 = 10;
/// virtio-mmio slot of the entropy device.
pub const ENTROPY_SLOT: u32 = 0;

/// First address of virtio-mmio slot `slot`.
#[must_use]
pub const fn virtio_window(slot: u32) -> GuestAddress {
    GuestAddress(VIRTIO_MMIO_START.0 + slot as u64 * VIRTIO_MMIO_SLOT_BYTES)
}

/// Interrupt of virtio-mmio slot `slot`.
#[must_use]
pub const fn virtio_irq(slot: u32) -> u32 {
    VIRTIO_IRQ_START + slot
}

const _: () = assert!(
    BOOT_DESCRIPTORS.0 + PAGE_SIZE_BYTES <= LOW_MEMORY_END.0
        && ACPI_TABLES.0 + ACPI_TABLES_MAX_BYTES == GENERATION_ID.0
        && VIRTIO_MMIO_SLOT_BYTES == nvx_devices::VIRTIO_MMIO_WINDOW_BYTES,
    "the first MiB or a slot is laid out otherwise than its parts"
);

const _: () = assert!(
    COMMAND_LINE.0 + COMMAND_LINE_MAX_BYTES as u64 + 1 == BOOT_DATA_START.0 + BOOT_DATA_BYTES,
    "the command line must end with the boot data"
);

/// Why guest RAM cannot have a size.
#[derive(Debug, thiserror::Error)]
pub enum MemorySizeError {
    /// Less than [`MIN_MEMORY_BYTES`].
    #[error("{bytes} bytes of guest RAM are too few; the least is {MIN_MEMORY_BYTES} (4 MiB)")]
    TooSmall {
        /// What was asked for.
        bytes: u64,
    },
    /// More than [`MAX_MEMORY_BYTES`].
    #[error("{bytes} bytes of guest RAM are too many; the most is {MAX_MEMORY_BYTES} (1 TiB)")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
    },
    /// No whole number of pages.
    #[error("{bytes} bytes of guest RAM are no multiple of the page size, {PAGE_SIZE_BYTES} bytes")]
    NotPages {
        /// What was asked for.
        bytes: u64,
    },
    /// The ranges that follow from the size break a rule of guest memory.
    #[error("the RAM ranges for {bytes} bytes are no valid layout")]
    Layout {
        /// What was asked for.
        bytes: u64,
        /// The rule.
        #[source]
        source: LayoutError,
    },
}

/// The RAM ranges of a machine with `memory_bytes` of RAM, and their places in a RAM file.
///
/// # Errors
/// [`MemorySizeError`] when the size is out of bounds or no multiple of the page size.
pub fn ram_layout(memory_bytes: u64) -> Result<RamLayout, MemorySizeError> {
    let bytes = memory_bytes;
    if bytes < MIN_MEMORY_BYTES {
        return Err(MemorySizeError::TooSmall { bytes });
    }
    if bytes > MAX_MEMORY_BYTES {
        return Err(MemorySizeError::TooLarge { bytes });
    }
    if !bytes.is_multiple_of(PAGE_SIZE_BYTES) {
        return Err(MemorySizeError::NotPages { bytes });
    }
    let low_bytes = bytes.min(MMIO_GAP_START.0);
    let mut ranges = vec![RamRange {
        start: GuestAddress(0),
        size_bytes: low_bytes,
        file_offset_bytes: 0,
    }];
    if bytes > low_bytes {
        ranges.push(RamRange {
            start: MMIO_GAP_END,
            size_bytes: bytes - low_bytes,
            file_offset_bytes: low_bytes,
        });
    }
    RamLayout::new(ranges).map_err(|source| MemorySizeError::Layout { bytes, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn ranges(bytes: u64) -> Vec<(u64, u64, u64)> {
        let layout = ram_layout(bytes).unwrap();
        assert_eq!(layout.total_bytes(), bytes);
        assert_eq!(layout.file_len_bytes(), bytes);
        let ranges = layout.ranges().iter();
        ranges
            .map(|range| (range.start.0, range.size_bytes, range.file_offset_bytes))
            .collect()
    }

    #[test]
    fn ram_leaves_the_gap_free() {
        assert_eq!(ranges(4 << 20), [(0, 4 << 20, 0)]);
        assert_eq!(ranges(3 * GIB), [(0, 3 * GIB, 0)]);
        assert_eq!(
            ranges(3 * GIB + 4096),
            [(0, 3 * GIB, 0), (4 * GIB, 4096, 3 * GIB)]
        );
        assert_eq!(
            ranges(1024 * GIB),
            [(0, 3 * GIB, 0), (4 * GIB, 1021 * GIB, 3 * GIB)]
        );
        let layout = ram_layout(8 * GIB).unwrap();
        assert!(!layout.contains(VIRTIO_MMIO_START));
        assert!(layout.contains(COMMAND_LINE));
    }

    #[test]
    fn other_sizes_are_refused_with_the_bound() {
        for (bytes, words) in [
            (0, "the least is 4194304"),
            ((4 << 20) - 4096, "the least is 4194304"),
            (1024 * GIB + 4096, "the most is 1099511627776"),
            (u64::MAX, "the most is 1099511627776"),
            ((4 << 20) + 1, "page size, 4096 bytes"),
        ] {
            let error = ram_layout(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{bytes}: {error}");
        }
    }
}
