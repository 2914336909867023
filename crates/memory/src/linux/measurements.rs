//! Reproduces the figures on which decisions of this crate stand. Run on a quiet machine:
//! `cargo test --release -p nvx-memory measure -- --ignored --nocapture --test-threads 1`;
//! `TMPDIR` chooses the file system.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::mm::Advice;

use super::{Backing, RangeView, page_map, storage};
use crate::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamFile, RamLayout, RamRange, Strategy};

const RAM_BYTES: u64 = 128 << 20;
const ROUNDS: usize = 15;

fn layout(size_bytes: u64) -> RamLayout {
    let range = RamRange {
        start: GuestAddress(0),
        size_bytes,
        file_offset_bytes: 0,
    };
    RamLayout::new(vec![range]).unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The three patterns of dirty pages that the decisions are about, in pages.
fn patterns() -> [(&'static str, Vec<u64>); 3] {
    let all = RAM_BYTES / PAGE_SIZE_BYTES;
    [
        ("256 contiguous", (all - 256..all).collect()),
        ("256, every 512 KiB", (0..256).map(|n| n * 128).collect()),
        ("16384 alternate", (0..all).step_by(2).collect()),
    ]
}

fn new_file(directory: &Path, size_bytes: u64) -> File {
    let ram = RamFile::create(directory, size_bytes).unwrap();
    ram.try_clone_file().unwrap()
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_advice_for_shared_views() {
    let directory = tempfile::tempdir().unwrap();
    let mut table =
        String::from("pattern, advice: touch ms, writeback + fdatasync ms, MiB on disk\n");
    for (pattern, pages) in patterns() {
        let mut samples = [(); 2].map(|()| [(); 3].map(|()| Vec::new()));
        for round in 0..2 * ROUNDS {
            let random = round % 2;
            let file = new_file(directory.path(), RAM_BYTES);
            let backing = Backing::Shared {
                file: &file,
                name: Path::new("ram"),
                writable: true,
            };
            let view = RangeView::map(backing, 0, RAM_BYTES).unwrap();
            let advice = [Advice::Normal, Advice::Random][random];
            view.advise(advice).unwrap();
            let started = Instant::now();
            for page in &pages {
                view.bytes().write(page * PAGE_SIZE_BYTES, &[1]).unwrap();
            }
            samples[random][0].push(milliseconds(started));
            let started = Instant::now();
            storage::flush(&file, 0, view.bytes(), 0, RAM_BYTES as usize).unwrap();
            file.sync_data().unwrap();
            samples[random][1].push(milliseconds(started));
            let blocks = file.metadata().unwrap().blocks();
            samples[random][2].push(blocks as f64 * 512.0 / f64::from(1 << 20));
        }
        for (advice, values) in ["none", "MADV_RANDOM"].into_iter().zip(samples) {
            let [touch, store, disk] = values.map(median);
            writeln!(
                table,
                "{pattern}, {advice}: {touch:.2}, {store:.2}, {disk:.2}"
            )
            .unwrap();
        }
    }
    println!("n = {ROUNDS} each, interleaved, medians\n{table}");
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_flush_calls() {
    let directory = tempfile::tempdir().unwrap();
    let mut table = String::from("pattern, call: flush ms, fdatasync ms, together ms\n");
    for (pattern, pages) in patterns() {
        let mut samples = [(); 3].map(|()| [(); 3].map(|()| Vec::new()));
        for round in 0..3 * ROUNDS {
            let call = round % 3;
            let file = new_file(directory.path(), RAM_BYTES);
            let backing = Backing::Shared {
                file: &file,
                name: Path::new("ram"),
                writable: true,
            };
            let view = RangeView::map(backing, 0, RAM_BYTES).unwrap();
            view.advise(Advice::Random).unwrap();
            for page in &pages {
                view.bytes().write(page * PAGE_SIZE_BYTES, &[1]).unwrap();
            }
            let started = Instant::now();
            match call {
                0 => storage::flush_by_view(view.bytes(), 0, RAM_BYTES as usize).unwrap(),
                1 => storage::flush_by_file(&file, 0, RAM_BYTES).unwrap(),
                _ => {}
            }
            samples[call][0].push(milliseconds(started));
            let synced = Instant::now();
            file.sync_data().unwrap();
            samples[call][1].push(milliseconds(synced));
            samples[call][2].push(milliseconds(started));
        }
        for (call, values) in ["msync", "sync_file_range", "neither"]
            .into_iter()
            .zip(samples)
        {
            let [flush, sync, both] = values.map(median);
            writeln!(table, "{pattern}, {call}: {flush:.2}, {sync:.2}, {both:.2}").unwrap();
        }
    }
    println!("n = {ROUNDS} each, interleaved, medians\n{table}");
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_small_costs() {
    let directory = tempfile::tempdir().unwrap();
    let (_, pages) = &patterns()[1];
    let mut samples = [(); 5].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        let file = new_file(directory.path(), 32 * RAM_BYTES);
        let name = Path::new("ram");
        let started = Instant::now();
        let memory = GuestMemory::shared_file(layout(32 * RAM_BYTES), file, name).unwrap();
        samples[0].push(milliseconds(started));
        for page in pages {
            memory
                .write(GuestAddress(page * PAGE_SIZE_BYTES), &[1])
                .unwrap();
        }
        let file = memory.file().unwrap();
        let started = Instant::now();
        storage::unwritten_pages(file, 0, 32 * RAM_BYTES).unwrap();
        samples[1].push(milliseconds(started));
        let started = Instant::now();
        assert_eq!(memory.dirty().extents().len(), 256);
        samples[2].push(milliseconds(started));
        let started = Instant::now();
        storage::data_extents(file, 32 * RAM_BYTES)
            .unwrap()
            .unwrap();
        samples[3].push(milliseconds(started));

        let anonymous = GuestMemory::anonymous(layout(32 * RAM_BYTES)).unwrap();
        for page in pages {
            anonymous
                .write(GuestAddress(page * PAGE_SIZE_BYTES), &[1])
                .unwrap();
        }
        let started = Instant::now();
        let page_map = anonymous.page_map().unwrap();
        let found = page_map::private_pages(page_map, anonymous.bytes_of(0).unwrap(), 0).unwrap();
        assert_eq!(found.total_bytes(), 256 * PAGE_SIZE_BYTES);
        samples[4].push(milliseconds(started));
    }
    let names = [
        "map 4 GiB",
        "cachestat",
        "dirty set",
        "SEEK_DATA",
        "page map",
    ];
    for (name, values) in names.into_iter().zip(samples) {
        println!("4 GiB, 256 spread pages, {name}: {:.4} ms", median(values));
    }
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_zero_detection() {
    let memory = GuestMemory::anonymous(layout(RAM_BYTES)).unwrap();
    let bytes = memory.bytes_of(0).unwrap();
    for page in 0..RAM_BYTES / PAGE_SIZE_BYTES {
        bytes.write(page * PAGE_SIZE_BYTES, &[0; 4096]).unwrap();
    }
    let plain = vec![0_u64; RAM_BYTES as usize / 8];
    let plain: Vec<u64> = plain
        .iter()
        .map(|word| std::hint::black_box(*word))
        .collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let zero = (0..RAM_BYTES)
            .step_by(4096)
            .filter(|&page| bytes.is_zero_page(page));
        assert_eq!(zero.count() as u64, RAM_BYTES / PAGE_SIZE_BYTES);
        ours.push(milliseconds(started));
        let started = Instant::now();
        std::hint::black_box(plain.iter().fold(0, |bits, word| bits | word));
        theirs.push(milliseconds(started));
    }
    println!(
        "128 MiB of zeros: detection {:.2} ms, plain scan {:.2} ms",
        median(ours),
        median(theirs)
    );
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_copy() {
    for directory in [std::env::temp_dir(), "/dev/shm".into()] {
        let directory = tempfile::tempdir_in(directory).unwrap();
        let contiguous = ("16384 contiguous", (0..16384).collect());
        for (pattern, pages) in patterns().into_iter().chain([contiguous]) {
            let source = RamFile::create(directory.path(), RAM_BYTES).unwrap();
            let file = || source.try_clone_file().unwrap();
            let name = Path::new("ram");
            let shared = GuestMemory::shared_file(layout(RAM_BYTES), file(), name).unwrap();
            for page in &pages {
                shared
                    .write(GuestAddress(page * PAGE_SIZE_BYTES), &[1; 4096])
                    .unwrap();
            }
            shared.writeback(Strategy::default()).unwrap();
            let mut samples = [(); 2].map(|()| Vec::new());
            for _ in 0..ROUNDS {
                // A restored VM: everything is clean, nothing is mapped yet but the own pages.
                let restored = GuestMemory::private_file(layout(RAM_BYTES), file(), name).unwrap();
                for page in (0..32768).step_by(128) {
                    restored
                        .write(GuestAddress(page * PAGE_SIZE_BYTES), &[2; 4096])
                        .unwrap();
                }
                let target = new_file(directory.path(), 0);
                let started = Instant::now();
                restored.copy_to(&target, Path::new("copy")).unwrap();
                samples[0].push(milliseconds(started));
                target.sync_data().unwrap();
                samples[1].push(milliseconds(started));
            }
            let [copied, synced] = samples.map(median);
            let place = directory.path().display();
            println!(
                "{place}, base {pattern}, 256 own pages: copy {copied:.2}, synced {synced:.2} ms"
            );
        }
    }
}
