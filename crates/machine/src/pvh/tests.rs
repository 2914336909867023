use proptest::prelude::*;

use super::*;
use crate::layout::MEMORY_MAP;
use crate::ram_layout;

const RAM_BYTES: u64 = 8 << 20;
/// Offsets in the probe guest's file: ELF header, then the program headers of the segment and of the note.
const LOAD_HEADER: usize = 64;
const NOTE_HEADER: usize = 64 + 56;
const NOTE: usize = 64 + 2 * 56;

fn memory() -> GuestMemory {
    GuestMemory::anonymous(ram_layout(RAM_BYTES).unwrap()).unwrap()
}

fn probe() -> Vec<u8> {
    nvx_probe_guest::image().unwrap()
}

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn put_u64(image: &mut [u8], offset: usize, value: u64) {
    put(image, offset, &value.to_le_bytes());
}

fn read(memory: &GuestMemory, address: GuestAddress, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(address, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_probe_guest_is_loaded_with_its_boot_data() {
    let memory = memory();
    let image = probe();
    let entry = load_pvh(&memory, &image, "fill=top:256 seed=7").unwrap();
    assert_eq!(entry.start_info, START_INFO);
    let loaded = &image[4096..];
    assert_eq!(read(&memory, GuestAddress(1 << 20), loaded.len()), loaded);
    assert!(((1 << 20)..(1 << 20) + loaded.len() as u64).contains(&entry.rip));

    let u32_at = |address| memory.read_u32(GuestAddress(address)).unwrap();
    let u64_at = |address| memory.read_u64(GuestAddress(address)).unwrap();
    let info = START_INFO.0;
    assert_eq!((u32_at(info), u32_at(info + 4)), (0x336e_c578, 1));
    assert_eq!((u32_at(info + 8), u32_at(info + 12)), (0, 0));
    assert_eq!((u64_at(info + 16), u64_at(info + 32)), (0, 0));
    assert_eq!(
        read(&memory, GuestAddress(u64_at(info + 24)), 20),
        b"fill=top:256 seed=7\0"
    );
    let map = u64_at(info + 40);
    assert_eq!(u32_at(info + 48), 1);
    assert_eq!((u64_at(map), u64_at(map + 8)), (0, RAM_BYTES));
    assert_eq!((u32_at(map + 16), u32_at(map + 20)), (1, 0));
}

#[test]
fn the_memory_map_has_every_ram_range() {
    let memory = GuestMemory::anonymous(ram_layout((3 << 30) + 4096).unwrap()).unwrap();
    load_pvh(&memory, &probe(), "").unwrap();
    assert_eq!(memory.read_u32(GuestAddress(START_INFO.0 + 48)).unwrap(), 2);
    let second = MEMORY_MAP.0 + 24;
    assert_eq!(memory.read_u64(GuestAddress(second)).unwrap(), 4 << 30);
    assert_eq!(memory.read_u64(GuestAddress(second + 8)).unwrap(), 4096);
}

#[test]
fn a_note_of_four_bytes_is_understood() {
    let mut image = probe();
    put(&mut image, NOTE + 4, &4u32.to_le_bytes());
    put_u64(&mut image, NOTE_HEADER + 32, 20);
    let entry = load_pvh(&memory(), &image, "").unwrap();
    assert_eq!(entry, load_pvh(&memory(), &probe(), "").unwrap());
}

#[test]
fn files_of_other_formats_are_named() {
    for (image, words) in [
        (&b""[..], "it is empty"),
        (b"#!/bin/sh\n", "a script"),
        (b"\x1f\x8b\x08\0", "gzip"),
    ] {
        let error = load_pvh(&memory(), image, "").unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// What `change` does to the probe's image leads to an error that says `words`, and to no write.
fn refused(words: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut image = probe();
    change(&mut image);
    let memory = memory();
    let error = load_pvh(&memory, &image, "").unwrap_err().to_string();
    assert!(error.contains(words), "expected '{words}': {error}");
    assert!(memory.dirty().is_empty(), "{words}");
}

#[test]
fn each_fault_of_an_image_is_named() {
    let segment = |image: &mut Vec<u8>, address: u64, file_bytes: u64, memory_bytes: u64| {
        put_u64(image, LOAD_HEADER + 24, address);
        put_u64(image, LOAD_HEADER + 32, file_bytes);
        put_u64(image, LOAD_HEADER + 40, memory_bytes);
        // The entry point moves with it.
        put_u64(image, NOTE + 16, address);
    };
    refused("ELF machine 183", |image| {
        put(image, 18, &183u16.to_le_bytes());
    });
    refused("damaged ELF", |image| image[5] = 2); // big endian
    refused("damaged ELF", |image| image[4] = 9); // class
    refused("no segment to load", |image| {
        put(image, LOAD_HEADER, &0u32.to_le_bytes());
    });
    refused("no segment to load", |image| put_u64(image, 32, 0));
    refused(
        "segment 0: 512 bytes in the file, but only 511 in memory",
        |image| {
            segment(image, 1 << 20, 512, 511);
        },
    );
    refused("segment 0: its bytes do not lie in the file", |image| {
        segment(image, 1 << 20, 1 << 16, 1 << 16);
    });
    refused("are not all guest RAM", |image| {
        segment(image, RAM_BYTES - 4096, 512, 8192);
    });
    refused("lies in no loaded segment below 4 GiB", |image| {
        segment(image, u64::MAX - 4096, 512, 8192);
    });
    refused("are not all guest RAM", |image| {
        segment(image, 0xd000_0000, 512, 8192);
    });
    for address in [BOOT_DATA_START.0 - 4096, BOOT_DATA_START.0, 0x6fff] {
        refused("lies over the boot data", |image| {
            segment(image, address, 512, 8192);
        });
    }
    refused("no PVH entry", |image| image[NOTE + 8] = 17);
    refused("no PVH entry", |image| image[NOTE + 12] = b'x');
    refused("no PVH entry", |image| {
        put(image, NOTE_HEADER, &0u32.to_le_bytes());
    });
    refused("the PVH entry note has 6 bytes", |image| {
        image[NOTE + 4] = 6
    });
    refused("segment 1: its bytes do not lie in the file", |image| {
        put_u64(image, NOTE_HEADER + 32, u64::MAX);
    });
    // Below, in the zeroed part, and beyond what 32 bits reach.
    for entry in [0xf_ffff, (1 << 20) + 4096, 1 << 32] {
        refused("lies in no loaded segment", |image| {
            put_u64(image, NOTE + 16, entry);
        });
    }
}

#[test]
fn segments_that_overlap_are_refused() {
    let mut image = probe();
    // A third header in the free space before the loaded bytes: a copy of the first.
    let table = image[LOAD_HEADER..NOTE].to_vec();
    put_u64(&mut image, 32, 512);
    put(&mut image, 56, &3u16.to_le_bytes());
    put(&mut image, 512, &table);
    put(&mut image, 512 + table.len(), &table[..56]);
    put_u64(&mut image, 512 + table.len() + 24, (1 << 20) + 8191);
    let error = load_pvh(&memory(), &image, "").unwrap_err().to_string();
    assert_eq!(error, "segments 0 and 2 overlap in memory");
    put_u64(&mut image, 512 + table.len() + 24, (1 << 20) + 8192);
    load_pvh(&memory(), &image, "").unwrap();
}

#[test]
fn command_lines_are_bounded() {
    let memory = memory();
    let error = |line: &str| load_pvh(&memory, &probe(), line).unwrap_err().to_string();
    assert!(error(&"x".repeat(2048)).contains("2048 bytes; at most 2047"));
    assert!(error("a\0b").contains("NUL byte at position 1"));
    assert!(memory.dirty().is_empty());
    load_pvh(&memory, &probe(), &"x".repeat(2047)).unwrap();
    assert_eq!(read(&memory, GuestAddress(0x7000), 1), [0]);
}

#[test]
fn every_truncation_is_refused() {
    let memory = memory();
    let image = probe();
    for len in 0..image.len() {
        assert!(load_pvh(&memory, &image[..len], "").is_err(), "{len} bytes");
    }
    assert!(memory.dirty().is_empty());
}

proptest! {
    #[test]
    fn damaged_images_load_or_are_refused(
        flips in prop::collection::vec((0..NOTE + 24, any::<u8>()), 1..8),
    ) {
        let mut image = probe();
        for (offset, value) in flips {
            image[offset] = value;
        }
        if let Ok(entry) = load_pvh(&memory(), &image, "") {
            prop_assert!(entry.rip < RAM_BYTES);
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..512), is_elf: bool) {
        let mut image = bytes;
        if is_elf {
            image.splice(0..0, *b"\x7fELF\x02\x01\x01");
        }
        prop_assert!(load_pvh(&memory(), &image, "").is_err());
    }
}
