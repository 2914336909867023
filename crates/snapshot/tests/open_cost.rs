//! What opening costs; `cargo test --release --test open_cost -- --ignored --nocapture`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]
#![allow(clippy::print_stdout, reason = "a measurement is printed")]

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use nvx_snapshot::{
    Digest, MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE, Snapshot, StateWriter,
};

const ROUNDS: usize = 2001;

fn median_of(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

/// A state as large as that of `vcpus` virtual processors: about 12 KiB each, and small devices.
fn state(vcpus: u8) -> Vec<u8> {
    let mut writer = StateWriter::new();
    for index in 0..vcpus {
        let unit = format!("vcpu.{index}");
        writer
            .put(&unit, "nvx.vcpu", 1, &[index; 12 << 10])
            .unwrap();
    }
    for index in 0..8 {
        let unit = format!("device.{index}");
        writer.put(&unit, "nvx.device", 1, &[index; 150]).unwrap();
    }
    writer.finish()
}

#[test]
#[ignore = "a measurement, not a check"]
fn measure_open() {
    let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/v1");
    let golden = fs::read(format!("{goldens}/{MANIFEST_FILE}")).unwrap();
    for vcpus in [1, 8] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let state = state(vcpus);
        let mut manifest = Manifest::decode(&golden).unwrap();
        manifest.state.length_bytes = state.len() as u64;
        manifest.state.digest = Digest::of(&state);
        let path = |name| directory.path().join(name);
        fs::write(path(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
        fs::write(path(STATE_FILE), &state).unwrap();
        let memory = fs::File::create(path(MEMORY_FILE)).unwrap();
        memory.set_len(manifest.memory[0].length_bytes).unwrap();
        let open = median_of(|| {
            let snapshot = Snapshot::open(directory.path()).unwrap();
            black_box(snapshot.state().unwrap().payloads().len());
        });
        println!(
            "{vcpus} vCPUs, {} bytes of state: open {open:.1?}",
            state.len()
        );
    }
}
