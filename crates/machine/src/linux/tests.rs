use nvx_memory::{RamLayout, RamRange};

use super::*;
use crate::layout::{COMMAND_LINE, MEMORY_MAP, MODULE_LIST, ram_layout};

const MIB: u64 = 1 << 20;

fn memory(bytes: u64) -> GuestMemory {
    GuestMemory::anonymous(ram_layout(bytes).unwrap()).unwrap()
}

fn load(
    memory: &GuestMemory,
    initramfs: Option<&mut dyn InitramfsSource>,
) -> Result<LinuxEntry, LinuxLoadError> {
    let kernel = Kernel::parse(nvx_probe_guest::image().unwrap()).unwrap();
    load_linux(
        memory,
        LinuxGuest {
            kernel: &kernel,
            initramfs: initramfs.map(|source| source as &mut dyn InitramfsSource),
            command_line: "console=ttyS0",
            vcpus: 2,
        },
    )
}

fn bytes<const N: usize>(memory: &GuestMemory, address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read(GuestAddress(address), &mut bytes).unwrap();
    bytes
}

fn map(memory: &GuestMemory, entries: u64) -> Vec<(u64, u64, u32)> {
    (0..entries)
        .map(|index| {
            let at = MEMORY_MAP.0 + 24 * index;
            let read = |offset| memory.read_u64(GuestAddress(at + offset)).unwrap();
            (read(0), read(8), read(16) as u32)
        })
        .collect()
}

#[test]
fn the_guest_is_told_of_its_memory_module_and_tables() {
    let memory = memory(16 * MIB);
    let mut initramfs: &[u8] = &[0xab; 5000];
    let LinuxEntry::Pvh(entry) = load(&memory, Some(&mut initramfs)).unwrap() else {
        panic!("an ELF file is entered by PVH");
    };
    let info = entry.start_info.0;
    assert_eq!(memory.read_u32(GuestAddress(info)).unwrap(), 0x336e_c578);
    // One module, whose list, the command line, ACPI's root and the map with its length follow.
    assert_eq!(memory.read_u32(GuestAddress(info + 12)).unwrap(), 1);
    let pointers = [16, 24, 32, 40].map(|at| memory.read_u64(GuestAddress(info + at)).unwrap());
    assert_eq!(
        pointers,
        [MODULE_LIST.0, COMMAND_LINE.0, ACPI_TABLES.0, MEMORY_MAP.0]
    );
    assert_eq!(memory.read_u32(GuestAddress(info + 48)).unwrap(), 3);
    assert_eq!(
        map(&memory, 3),
        [
            (0, 0xa_0000, 1),
            (0xe_0000, 0x2_0000, 2),
            (MIB, 15 * MIB, 1)
        ]
    );
    // At the end of memory, on a page boundary.
    let start = 16 * MIB - 8192;
    assert_eq!(memory.read_u64(MODULE_LIST).unwrap(), start);
    let size = memory.read_u64(GuestAddress(MODULE_LIST.0 + 8)).unwrap();
    assert_eq!(size, 5000);
    assert_eq!(bytes(&memory, start + 4998), [0xab, 0xab, 0]);
    assert_eq!(&bytes(&memory, ACPI_TABLES.0), b"RSD PTR ");
    assert_eq!(&bytes(&memory, COMMAND_LINE.0), b"console=ttyS0\0");
    // Code, at the last 16 bytes of the first MiB, that writes 1 to port 0x602.
    assert_eq!(bytes(&memory, 0xf_fff0), [0xb0, 1, 0xba, 0x02, 0x06, 0xee]);
}

#[test]
fn memory_above_the_gap_is_in_the_map_and_the_module_is_not_there() {
    let layout = RamLayout::new(vec![
        RamRange {
            start: GuestAddress(0),
            size_bytes: 16 * MIB,
            file_offset_bytes: 0,
        },
        RamRange {
            start: GuestAddress(1 << 32),
            size_bytes: 8 * MIB,
            file_offset_bytes: 16 * MIB,
        },
    ]);
    let memory = GuestMemory::anonymous(layout.unwrap()).unwrap();
    let mut initramfs: &[u8] = &[1; 4096];
    load(&memory, Some(&mut initramfs)).unwrap();
    assert_eq!(map(&memory, 4)[3], (1 << 32, 8 * MIB, 1));
    assert_eq!(memory.read_u64(MODULE_LIST).unwrap(), 16 * MIB - 4096);
}

#[test]
fn an_initramfs_that_does_not_fit_or_changes_is_refused() {
    let message = |source: &mut dyn InitramfsSource| {
        let error = load(&memory(8 * MIB), Some(source)).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", cause.unwrap_or_default())
    };
    let big = vec![0; 8 << 20];
    let text = message(&mut &big[..]);
    assert!(text.contains("8388608 bytes; behind the kernel"), "{text}");

    struct Liar(u64, usize);
    impl InitramfsSource for Liar {
        fn size_bytes(&self) -> u64 {
            self.0
        }
        fn write_to(&mut self, sink: &mut dyn Write) -> io::Result<()> {
            sink.write_all(&vec![7; self.1])
        }
    }
    assert!(message(&mut Liar(100, 101)).contains("more bytes than it has"));
    assert!(message(&mut Liar(100, 98)).contains("2 bytes fewer than it has"));
}

#[test]
#[cfg(unix)]
fn a_file_is_an_initramfs_and_a_device_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("initramfs");
    std::fs::write(&path, vec![3; 300_000]).unwrap();
    let mut source = InitramfsFile::new(File::open(&path).unwrap()).unwrap();
    let memory = memory(16 * MIB);
    load(&memory, Some(&mut source)).unwrap();
    let end = memory.read_u64(MODULE_LIST).unwrap() + 300_000;
    assert_eq!(bytes(&memory, end - 1), [3, 0]);
    assert!(InitramfsFile::new(File::open(directory.path()).unwrap()).is_err());
}
