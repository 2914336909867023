//! The copy of RAM to a new file, from every kind of view.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

mod support;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvx_memory::{CopyError, GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamFile, RamLayout};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::proptest;
use support::{
    HIGH_START, SmallDisk, contents, flat_layout, gap_layout, image, page_content, pages, places,
    shared,
};

fn empty_file(directory: &Path) -> File {
    let ram = RamFile::create(directory, 0).unwrap();
    ram.try_clone_file().unwrap()
}

fn allocated_bytes(file: &File) -> u64 {
    file.sync_data().unwrap();
    file.metadata().unwrap().blocks() * 512
}

fn private(layout: &RamLayout, file: &File) -> GuestMemory {
    GuestMemory::private_file(layout.clone(), file.try_clone().unwrap(), Path::new("base")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Per page: 0 stays as it is, 1 is written with zeros, 2 with content.
    #[test]
    fn a_copy_of_any_view_equals_ram_and_keeps_holes(
        base in vec(0..3_u8, 768), own in vec(0..3_u8, 768), salt in any::<u8>(),
    ) {
        let layout = gap_layout();
        for place in places() {
            let directory = tempfile::tempdir_in(place).unwrap();
            let (shared, base_file) = shared(&layout, directory.path());
            let fill = |memory: &GuestMemory, actions: &[u8], salt| {
                for (address, action) in pages(&layout).into_iter().zip(actions) {
                    match action {
                        1 => memory.write(address, &[0; 4096]).unwrap(),
                        2 => memory.write(address, &page_content(address, salt)).unwrap(),
                        _ => {}
                    }
                }
            };
            fill(&shared, &base, salt);
            let restored = private(&layout, &base_file);
            fill(&restored, &own, salt.wrapping_add(2));
            let anonymous = GuestMemory::anonymous(layout.clone()).unwrap();
            fill(&anonymous, &own, salt);
            for memory in [&shared, &restored, &anonymous] {
                let target = empty_file(directory.path());
                let report = memory.copy_to(&target, Path::new("target")).unwrap();
                let wanted = image(memory);
                assert_eq!(contents(&target), wanted);
                let full = wanted.chunks(4096).filter(|page| page.iter().any(|&byte| byte != 0)).count();
                assert_eq!(report.pages, full as u64);
                assert_eq!(report.bytes, report.pages * PAGE_SIZE_BYTES);
                assert!(report.calls <= report.pages);
                // File systems may add a block of their own for the map of a fragmented file.
                assert!(allocated_bytes(&target) <= report.bytes + 16 * 4096);
            }
        }
    }
}

#[test]
fn pages_that_only_the_hypervisor_saw_written_are_copied() {
    let directory = tempfile::tempdir().unwrap();
    let layout = gap_layout();
    let base = RamFile::create(directory.path(), layout.file_len_bytes()).unwrap();
    let restored = private(&layout, base.file());
    let region = restored.host_regions().nth(1).unwrap();
    assert_eq!(region.guest, GuestAddress(HIGH_START));
    // The guest's store, which the accessor does not see.
    let target = region.host.as_ptr();
    store_as_guest(target, 7);
    assert!(restored.dirty().is_empty());
    restored.merge_dirty(1, &[1]).unwrap();
    let copy = empty_file(directory.path());
    let report = restored.copy_to(&copy, Path::new("copy")).unwrap();
    assert_eq!(report.pages, 1);
    assert_eq!(contents(&copy), image(&restored));
    assert_eq!(restored.read_u32(GuestAddress(HIGH_START)).unwrap(), 7);
}

/// Stores a byte as the guest would.
#[allow(unsafe_code, reason = "plays the guest")]
fn store_as_guest(target: *mut u8, value: u8) {
    // SAFETY: the caller passes the start of a mapped region.
    unsafe { target.write_volatile(value) };
}

#[test]
fn contiguous_pages_are_written_in_few_calls() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let memory = GuestMemory::anonymous(flat_layout(64 << 20)).unwrap();
    memory.open_page_map().unwrap();
    memory
        .write(GuestAddress(8 << 20), &vec![1; 32 << 20])
        .unwrap();
    let copy = empty_file(directory.path());
    let report = memory.copy_to(&copy, Path::new("copy")).unwrap();
    assert_eq!(report.bytes, 32 << 20);
    assert!(report.calls <= 32, "{} calls", report.calls);
    assert_eq!(allocated_bytes(&copy), 32 << 20);
}

#[test]
fn a_destination_with_content_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    let target = RamFile::create(directory.path(), 1).unwrap();
    let refused = memory
        .copy_to(target.file(), Path::new("full"))
        .unwrap_err();
    assert!(matches!(refused, CopyError::DestinationNotEmpty { .. }));
    assert!(refused.to_string().contains("full"));
}

#[test]
fn a_destination_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locked");
    File::create(&path).unwrap();
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    let refused = memory
        .copy_to(&File::open(&path).unwrap(), &path)
        .unwrap_err();
    assert!(matches!(&refused, CopyError::Resize { destination, .. } if *destination == path));
}

#[test]
fn a_full_destination_is_named() {
    let Some(disk) = SmallDisk::mount(c"size=256k") else {
        return;
    };
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    memory.write(GuestAddress(0), &[1; 1 << 20]).unwrap();
    let target = empty_file(disk.path());
    let refused = memory
        .copy_to(&target, Path::new("small-disk"))
        .unwrap_err();
    assert!(
        matches!(&refused, CopyError::DestinationFull { .. }),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("small-disk"));
}
