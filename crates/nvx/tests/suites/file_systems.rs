//! Captures on file systems that can do more, or less, than most: XFS and btrfs share blocks between
//! files; NTFS by FUSE has no nameless files.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::path::Path;

use rustix::process::Signal;

use crate::support::mounts::{Tmpfs, Volume, VolumeKind};
use crate::support::vm::Vm;
use crate::support::{
    MIB, Probe, Process, begin, content, entries, leftovers, manifest, restore, skip, start, talk,
    text,
};

const SMALL: u64 = 16 * MIB;

/// A volume of this kind; `None`, with the reason told, where there is none.
fn volume(test: &str, kind: VolumeKind) -> Option<Volume> {
    begin(test)?;
    Volume::mount(kind)
        .map_err(|reason| skip(test, &reason))
        .ok()
}

fn assert_restores(snapshot: &Path, probe: Probe, dirtied: u32) {
    probe.assert_in_memory_file(snapshot, dirtied);
    let done = talk(&restore(snapshot, &[]), "v\nx0\n").expect_code(0);
    done.line(&probe.verified(dirtied));
}

#[test]
fn a_source_that_continues_on_xfs_shares_its_blocks() {
    shares_blocks(
        "a_source_that_continues_on_xfs_shares_its_blocks",
        VolumeKind::Xfs,
    );
}

#[test]
fn a_source_that_continues_on_btrfs_shares_its_blocks() {
    shares_blocks(
        "a_source_that_continues_on_btrfs_shares_its_blocks",
        VolumeKind::Btrfs,
    );
}

fn shares_blocks(test: &str, kind: VolumeKind) {
    let Some(volume) = volume(test, kind) else {
        return;
    };
    let [own, hosts, last] = ["own", "hosts", "last"].map(|name| volume.join(name));
    let probe = Probe::new("fill=alternate,seed=1", SMALL);
    let command = probe.run(&["--snapshot", text(&own), "--continue"]);
    let sockets = tempfile::tempdir().unwrap();
    let mut vm = Vm::start(&command, sockets.path(), "PROBE-READY");

    vm.guest.ask("s", "PROBE-CONTINUED");
    let why =
        "the guest goes on and keeps its RAM file; its file system shares blocks between files";
    vm.guest
        .message(&format!("(reflink: {why}); the guest goes on"));
    let capture = manifest(&own).capture;
    assert_eq!(capture.publication.to_string(), "reflink");
    assert_eq!(capture.publication_reason, why);
    assert!(capture.strategy.starts_with("ascending"), "{capture:?}");
    let before = content(&own);

    vm.guest.ask("d", "PROBE-DIRTIED seed=2");
    vm.capture(&hosts, &["--continue"])
        .expect_code(0)
        .line_with("(reflink: ");
    vm.guest.ask("d", "PROBE-DIRTIED seed=3");
    vm.guest.ask("v", &probe.verified(2));
    assert!(content(&own) == before, "the source changed its snapshot");
    probe.assert_in_memory_file(&hosts, 1);
    // The file that shared its blocks can still be the last snapshot itself.
    vm.capture(&last, &[]).expect_code(0).line_with("(link: ");
    vm.guest.end().expect_code(0);

    assert_eq!(entries(&volume.path()), ["hosts", "last", "own"]);
    assert!(content(&own) == before, "the end changed it");
    for (dirtied, snapshot) in [&own, &hosts, &last].into_iter().enumerate() {
        assert_restores(snapshot, probe, dirtied as u32);
    }
}

#[test]
fn a_full_disk_after_a_reflink_ends_the_source_and_not_the_snapshot() {
    let test = "a_full_disk_after_a_reflink_ends_the_source_and_not_the_snapshot";
    let Some(volume) = volume(test, VolumeKind::Xfs) else {
        return;
    };
    let snapshot = volume.join("snap");
    // Room for RAM once, and not for all of it a second time.
    let probe = Probe::new("fill=all,seed=1", 160 * MIB);
    let mut guest = start(&probe.run(&["--snapshot", text(&snapshot), "--continue"]));
    guest.line("PROBE-READY");
    guest.ask("s", "PROBE-CONTINUED");
    guest.message("(reflink: ");
    guest.send("d\n");
    let done = guest.end().expect_code(125);
    done.assert_said(&format!("RAM file {}/", text(&volume.path())));
    done.assert_said("its file system is full");
    assert_restores(&snapshot, probe, 0);
}

#[test]
fn without_shared_blocks_a_source_that_continues_is_copied_and_that_is_said() {
    let test = "without_shared_blocks_a_source_that_continues_is_copied_and_that_is_said";
    if begin(test).is_none() {
        return;
    }
    let Some(tmpfs) = Tmpfs::mount("size=64m") else {
        return skip(test, "mounting needs root");
    };
    let snapshot = tmpfs.join("snap");
    let probe = Probe::new("fill=top:64,seed=1", SMALL);
    let mut guest = start(&probe.run(&["--snapshot", text(&snapshot), "--continue"]));
    guest.line("PROBE-READY");
    guest.ask("s", "PROBE-CONTINUED");
    let why = "the guest goes on and keeps its RAM file; the file system cannot share blocks between files";
    guest.message(&format!("(copy: {why}); the guest goes on"));
    assert_eq!(manifest(&snapshot).capture.publication_reason, why);
    assert_eq!(manifest(&snapshot).capture.strategy, "copy");
    guest.send("x0\n");
    guest.end().expect_code(0);
    assert_restores(&snapshot, probe, 0);
}

#[test]
fn a_ram_file_with_a_name_is_published_and_leaves_no_other() {
    let test = "a_ram_file_with_a_name_is_published_and_leaves_no_other";
    let Some(volume) = volume(test, VolumeKind::Ntfs) else {
        return;
    };
    let root = volume.path();
    let snapshot = volume.join("snap");
    let probe = Probe::new("fill=top:64,seed=1", SMALL);
    let mut guest = start(&probe.run(&["--snapshot", text(&snapshot)]));
    guest.line("PROBE-READY");
    assert_eq!(leftovers(&root).len(), 1, "{:?}", entries(&root));
    guest.ask("d", "PROBE-DIRTIED");
    guest.send("s\n");
    guest.end().expect_code(0);
    assert_eq!(entries(&root), ["snap"]);
    let fallbacks = manifest(&snapshot).capture.fallbacks;
    let told = |part: &str| fallbacks.iter().any(|fallback| fallback.contains(part));
    assert!(told("RAM file has a name"), "{fallbacks:?}");
    assert!(told("no RENAME_NOREPLACE"), "{fallbacks:?}");
    assert_restores(&snapshot, probe, 1);
    // One that is not captured leaves nothing at all.
    for (input, code) in [("x3\n", 3), ("v\nx0\n", 0)] {
        talk(&probe.run(&["--scratch", text(&root)]), input).expect_code(code);
        assert_eq!(entries(&root), ["snap"]);
    }
}

#[test]
fn after_a_kill_a_ram_file_with_a_name_is_removed_by_the_next_start() {
    let test = "after_a_kill_a_ram_file_with_a_name_is_removed_by_the_next_start";
    let Some(volume) = volume(test, VolumeKind::Ntfs) else {
        return;
    };
    let root = volume.path();
    let snapshot = volume.join("snap");
    let sockets = tempfile::tempdir().unwrap();
    let probe = Probe::new("fill=top:64,seed=1", SMALL);
    let scratch = ["--scratch", text(&root)];
    for place in [scratch, ["--snapshot", text(&snapshot)]] {
        let mut killed = Vm::start(&probe.run(&place), sockets.path(), "PROBE-READY");
        killed.guest.signal(Signal::KILL);
        killed.guest.end();
        let left = leftovers(&root);
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].starts_with(".nvx-ram-"), "{left:?}");

        // A living one's file is not taken for a leftover.
        let mut alive = start(&probe.run(&scratch));
        alive.line("PROBE-READY");
        let next = Vm::start(&probe.run(&place), sockets.path(), "PROBE-READY");
        // By the time that a client is answered the start is over.
        next.status();
        let both = leftovers(&root);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(!both.contains(&left[0]), "{both:?}");
        next.stop();
        assert_eq!(leftovers(&root).len(), 1);
        alive.ask("v", &probe.verified(0));
        alive.send("x0\n");
        alive.end().expect_code(0);
        assert_eq!(entries(&root), [""; 0]);
    }
}

/// Sets how large files of a process may become (RLIMIT_FSIZE), in bytes.
fn limit_file_size(pid: u32, bytes: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(Pid::from_raw(pid as i32), Resource::Fsize, limit).unwrap();
}

#[test]
fn a_limit_of_file_sizes_fails_a_capture_and_not_its_guest() {
    let Some(dir) = begin("a_limit_of_file_sizes_fails_a_capture_and_not_its_guest") else {
        return;
    };
    let (snapshot, other) = (dir.path().join("snap"), dir.path().join("other"));
    let probe = Probe::new("fill=all,seed=1", SMALL);
    // RAM in no file, so that a capture is the first that makes a large one.
    let command = probe.run(&["--snapshot-root", text(dir.path())]);
    let sockets = tempfile::tempdir().unwrap();
    let mut vm = Vm::start(&command, sockets.path(), "PROBE-READY");
    for bytes in [0, 4096, MIB] {
        limit_file_size(vm.guest.id(), Some(bytes));
        let told = vm.capture(&snapshot, &["--continue"]).expect_code(2);
        told.assert_said("File too large");
        assert_eq!(entries(dir.path()), [""; 0]);
        // The guest's output goes to a file as well.
        limit_file_size(vm.guest.id(), None);
        vm.guest.ask("v", &probe.verified(0));
    }
    vm.capture(&snapshot, &["--continue"]).expect_code(0);
    assert_restores(&snapshot, probe, 0);
    vm.stop();

    // A RAM file that may not be as large as RAM is named at the start.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 64; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_nvx"));
    command.args(probe.run(&["--snapshot", text(&other)]));
    let done = Process::spawn(command).end().expect_code(125);
    done.assert_said("guest RAM cannot be set up");
    done.assert_said("File too large");
    assert_eq!(entries(dir.path()), ["snap"]);
}
