//! Writeback: refusals, contents, reports, and what it costs on disk.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamFile, Strategy, WritebackError};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::proptest;
use support::{
    HIGH_START, LOW_BYTES, contents, flat_layout, gap_layout, image, is_in_memory, page_content,
    pages, places, shared,
};

const STRATEGIES: [&str; 5] = [
    "ascending",
    "ascending-marked",
    "ranges:1",
    "ranges:3",
    "ranges:8",
];

fn strategy(text: &str) -> Strategy {
    text.parse().unwrap()
}

#[test]
fn unfit_ranges_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let (memory, _file) = shared(&gap_layout(), directory.path());
    for text in STRATEGIES {
        let refused = |address, size_bytes| {
            memory
                .writeback_range(GuestAddress(address), size_bytes, strategy(text))
                .unwrap_err()
        };
        assert!(matches!(refused(0, 0), WritebackError::ZeroLength { .. }));
        assert!(matches!(refused(1, 4096), WritebackError::Unaligned { .. }));
        assert!(matches!(refused(0, 4095), WritebackError::Unaligned { .. }));
        for (address, size_bytes) in [
            (LOW_BYTES - 4096, 8192),
            (LOW_BYTES, 4096),
            (HIGH_START - 4096, 8192),
            (0, u64::MAX - 4095),
            (u64::MAX - 4095, 4096),
        ] {
            assert!(matches!(
                refused(address, size_bytes),
                WritebackError::OutOfRange { .. }
            ));
        }
        let error = refused(LOW_BYTES, 4096);
        assert!(error.to_string().contains("0x200000"), "{error}");
    }
}

#[test]
fn unfit_views_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let layout = gap_layout();
    let ram = RamFile::create(directory.path(), layout.file_len_bytes()).unwrap();
    let file = || ram.try_clone_file().unwrap();
    let name = Path::new("the-ram");
    let private = GuestMemory::private_file(layout.clone(), file(), name).unwrap();
    let read_only = GuestMemory::read_only_file(layout.clone(), file(), name).unwrap();
    let anonymous = GuestMemory::anonymous(layout).unwrap();
    for text in STRATEGIES {
        let both = |memory: &GuestMemory| {
            [
                memory.writeback(strategy(text)).unwrap_err(),
                memory
                    .writeback_range(GuestAddress(0), 4096, strategy(text))
                    .unwrap_err(),
            ]
        };
        for error in both(&private) {
            assert!(
                matches!(&error, WritebackError::PrivateView { name } if name.as_os_str() == "the-ram")
            );
        }
        for error in both(&read_only) {
            assert!(
                matches!(&error, WritebackError::ReadOnly { name } if name.as_os_str() == "the-ram")
            );
        }
        for error in both(&anonymous) {
            assert!(matches!(error, WritebackError::Anonymous));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn the_file_equals_ram_after_any_strategy(dirty in vec(any::<bool>(), 768), salt in any::<u8>()) {
        for place in places() {
            let directory = tempfile::tempdir_in(&place).unwrap();
            for text in STRATEGIES {
                let layout = gap_layout();
                let (memory, file) = shared(&layout, directory.path());
                for (address, _) in pages(&layout).into_iter().zip(&dirty).filter(|(_, dirty)| **dirty) {
                    memory.write(address, &page_content(address, salt)).unwrap();
                }
                let before = image(&memory);
                let report = memory.writeback(strategy(text)).unwrap();
                file.sync_data().unwrap();
                assert_eq!(contents(&file), before, "{text} in {}", place.display());
                assert_eq!(image(&memory), before);
                assert_eq!(report.strategy, strategy(text));
                let marked = if text == "ascending-marked" { 768 } else { 0 };
                assert_eq!(report.marked_pages, marked);
                assert_eq!(report.bytes, report.pages.map(|pages| pages * PAGE_SIZE_BYTES));
            }
        }
    }
}

/// Tries a count of dirty pages a few times, since another process's `sync` may write them first.
fn assert_in_some_attempt(mut attempt: impl FnMut() -> bool) {
    assert!(
        (0..5).any(|_| attempt()),
        "the count was wrong in each of five attempts"
    );
}

/// Whether the directory's files have dirty pages that this system can count.
fn counts_pages(directory: &Path) -> bool {
    let (memory, _file) = shared(&gap_layout(), directory);
    let counts = memory
        .writeback(strategy("ascending"))
        .unwrap()
        .pages
        .is_some();
    if !counts || is_in_memory(directory) {
        println!(
            "skipped: no dirty pages to count in {}",
            directory.display()
        );
        return false;
    }
    true
}

#[test]
fn a_report_counts_the_pages_handed_over() {
    let directory = tempfile::tempdir().unwrap();
    if !counts_pages(directory.path()) {
        return;
    }
    let (memory, _file) = shared(&gap_layout(), directory.path());
    assert_in_some_attempt(|| {
        for page in [3, 7, 8, 500] {
            memory.write(GuestAddress(page * 4096), &[1]).unwrap();
        }
        memory.write(GuestAddress(HIGH_START), &[1]).unwrap();
        let report = memory.writeback(strategy("ascending")).unwrap();
        assert_eq!(report.calls, 2, "one call per RAM range");
        report.pages == Some(5)
    });
    let again = memory.writeback(strategy("ranges:4")).unwrap();
    assert_eq!(again.pages, Some(0));
    assert_eq!(again.calls, 5, "one of the four shares spans the gap");
}

#[test]
fn a_report_counts_nothing_in_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (memory, _file) = shared(&gap_layout(), directory.path());
    memory.write(GuestAddress(0), &[1; 8192]).unwrap();
    let report = memory.writeback(strategy("ascending-marked")).unwrap();
    assert!(report.pages.is_none_or(|pages| pages == 0));
    assert_eq!(report.marked_pages, 768);
}

#[test]
fn a_part_is_written_back_alone() {
    let directory = tempfile::tempdir().unwrap();
    if !counts_pages(directory.path()) {
        return;
    }
    let (memory, _file) = shared(&gap_layout(), directory.path());
    assert_in_some_attempt(|| {
        memory
            .write(GuestAddress(HIGH_START), &[1; 8 * 4096])
            .unwrap();
        let start = GuestAddress(HIGH_START + 4096);
        let part = memory
            .writeback_range(start, 2 * 4096, strategy("ranges:2"))
            .unwrap();
        let rest = memory.writeback(strategy("ascending")).unwrap();
        (part.pages, rest.pages) == (Some(2), Some(6))
    });
}

/// Without the advice that the view is given, these pages take about a hundred times their size.
#[test]
fn spread_pages_take_hardly_more_than_their_size_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    if is_in_memory(directory.path()) {
        println!("skipped: {} is in memory", directory.path().display());
        return;
    }
    let (memory, file) = shared(&flat_layout(128 << 20), directory.path());
    for page in 0..256 {
        memory
            .write(GuestAddress(page * (512 << 10)), &[1])
            .unwrap();
    }
    let dirty_bytes = memory.dirty().pages() * PAGE_SIZE_BYTES;
    assert_eq!(dirty_bytes, 1 << 20);
    memory.writeback(strategy("ascending")).unwrap();
    file.sync_data().unwrap();
    let allocated_bytes = file.metadata().unwrap().blocks() * 512;
    assert!(
        allocated_bytes >= dirty_bytes,
        "{allocated_bytes} bytes on disk"
    );
    assert!(
        allocated_bytes * 10 <= dirty_bytes * 11,
        "{allocated_bytes} bytes on disk"
    );
}

#[test]
fn marking_makes_the_whole_file_be_written() {
    let directory = tempfile::tempdir().unwrap();
    if is_in_memory(directory.path()) {
        println!("skipped: {} is in memory", directory.path().display());
        return;
    }
    let (memory, file) = shared(&gap_layout(), directory.path());
    memory.write(GuestAddress(4096), b"kept").unwrap();
    let report = memory.writeback(strategy("ascending-marked")).unwrap();
    file.sync_data().unwrap();
    assert_eq!(report.marked_pages, 768);
    assert!(file.metadata().unwrap().blocks() * 512 >= 768 * PAGE_SIZE_BYTES);
    assert_eq!(contents(&file), image(&memory));
    let mut seen = [0; 4];
    memory.read(GuestAddress(4096), &mut seen).unwrap();
    assert_eq!(&seen, b"kept");
}

#[test]
fn after_a_failed_sync_every_page_that_holds_data_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    if is_in_memory(directory.path()) {
        println!("skipped: nothing is written on a file system in memory");
        return;
    }
    let (memory, _file) = shared(&gap_layout(), directory.path());
    for page in [0, 7, 30] {
        memory
            .write(GuestAddress(page * PAGE_SIZE_BYTES), &[1; 4096])
            .unwrap();
    }
    let ascending = || memory.writeback(Strategy::default()).unwrap();
    assert_eq!(ascending().marked_pages, 0);
    memory.expect_unstored_pages();
    let again = ascending();
    // Blocks of a file system may be larger than pages.
    assert!((3..64).contains(&again.marked_pages), "{again:?}");
    assert_eq!(again.modified_bytes.unwrap_or(0), 0, "{again:?}");
    assert_eq!(
        again.bytes.unwrap_or(again.marked_pages * 4096),
        again.marked_pages * 4096
    );
    assert_eq!(ascending().marked_pages, 0, "once");
}
