//! What the tests of this crate share: layouts, patterns of pages, places for files.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

use std::fs::File;
use std::path::{Path, PathBuf};

use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamFile, RamLayout, RamRange};

pub const LOW_BYTES: u64 = 2 << 20;
pub const HIGH_START: u64 = 1 << 32;
pub const HIGH_BYTES: u64 = 1 << 20;

/// 2 MiB at 0, then a gap, then 1 MiB at 4 GiB; with a gap in the file too.
pub fn gap_layout() -> RamLayout {
    let high_offset = LOW_BYTES + (64 << 10);
    RamLayout::new(vec![
        RamRange {
            start: GuestAddress(0),
            size_bytes: LOW_BYTES,
            file_offset_bytes: 0,
        },
        RamRange {
            start: GuestAddress(HIGH_START),
            size_bytes: HIGH_BYTES,
            file_offset_bytes: high_offset,
        },
    ])
    .unwrap()
}

pub fn flat_layout(size_bytes: u64) -> RamLayout {
    let range = RamRange {
        start: GuestAddress(0),
        size_bytes,
        file_offset_bytes: 0,
    };
    RamLayout::new(vec![range]).unwrap()
}

/// The machine's default place for temporary files, and one in memory.
pub fn places() -> [PathBuf; 2] {
    [std::env::temp_dir(), PathBuf::from("/dev/shm")]
}

pub fn is_in_memory(path: &Path) -> bool {
    // TMPFS_MAGIC
    rustix::fs::statfs(path).unwrap().f_type == 0x0102_1994
}

/// A shared view of a new RAM file, and a second descriptor of that file.
pub fn shared(layout: &RamLayout, directory: &Path) -> (GuestMemory, File) {
    let ram = RamFile::create(directory, layout.file_len_bytes()).unwrap();
    let file = ram.try_clone_file().unwrap();
    let view = ram.try_clone_file().unwrap();
    let memory = GuestMemory::shared_file(layout.clone(), view, ram.display_name()).unwrap();
    (memory, file)
}

/// The first address of every page of the layout.
pub fn pages(layout: &RamLayout) -> Vec<GuestAddress> {
    let ranges = layout.ranges().iter();
    ranges
        .flat_map(|range| {
            (0..range.pages()).map(|page| GuestAddress(range.start.0 + page * PAGE_SIZE_BYTES))
        })
        .collect()
}

/// Bytes that tell where they belong, none of them 0.
pub fn page_content(address: GuestAddress, salt: u8) -> Vec<u8> {
    let seed = (address.0 / PAGE_SIZE_BYTES) as u8;
    (0..PAGE_SIZE_BYTES)
        .map(|n| seed.wrapping_mul(31).wrapping_add(n as u8 ^ salt) | 1)
        .collect()
}

/// All of RAM as the file would hold it.
pub fn image(memory: &GuestMemory) -> Vec<u8> {
    let mut image = vec![0; memory.layout().file_len_bytes() as usize];
    for range in memory.layout().ranges() {
        let part = range.file_offset_bytes as usize..range.file_end_bytes() as usize;
        memory.read(range.start, &mut image[part]).unwrap();
    }
    image
}

/// All of a file.
pub fn contents(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// A small file system in memory, unmounted on drop.
pub struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// `None`, with a printed reason, where mounting is not permitted.
    pub fn mount(options: &std::ffi::CStr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("nvx-test", directory.path(), "tmpfs", flags, Some(options)) {
            Ok(()) => Some(Self { directory }),
            Err(error) => {
                println!("skipped: cannot mount a tmpfs: {error}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.directory.path(), flags);
    }
}
