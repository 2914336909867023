//! Every step of a capture refused, cut off or answered wrongly, under a running guest: the program is traced
//! from outside, confined as it is, and each of its calls that changes a file fails in turn. What a user may
//! rely on: there is a whole snapshot or none, the guest of a failed capture runs on with its RAM
//! and can be captured again, and the next start removes what a killed process left.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use nvx_host::tracer::{FileCall, Outcome, Traced, trace};
use nvx_snapshot::{Destination, MANIFEST_FILE, Staging};

use crate::support::mounts::{Volume, VolumeKind};
use crate::support::{
    MIB, Probe, Process, arguments, begin, copy_snapshot, entries, inspect, leftovers, manifest,
    nvx, restore, skip, start, talk, text,
};

const SMALL: u64 = 16 * MIB;
/// EIO, what a broken device answers (errno(3)).
const EIO: i32 = 5;
/// ENOSPC, what a full one does.
const ENOSPC: i32 = 28;

/// How guest RAM gets into the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The RAM file gets its name there; the source ends.
    Link,
    /// The guest goes on, so its RAM is copied.
    Copy,
}

fn probe() -> Probe {
    // More than one extent, so that a copy is more than one call.
    Probe::new("fill=spread:8,seed=1", SMALL)
}

/// A guest that makes its snapshot at `snapshot`.
fn command(way: Way, snapshot: &Path) -> Vec<OsString> {
    match way {
        Way::Link => probe().run(&["--snapshot", text(snapshot)]),
        Way::Copy => probe().run(&["--snapshot", text(snapshot), "--continue"]),
    }
}

fn guest(way: Way, snapshot: &Path) -> Process {
    let mut guest = start(&command(way, snapshot));
    guest.line("PROBE-READY");
    guest
}

/// Lets the guest ask for a capture, and one of the calls of that have another outcome.
fn capture(guest: &mut Process, root: &Path, fault: Option<(usize, Outcome)>) -> Traced {
    let pid = guest.id();
    let taken = guest.output().len();
    // Both halves of the trace need the guest, one after the other.
    let guest = std::cell::RefCell::new(guest);
    trace(
        pid,
        root,
        || guest.borrow_mut().send("s\n"),
        |index, _| match fault {
            Some((at, outcome)) if index == at => outcome,
            _ => Outcome::Pass,
        },
        || {
            let output = guest.borrow().output();
            let mut answers = output[taken..].split_inclusive('\n');
            answers.any(|line| line.ends_with('\n') && line.starts_with("PROBE-"))
        },
    )
    .unwrap()
}

/// The answer to the last request.
fn was_captured(guest: &mut Process) -> bool {
    let output = guest.output();
    let last = output.lines().last().unwrap();
    assert!(
        last.starts_with("PROBE-CONTINUED") || last.starts_with("PROBE-REFUSED"),
        "{last}"
    );
    last.starts_with("PROBE-CONTINUED")
}

#[track_caller]
fn assert_runs_on(guest: &mut Process, what: &str) {
    let said = guest.ask("v", "PROBE-VERIFY");
    assert!(said.starts_with(&probe().verified(0)), "{what}: {said}");
}

#[track_caller]
fn assert_whole(snapshot: &Path, what: &str) {
    inspect(snapshot);
    probe().assert_in_memory_file(snapshot, 0);
    let restored = talk(&restore(snapshot, &[]), "v\nx0\n");
    assert_eq!(restored.status.code(), Some(0), "{what}: {restored:?}");
    restored.line(&probe().verified(0));
}

/// The calls of a capture that nobody disturbs.
fn calls_of(way: Way, directory: &Path) -> Vec<FileCall> {
    let snapshot = directory.join("snap");
    let mut guest = guest(way, &snapshot);
    let traced = capture(&mut guest, directory, None);
    assert_eq!(traced.has_ended, way == Way::Link);
    let names: BTreeSet<&str> = traced.calls.iter().map(|call| call.name).collect();
    // Or this tests less than it says.
    let steps = [
        "mkdirat",
        "openat",
        "write",
        "fdatasync",
        "fsync",
        "renameat2",
    ];
    for step in steps {
        assert!(names.contains(step), "{way:?}: no {step} in {names:?}");
    }
    // A file system that shares blocks between files is asked to instead of writing.
    let of_way: &[&str] = match way {
        Way::Link => &["linkat"],
        Way::Copy => &["pwrite64", "ioctl"],
    };
    assert!(
        of_way.iter().any(|name| names.contains(name)),
        "{way:?}: {names:?}"
    );
    drop(guest);
    assert_whole(&snapshot, "no fault");
    fs::remove_dir_all(&snapshot).unwrap();
    assert_eq!(entries(directory), [""; 0]);
    traced.calls
}

/// The end of a guest that can be captured: once more, without a fault.
fn assert_can_be_captured(mut guest: Process, way: Way, snapshot: &Path, what: &str) {
    match way {
        Way::Copy => {
            guest.ask("s", "PROBE-CONTINUED");
            assert_runs_on(&mut guest, what);
            guest.send("x0\n");
        }
        Way::Link => guest.send("s\n"),
    }
    guest.end().expect_code(0);
    assert_whole(snapshot, what);
    fs::remove_dir_all(snapshot).unwrap();
}

fn refuse_each_step(way: Way, directory: &Path) {
    let snapshot = directory.join("snap");
    for (index, call) in calls_of(way, directory).iter().enumerate() {
        let error = if index % 2 == 0 { EIO } else { ENOSPC };
        let what = format!("{way:?}, error {error} from {call:?}");
        let mut guest = guest(way, &snapshot);
        let fault = Some((index, Outcome::Refuse(error)));
        let traced = capture(&mut guest, directory, fault);
        assert_eq!(traced.calls[index].name, call.name, "{what}: {traced:?}");
        if traced.has_ended {
            // A step that the capture can do without.
            assert_eq!(way, Way::Link, "{what}");
            let done = guest.end();
            assert_eq!(done.status.code(), Some(0), "{what}: {done:?}");
            assert_whole(&snapshot, &what);
            fs::remove_dir_all(&snapshot).unwrap();
        } else {
            assert_eq!(was_captured(&mut guest), snapshot.exists(), "{what}");
            if snapshot.exists() {
                assert_whole(&snapshot, &what);
                fs::remove_dir_all(&snapshot).unwrap();
            } else {
                guest.message("capture failed: ");
            }
            assert_eq!(entries(directory), [""; 0], "{what}: {}", guest.messages());
            assert_runs_on(&mut guest, &what);
            assert_can_be_captured(guest, way, &snapshot, &what);
        }
        assert_eq!(entries(directory), [""; 0], "{what}");
    }
}

#[test]
fn a_refused_step_of_a_linked_capture_and_the_guest_runs_on() {
    if let Some(dir) = begin("a_refused_step_of_a_linked_capture_and_the_guest_runs_on") {
        refuse_each_step(Way::Link, dir.path());
    }
}

#[test]
fn a_refused_step_of_a_copied_capture_and_the_guest_runs_on() {
    if let Some(dir) = begin("a_refused_step_of_a_copied_capture_and_the_guest_runs_on") {
        refuse_each_step(Way::Copy, dir.path());
    }
}

#[test]
fn steps_on_file_systems_that_share_blocks_between_files() {
    let test = "steps_on_file_systems_that_share_blocks_between_files";
    if begin(test).is_none() {
        return;
    }
    for kind in [VolumeKind::Xfs, VolumeKind::Btrfs] {
        match Volume::mount(kind) {
            Err(reason) => skip(test, &reason),
            Ok(volume) => {
                let directory = volume.join("test");
                fs::create_dir(&directory).unwrap();
                refuse_each_step(Way::Copy, &directory);
                kill_at_each_step(Way::Copy, &directory);
            }
        }
    }
}

/// Such a file system knows neither nameless files nor renames that replace nothing: the RAM file has a name
/// while its VM lives, and a commit claims its name by an empty directory, which a failure may leave.
#[test]
fn steps_on_a_file_system_that_needs_all_second_choices() {
    let test = "steps_on_a_file_system_that_needs_all_second_choices";
    if begin(test).is_none() {
        return;
    }
    let volume = match Volume::mount(VolumeKind::Ntfs) {
        Ok(volume) => volume,
        Err(reason) => return skip(test, &reason),
    };
    let directory = volume.join("test");
    fs::create_dir(&directory).unwrap();
    let snapshot = directory.join("snap");
    for way in [Way::Link, Way::Copy] {
        let mut source = guest(way, &snapshot);
        let calls = capture(&mut source, &directory, None).calls;
        drop(source);
        assert_whole(&snapshot, "no fault");
        fs::remove_dir_all(&snapshot).unwrap();
        for (index, call) in calls.iter().enumerate() {
            for outcome in [Outcome::Refuse(EIO), Outcome::KillBefore] {
                let what = format!("{way:?}, {outcome:?} at {call:?}");
                let mut guest = guest(way, &snapshot);
                let traced = capture(&mut guest, &directory, Some((index, outcome)));
                let is_there = snapshot.exists() && entries(&snapshot) != [""; 0];
                if is_there {
                    assert_whole(&snapshot, &what);
                }
                if snapshot.exists() {
                    fs::remove_dir_all(&snapshot).unwrap();
                }
                if traced.has_ended {
                    drop(guest);
                } else {
                    assert_eq!(was_captured(&mut guest), is_there, "{what}");
                    assert_runs_on(&mut guest, &what);
                    assert_can_be_captured(guest, way, &snapshot, &what);
                }
                talk(&command(way, &snapshot), "x0\n").expect_code(0);
                assert_eq!(entries(&directory), [""; 0], "{what}");
            }
        }
    }
}

#[test]
fn killed_at_any_step_of_a_capture() {
    if let Some(dir) = begin("killed_at_any_step_of_a_capture") {
        kill_at_each_step(Way::Link, dir.path());
        kill_at_each_step(Way::Copy, dir.path());
    }
}

fn kill_at_each_step(way: Way, directory: &Path) {
    let snapshot = directory.join("snap");
    let calls = calls_of(way, directory);
    let (mut published, mut left_behind) = (0, 0);
    for (index, call) in calls.iter().enumerate() {
        let what = format!("{way:?}, killed at {call:?}");
        let mut guest = guest(way, &snapshot);
        let traced = capture(&mut guest, directory, Some((index, Outcome::KillBefore)));
        assert!(traced.has_ended, "{what}");
        guest.end();
        left_behind += leftovers(directory).len();
        if snapshot.exists() {
            assert_whole(&snapshot, &what);
            fs::remove_dir_all(&snapshot).unwrap();
            published += 1;
        }
        // A living capture's staging directory is left alone; the dead one's is not.
        let destination = Destination::declare(&directory.join("other")).unwrap();
        let alive = Staging::create(&destination).unwrap();
        talk(&command(way, &snapshot), "v\nx0\n").expect_code(0);
        assert_eq!(entries(directory).len(), 1, "{what}");
        drop(alive);
        assert_eq!(entries(directory), [""; 0], "{what}");
    }
    // Only what follows the commit, which is the sync of the parent.
    assert_eq!(published, 1, "{way:?}: {calls:?}");
    assert!(left_behind > 5, "{way:?}: {left_behind}");
}

#[test]
fn a_write_that_takes_half_is_gone_on_with() {
    let Some(dir) = begin("a_write_that_takes_half_is_gone_on_with") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    for way in [Way::Link, Way::Copy] {
        for (index, call) in calls_of(way, dir.path()).iter().enumerate() {
            if !call.name.contains("write") {
                continue;
            }
            let mut guest = guest(way, &snapshot);
            let traced = capture(&mut guest, dir.path(), Some((index, Outcome::Halve)));
            let rest = &traced.calls[index + 1];
            assert_eq!(rest.name, call.name, "{traced:?}");
            assert_eq!(rest.path.file_name(), call.path.file_name(), "{traced:?}");
            drop(guest);
            assert_whole(&snapshot, &format!("{call:?}"));
            fs::remove_dir_all(&snapshot).unwrap();
        }
    }
}

#[test]
fn a_step_that_happens_and_is_called_failed() {
    let Some(dir) = begin("a_step_that_happens_and_is_called_failed") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    for way in [Way::Link, Way::Copy] {
        for (index, call) in calls_of(way, dir.path()).iter().enumerate() {
            let what = format!("{way:?}, answer lost of {call:?}");
            let mut guest = guest(way, &snapshot);
            let fault = Some((index, Outcome::LoseAnswer(EIO)));
            let traced = capture(&mut guest, dir.path(), fault);
            if traced.has_ended {
                guest.end().expect_code(0);
                assert_whole(&snapshot, &what);
                fs::remove_dir_all(&snapshot).unwrap();
            } else {
                let captured = was_captured(&mut guest);
                assert_runs_on(&mut guest, &what);
                if captured {
                    assert_whole(&snapshot, &what);
                }
                // What there is otherwise is no snapshot.
                if snapshot.exists() {
                    if !captured {
                        assert_eq!(entries(&snapshot), [""; 0], "{what}");
                    }
                    fs::remove_dir_all(&snapshot).unwrap();
                }
                assert_can_be_captured(guest, way, &snapshot, &what);
            }
            talk(&command(way, &snapshot), "x0\n").expect_code(0);
            assert_eq!(entries(dir.path()), [""; 0], "{what}");
        }
    }
}

/// `inspect --seal`, which is traced from its first instruction on.
fn seal(snapshot: &Path, fault: Option<(usize, Outcome)>) -> (Traced, Process) {
    // The shell becomes the program once it has had a line.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "read -r go; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_nvx"));
    command.args(arguments(["inspect", "--seal"], [snapshot]));
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::spawn(command);
    let traced = trace(
        process.id(),
        snapshot,
        || process.send("\n"),
        |index, _| match fault {
            Some((at, outcome)) if index == at => outcome,
            _ => Outcome::Pass,
        },
        || false,
    )
    .unwrap();
    (traced, process)
}

#[test]
fn a_fault_at_any_step_of_a_seal_leaves_the_old_manifest_or_the_new() {
    let Some(dir) = begin("a_fault_at_any_step_of_a_seal_leaves_the_old_manifest_or_the_new")
    else {
        return;
    };
    let (whole, snapshot) = (dir.path().join("whole"), dir.path().join("snap"));
    probe().capture(&whole);
    let old = fs::read(whole.join(MANIFEST_FILE)).unwrap();
    copy_snapshot(&whole, &snapshot);
    let (traced, process) = seal(&snapshot, None);
    process.end().expect_code(0);
    let new = fs::read(snapshot.join(MANIFEST_FILE)).unwrap();
    assert_ne!(old, new);
    let names: Vec<&str> = traced.calls.iter().map(|call| call.name).collect();
    for step in ["openat", "write", "fdatasync", "renameat", "fsync"] {
        assert!(names.contains(&step), "no {step} in {names:?}");
    }
    for (index, call) in traced.calls.iter().enumerate() {
        for outcome in [
            Outcome::Refuse(EIO),
            Outcome::LoseAnswer(ENOSPC),
            Outcome::KillBefore,
            Outcome::Halve,
        ] {
            let what = format!("{outcome:?} at {call:?}");
            fs::remove_dir_all(&snapshot).unwrap();
            copy_snapshot(&whole, &snapshot);
            let (again, process) = seal(&snapshot, Some((index, outcome)));
            assert!(again.calls.len() > index, "{what}: {again:?}");
            let done = process.end();
            let now = fs::read(snapshot.join(MANIFEST_FILE)).unwrap();
            assert!(now == old || now == new, "{what}");
            match done.status.code() {
                Some(0) => assert!(now == new, "{what}"),
                // The new manifest is there, and whether it stays after a power cut is not known.
                Some(2) => assert!(
                    now == old || call.name == "fsync" || call.name == "renameat",
                    "{what}: {done:?}"
                ),
                other => assert_eq!((outcome, other), (Outcome::KillBefore, None), "{what}"),
            }
            if matches!(outcome, Outcome::Refuse(_)) {
                let left = leftovers(&snapshot);
                assert!(left.is_empty(), "{what}: {left:?}");
            }
            // The next one makes it good.
            let (_, next) = seal(&snapshot, None);
            next.end().expect_code(0);
            assert!(manifest(&snapshot).memory[0].digests.is_some());
            let checked = Process::spawn(nvx(&arguments(["inspect", "--verify"], [&*snapshot])));
            checked.end().expect_code(0);
            if now == old {
                assert_eq!(leftovers(&snapshot), [""; 0], "{what}");
            }
            assert_whole(&snapshot, &what);
        }
    }
}
