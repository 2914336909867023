//! Signals at any moment: what a user may rely on is the exit code, which says whether there is a
//! snapshot; and that a snapshot is whole or absent, with nothing else left behind.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::vm::Vm;
use crate::support::{
    BACKEND, Backend, Finished, MIB, Probe, Process, begin, entries, inspect, leftovers, restore,
    start, talk, text,
};
use rustix::process::Signal;

const SMALL: u64 = 16 * MIB;
/// RAM that takes long to copy, so that signals meet every phase of a capture.
const LARGE: u64 = 64 * MIB;
/// Signals that ask for an end, and 128 plus their numbers.
const ENDS: [(Signal, i32, &str); 3] = [
    (Signal::INT, 130, "SIGINT"),
    (Signal::TERM, 143, "SIGTERM"),
    (Signal::HUP, 129, "SIGHUP"),
];

fn small() -> Probe {
    Probe::new("fill=top:16,seed=1", SMALL)
}

#[test]
fn a_running_guest_is_ended_by_a_signal() {
    let Some(dir) = begin("a_running_guest_is_ended_by_a_signal") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    for (signal, code, name) in ENDS {
        for (arguments, ready) in [
            (small().run(&[]), "PROBE-READY"),
            (small().run(&["--vcpus", "4"]), "PROBE-READY"),
            (restore(&snapshot, &[]), "PROBE-RESTORED"),
        ] {
            let mut guest = start(&arguments);
            guest.line(ready);
            guest.signal(signal);
            let done = guest.end().expect_code(code);
            assert_eq!(done.events(), format!("nvx: ended by {name}\n"));
        }
    }
    assert_eq!(entries(dir.path()), ["snap"]);
}

#[test]
fn a_busy_guest_is_ended_by_a_signal() {
    let Some(dir) = begin("a_busy_guest_is_ended_by_a_signal") else {
        return;
    };
    let probe = Probe::new("fill=all,seed=1", LARGE);
    let mut guest = start(&probe.run(&["--scratch", text(dir.path())]));
    guest.line("PROBE-READY");
    // Work for minutes.
    guest.send(&"d\n".repeat(2_000));
    guest.line("PROBE-DIRTIED");
    guest.signal(Signal::TERM);
    guest.end().expect_code(143).assert_said("ended by SIGTERM");
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_signal_after_a_capture_that_continued_leaves_the_snapshot() {
    let Some(dir) = begin("a_signal_after_a_capture_that_continued_leaves_the_snapshot") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = small();
    let mut guest = start(&probe.run(&["--snapshot", text(&snapshot), "--continue"]));
    guest.line("PROBE-READY");
    guest.ask("s", "PROBE-CONTINUED");
    guest.signal(Signal::INT);
    let done = guest.end().expect_code(130);
    done.assert_said("captured to ");
    done.assert_said("ended by SIGINT");
    assert_eq!(entries(dir.path()), ["snap"]);
    assert_whole(&snapshot, probe);
}

fn assert_whole(snapshot: &Path, probe: Probe) {
    inspect(snapshot);
    probe.assert_in_memory_file(snapshot, 0);
    let restored = talk(&restore(snapshot, &[]), "v\nx0\n").expect_code(0);
    restored.line(&probe.verified(0));
}

/// How long a capture that nobody disturbs takes from the request to the end of the process.
fn undisturbed(arguments: &[OsString], ready: &str) -> Duration {
    let mut guest = ready_guest(arguments, ready);
    let started = Instant::now();
    guest.send("s\n");
    guest.end().expect_code(0);
    started.elapsed()
}

fn ready_guest(arguments: &[OsString], ready: &str) -> Process {
    let mut guest = start(arguments);
    guest.line(ready);
    guest
}

/// Requests a capture and sends `signal` after `delay`.
fn disturbed(arguments: &[OsString], ready: &str, delay: Duration, signal: Signal) -> Finished {
    let mut guest = ready_guest(arguments, ready);
    guest.send("s\n");
    std::thread::sleep(delay);
    guest.signal(signal);
    guest.end()
}

/// Moments from the request to a little after the end of a capture that takes `whole`. What meets
/// a signal is the same on every back end, so one of them is asked more often.
fn moments(whole: Duration, count: u32) -> impl Iterator<Item = Duration> {
    let count = match BACKEND {
        Backend::Kvm => count,
        Backend::Soft => count / 2,
    };
    (0..count).map(move |index| whole * index / count * 6 / 5)
}

#[test]
fn a_signal_during_a_capture_leaves_a_whole_snapshot_or_none() {
    let Some(dir) = begin("a_signal_during_a_capture_leaves_a_whole_snapshot_or_none") else {
        return;
    };
    let (base, snapshot) = (dir.path().join("base"), dir.path().join("snap"));
    let probe = Probe::new("fill=all,seed=1", LARGE);
    probe.capture(&base);
    // A restored guest is there at once, and its capture copies all of RAM.
    let source = restore(&base, &["--snapshot", text(&snapshot)]);
    let whole = undisturbed(&source, "PROBE-RESTORED");
    std::fs::remove_dir_all(&snapshot).unwrap();
    for (turn, delay) in moments(whole, 20).enumerate() {
        let (signal, code, name) = ENDS[turn % ENDS.len()];
        let done = disturbed(&source, "PROBE-RESTORED", delay, signal);
        assert_outcome(&done, code, name, &snapshot, probe);
        assert_eq!(entries(dir.path()), ["base"], "{done:?}");
    }
}

#[test]
fn a_signal_during_a_linked_capture_leaves_a_whole_snapshot_or_none() {
    let Some(dir) = begin("a_signal_during_a_linked_capture_leaves_a_whole_snapshot_or_none")
    else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=all,seed=1", 2 * SMALL);
    let source = probe.run(&["--snapshot", text(&snapshot)]);
    let whole = undisturbed(&source, "PROBE-READY");
    std::fs::remove_dir_all(&snapshot).unwrap();
    for (turn, delay) in moments(whole, 12).enumerate() {
        let (signal, code, name) = ENDS[turn % ENDS.len()];
        let done = disturbed(&source, "PROBE-READY", delay, signal);
        assert_outcome(&done, code, name, &snapshot, probe);
        assert_eq!(entries(dir.path()), [""; 0], "{done:?}");
    }
}

/// The exit code says which of the two it is. A snapshot is checked and removed.
fn assert_outcome(done: &Finished, code: i32, name: &str, snapshot: &Path, probe: Probe) {
    if done.status.code() == Some(0) {
        done.assert_said("captured to ");
        assert_whole(snapshot, probe);
        std::fs::remove_dir_all(snapshot).unwrap();
    } else {
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        done.assert_said(&format!("ended by {name}"));
        assert!(!snapshot.exists(), "{done:?}");
    }
}

#[test]
fn after_a_kill_during_a_capture_the_next_start_cleans_up() {
    let Some(dir) = begin("after_a_kill_during_a_capture_the_next_start_cleans_up") else {
        return;
    };
    let (base, snapshot) = (dir.path().join("base"), dir.path().join("snap"));
    let probe = Probe::new("fill=all,seed=1", LARGE);
    probe.capture(&base);
    let source = restore(&base, &["--snapshot", text(&snapshot)]);
    let whole = undisturbed(&source, "PROBE-RESTORED");
    std::fs::remove_dir_all(&snapshot).unwrap();
    let mut killed_in_staging = 0;
    for (turn, delay) in moments(whole, 14).enumerate() {
        let mut guest = ready_guest(&source, "PROBE-RESTORED");
        guest.send("s\n");
        // Half of the turns begin to count when files are there that may be left behind.
        if turn % 2 == 1 {
            guest.wait_for("a staging directory", |_| leftovers(dir.path()).pop());
        }
        std::thread::sleep(delay / 2);
        guest.signal(Signal::KILL);
        guest.end();
        killed_in_staging += leftovers(dir.path()).len();
        if snapshot.exists() {
            // The commit came first: what has the name is whole, whatever happened then.
            assert_whole(&snapshot, probe);
            std::fs::remove_dir_all(&snapshot).unwrap();
        }
        // Any start that uses the directory will do.
        let next = match turn % 4 {
            0 | 1 => small().run(&["--snapshot", text(&snapshot)]),
            _ => small().run(&["--scratch", text(dir.path())]),
        };
        talk(&next, "x0\n").expect_code(0);
        assert_eq!(entries(dir.path()), ["base"], "turn {turn}");
    }
    // Or nothing was tested.
    assert!(killed_in_staging > 0);
    assert_whole(&base, probe);
}

/// A guest whose captures copy all of its RAM, in a directory of its own.
fn copied(directory: &Path, probe: Probe) -> Vm {
    let command = probe.run(&["--snapshot-root", text(directory)]);
    Vm::start(&command, directory, "PROBE-READY")
}

/// How long a capture that the host asks for takes when nobody disturbs it.
fn undisturbed_by_host(directory: &Path, probe: Probe) -> Duration {
    let vm = copied(directory, probe);
    let snapshot = directory.join("snap");
    let started = Instant::now();
    vm.capture(&snapshot, &["--continue"]).expect_code(0);
    let whole = started.elapsed();
    vm.stop();
    std::fs::remove_dir_all(&snapshot).unwrap();
    whole
}

#[test]
fn a_signal_during_a_capture_by_the_host_leaves_a_whole_snapshot_or_none() {
    let Some(dir) = begin("a_signal_during_a_capture_by_the_host_leaves_a_whole_snapshot_or_none")
    else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=all,seed=1", 3 * SMALL);
    let whole = undisturbed_by_host(dir.path(), probe);
    for (turn, delay) in moments(whole, 8).enumerate() {
        let (signal, code, name) = ENDS[turn % ENDS.len()];
        let mut vm = copied(dir.path(), probe);
        let client = vm.start_capture(&snapshot, &["--continue"]);
        std::thread::sleep(delay);
        vm.guest.signal(signal);
        let done = vm.guest.end().expect_code(code);
        done.assert_said(&format!("ended by {name}"));
        // The client knows which of the two it is.
        let told = client.end();
        if snapshot.exists() {
            assert_eq!(told.status.code(), Some(0), "{told:?}");
            assert_whole(&snapshot, probe);
            std::fs::remove_dir_all(&snapshot).unwrap();
        } else {
            assert_eq!(told.status.code(), Some(2), "{told:?}");
        }
        assert_eq!(entries(dir.path()), [""; 0], "{told:?}");
    }
}

#[test]
fn after_a_kill_during_a_capture_by_the_host_the_next_start_cleans_up() {
    let Some(dir) = begin("after_a_kill_during_a_capture_by_the_host_the_next_start_cleans_up")
    else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=all,seed=1", 3 * SMALL);
    let whole = undisturbed_by_host(dir.path(), probe);
    let mut killed_in_staging = 0;
    for (turn, delay) in moments(whole, 8).enumerate() {
        let mut vm = copied(dir.path(), probe);
        let client = vm.start_capture(&snapshot, &["--continue"]);
        if turn % 2 == 1 {
            vm.guest
                .wait_for("a staging directory", |_| leftovers(dir.path()).pop());
        }
        std::thread::sleep(delay / 2);
        vm.guest.signal(Signal::KILL);
        vm.guest.end();
        killed_in_staging += leftovers(dir.path()).len();
        let told = client.end();
        if snapshot.exists() {
            assert_whole(&snapshot, probe);
            std::fs::remove_dir_all(&snapshot).unwrap();
        } else {
            assert_eq!(told.status.code(), Some(2), "{told:?}");
        }
        assert!(entries(dir.path()).contains(&"control".to_owned()));
        // The next start takes the stale socket over and removes what was left.
        let next = copied(dir.path(), small());
        next.status();
        assert_eq!(entries(dir.path()), ["control"], "turn {turn}");
        next.stop();
        assert_eq!(entries(dir.path()), [""; 0], "turn {turn}");
    }
    assert!(killed_in_staging > 0);
}

#[test]
fn a_start_leaves_the_staging_of_a_living_capture_alone() {
    let Some(dir) = begin("a_start_leaves_the_staging_of_a_living_capture_alone") else {
        return;
    };
    let (base, snapshot) = (dir.path().join("base"), dir.path().join("snap"));
    let probe = Probe::new("fill=all,seed=1", LARGE);
    probe.capture(&base);
    let mut source = ready_guest(
        &restore(&base, &["--snapshot", text(&snapshot)]),
        "PROBE-RESTORED",
    );
    source.send("s\n");
    let other = dir.path().join("other");
    for _ in 0..4 {
        talk(&small().run(&["--snapshot", text(&other)]), "x0\n").expect_code(0);
    }
    source.end().expect_code(0);
    assert_eq!(entries(dir.path()), ["base", "snap"]);
    assert_whole(&snapshot, probe);
}

#[test]
fn a_killed_guest_leaves_no_ram_file() {
    let Some(dir) = begin("a_killed_guest_leaves_no_ram_file") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    for place in [
        ["--scratch", text(dir.path())],
        ["--snapshot", text(&snapshot)],
    ] {
        let mut guest = ready_guest(&small().run(&place), "PROBE-READY");
        guest.signal(Signal::KILL);
        let done = guest.end();
        assert_eq!(done.status.code(), None, "{done:?}");
        assert_eq!(entries(dir.path()), [""; 0], "{place:?}");
    }
}

/// Numbers that look random, from a seed that a failure tells (Marsaglia's xorshift64).
struct Moments(u64);

impl Moments {
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        limit.mul_f64((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

#[test]
fn two_hundred_kills_at_random_moments_of_a_capture() {
    let Some(dir) = begin("two_hundred_kills_at_random_moments_of_a_capture") else {
        return;
    };
    let (base, snapshot) = (dir.path().join("base"), dir.path().join("snap"));
    let probe = Probe::new("fill=all,seed=1", SMALL);
    probe.capture(&base);
    let link = (probe.run(&["--snapshot", text(&snapshot)]), "PROBE-READY");
    let copy = (
        restore(&base, &["--snapshot", text(&snapshot)]),
        "PROBE-RESTORED",
    );
    let sources = [link, copy].map(|(command, ready)| {
        let whole = undisturbed(&command, ready);
        std::fs::remove_dir_all(&snapshot).unwrap();
        (command, ready, whole)
    });
    let seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    let mut moments = Moments(seed);
    // The moments are of what both back ends do in the same way.
    let turns = match BACKEND {
        Backend::Kvm => 200,
        Backend::Soft => 20,
    };
    let (mut published, mut left_behind) = (0, 0);
    for turn in 0..turns {
        let told = format!("turn {turn}, seed {seed:#x}");
        let (command, ready, whole) = &sources[turn % 2];
        let stale = leftovers(dir.path());
        left_behind += stale.len();
        let mut guest = ready_guest(command, ready);
        // A start removes what the one before left, while its guest runs.
        guest.wait_for("a clean-up", |_| {
            let now = leftovers(dir.path());
            stale.iter().all(|name| !now.contains(name)).then_some(())
        });
        guest.send("s\n");
        std::thread::sleep(moments.below(*whole));
        guest.signal(Signal::KILL);
        guest.end();
        if snapshot.exists() {
            published += 1;
            probe.assert_in_memory_file(&snapshot, 0);
            if published % 8 == 1 {
                assert_whole(&snapshot, probe);
            } else {
                inspect(&snapshot);
            }
            std::fs::remove_dir_all(&snapshot).unwrap();
        }
        let mut names = entries(dir.path());
        names.retain(|name| !name.starts_with(".nvx-"));
        assert_eq!(names, ["base"], "{told}");
    }
    talk(&small().run(&["--snapshot", text(&snapshot)]), "x0\n").expect_code(0);
    assert_eq!(entries(dir.path()), ["base"], "seed {seed:#x}");
    assert_whole(&base, probe);
    if BACKEND == Backend::Kvm {
        // Or nothing was tested.
        assert!(
            published > 0 && left_behind > 0,
            "{published} {left_behind}, seed {seed:#x}"
        );
    }
}
