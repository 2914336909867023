//! `nvx bench writeback` as a user meets it: table, JSON, refusals and their codes.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

fn bench(directory: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvx"))
        .args(["bench", "writeback", "--memory", "1M", "--dir"])
        .arg(directory)
        .args(options)
        .output()
        .unwrap()
}

fn refusal(directory: &Path, options: &[&str]) -> String {
    let output = bench(directory, options);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{options:?}: {message}");
    assert!(output.stdout.is_empty());
    message
}

#[test]
fn json_has_every_sample_of_every_strategy_and_pattern() {
    // On a disk each run waits for the device to be at rest, so a part must do.
    let places = [
        (
            std::env::temp_dir(),
            vec!["--pattern", "top:4", "--warmups", "0"],
            1,
        ),
        ("/dev/shm".into(), vec![], 5),
    ];
    for (parent, options, patterns) in places {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let output = bench(
            directory.path(),
            &[&["--samples", "2", "--json"], options.as_slice()].concat(),
        );
        assert!(output.status.success());
        assert!(
            output.stderr.is_empty(),
            "no progress where there is no terminal"
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema"], "nvx.writeback");
        assert_eq!(report["complete"], true);
        let cells = report["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 5 * patterns);
        for cell in cells {
            let samples = cell["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 2, "the warm-up is left out");
            for field in ["p50", "p25", "p95", "sigma"] {
                assert!(cell["duration_ms"][field].is_number(), "{cell}");
            }
            for sample in samples {
                assert_eq!(sample["strategy"], cell["writeback"]);
                assert_eq!(sample["reason"], "asked for");
            }
        }
        assert!(report["zero_detection"]["rate_to_plain"].as_f64().unwrap() > 0.0);
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "no RAM file is left");
    }
}

#[test]
fn the_table_names_file_system_and_what_cannot_be_counted() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = [
        "--samples",
        "1",
        "--writeback",
        "auto",
        "--pattern",
        "top:4",
    ];
    let output = bench(directory.path(), &options);
    let table = String::from_utf8(output.stdout).unwrap();
    for part in [
        "tmpfs",
        "in memory",
        "unknown",
        "top:4",
        "auto",
        "zero pages",
    ] {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
}

#[test]
fn a_prepared_file_is_used_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ram");
    File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
    let name = path.to_str().unwrap();
    let options = [
        "--ram-file",
        name,
        "--samples",
        "1",
        "--pattern",
        "all",
        "--json",
    ];
    let output = bench(Path::new("/nonexistent"), &options);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ram_file_reused"], true);
    assert_eq!(report["warmups"], 0);
    assert_eq!(report["cells"].as_array().unwrap().len(), 5);
    assert_ne!(std::fs::read(&path).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn bad_input_is_named_and_ends_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |options: &[&str]| refusal(directory.path(), options);
    for (options, part) in [
        (["--writeback", "fast"], "fast"),
        (["--writeback", "ranges:9"], "ranges:9"),
        (["--pattern", "sparse"], "sparse"),
        (["--pattern", "random:101"], "random:101"),
        (["--samples", "0"], "0"),
        (["--ram-file", "/nonexistent/ram"], "/nonexistent"),
        (["--ram-file", "/dev/null"], "/dev/null"),
        (["--memory", "4097"], "4097"),
        (["--memory", "4000000G"], "left"),
    ] {
        // An option may be given once, and `bench` gives the size already.
        if options[0] == "--memory" {
            let output = Command::new(env!("CARGO_BIN_EXE_nvx"))
                .args(["bench", "writeback", "--dir"])
                .arg(directory.path())
                .args(options)
                .output()
                .unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{message}");
            assert!(message.contains(part), "{message}");
            continue;
        }
        let message = refused(&options);
        assert!(message.contains(part), "{part} is missing: {message}");
    }
    let message = refusal(Path::new("/nonexistent/scratch"), &[]);
    assert!(message.contains("/nonexistent/scratch"), "{message}");
    let wrong = directory.path().join("wrong");
    std::fs::write(&wrong, b"short").unwrap();
    let message = refused(&["--ram-file", wrong.to_str().unwrap()]);
    assert!(message.contains("5 bytes"), "{message}");
}

/// A measurement that would last for hours, with its progress on a terminal of its own.
struct LongRun {
    child: Child,
    screen: File,
}

impl LongRun {
    fn start(directory: &Path) -> Self {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap();
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        let options = [
            "--warmups",
            "0",
            "--samples",
            "9999",
            "--pattern",
            "top:4",
            "--json",
        ];
        let child = Command::new(env!("CARGO_BIN_EXE_nvx"))
            .args(["bench", "writeback", "--memory", "1M", "--dir"])
            .arg(directory)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(terminal)
            .spawn()
            .unwrap();
        let screen = File::from(control);
        Self { child, screen }
    }

    /// Reads the screen until `part` has been on it.
    fn wait_for(&mut self, part: &str) {
        let mut seen = String::new();
        let mut bytes = [0; 256];
        while !seen.contains(part) {
            let count = self.screen.read(&mut bytes).unwrap();
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code and the result, which must say that it is incomplete.
    fn end(self) -> (Option<i32>, Value) {
        let output = self.child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["complete"], false);
        let cells = report["cells"].as_array().unwrap();
        let samples = cells.iter().map(|cell| cell["samples"].as_array().unwrap());
        assert!(samples.map(Vec::len).sum::<usize>() >= 3, "{report}");
        (output.status.code(), report)
    }
}

#[test]
fn a_request_to_end_keeps_what_was_measured() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut run = LongRun::start(directory.path());
        run.wait_for("4/49995 run");
        run.signal(signal);
        let (ended, report) = run.end();
        assert_eq!(ended, Some(code));
        let reason = report["incomplete_reason"].as_str().unwrap();
        assert!(reason.ends_with("interrupted"), "{reason}");
        assert!(report["zero_detection"].is_null());
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "no RAM file is left");
    }
}

#[test]
fn a_directory_that_vanishes_keeps_what_was_measured() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut run = LongRun::start(directory.path());
    run.wait_for("4/49995 run");
    drop(directory);
    let (ended, report) = run.end();
    assert_eq!(ended, Some(75));
    let reason = report["incomplete_reason"].as_str().unwrap();
    assert!(reason.contains(" of 49995: "), "{reason}");
}
