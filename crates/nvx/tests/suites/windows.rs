//! Life of a guest on Windows: start, capture, restore, control, Ctrl-C, and what is then on disk.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::path::Path;

use crate::BACKEND;
use crate::support::{entries, probe, run, start, talk, text, value};

#[test]
fn demo_proves_itself_and_leaves_its_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["demo", "--backend", BACKEND, "--memory", "32M"];
    let mut all = words.to_vec();
    all.extend(["--fill", "spread:64", "--dir", text(directory.path())]);
    let done = run(&all).expect_code(0);
    for row in ["cold start", "snapshot generation", "restore"] {
        done.line(row);
    }
    let left = entries(directory.path());
    assert_eq!(left.len(), 1, "{left:?}");
    let snapshot = directory.path().join(&left[0]);
    assert!(done.output.contains(text(&snapshot)), "{done:?}");
    let restored = talk(&["restore", text(&snapshot)], "v\nx0\n").expect_code(0);
    restored.line("PROBE-VERIFY ok ");
}

#[test]
fn restore_goes_on_and_is_not_a_new_start() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    let mut source = start(&probe(BACKEND, &["--snapshot", text(&snapshot)]));
    let ready = source.line("PROBE-READY");
    source.ask("d", "PROBE-DIRTIED seed=8 count=1");
    let verified = source.ask("v", "PROBE-VERIFY ok ");
    source.send("s\n");
    let done = source.end().expect_code(0);
    done.assert_said("captured to ");
    done.assert_said("link: the RAM file is on the destination's file system");
    assert_eq!(
        entries(&snapshot),
        ["manifest.json", "memory.bin", "state.bin"]
    );
    assert_eq!(entries(directory.path()), ["snap"], "the RAM file is gone");

    let before = std::fs::read(snapshot.join("memory.bin")).unwrap();
    let mut others: Vec<_> = (0..3)
        .map(|_| start(&["restore", text(&snapshot)]))
        .collect();
    for (times, restored) in others.iter_mut().enumerate() {
        let line = restored.line("PROBE-");
        assert!(line.starts_with("PROBE-RESTORED"), "{line}");
        assert_eq!(value(&line, "nonce"), value(&ready, "nonce"));
        restored.send(&"d\n".repeat(times));
        let again = restored.ask("v", "PROBE-VERIFY ok ");
        if times == 0 {
            assert_eq!(value(&again, "checksum"), value(&verified, "checksum"));
        }
    }
    for mut restored in others {
        restored.send("x9\n");
        restored.end().expect_code(9);
    }
    assert!(std::fs::read(snapshot.join("memory.bin")).unwrap() == before);
}

#[test]
fn a_restored_guest_is_captured_again() {
    let directory = tempfile::tempdir().unwrap();
    let first = directory.path().join("first");
    let second = directory.path().join("second");
    talk(&probe(BACKEND, &["--snapshot", text(&first)]), "s\n").expect_code(0);
    let again = ["restore", text(&first), "--snapshot", text(&second)];
    let done = talk(&again, "d\ns\n").expect_code(0);
    done.assert_said("copy: guest RAM is a private view of another snapshot");
    let restored = talk(&["restore", text(&second)], "v\nx0\n").expect_code(0);
    assert_eq!(value(restored.line("PROBE-VERIFY ok "), "seed"), "8");
    assert_eq!(entries(directory.path()), ["first", "second"]);
}

#[test]
fn a_guest_that_goes_on_is_captured_by_a_copy() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    let rest = ["--snapshot", text(&snapshot), "--continue"];
    let mut source = start(&probe(BACKEND, &rest));
    source.line("PROBE-READY");
    source.ask("s", "PROBE-CONTINUED");
    source.ask("d", "PROBE-DIRTIED");
    source.send("x3\n");
    let done = source.end().expect_code(3);
    done.assert_said("the guest goes on");
    let restored = talk(&["restore", text(&snapshot)], "v\nx0\n").expect_code(0);
    assert_eq!(value(restored.line("PROBE-VERIFY ok "), "seed"), "7");
    assert_eq!(entries(directory.path()), ["snap"]);
}

#[test]
fn the_whole_ram_file_is_written_by_every_strategy() {
    let directory = tempfile::tempdir().unwrap();
    for strategy in ["ascending", "ascending-marked", "ranges:4"] {
        let snapshot = directory.path().join(strategy.replace(':', "-"));
        let rest = ["--snapshot", text(&snapshot), "--writeback", strategy];
        talk(&probe(BACKEND, &rest), "d\ns\n").expect_code(0);
        let shown = run(&["inspect", "--json", text(&snapshot)]).expect_code(0);
        assert!(
            shown
                .output
                .contains(&format!("\"{strategy} (asked for)\"")),
            "{shown:?}"
        );
        let restored = talk(&["restore", text(&snapshot)], "v\nx0\n").expect_code(0);
        assert_eq!(value(restored.line("PROBE-VERIFY ok "), "seed"), "8");
    }
}

#[test]
fn inspect_tells_what_a_snapshot_is() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    talk(&probe(BACKEND, &["--snapshot", text(&snapshot)]), "s\n").expect_code(0);
    let shown = run(&["inspect", text(&snapshot)]).expect_code(0);
    assert!(shown.output.contains(BACKEND), "{shown:?}");
    run(&["inspect", "--json", text(&snapshot)]).expect_code(0);
}

#[test]
fn paths_with_spaces_other_letters_and_the_long_form_work() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("a b/ünïcödé 名前");
    std::fs::create_dir_all(&directory).unwrap();
    let snapshot = directory.join("snäp shot");
    talk(&probe(BACKEND, &["--snapshot", text(&snapshot)]), "s\n").expect_code(0);
    let long = std::fs::canonicalize(&snapshot).unwrap();
    assert!(text(&long).starts_with(r"\\?\"), "{long:?}");
    for path in [snapshot.as_path(), long.as_path()] {
        talk(&["restore", text(path)], "x4\n").expect_code(4);
    }
    let beside = long.with_file_name("second");
    talk(&probe(BACKEND, &["--snapshot", text(&beside)]), "s\n").expect_code(0);
    assert_eq!(entries(&directory), ["second", "snäp shot"]);
}

#[test]
fn a_vm_is_controlled_by_a_named_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    let pipe = format!(r"\\.\pipe\nvx-{BACKEND}-{}", std::process::id());
    let root = text(directory.path());
    let mut guest = start(&probe(
        BACKEND,
        &["--control", &pipe, "--snapshot-root", root],
    ));
    guest.line("PROBE-READY");
    let status = run(&["ctl", "status", "--json", "--control", &pipe]).expect_code(0);
    assert!(status.output.contains(BACKEND), "{status:?}");
    let captured = run(&["capture", text(&snapshot), "--continue", "--control", &pipe]);
    captured.expect_code(0);
    // Its bare name means the same pipe.
    let bare = pipe.rsplit('\\').next().unwrap();
    run(&["ctl", "pause", "--control", bare]).expect_code(0);
    run(&["ctl", "resume", "--control", bare]).expect_code(0);
    let taken = talk(&probe(BACKEND, &["--control", &pipe]), "x0\n").expect_code(125);
    taken.assert_said("in use by a running VM");
    run(&["ctl", "stop", "--control", &pipe]).expect_code(0);
    let done = guest.end().expect_code(143);
    done.assert_said("stopped by a control client");
    let nobody = run(&["ctl", "status", "--control", &pipe]);
    assert_ne!(nobody.code, Some(0));
    nobody.assert_said("no VM listens here");
    talk(&["restore", text(&snapshot)], "x6\n").expect_code(6);
}

#[test]
fn what_a_killed_monitor_left_is_removed_by_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = text(directory.path());
    let mut victim = start(&probe(BACKEND, &["--scratch", scratch]));
    victim.line("PROBE-READY");
    let left = entries(directory.path());
    assert!(left[0].starts_with(".nvx-ram-"), "{left:?}");
    victim.kill();
    let mut next = start(&probe(BACKEND, &["--scratch", scratch]));
    next.line("PROBE-READY");
    let path = directory.path().join(&left[0]);
    wait_until(|| !path.exists());
    next.send("x0\n");
    next.end().expect_code(0);
    assert_eq!(entries(directory.path()), [""; 0]);
}

#[test]
fn a_snapshot_in_use_is_protected_from_writers() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    talk(&probe(BACKEND, &["--snapshot", text(&snapshot)]), "s\n").expect_code(0);
    let mut restored = start(&["restore", text(&snapshot)]);
    restored.line("PROBE-RESTORED");
    let memory = snapshot.join("memory.bin");
    let error = std::fs::OpenOptions::new()
        .write(true)
        .open(&memory)
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(32), "{error}");
    restored.send("x0\n");
    restored.end().expect_code(0);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&memory)
        .unwrap();
}

#[test]
fn without_input_the_guest_runs_on() {
    let mut guest = start(&probe(BACKEND, &[]));
    guest.line("PROBE-READY");
    guest.send("x5\n");
    guest.end().expect_code(5);
}

/// Waits, with a limit, until something is so.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Not a name of a directory; used where none may be made.
#[test]
fn a_refused_destination_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (name, words) in [
        ("missing/snap", "does not exist"),
        ("nul", "not a name of one component"),
    ] {
        let path = directory.path().join(name);
        let done = talk(&probe(BACKEND, &["--snapshot", text(&path)]), "s\n");
        let done = done.expect_code(125);
        done.assert_said(words);
    }
    let taken = directory.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    let done = talk(&probe(BACKEND, &["--snapshot", text(&taken)]), "s\n");
    done.expect_code(125).assert_said("already exists");
    assert_eq!(entries(directory.path()), ["taken"]);
    assert!(Path::new(&taken).is_dir());
}
