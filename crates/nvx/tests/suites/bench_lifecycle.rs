//! `nvx bench lifecycle`, `compare` and `nvx perf validate`: the whole way from processes to a verdict.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::path::Path;

use serde_json::Value;

use crate::support::process::{self, Finished, arguments};
use crate::support::{BACKEND, begin, entries, text};

const UNSTABLE: i32 = 75;
const BAD_INPUT: i32 = 2;

/// `nvx bench COMMAND` of a small guest on this file's back end, with its files in `directory`.
fn bench(command: &str, directory: &Path, more: &[&str]) -> Finished {
    let common = [
        "bench",
        command,
        "--backend",
        BACKEND.name(),
        "--memory",
        "16M",
        "--fill",
        "top:16",
        "--scratch",
        text(directory),
    ];
    process::run(&arguments(common.iter().chain(more).copied(), []))
}

fn run<const N: usize>(words: [&str; N]) -> Finished {
    process::run(&arguments(words, []))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_run_gives_a_result_that_can_be_validated_and_shown() {
    let Some(directory) = begin("a_run_gives_a_result_that_can_be_validated_and_shown") else {
        return;
    };
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let output = directory.path().join("result.json");
    let done = bench("lifecycle", &scratch, &["--output", text(&output)]).expect_code(0);
    done.line_with("snapshot generation");
    assert!(entries(&scratch).is_empty(), "nothing is left behind");

    let result = read(&output);
    assert_eq!(result["schema"], "nvx.lifecycle");
    assert_eq!(result["controls"]["complete"], true);
    let capture = &result["snapshot_capture"][BACKEND.name()];
    assert_eq!(capture["samples_ms"].as_array().unwrap().len(), 10);
    assert_eq!(
        capture["profile"]["raw_samples"].as_array().unwrap().len(),
        10
    );
    let restore = &result["snapshot_restore"][BACKEND.name()];
    assert_eq!(restore["teardown_timeout_count"], 0);
    assert_eq!(
        restore["peak_rss_samples_bytes"].as_array().unwrap().len(),
        10
    );

    // Whether a busy machine's series is stable is not for this test to say; that it is whole is.
    let verdict = run(["perf", "validate", text(&output)]);
    assert!(
        [Some(0), Some(UNSTABLE)].contains(&verdict.status.code()),
        "{}",
        verdict.events()
    );

    let page = directory.path().join("page.html");
    run(["bench", "show", text(&output), "--html", text(&page)]).expect_code(0);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));

    let mut edited = result;
    edited["snapshot_capture"][BACKEND.name()]["p50_ms"] = 1.0.into();
    std::fs::write(&output, edited.to_string()).unwrap();
    let refused = run(["perf", "validate", text(&output)]).expect_code(BAD_INPUT);
    refused.line_with("p50_ms is 1");
}

#[test]
fn a_build_is_compared_with_itself() {
    let Some(directory) = begin("a_build_is_compared_with_itself") else {
        return;
    };
    let output = directory.path().join("comparison.json");
    let build = format!("this={}", env!("CARGO_BIN_EXE_nvx"));
    let more = ["--build", &build, "--aa", "--output", text(&output)];
    let done = bench("compare", directory.path(), &more);
    assert!(
        [Some(0), Some(1)].contains(&done.status.code()),
        "{}",
        done.events()
    );
    done.line_with("A/A:");
    let result = read(&output);
    assert_eq!(result["interleaved"], true);
    assert_eq!(result["builds"][1]["name"], "this-again");
    let merged = run(["bench", "merge", text(&output), text(&output)]).expect_code(0);
    merged.line_with("this-again");

    let twice = ["--build", &build, "--build", &build];
    bench("compare", directory.path(), &twice)
        .expect_code(BAD_INPUT)
        .assert_said("twice");
    let few = ["--build", &build, "--aa", "--samples", "4"];
    bench("compare", directory.path(), &few)
        .expect_code(BAD_INPUT)
        .assert_said("at least 10");
}

#[test]
fn bad_input_is_named_before_anything_runs() {
    let Some(directory) = begin("bad_input_is_named_before_anything_runs") else {
        return;
    };
    let missing = directory.path().join("missing");
    bench("lifecycle", &missing, &[])
        .expect_code(BAD_INPUT)
        .assert_said("--scratch");
    let text_file = directory.path().join("text");
    std::fs::write(&text_file, "no program").unwrap();
    let program = ["--program", text(&text_file), "--output", text(&missing)];
    bench("lifecycle", directory.path(), &program)
        .expect_code(BAD_INPUT)
        .assert_said("cannot start");
    let disturb = ["--disturb", "noise@1"];
    bench("lifecycle", directory.path(), &disturb)
        .expect_code(BAD_INPUT)
        .assert_said("no disturbance");
    let nowhere = directory.path().join("nowhere");
    let gone = ["perf", "validate", text(&nowhere)];
    run(gone).expect_code(BAD_INPUT).assert_said("cannot read");
}
