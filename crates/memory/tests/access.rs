//! Mapping, checked access, dirty set, private views, discarding.

#![cfg(target_os = "linux")]

mod support;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nvx_memory::{
    AccessError, DirtyLogError, DiscardError, GuestAddress, GuestMemory, MapError, RamFile,
    ViewKind,
};
use support::{
    HIGH_BYTES, HIGH_START, LOW_BYTES, contents, flat_layout, gap_layout, image, places, shared,
};

fn assert_out_of_range(memory: &GuestMemory, address: u64, length: usize) {
    let address = GuestAddress(address);
    let refused = AccessError::OutOfRange {
        address,
        size_bytes: length as u64,
    };
    let before = image(memory);
    let mut target = vec![0xa5; length];
    assert_eq!(memory.read(address, &mut target), Err(refused));
    assert!(target.iter().all(|&byte| byte == 0xa5));
    assert_eq!(memory.write(address, &target), Err(refused));
    assert_eq!(image(memory), before);
}

#[test]
fn access_is_bounded_by_the_ranges_and_never_spans_the_gap() {
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    for (address, length) in [
        (LOW_BYTES - 4, 8),
        (LOW_BYTES, 1),
        (HIGH_START - 1, 2),
        (HIGH_START + HIGH_BYTES - 1, 2),
        (HIGH_START + HIGH_BYTES, 0),
        (u64::MAX, 2),
        (0, LOW_BYTES as usize + 1),
    ] {
        assert_out_of_range(&memory, address, length);
    }
    assert!(memory.dirty().is_empty());
    for address in [
        0,
        LOW_BYTES - 8,
        HIGH_START,
        HIGH_START + HIGH_BYTES - 8,
        4093,
    ] {
        let address = GuestAddress(address);
        memory.write_u64(address, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(memory.read_u64(address).unwrap(), 0x1122_3344_5566_7788);
        assert_eq!(memory.read_u32(address).unwrap(), 0x5566_7788);
        memory.write_u32(address, 7).unwrap();
        assert_eq!(memory.read_u64(address).unwrap(), 0x1122_3344_0000_0007);
    }
}

#[test]
fn host_regions_show_the_same_bytes_in_the_layouts_order() {
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    let regions: Vec<_> = memory.host_regions().collect();
    let described: Vec<_> = regions
        .iter()
        .map(|region| (region.guest.0, region.size_bytes))
        .collect();
    assert_eq!(described, [(0, LOW_BYTES), (HIGH_START, HIGH_BYTES)]);
    for region in regions {
        assert_eq!(region.host_address() % 4096, 0);
        assert_eq!(region.host_address(), region.host.as_ptr().addr() as u64);
    }
}

#[test]
fn the_dirty_set_joins_own_writes_and_logs() {
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    memory.write(GuestAddress(4095), &[1, 2]).unwrap();
    memory.write(GuestAddress(3 * 4096), &[]).unwrap();
    memory.merge_dirty(1, &[1 << 5]).unwrap();
    let dirty = memory.dirty();
    assert_eq!(dirty.pages(), 3);
    assert!(dirty.contains(GuestAddress(0)) && dirty.contains(GuestAddress(8191)));
    assert!(!dirty.contains(GuestAddress(3 * 4096)));
    assert!(dirty.contains(GuestAddress(HIGH_START + 5 * 4096)));
    assert!(!dirty.contains(GuestAddress(LOW_BYTES)));
    assert_eq!(dirty.region_bitmap(1).unwrap(), [1 << 5, 0, 0, 0]);
    assert_eq!(dirty.region_bitmap(2), None);
    let high_offset = memory.layout().ranges()[1].file_offset_bytes;
    let extents: Vec<_> = dirty
        .extents()
        .iter()
        .map(|e| (e.offset_bytes, e.size_bytes))
        .collect();
    assert_eq!(extents, [(0, 8192), (high_offset + 5 * 4096, 4096)]);
    memory.write(GuestAddress(64 * 4096), &[1]).unwrap();
    assert_eq!(dirty.pages(), 3, "a dirty set is of one moment");
    assert_eq!(
        memory.merge_dirty(2, &[]),
        Err(DirtyLogError::NoSuchRegion {
            region_index: 2,
            count: 2
        })
    );
    assert_eq!(
        memory.merge_dirty(1, &[0; 5]),
        Err(DirtyLogError::TooLong {
            region_index: 1,
            words: 5,
            pages: 256
        })
    );
}

#[test]
fn private_views_of_one_file_are_isolated_and_never_change_it() {
    for place in places() {
        let directory = tempfile::tempdir_in(place).unwrap();
        let path = directory.path().join("memory.bin");
        let layout = gap_layout();
        let original: Vec<u8> = (0..layout.file_len_bytes())
            .map(|n| (n % 251) as u8)
            .collect();
        std::fs::write(&path, &original).unwrap();
        let open = || {
            GuestMemory::private_file(layout.clone(), File::open(&path).unwrap(), &path).unwrap()
        };
        let (first, second) = (open(), open());
        assert_eq!(first.view_kind(), ViewKind::PrivateFile);
        assert_eq!(first.name(), Some(path.as_path()));
        first.write(GuestAddress(5000), b"first").unwrap();
        second.write(GuestAddress(5000), b"other").unwrap();
        second.write(GuestAddress(HIGH_START), b"high").unwrap();
        let mut seen = [0; 5];
        first.read(GuestAddress(5000), &mut seen).unwrap();
        assert_eq!(&seen, b"first");
        second.read(GuestAddress(5000), &mut seen).unwrap();
        assert_eq!(&seen, b"other");
        assert!(first.dirty().contains(GuestAddress(4096)));
        assert!(!first.dirty().contains(GuestAddress(HIGH_START)));
        assert_eq!(std::fs::read(&path).unwrap(), original);
        drop((first, second));
        assert_eq!(std::fs::read(&path).unwrap(), original);
    }
}

#[test]
fn unfit_files_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let layout = flat_layout(1 << 20);
    let path = directory.path().join("short");
    std::fs::write(&path, [0; 4096]).unwrap();
    let refused = GuestMemory::private_file(layout.clone(), File::open(&path).unwrap(), &path);
    let error = refused.unwrap_err();
    assert!(matches!(
        error,
        MapError::FileTooShort {
            length_bytes: 4096,
            needed_bytes: 1_048_576,
            ..
        }
    ));
    assert!(error.to_string().contains("/short"));

    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let read_only = File::open(&path).unwrap();
    let refused = GuestMemory::shared_file(layout.clone(), read_only, &path);
    assert!(matches!(refused, Err(MapError::ReadOnlyFile { name }) if name == path));

    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    let refused = GuestMemory::private_file(layout.clone(), write_only, &path);
    assert!(matches!(refused, Err(MapError::Map { name: Some(name), .. }) if name == path));

    let no_file = File::open(directory.path()).unwrap();
    let refused = GuestMemory::private_file(layout, no_file, directory.path());
    assert!(matches!(refused, Err(MapError::NotRegular { .. })));

    let refused = GuestMemory::anonymous(flat_layout(1 << 60)).unwrap_err();
    assert!(matches!(refused, MapError::Map { name: None, .. }));
    assert!(refused.to_string().contains("anonymous"));
}

#[test]
fn a_read_only_view_refuses_writes() {
    let directory = tempfile::tempdir().unwrap();
    let layout = flat_layout(1 << 20);
    let ram = RamFile::create(directory.path(), 1 << 20).unwrap();
    ram.file().write_all_at(b"kept", 0).unwrap();
    let file = ram.try_clone_file().unwrap();
    let memory = GuestMemory::read_only_file(layout, file, Path::new("inspected")).unwrap();
    let address = GuestAddress(0);
    assert_eq!(
        memory.write(address, b"lost"),
        Err(AccessError::ReadOnly { address })
    );
    assert!(matches!(
        memory.discard(address, 4096),
        Err(DiscardError::ReadOnly { .. })
    ));
    let mut seen = [0; 4];
    memory.read(address, &mut seen).unwrap();
    assert_eq!(&seen, b"kept");
}

#[test]
fn discarded_pages_read_as_zeros_and_free_the_file() {
    for place in places() {
        let directory = tempfile::tempdir_in(place).unwrap();
        let (memory, file) = shared(&gap_layout(), directory.path());
        memory
            .write(GuestAddress(HIGH_START), &[1; 3 * 4096])
            .unwrap();
        memory
            .discard(GuestAddress(HIGH_START + 4096), 4096)
            .unwrap();
        let start = memory.layout().ranges()[1].file_offset_bytes as usize;
        let bytes = contents(&file);
        assert_eq!(bytes[start..start + 4096], [1; 4096]);
        assert_eq!(bytes[start + 4096..start + 8192], [0; 4096]);
        assert_eq!(bytes[start + 8192..start + 12288], [1; 4096]);
        assert_eq!(image(&memory), bytes);
    }
    let memory = GuestMemory::anonymous(gap_layout()).unwrap();
    memory.write(GuestAddress(0), &[1; 8192]).unwrap();
    memory.discard(GuestAddress(0), 4096).unwrap();
    assert_eq!(memory.read_u64(GuestAddress(0)).unwrap(), 0);
    assert_eq!(memory.read_u32(GuestAddress(4096)).unwrap(), 0x0101_0101);
    memory.discard(GuestAddress(0), 0).unwrap();
    let unaligned = memory.discard(GuestAddress(1), 4096);
    assert!(matches!(unaligned, Err(DiscardError::Unaligned { .. })));
    let outside = memory.discard(GuestAddress(LOW_BYTES - 4096), 8192);
    assert!(matches!(outside, Err(DiscardError::OutOfRange { .. })));
}

#[test]
fn guest_memory_can_be_shared_between_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<GuestMemory>();
}
