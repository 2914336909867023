//! Views, writeback and RAM files on Windows.

#![cfg(windows)]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::path::Path;

use nvx_memory::{
    CopyError, DiscardError, GuestAddress, GuestMemory, MapError, PAGE_SIZE_BYTES, RamFile,
    RamFileError, RamFileKind, RamLayout, RamRange, Strategy, ViewKind, WritebackError,
};

const LOW_BYTES: u64 = 2 << 20;
const HIGH_START: u64 = 1 << 32;
const HIGH_BYTES: u64 = 1 << 20;
const STRATEGIES: [&str; 5] = [
    "ascending",
    "ascending-marked",
    "ranges:1",
    "ranges:3",
    "ranges:8",
];

/// 2 MiB at 0, then a gap, then 1 MiB at 4 GiB; with a gap in the file too.
fn layout() -> RamLayout {
    let range = |start, size_bytes, file_offset_bytes| RamRange {
        start: GuestAddress(start),
        size_bytes,
        file_offset_bytes,
    };
    RamLayout::new(vec![
        range(0, LOW_BYTES, 0),
        range(HIGH_START, HIGH_BYTES, LOW_BYTES + (64 << 10)),
    ])
    .unwrap()
}

fn shared(directory: &Path) -> (RamFile, GuestMemory) {
    let layout = layout();
    let ram = RamFile::create(directory, layout.file_len_bytes()).unwrap();
    let view = ram.try_clone_file().unwrap();
    let memory = GuestMemory::shared_file(layout, view, ram.display_name()).unwrap();
    (ram, memory)
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = file;
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn image(memory: &GuestMemory) -> Vec<u8> {
    let mut image = vec![0; memory.layout().file_len_bytes() as usize];
    for range in memory.layout().ranges() {
        let part = range.file_offset_bytes as usize..range.file_end_bytes() as usize;
        memory.read(range.start, &mut image[part]).unwrap();
    }
    image
}

fn entries(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap();
    names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn the_file_equals_ram_after_any_strategy() {
    let directory = tempfile::tempdir().unwrap();
    for (round, text) in (1_u8..).zip(STRATEGIES) {
        let (ram, memory) = shared(directory.path());
        for page in [0, 1, 7, 300, 511] {
            let content = [round ^ page as u8 | 1; 4096];
            memory.write(GuestAddress(page * 4096), &content).unwrap();
        }
        memory.write(GuestAddress(HIGH_START + 5), b"high").unwrap();
        let before = image(&memory);
        let report = memory.writeback(text.parse().unwrap()).unwrap();
        ram.file().sync_data().unwrap();
        assert_eq!(contents(ram.file()), before, "{text}");
        assert_eq!(image(&memory), before, "{text}");
        let marked = if text == "ascending-marked" { 768 } else { 0 };
        assert_eq!(report.marked_pages, marked);
        assert!(report.calls >= 2, "{report:?}");
    }
    assert_eq!(entries(directory.path()), [""; 0]);
}

#[test]
fn unfit_ranges_and_views_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let (ram, memory) = shared(directory.path());
    let strategy = Strategy::default();
    let part = |address, size_bytes| {
        memory
            .writeback_range(GuestAddress(address), size_bytes, strategy)
            .unwrap_err()
    };
    assert!(matches!(part(0, 0), WritebackError::ZeroLength { .. }));
    assert!(matches!(part(1, 4096), WritebackError::Unaligned { .. }));
    let outside = part(LOW_BYTES - 4096, 8192);
    assert!(matches!(outside, WritebackError::OutOfRange { .. }));
    memory
        .writeback_range(GuestAddress(4096), 8192, strategy)
        .unwrap();

    let file = || ram.try_clone_file().unwrap();
    let name = Path::new("the-ram");
    let private = GuestMemory::private_file(layout(), file(), name).unwrap();
    let error = private.writeback(strategy).unwrap_err();
    assert!(
        matches!(error, WritebackError::PrivateView { .. }),
        "{error}"
    );
    let read_only = GuestMemory::read_only_file(layout(), file(), name).unwrap();
    let error = read_only.writeback(strategy).unwrap_err();
    assert!(matches!(error, WritebackError::ReadOnly { .. }), "{error}");
    assert!(read_only.write(GuestAddress(0), b"x").is_err());
    let anonymous = GuestMemory::anonymous(layout()).unwrap();
    let error = anonymous.writeback(strategy).unwrap_err();
    assert!(matches!(error, WritebackError::Anonymous), "{error}");
}

#[test]
fn a_private_view_never_reaches_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memory.bin");
    let layout = layout();
    let base = vec![3; layout.file_len_bytes() as usize];
    std::fs::write(&path, &base).unwrap();
    // Open for reading only, as a snapshot's memory is.
    let open = || File::open(&path).unwrap();
    let one = GuestMemory::private_file(layout.clone(), open(), &path).unwrap();
    let other = GuestMemory::private_file(layout.clone(), open(), &path).unwrap();
    assert_eq!(one.view_kind(), ViewKind::PrivateFile);
    one.write(GuestAddress(4096), &[9; 8192]).unwrap();
    assert_eq!(one.read_u32(GuestAddress(8192)).unwrap(), 0x0909_0909);
    assert_eq!(other.read_u32(GuestAddress(8192)).unwrap(), 0x0303_0303);
    one.discard(GuestAddress(4096), 4096).unwrap();
    assert_eq!(one.read_u32(GuestAddress(4096)).unwrap(), 0x0303_0303);
    assert_eq!(one.read_u32(GuestAddress(8192)).unwrap(), 0x0909_0909);
    let copied = RamFile::create(directory.path(), 0).unwrap();
    one.copy_to(copied.file(), Path::new("copy")).unwrap();
    assert_eq!(contents(copied.file())[..1 << 20], image(&one)[..1 << 20]);
    drop((one, other));
    assert_eq!(std::fs::read(&path).unwrap(), base);
    let read_only = GuestMemory::shared_file(layout, open(), &path).unwrap_err();
    assert!(
        matches!(read_only, MapError::ReadOnlyFile { .. }),
        "{read_only}"
    );
}

#[test]
fn anonymous_ram_is_copied_without_its_zero_pages() {
    let memory = GuestMemory::anonymous(layout()).unwrap();
    memory.write(GuestAddress(0), &[1; 8192]).unwrap();
    memory.write(GuestAddress(HIGH_START), b"high").unwrap();
    memory.discard(GuestAddress(0), 4096).unwrap();
    assert_eq!(memory.read_u64(GuestAddress(0)).unwrap(), 0);
    let unaligned = memory.discard(GuestAddress(1), 4096);
    assert!(matches!(unaligned, Err(DiscardError::Unaligned { .. })));
    let directory = tempfile::tempdir().unwrap();
    let target = RamFile::create(directory.path(), 0).unwrap();
    let report = memory.copy_to(target.file(), Path::new("copy")).unwrap();
    assert_eq!(report.pages, 2);
    assert_eq!(report.zero_pages, 768 - 2);
    assert_eq!(contents(target.file()), image(&memory));
    let again = memory
        .copy_to(target.file(), Path::new("copy"))
        .unwrap_err();
    assert!(
        matches!(again, CopyError::DestinationNotEmpty { .. }),
        "{again}"
    );
}

#[test]
fn a_ram_file_is_exclusive_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let ram = RamFile::create_dense(directory.path(), 1 << 20).unwrap();
    assert_eq!(ram.kind(), RamFileKind::Named);
    let path = ram.path().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
    let error = OpenOptions::new().write(true).open(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(32), "{error}");
    drop(ram);
    assert_eq!(entries(directory.path()), [""; 0]);
}

#[test]
fn a_prepared_file_is_used_once_at_a_time_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prepared");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let ram = RamFile::open_prepared(&path, 1 << 20).unwrap();
    ram.claim_for_new_machine().unwrap();
    let error = RamFile::open_prepared(&path, 1 << 20).unwrap_err();
    assert!(
        matches!(error, RamFileError::PreparedInUse { .. }),
        "{error}"
    );
    drop(ram);
    let error = RamFile::open_prepared(&path, 2 << 20).unwrap_err();
    assert!(
        matches!(error, RamFileError::PreparedLength { .. }),
        "{error}"
    );
    let mut bytes = vec![0; 1 << 20];
    bytes[5 * PAGE_SIZE_BYTES as usize] = 1;
    std::fs::write(&path, bytes).unwrap();
    let ram = RamFile::open_prepared(&path, 1 << 20).unwrap();
    let error = ram.claim_for_new_machine().unwrap_err();
    assert!(
        matches!(error, RamFileError::PreparedContent { .. }),
        "{error}"
    );
    drop(ram);
    assert_eq!(entries(directory.path()), ["prepared"]);
}
