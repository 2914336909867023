//! `nvx bench digests` as a user meets it: table, JSON, refusals and their codes.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

mod support;

use std::fs;

use serde_json::Value;
use support::{MIB, Probe, arguments, begin, content, run, text};

#[test]
fn the_cost_of_digests_is_measured_and_the_snapshot_stays_as_it_is() {
    let Some(dir) = begin("the_cost_of_digests_is_measured_and_the_snapshot_stays_as_it_is") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    Probe::new("fill=top:64,seed=1", 16 * MIB).capture(&snapshot);
    let before = content(&snapshot);
    let words = ["bench", "digests", text(&snapshot), "--samples", "3"];
    let done = run(&arguments(words, [])).expect_code(0);
    assert!(
        done.line_with("16 MiB of memory")
            .contains("16 chunks of 1 MiB")
    );
    assert!(
        done.line_with("16 MiB of memory")
            .ends_with("without digests")
    );
    for row in [
        "open, ",
        "--verify or --seal, file",
        "--digests in a capture",
    ] {
        done.line(row);
    }

    run(&arguments(["inspect", "--seal"], [&*snapshot])).expect_code(0);
    let done = run(&arguments(words.into_iter().chain(["--json"]), [])).expect_code(0);
    let report: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(report["schema"], "nvx.digests");
    assert_eq!(report["is_sealed"], true);
    assert_eq!(report["memory_bytes"], 16 * MIB);
    let bytes_read = report["bytes_read"].as_u64().unwrap();
    assert!((64 * 4096..=16 * MIB).contains(&bytes_read), "{bytes_read}");
    for series in ["open_ms", "all_processors_ms", "in_copy_ms"] {
        assert_eq!(report[series]["samples"].as_array().unwrap().len(), 3);
        assert!(report[series]["p50"].as_f64().unwrap() > 0.0, "{series}");
    }
    let after = content(&snapshot);
    assert_eq!(before[1..], after[1..]);
}

#[test]
fn what_is_no_snapshot_is_bad_input() {
    let Some(dir) = begin("what_is_no_snapshot_is_bad_input") else {
        return;
    };
    let words = ["bench", "digests", text(dir.path())];
    run(&arguments(words, []))
        .expect_code(2)
        .assert_said("no snapshot, the directory is empty");
    let nowhere = dir.path().join("nowhere");
    run(&arguments(["bench", "digests", text(&nowhere)], []))
        .expect_code(2)
        .assert_said("does not exist");
    let mut words = vec!["bench", "digests", text(&nowhere), "--samples"];
    words.push("0");
    run(&arguments(words, [])).expect_code(2);
    assert!(!fs::exists(nowhere).unwrap());
}
