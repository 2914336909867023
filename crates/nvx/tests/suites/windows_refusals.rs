//! What a user of Windows is told when something is wrong.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use crate::BACKEND;
use crate::support::{probe, run, talk, text};

#[test]
fn bad_arguments_have_the_exit_codes_of_every_system() {
    for (words, code, part) in [
        (vec![], 2, "Usage:"),
        (vec!["bogus"], 2, "'bogus'"),
        (vec!["demo", "--samples", "0"], 2, "--samples"),
        (vec!["run", "--bogus"], 125, "'--bogus'"),
        (vec!["run", "--backend", "hvf"], 125, "hvf"),
        (vec!["run", "--backend", "kvm"], 125, "kvm"),
        (vec!["restore", r"C:\nowhere\at all"], 125, "does not exist"),
        (vec!["inspect", r"C:\nowhere"], 2, "does not exist"),
    ] {
        let done = run(&words);
        assert_eq!(done.code, Some(code), "{words:?}: {done:?}");
        let said = format!("{}{}", done.messages, done.output);
        assert!(said.contains(part), "{words:?}: {done:?}");
        assert!(!said.contains("panicked"), "{done:?}");
    }
}

#[test]
fn a_damaged_snapshot_is_named_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("snap");
    let make = || {
        let _ = std::fs::remove_dir_all(&snapshot);
        talk(&probe(BACKEND, &["--snapshot", text(&snapshot)]), "s\n").expect_code(0);
    };
    let cut = |name: &str| {
        let path = snapshot.join(name);
        let length = std::fs::metadata(&path).unwrap().len();
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(length - 1).unwrap();
    };
    for file in ["manifest.json", "state.bin", "memory.bin"] {
        make();
        cut(file);
        let done = run(&["restore", text(&snapshot)]).expect_code(125);
        done.assert_said(file);
        assert!(!done.output.contains("PROBE-"), "{done:?}");
        std::fs::remove_file(snapshot.join(file)).unwrap();
        run(&["restore", text(&snapshot)])
            .expect_code(125)
            .assert_said(file);
        std::fs::create_dir(snapshot.join(file)).unwrap();
        run(&["restore", text(&snapshot)])
            .expect_code(125)
            .assert_said("is a directory");
    }
}

#[test]
fn the_hypervisor_that_is_absent_is_named_with_the_way_to_it() {
    let done = run(&["run", "--backend", "whp"]).expect_code(125);
    done.assert_said("WinHvPlatform.dll");
    let report = run(&["doctor"]);
    assert!(
        report.output.contains("whp") && report.output.contains("HypervisorPlatform"),
        "{report:?}"
    );
}
