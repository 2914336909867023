use proptest::prelude::*;

use super::*;

const CODE: usize = 0x200;
const BUNDLE_AT: usize = 0x400;
const BUNDLE_BYTES: usize = 0x100;
const SYMBOLS: usize = 0x100;
const SECTIONS: usize = 0x600;
/// File offset and address differ, as in a real one.
const ADDRESS_BIAS: u64 = 0x1000;

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn put_u64(image: &mut [u8], offset: usize, value: u64) {
    put(image, offset, &value.to_le_bytes());
}

fn section(image: &mut [u8], index: usize, kind: u32, offset: usize, bytes: usize, link: u32) {
    let at = SECTIONS + index * 64;
    put(image, at + 4, &kind.to_le_bytes());
    put_u64(image, at + 24, offset as u64);
    put_u64(image, at + 32, bytes as u64);
    put(image, at + 40, &link.to_le_bytes());
    put_u64(image, at + 56, 24);
}

fn symbol(image: &mut [u8], index: usize, name: u32, value: u64, bytes: u64) {
    let at = SYMBOLS + index * 24;
    put(image, at, &name.to_le_bytes());
    put_u64(image, at + 8, value);
    put_u64(image, at + 16, bytes);
}

/// A shared object laid out like libkrunfw whose function stores these constants.
fn library(load: u32, entry: u32, size: u32) -> Vec<u8> {
    let mut image = vec![0; SECTIONS + 3 * 64];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &[3, 0, 62, 0, 1]); // ET_DYN, x86-64
    put_u64(&mut image, 32, 64); // program headers
    put_u64(&mut image, 40, SECTIONS as u64);
    put(&mut image, 52, &[64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 0, 0]);
    // One segment holds the whole file.
    put(&mut image, 64, &1u32.to_le_bytes());
    put_u64(&mut image, 64 + 16, ADDRESS_BIAS);
    put_u64(&mut image, 64 + 32, SECTIONS as u64);
    put_u64(&mut image, 64 + 40, SECTIONS as u64);
    let names = b"\0KERNEL_BUNDLE\0krunfw_get_kernel\0";
    put(&mut image, 0xc0, names);
    symbol(
        &mut image,
        1,
        1,
        BUNDLE_AT as u64 + ADDRESS_BIAS,
        BUNDLE_BYTES as u64,
    );
    let mut code = Vec::new();
    for (register, constant) in [(7, load), (6, entry), (2, size)] {
        code.extend([0x48, 0xc7, register]);
        code.extend(constant.to_le_bytes());
    }
    code.push(0xc3);
    symbol(
        &mut image,
        2,
        15,
        CODE as u64 + ADDRESS_BIAS,
        code.len() as u64,
    );
    put(&mut image, CODE, &code);
    section(&mut image, 1, 11, SYMBOLS, 3 * 24, 2); // SHT_DYNSYM
    section(&mut image, 2, 3, 0xc0, names.len(), 0); // SHT_STRTAB
    for at in 0..BUNDLE_BYTES {
        image[BUNDLE_AT + at] = at as u8;
    }
    image
}

const LOAD: u32 = 0x0100_0000;

fn good() -> Vec<u8> {
    library(LOAD, LOAD + 0x23, 0x80)
}

#[test]
fn the_kernel_is_found() {
    let image = good();
    let kernel = Kernel::parse(&image).unwrap();
    assert_eq!(kernel.format(), KernelFormat::Krunfw);
    assert_eq!(
        *kernel.entry(),
        KernelEntry::Boot64 {
            entry: 0x0100_0023,
            setup_header: None
        }
    );
    let segments: Vec<_> = kernel.segments().collect();
    assert_eq!(segments.len(), 1);
    assert_eq!(segments[0].start, GuestAddress(0x0100_0000));
    assert_eq!(segments[0].bytes, &image[BUNDLE_AT..BUNDLE_AT + 0x80]);
    assert_eq!(segments[0].memory_bytes, 0x80 + ZEROED_BYTES);
}

fn message(image: Vec<u8>) -> String {
    match Kernel::parse(image).unwrap_err() {
        KernelError::Krunfw(source) => source.to_string(),
        other => other.to_string(),
    }
}

#[test]
fn contradictions_are_refused() {
    for (load, entry, size) in [
        (LOAD, LOAD - 1, 0x80),
        (LOAD, LOAD + 0x80, 0x80),
        (LOAD, LOAD, 0),
        (LOAD, LOAD, 0x101),
        (u32::MAX, u32::MAX, 0x80),
    ] {
        let message = message(library(load, entry, size));
        assert!(message.contains("does not fit KERNEL_BUNDLE"), "{message}");
    }
}

#[test]
fn damage_is_named() {
    let mut image = good();
    image[CODE] = 0xe8;
    let text = message(image);
    assert!(
        text.contains("does not just store three constants"),
        "{text}"
    );
    let mut image = good();
    symbol(&mut image, 1, 1, 0x4000, 0x100);
    let text = message(image);
    assert!(
        text.contains("KERNEL_BUNDLE does not lie in the file"),
        "{text}"
    );
    let mut image = good();
    symbol(&mut image, 2, 15, u64::MAX, 58);
    let text = message(image);
    assert!(text.contains("krunfw_get_kernel does not lie"), "{text}");
}

#[test]
fn a_shared_object_without_the_symbols_is_an_elf_file_like_any_other() {
    for name in [b"XERNEL", b"\0ERNEL"] {
        let mut image = good();
        put(&mut image, 0xc1, name);
        assert!(message(image).contains("no PVH entry"));
    }
}

proptest! {
    #[test]
    fn damaged_libraries_parse_or_are_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut: prop::sample::Index,
    ) {
        let mut image = good();
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let _ = Kernel::parse(&image);
        image.truncate(cut.index(image.len()));
        let _ = Kernel::parse(image);
    }
}
