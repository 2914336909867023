//! What each strategy costs on a file system that keeps a valid data length, by a model of one.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a measurement prints its table")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

#[path = "support/valid_data.rs"]
mod model;

use model::{Content, ValidDataFile};
use nvx_memory::{FileExtent, PAGE_SIZE_BYTES, Strategy};
use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

fn strategy(text: &str) -> Strategy {
    text.parse().unwrap()
}

fn whole(pages: u64) -> [FileExtent; 1] {
    [FileExtent {
        offset_bytes: 0,
        size_bytes: pages * PAGE_SIZE_BYTES,
    }]
}

/// A schedule from a list of choices, which is used again and again.
fn replay(choices: &[usize]) -> impl FnMut() -> usize {
    let mut choices = choices.iter().copied().cycle();
    move || choices.next().unwrap_or(0)
}

fn with_dirty(mut file: ValidDataFile, dirty: &[bool]) -> ValidDataFile {
    for (page, _) in dirty.iter().enumerate().filter(|(_, dirty)| **dirty) {
        file.store(page as u64, page as Content + 1);
    }
    file
}

fn contents(dirty: &[bool]) -> Vec<Content> {
    let content = |(page, dirty): (usize, &bool)| if *dirty { page as Content + 1 } else { 0 };
    dirty.iter().enumerate().map(content).collect()
}

fn written_back(
    file: ValidDataFile,
    dirty: &[bool],
    text: &str,
    schedule: impl FnMut() -> usize,
) -> ValidDataFile {
    let mut file = with_dirty(file, dirty);
    let plan = strategy(text).plan(&whole(dirty.len() as u64));
    file.write_back(&plan, schedule);
    file
}

fn new_file(dirty: &[bool]) -> ValidDataFile {
    let pages = dirty.len() as u64;
    ValidDataFile::new(pages, pages.next_multiple_of(16))
}

proptest! {
    #[test]
    fn marked_ascending_writes_each_page_exactly_once(
        dirty in vec(any::<bool>(), 1..700),
        choices in vec(any::<usize>(), 1..50),
    ) {
        let file = written_back(new_file(&dirty), &dirty, "ascending-marked", replay(&choices));
        prop_assert!(file.writes().iter().all(|count| *count == 1));
        prop_assert_eq!(file.stored(), contents(&dirty));
        let (allocation, size, valid) = file.sizes();
        prop_assert_eq!((size, valid), (dirty.len() as u64, dirty.len() as u64));
        prop_assert!(allocation >= size);
    }

    #[test]
    fn ascending_writes_each_page_up_to_the_last_dirty_one_exactly_once(
        dirty in vec(any::<bool>(), 1..700),
    ) {
        let file = written_back(new_file(&dirty), &dirty, "ascending", || 0);
        let end = dirty.iter().rposition(|dirty| *dirty).map_or(0, |last| last + 1);
        prop_assert!(file.writes()[..end].iter().all(|count| *count == 1));
        prop_assert!(file.writes()[end..].iter().all(|count| *count == 0));
        prop_assert_eq!(file.stored(), contents(&dirty));
    }

    #[test]
    fn ranges_leave_the_same_contents_and_never_write_less(
        dirty in vec(any::<bool>(), 1..700),
        workers in 1u8..=8,
        choices in vec(any::<usize>(), 1..200),
    ) {
        let text = format!("ranges:{workers}");
        let ranges = written_back(new_file(&dirty), &dirty, &text, replay(&choices));
        let ascending = written_back(new_file(&dirty), &dirty, "ascending", || 0);
        prop_assert_eq!(ranges.stored(), ascending.stored());
        prop_assert!(ranges.total_writes() >= ascending.total_writes());
        // No page is filled with zeros twice, or written twice from the cache.
        prop_assert!(ranges.writes().iter().all(|count| *count <= 2));
        for (writes, dirty) in ranges.writes().iter().zip(&dirty) {
            prop_assert!(*dirty || *writes <= 1, "only a dirty page can be written twice");
        }
    }

    #[test]
    fn ranges_write_more_as_soon_as_a_higher_one_is_ahead(
        dirty in vec(any::<bool>(), 16..700),
        workers in 2u8..=8,
    ) {
        let mut dirty = dirty;
        // A dirty page in the first share and one in the last.
        dirty[0] = true;
        *dirty.last_mut().unwrap() = true;
        let text = format!("ranges:{workers}");
        // The last worker goes first.
        let ranges = written_back(new_file(&dirty), &dirty, &text, || usize::MAX);
        let once = written_back(new_file(&dirty), &dirty, "ascending", || 0).total_writes();
        prop_assert!(ranges.total_writes() > once);
    }

    #[test]
    fn a_fully_valid_file_is_written_where_it_is_dirty(
        dirty in vec(any::<bool>(), 1..500),
        workers in 1u8..=8,
        choices in vec(any::<usize>(), 1..100),
    ) {
        let text = format!("ranges:{workers}");
        for text in ["ascending", &text] {
            let file = ValidDataFile::fully_valid(dirty.len() as u64);
            let file = written_back(file, &dirty, text, replay(&choices));
            let expected: Vec<u32> = dirty.iter().map(|dirty| u32::from(*dirty)).collect();
            prop_assert_eq!(file.writes(), expected);
            prop_assert_eq!(file.stored(), contents(&dirty));
        }
    }
}

#[test]
fn the_known_case_128_mib_every_page_dirty_eight_workers_in_step() {
    let dirty = vec![true; 32768];
    let mut turn = 0;
    let in_step = || {
        turn += 1;
        turn
    };
    let file = written_back(new_file(&dirty), &dirty, "ranges:8", in_step);
    let amplification = file.total_writes() as f64 / 32768.0;
    // Once the highest worker has begun, everything below it was filled with zeros: 7/8 twice.
    assert!((1.87..=1.88).contains(&amplification), "{amplification}");
    let file = written_back(new_file(&dirty), &dirty, "ascending-marked", || 0);
    assert_eq!(file.total_writes(), 32768);
}

/// Whether a page is dirty in a pattern.
type IsDirty = fn(usize) -> bool;

#[test]
#[ignore = "prints a distribution, checks nothing"]
fn print_the_distribution_of_write_amplification() {
    const PAGES: usize = 32768;
    const RUNS: u32 = 200;
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    };
    let patterns: [(&str, IsDirty); 4] = [
        ("all", |_| true),
        ("alternate", |page| page.is_multiple_of(2)),
        ("top:16", |page| page >= PAGES - 16),
        ("spread:256", |page| page.is_multiple_of(128)),
    ];
    println!("128 MiB, new file, {RUNS} random interleavings; device pages / file pages");
    println!(
        "{:<12}{:<18}{:>7}{:>7}{:>7}{:>7}{:>7}",
        "dirty", "strategy", "min", "p25", "p50", "p95", "max"
    );
    for (name, is_dirty) in patterns {
        let dirty: Vec<bool> = (0..PAGES).map(is_dirty).collect();
        for text in [
            "ascending-marked",
            "ascending",
            "ranges:2",
            "ranges:4",
            "ranges:8",
        ] {
            let mut found: Vec<f64> = (0..RUNS)
                .map(|_| {
                    // A worker goes on for a while before another gets its turn, as requests do.
                    let (mut worker, mut left) = (0, 0);
                    let burst = 1 << (random() % 13);
                    let schedule = || {
                        if left == 0 {
                            worker = random() as usize;
                            left = random() % burst + 1;
                        }
                        left -= 1;
                        worker
                    };
                    let file = written_back(new_file(&dirty), &dirty, text, schedule);
                    file.total_writes() as f64 / PAGES as f64
                })
                .collect();
            found.sort_by(f64::total_cmp);
            let rank = |q: f64| found[((q * f64::from(RUNS)).ceil() as usize).max(1) - 1];
            println!(
                "{name:<12}{text:<18}{:>7.3}{:>7.3}{:>7.3}{:>7.3}{:>7.3}",
                rank(0.0),
                rank(0.25),
                rank(0.5),
                rank(0.95),
                rank(1.0)
            );
        }
    }
}
