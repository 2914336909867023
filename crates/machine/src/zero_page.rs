//! The zero page (`boot_params`), page tables and descriptor table of Linux's 64-bit boot protocol
//! (`Documentation/arch/x86/boot.rst` and `zero-page.rst`).

use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES};

use crate::kernel::SetupHeader;
use crate::layout::{BOOT_DESCRIPTORS, COMMAND_LINE, PAGE_TABLES, PAGE_TABLES_BYTES, ZERO_PAGE};
use crate::pvh::LoadError;
use crate::start_info::{MapEntry, StartInfo, write, write_command_line};

/// Offsets in the zero page.
const ACPI_ROOT: usize = 0x070;
const MODULE_START_HIGH: usize = 0x0c0;
const MODULE_SIZE_HIGH: usize = 0x0c4;
const MAP_ENTRIES: usize = 0x1e8;
const BOOT_FLAG: usize = 0x1fe;
const HEADER_MAGIC: usize = 0x202;
const PROTOCOL_VERSION: usize = 0x206;
const LOADER_TYPE: usize = 0x210;
const LOAD_FLAGS: usize = 0x211;
const MODULE_START: usize = 0x218;
const MODULE_SIZE: usize = 0x21c;
const COMMAND_LINE_POINTER: usize = 0x228;
const MODULE_ADDRESS_MAX: usize = 0x22c;
const KERNEL_ALIGNMENT: usize = 0x230;
const MAP: usize = 0x2d0;
const MAP_ENTRY_BYTES: usize = 20;
const MAP_MAX_ENTRIES: usize = 128;

/// A loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;
/// The kernel was loaded above 1 MiB.
const LOADED_HIGH: u8 = 1;
/// Protocol 2.15, the one whose fields are used here.
const PROTOCOL_2_15: u16 = 0x020f;
/// What kernels are aligned to by default.
const DEFAULT_ALIGNMENT: u32 = 0x0100_0000;

const PAGE_PRESENT_WRITABLE: u64 = 3;
const PAGE_2_MIB: u64 = 1 << 7;
const TABLE_ENTRIES: u64 = 512;
const MIB_2: u64 = 2 << 20;
/// Tables that each map 1 GiB.
const LEAF_TABLES: u64 = 4;

const _: () = assert!(
    PAGE_TABLES_BYTES == (2 + LEAF_TABLES) * PAGE_SIZE_BYTES,
    "the layout has room for another number of page tables"
);

/// Code and data segment at the selectors that the protocol asks for, 0x10 and 0x18 (Intel SDM volume 3,
/// section 3.4.5: base 0, limit 4 GiB, the code in 64-bit mode).
const DESCRIPTORS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// Limit of the descriptor table.
pub(crate) const DESCRIPTORS_LIMIT: u32 = size_of_val(&DESCRIPTORS) as u32 - 1;

/// The highest address that a kernel takes the last byte of an initramfs at.
pub(crate) fn initramfs_address_max(header: Option<&SetupHeader>) -> u64 {
    let at = MODULE_ADDRESS_MAX - SetupHeader::OFFSET;
    let field = header
        .and_then(|header| header.bytes().get(at..)?.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    match field {
        // Absent: a kernel that is only the image takes all of low memory.
        0 => u64::from(u32::MAX),
        field => u64::from(field),
    }
}

/// Writes all that a kernel is handed when it is entered in 64-bit mode.
pub(crate) fn write_zero_page(
    memory: &GuestMemory,
    header: Option<&SetupHeader>,
    info: &StartInfo<'_>,
) -> Result<(), LoadError> {
    let mut page = ZeroPage([0; PAGE_SIZE_BYTES as usize]);
    match header {
        Some(header) => page.put(SetupHeader::OFFSET, header.bytes()),
        None => {
            page.put(BOOT_FLAG, &0xaa55u16.to_le_bytes());
            page.put(HEADER_MAGIC, b"HdrS");
            page.put(PROTOCOL_VERSION, &PROTOCOL_2_15.to_le_bytes());
            page.put(KERNEL_ALIGNMENT, &DEFAULT_ALIGNMENT.to_le_bytes());
        }
    }
    page.put(LOADER_TYPE, &[LOADER_UNDEFINED]);
    page.0[LOAD_FLAGS] |= LOADED_HIGH;
    page.put(ACPI_ROOT, &info.acpi_root.0.to_le_bytes());
    page.put(COMMAND_LINE_POINTER, &(COMMAND_LINE.0 as u32).to_le_bytes());
    if let Some(module) = info.module {
        for (value, low, high) in [
            (module.start.0, MODULE_START, MODULE_START_HIGH),
            (module.size_bytes, MODULE_SIZE, MODULE_SIZE_HIGH),
        ] {
            page.put(low, &(value as u32).to_le_bytes());
            page.put(high, &((value >> 32) as u32).to_le_bytes());
        }
    }
    page.put_map(info.map);
    write(memory, "the zero page", ZERO_PAGE, &page.0)?;
    write_command_line(memory, info.command_line)?;
    write_page_tables(memory)?;
    let descriptors: Vec<u8> = DESCRIPTORS
        .iter()
        .flat_map(|row| row.to_le_bytes())
        .collect();
    write(
        memory,
        "the descriptor table",
        BOOT_DESCRIPTORS,
        &descriptors,
    )
}

struct ZeroPage([u8; PAGE_SIZE_BYTES as usize]);

impl ZeroPage {
    /// All offsets here are constants inside the page, and a setup header is bounded.
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(target) = self.0.get_mut(offset..offset + bytes.len()) {
            target.copy_from_slice(bytes);
        }
    }

    fn put_map(&mut self, map: &[MapEntry]) {
        let count = map.len().min(MAP_MAX_ENTRIES);
        self.0[MAP_ENTRIES] = count as u8;
        for (index, entry) in map.iter().take(count).enumerate() {
            let at = MAP + index * MAP_ENTRY_BYTES;
            self.put(at, &entry.start.0.to_le_bytes());
            self.put(at + 8, &entry.size_bytes.to_le_bytes());
            self.put(at + 16, &entry.kind.to_le_bytes());
        }
    }
}

/// The first 4 GiB at their own addresses, in pages of 2 MiB.
fn write_page_tables(memory: &GuestMemory) -> Result<(), LoadError> {
    let table = |index: u64| GuestAddress(PAGE_TABLES.0 + index * PAGE_SIZE_BYTES);
    let pointer = |index: u64| table(index).0 | PAGE_PRESENT_WRITABLE;
    let top = pointer(1).to_le_bytes();
    write(memory, "a page table", table(0), &top)?;
    let leaves: Vec<u8> = (0..LEAF_TABLES)
        .flat_map(|index| pointer(2 + index).to_le_bytes())
        .collect();
    write(memory, "a page table", table(1), &leaves)?;
    let pages: Vec<u8> = (0..LEAF_TABLES * TABLE_ENTRIES)
        .flat_map(|page| ((page * MIB_2) | PAGE_PRESENT_WRITABLE | PAGE_2_MIB).to_le_bytes())
        .collect();
    write(memory, "a page table", table(2), &pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ACPI_TABLES, ram_layout};
    use crate::start_info::Module;

    const MIB: u64 = 1 << 20;

    fn written() -> GuestMemory {
        let memory = GuestMemory::anonymous(ram_layout(64 * MIB).unwrap()).unwrap();
        let map = [MapEntry {
            start: GuestAddress(MIB),
            size_bytes: 63 * MIB,
            kind: 1,
        }];
        let info = StartInfo {
            map: &map,
            command_line: "quiet",
            module: Some(Module {
                start: GuestAddress(0x1_2345_6000),
                size_bytes: 0x2_0000_0001,
            }),
            acpi_root: ACPI_TABLES,
        };
        write_zero_page(&memory, None, &info).unwrap();
        memory
    }

    #[test]
    fn a_kernel_without_a_header_gets_one() {
        let memory = written();
        let at = |offset: usize| GuestAddress(ZERO_PAGE.0 + offset as u64);
        let u32_at = |offset| memory.read_u32(at(offset)).unwrap();
        assert_eq!(u32_at(HEADER_MAGIC), u32::from_le_bytes(*b"HdrS"));
        assert_eq!(u32_at(LOADER_TYPE) & 0xffff, 0x01ff);
        assert_eq!(u32_at(COMMAND_LINE_POINTER), COMMAND_LINE.0 as u32);
        assert_eq!(
            (u32_at(MODULE_START), u32_at(MODULE_START_HIGH)),
            (0x2345_6000, 1)
        );
        assert_eq!((u32_at(MODULE_SIZE), u32_at(MODULE_SIZE_HIGH)), (1, 2));
        assert_eq!(memory.read_u64(at(ACPI_ROOT)).unwrap(), ACPI_TABLES.0);
        assert_eq!(u32_at(MAP_ENTRIES) & 0xff, 1);
        assert_eq!(memory.read_u64(at(MAP)).unwrap(), MIB);
        assert_eq!(memory.read_u64(at(MAP + 8)).unwrap(), 63 * MIB);
        assert_eq!(u32_at(MAP + 16), 1);
        assert_eq!(initramfs_address_max(None), 0xffff_ffff);
    }

    #[test]
    fn page_tables_map_low_memory_to_itself() {
        let memory = written();
        let entry =
            |table: u64, index: u64| memory.read_u64(GuestAddress(table + 8 * index)).unwrap();
        for address in [0, 0x1234_5678, 0x7fff_ffff, 0xffff_ffff_u64] {
            let top = entry(PAGE_TABLES.0, address >> 39) & !0xfff;
            let middle = entry(top, address >> 30 & 0x1ff) & !0xfff;
            let leaf = entry(middle, address >> 21 & 0x1ff);
            assert_eq!(leaf & 0x83, 0x83, "present, writable, 2 MiB");
            assert_eq!(leaf & !0x1f_ffff | address & 0x1f_ffff, address);
        }
    }
}
