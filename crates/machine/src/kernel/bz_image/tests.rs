use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::kernel::KernelSegment;

const SECTORS: u8 = 3;
const KERNEL_OFFSET: usize = 4 * SECTOR_BYTES;

fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// A bzImage of boot protocol 2.15 with `payload` at offset 0x300 of its protected-mode kernel.
fn bz_image(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; KERNEL_OFFSET + 0x300];
    image[SETUP_SECTS] = SECTORS;
    put(&mut image, 0x1fe, &[0x55, 0xaa]);
    image[0x200] = 0xeb;
    image[HEADER_JUMP_LENGTH] = 0x6a;
    put(&mut image, 0x202, b"HdrS");
    put(&mut image, VERSION, &0x20f_u16.to_le_bytes());
    image[LOADFLAGS] = LOADED_HIGH;
    put(&mut image, XLOADFLAGS, &0x7f_u16.to_le_bytes());
    put(&mut image, PAYLOAD_OFFSET, &0x300_u32.to_le_bytes());
    put(
        &mut image,
        PAYLOAD_LENGTH,
        &(payload.len() as u32).to_le_bytes(),
    );
    put(&mut image, PREF_ADDRESS, &0x0100_0000_u64.to_le_bytes());
    put(&mut image, INIT_SIZE, &0x0300_0000_u32.to_le_bytes());
    image.extend(payload);
    // Something after the payload, as in a real one.
    image.extend([0xcc; 100]);
    image
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let block = lz4_flex::block::compress(bytes);
    let mut packed = vec![0x02, 0x21, 0x4c, 0x18];
    packed.extend((block.len() as u32).to_le_bytes());
    packed.extend(block);
    packed.extend((bytes.len() as u32).to_le_bytes());
    packed
}

fn probe() -> Vec<u8> {
    nvx_probe_guest::image().unwrap()
}

fn message(image: Vec<u8>) -> String {
    let error = Kernel::parse(image).unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn a_payload_with_a_pvh_entry_is_unpacked() {
    let elf = probe();
    let direct = Kernel::parse(elf.clone()).unwrap();
    for (payload, compression) in [
        (gzip(&elf), Compression::Gzip),
        (lz4(&elf), Compression::Lz4Legacy),
    ] {
        let kernel = Kernel::parse(bz_image(&payload)).unwrap();
        assert_eq!(kernel.format(), KernelFormat::BzImageUnpacked(compression));
        assert_eq!(kernel.entry(), direct.entry());
        assert!(kernel.segments().eq(direct.segments()));
    }
}

#[test]
fn other_payloads_leave_the_unpacking_to_the_kernel() {
    let mut without_note = probe();
    put(&mut without_note, 64 + 56, &0u32.to_le_bytes());
    for payload in [
        gzip(&without_note),
        lz4(b"not an ELF file"),
        b"BZh9, which only the kernel unpacks".to_vec(),
        Vec::new(),
    ] {
        let image = bz_image(&payload);
        let kernel = Kernel::parse(&image).unwrap();
        assert_eq!(kernel.format(), KernelFormat::BzImage);
        let segments: Vec<_> = kernel.segments().collect();
        assert_eq!(
            segments,
            [KernelSegment {
                start: GuestAddress(0x0100_0000),
                bytes: &image[KERNEL_OFFSET..],
                memory_bytes: 0x0300_0000,
            }]
        );
        assert_eq!(kernel.lowest_address(), GuestAddress(0x0100_0000));
        assert_eq!(kernel.end_address(), GuestAddress(0x0400_0000));
        let KernelEntry::Boot64 {
            entry: 0x0100_0200,
            setup_header: Some(header),
        } = kernel.entry()
        else {
            panic!("{:?}", kernel.entry());
        };
        assert_eq!(header.bytes(), &image[0x1f1..0x202 + 0x6a]);
    }
}

#[test]
fn each_fault_is_named() {
    let changed = |offset: usize, bytes: &[u8]| {
        let mut image = bz_image(b"BZh9");
        put(&mut image, offset, bytes);
        message(image)
    };
    let expect = |text: String, words: &str| assert!(text.contains(words), "{text}");
    expect(
        changed(VERSION, &[7, 2]),
        "boot protocol 2.07 is too old; 2.08",
    );
    expect(
        changed(VERSION, &[11, 2]),
        "boot protocol 2.11 is too old; 2.12",
    );
    expect(changed(XLOADFLAGS, &[0]), "a 32-bit kernel?");
    expect(changed(LOADFLAGS, &[0]), "a 32-bit kernel?");
    expect(
        changed(PAYLOAD_LENGTH, &[255; 4]),
        "ends before its payload ends",
    );
    expect(
        changed(PAYLOAD_OFFSET, &[255; 4]),
        "ends before its payload ends",
    );
    expect(changed(INIT_SIZE, &[0; 4]), "init_size says 0 bytes");
    expect(changed(PREF_ADDRESS, &[255; 8]), "no place for it");

    let mut packed = lz4(&probe());
    let size = packed.len() - 4;
    put(&mut packed, size, &[255; 4]);
    expect(
        message(bz_image(&packed)),
        "would unpack to 4294967295 bytes",
    );
    put(&mut packed, size, &[1, 0, 0, 0]);
    expect(message(bz_image(&packed)), "the LZ4 payload is damaged");
    let mut damaged = probe();
    damaged[18] = 183;
    expect(message(bz_image(&gzip(&damaged))), "ELF machine 183");
    for length in 0x206..0x268 {
        expect(message(bz_image(b"")[..length].to_vec()), "ends before");
    }
    let mut image = bz_image(b"");
    image.truncate(KERNEL_OFFSET + 0x200);
    put(&mut image, PAYLOAD_OFFSET, &[0; 4]);
    expect(message(image), "ends before its 64-bit entry point");
}

proptest! {
    #[test]
    fn damaged_images_parse_or_are_refused(
        changes in prop::collection::vec((0x1f1usize..0x270, any::<u8>()), 1..6),
        cut: prop::sample::Index,
    ) {
        let mut image = bz_image(&lz4(&probe()));
        for (at, byte) in changes {
            image[at] = byte;
        }
        let _ = Kernel::parse(&image);
        image.truncate(cut.index(image.len()));
        let _ = Kernel::parse(image);
    }
}
