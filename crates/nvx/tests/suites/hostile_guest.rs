//! A guest against its monitor: whatever a guest does, the monitor stays bounded in memory, answers
//! its host, and harms no other VM.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::io::Read as _;
use std::path::Path;

use crate::support::vm::Vm;
use crate::support::{MIB, Probe, Process, begin, leftovers, nvx, restore, start, text};
use rustix::process::Signal;

const RAM: u64 = 16 * MIB;
/// What a monitor may have resident besides guest RAM. Far above what it needs and far below what a
/// queue without a bound would take within a test.
const MONITOR_MAX_BYTES: u64 = 32 * MIB;

fn probe() -> Probe {
    Probe::new("fill=top:16,seed=1", RAM)
}

#[track_caller]
fn assert_bounded(process: &Process) {
    let peak = process.peak_resident_bytes().unwrap();
    assert!(peak < RAM + MONITOR_MAX_BYTES, "{peak} bytes resident");
}

/// A VM that nobody attacks, beside one that attacks its monitor.
fn neighbour() -> Process {
    let mut other = start(&probe().run(&[]));
    other.line("PROBE-READY");
    other
}

#[track_caller]
fn assert_unharmed(mut other: Process) {
    let said = other.ask("v", "PROBE-VERIFY");
    assert!(said.starts_with(&probe().verified(0)), "{said}");
    other.send("x0\n");
    other.end().expect_code(0);
}

#[test]
fn ports_and_memory_that_is_no_ram_are_hit_at_random() {
    let Some(dir) = begin("ports_and_memory_that_is_no_ram_are_hit_at_random") else {
        return;
    };
    let other = neighbour();
    let mut guest = start(&probe().run(&[]));
    guest.line("PROBE-READY");
    for _ in 0..4 {
        guest.ask("h", "PROBE-HAMMERED");
    }
    let said = guest.ask("v", "PROBE-VERIFY");
    assert!(said.starts_with(&probe().verified(0)), "{said}");
    assert_bounded(&guest);
    guest.send("x7\n");
    guest.end().expect_code(7);
    assert_unharmed(other);
    assert_eq!(leftovers(dir.path()), [""; 0]);
}

#[test]
fn a_capture_amid_random_accesses_restores() {
    let Some(dir) = begin("a_capture_amid_random_accesses_restores") else {
        return;
    };
    let vm = Vm::start(
        &probe().run(&["--snapshot-root", text(dir.path())]),
        dir.path(),
        "PROBE-READY",
    );
    let mut vm = vm;
    vm.guest.send("h\nh\nh\n");
    let snapshot = dir.path().join("snap");
    vm.capture(&snapshot, &["--continue"]).expect_code(0);
    assert_bounded(&vm.guest);
    vm.stop();
    let mut copy = start(&restore(&snapshot, &[]));
    // Captured in the middle of an `h`, which takes input for nothing until it ends.
    let mut looks = 0;
    let said = copy.wait_for("an answer to v", |copy| {
        if looks % 100 == 0 {
            copy.send("\nv\n");
        }
        looks += 1;
        let output = copy.output();
        let mut lines = output.split_inclusive('\n');
        lines
            .find(|line| line.starts_with("PROBE-VERIFY") && line.ends_with('\n'))
            .map(str::to_owned)
    });
    assert!(said.starts_with(&probe().verified(0)), "{said}");
    copy.send("x0\n");
    copy.end().expect_code(0);
}

#[test]
fn output_without_end_that_nobody_reads() {
    let Some(_dir) = begin("output_without_end_that_nobody_reads") else {
        return;
    };
    let other = neighbour();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut guest = Process::spawn_to(nvx(&probe().run(&[])), writer);
    guest.send("w\n");
    // It has begun; from here on nobody reads.
    let mut begun = vec![0; 4096];
    reader.read_exact(&mut begun).unwrap();
    assert!(String::from_utf8_lossy(&begun).contains("PROBE-FLOOD\n"));
    assert_unharmed(other);
    guest.assert_alive();
    assert_bounded(&guest);
    guest.signal(Signal::TERM);
    guest.end().expect_code(143);
}

#[test]
fn output_without_end_that_is_read() {
    let Some(_dir) = begin("output_without_end_that_is_read") else {
        return;
    };
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut guest = Process::spawn_to(nvx(&probe().run(&[])), writer);
    guest.send("w\n");
    let mut taken = vec![0; 256 << 10];
    reader.read_exact(&mut taken).unwrap();
    assert_bounded(&guest);
    guest.signal(Signal::INT);
    guest.end().expect_code(130);
}

#[test]
fn snapshot_requests_without_end() {
    let Some(dir) = begin("snapshot_requests_without_end") else {
        return;
    };
    let other = neighbour();
    // Nobody declared a destination: each is refused.
    let mut guest = start(&probe().run(&[]));
    guest.line("PROBE-READY");
    guest.ask("r", "PROBE-PESTERING");
    assert_unharmed(other);
    guest.assert_alive();
    assert_bounded(&guest);
    guest.signal(Signal::TERM);
    let done = guest.end().expect_code(143);
    // A message for each request would fill a disk.
    assert!(
        done.messages.len() < 64 << 10,
        "{} bytes",
        done.messages.len()
    );

    // With one there is a single snapshot, and the second request is refused.
    let snapshot = dir.path().join("snap");
    let mut guest = start(&probe().run(&["--snapshot", text(&snapshot)]));
    guest.line("PROBE-READY");
    guest.send("r\n");
    let done = guest.end().expect_code(0);
    done.assert_said("captured to ");
    assert_eq!(leftovers(dir.path()), [""; 0]);
    assert_restores(&snapshot, dir.path());
}

/// The copy goes on with what its source did and says nothing.
#[track_caller]
fn assert_restores(snapshot: &Path, place: &Path) {
    let copy = Vm::start_mute(&restore(snapshot, &[]), place);
    assert_eq!(copy.status()["status"]["state"], "running");
    assert_bounded(&copy.guest);
    copy.stop();
}

#[test]
fn captures_of_a_guest_that_never_halts() {
    let Some(dir) = begin("captures_of_a_guest_that_never_halts") else {
        return;
    };
    for busy in ["l", "r", "w"] {
        let place = dir.path().join(busy);
        std::fs::create_dir(&place).unwrap();
        let mut vm = Vm::start(
            &probe().run(&["--snapshot-root", text(&place)]),
            &place,
            "PROBE-READY",
        );
        vm.guest.send(&format!("{busy}\n"));
        for count in 0..3 {
            let snapshot = place.join(format!("snap{count}"));
            vm.capture(&snapshot, &["--continue"]).expect_code(0);
            probe().assert_in_memory_file(&snapshot, 0);
        }
        assert_bounded(&vm.guest);
        assert_eq!(vm.status()["status"]["captures"], 3);
        vm.stop();
        assert_eq!(leftovers(&place), [""; 0]);
    }
}
