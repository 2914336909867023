//! What a guest is started from.

use std::io::{self, Write};

use nvx_machine::initramfs::Initramfs;
use nvx_machine::kernel::Kernel;
use nvx_machine::{decompress_up_to, ram_layout};

use crate::devices::small_memory;
use crate::temporary_file;

/// A kernel in each of the kinds of file that hold one.
pub(crate) fn kernel(bytes: &[u8]) {
    let Ok(kernel) = Kernel::parse(bytes) else {
        return;
    };
    let mut end = 0;
    for segment in kernel.segments() {
        assert!(segment.start.0 >= end, "segments overlap");
        assert!(segment.bytes.len() as u64 <= segment.memory_bytes);
        end = segment
            .start
            .0
            .checked_add(segment.memory_bytes)
            .expect("a segment ends below 2^64");
    }
    assert_eq!(kernel.end_address().0, end);
    let layout = ram_layout(128 << 20).expect("a size that is allowed");
    let _ = kernel.check_room(&layout);
    let _ = kernel.load(&small_memory());
}

/// Packed data, of which a bounded part is unpacked.
pub(crate) fn packed(bytes: &[u8]) {
    const LIMIT_BYTES: u64 = 4 << 20;
    let Some(compression) = nvx_machine::kernel::Compression::of(bytes) else {
        return;
    };
    if let Ok(unpacked) = decompress_up_to(compression, bytes, LIMIT_BYTES) {
        assert!(unpacked.len() as u64 <= LIMIT_BYTES);
    }
    // A kernel's payload says how long it is: here its last four bytes do.
    if let Some((payload, length)) = bytes.split_last_chunk::<4>() {
        let length = u64::from(u32::from_le_bytes(*length)).min(LIMIT_BYTES);
        if let Ok(unpacked) = nvx_machine::kernel::decompress(compression, payload, length) {
            assert_eq!(unpacked.len() as u64, length);
        }
    }
}

/// Takes a bounded part of what is written and counts all of it.
#[derive(Default)]
struct Archive {
    start: Vec<u8>,
    bytes: u64,
}

const ARCHIVE_KEPT_BYTES: usize = 1 << 20;

impl Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = ARCHIVE_KEPT_BYTES - self.start.len();
        self.start
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A tar archive that is packed as an initramfs.
pub(crate) fn tar(bytes: &[u8]) {
    let mut initramfs = Initramfs::reserving(".nvx");
    temporary_file::with_content(bytes, |path| {
        if initramfs.add_tar(path).is_err() {
            return;
        }
        let mut archive = Archive::default();
        if initramfs.write_to(&mut archive).is_ok() {
            assert_eq!(archive.bytes, initramfs.size_bytes());
            check_cpio(&archive);
        }
    });
}

/// Reads the archive as the kernel does, and checks that no name leads out of the guest's root.
fn check_cpio(archive: &Archive) {
    const HEADER_BYTES: usize = 110;
    let bytes = &archive.start;
    let padded = |length: usize| length.next_multiple_of(4);
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
        assert_eq!(&header[..6], b"070701", "a header at {at}");
        let field = |index: usize| {
            let digits = &header[6 + 8 * index..14 + 8 * index];
            let digits = std::str::from_utf8(digits).expect("ASCII");
            usize::from_str_radix(digits, 16).expect("hexadecimal digits")
        };
        let (file_bytes, name_bytes) = (field(6), field(11));
        let start = at + HEADER_BYTES;
        let Some(name) = bytes.get(start..start + name_bytes) else {
            return;
        };
        let (nul, name) = name.split_last().expect("a name has its NUL");
        assert_eq!(*nul, 0);
        assert!(!name.contains(&0), "a NUL in a name");
        for component in name.split(|byte| *byte == b'/') {
            assert!(!matches!(component, b"" | b"." | b".."), "{name:?}");
        }
        at = padded(start + name_bytes) + padded(file_bytes);
    }
}
