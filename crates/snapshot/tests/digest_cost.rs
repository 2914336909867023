//! What digests of memory cost; `cargo test --release --test digest_cost -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]
#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nvx_snapshot::{
    ChunkDigester, Digest, MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE, SavedRamRange,
    Snapshot, chunk_bytes_for, seal,
};

const MEMORY_BYTES: u64 = 128 << 20;
const PAGE_BYTES: u64 = 4096;
const ROUNDS: usize = 15;

/// Median and minimum.
fn times_of(mut work: impl FnMut()) -> (Duration, Duration) {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    times.sort();
    (times[ROUNDS / 2], times[0])
}

/// A golden snapshot with 128 MiB of memory, of which every `step`th page holds data.
fn snapshot_with(directory: &Path, step: u64) {
    let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/v1");
    let golden = fs::read(format!("{goldens}/{MANIFEST_FILE}")).unwrap();
    let mut manifest = Manifest::decode(&golden).unwrap();
    manifest.ram = vec![SavedRamRange {
        start: 0,
        size_bytes: MEMORY_BYTES,
        file_offset_bytes: 0,
    }];
    manifest.memory[0].length_bytes = MEMORY_BYTES;
    manifest.memory[0].extents = None;
    manifest.memory[0].digests = None;
    fs::write(directory.join(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
    fs::copy(
        format!("{goldens}/{STATE_FILE}"),
        directory.join(STATE_FILE),
    )
    .unwrap();
    let memory = fs::File::create(directory.join(MEMORY_FILE)).unwrap();
    memory.set_len(MEMORY_BYTES).unwrap();
    for page in (0..MEMORY_BYTES / PAGE_BYTES).step_by(step as usize) {
        let bytes = [page as u8 | 1; PAGE_BYTES as usize];
        memory.write_all_at(&bytes, page * PAGE_BYTES).unwrap();
    }
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_digests() {
    let processors = std::thread::available_parallelism().unwrap();
    println!("128 MiB in chunks of 1 MiB, file in memory, {processors} processors, n = {ROUNDS}");
    for (name, step) in [
        ("every page", 1),
        ("every 128th page", 128),
        ("every 2560th page", 2560),
    ] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        snapshot_with(directory.path(), step);
        let sealed = seal(directory.path()).unwrap().report;
        let snapshot = Snapshot::open(directory.path()).unwrap();
        let (median, least) = times_of(|| {
            snapshot.verify_memory().unwrap();
        });
        println!(
            "verify, {name}: {} of {} chunks are holes, median {median:.1?}, least {least:.1?}",
            sealed.holes, sealed.chunks
        );
    }
    let chunk = vec![7; 1 << 20];
    let (median, least) = times_of(|| {
        assert_ne!(Digest::of(&chunk), Digest::of(b""));
    });
    println!("1 MiB on one processor: median {median:.1?}, least {least:.1?}");
    let (median, least) = times_of(|| {
        let mut digester = ChunkDigester::new(MEMORY_BYTES);
        for page in (0..256).map(|page| page * (MEMORY_BYTES / 256)) {
            digester.update(page, &chunk[..PAGE_BYTES as usize]);
        }
        assert_eq!(digester.finish().chunk_bytes, chunk_bytes_for(MEMORY_BYTES));
    });
    println!("in a copy of 256 pages, one every 512 KiB: median {median:.1?}, least {least:.1?}");
}
