//! `nvx bench lifecycle`, `compare` and `nvx perf validate`: the whole way from processes to a verdict.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use rustix::process::Signal;

use crate::support::process::{self, Finished, arguments};
use crate::support::{BACKEND, begin, entries, skip, text};

const UNSTABLE: i32 = 75;
const BAD_INPUT: i32 = 2;
const INCOMPARABLE: i32 = 3;
const ENDED_BY_SIGINT: i32 = 130;

/// `nvx bench COMMAND` of a small guest on this file's back end, with its files in `directory`.
fn bench(command: &str, directory: &Path, more: &[&str]) -> Finished {
    process::run(&bench_arguments(command, directory, more))
}

fn bench_arguments(command: &str, directory: &Path, more: &[&str]) -> Vec<OsString> {
    let common = [
        "bench",
        command,
        "--backend",
        BACKEND.name(),
        "--fill",
        "top:16",
        "--scratch",
        text(directory),
    ];
    let memory: &[&str] = match more.contains(&"--memory") {
        true => &[],
        false => &["--memory", "16M"],
    };
    let all = common.iter().chain(memory).chain(more);
    arguments(all.copied(), [])
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
    let late = ["--disturb", "cpu@3", "--samples", "2"];
    bench("lifecycle", directory.path(), &late)
        .expect_code(BAD_INPUT)
        .assert_said("--disturb cpu@3: there are only 2 captures");
    let unwritable = missing.join("result.json");
    let build = format!("this={}", env!("CARGO_BIN_EXE_nvx"));
    for (command, more) in [
        ("lifecycle", vec![]),
        ("compare", vec!["--build", &build, "--aa"]),
    ] {
        let more = [&more[..], &["--output", text(&unwritable)]].concat();
        bench(command, directory.path(), &more)
            .expect_code(BAD_INPUT)
            .assert_said("--output ");
    }
    bench("lifecycle", directory.path(), &["--vcpus", "9"])
        .expect_code(BAD_INPUT)
        .assert_said("--vcpus");
    let nowhere = directory.path().join("nowhere");
    let gone = ["perf", "validate", text(&nowhere)];
    run(gone).expect_code(BAD_INPUT).assert_said("cannot read");
}

#[test]
fn an_interrupted_run_goes_on_where_it_stopped() {
    let Some(directory) = begin("an_interrupted_run_goes_on_where_it_stopped") else {
        return;
    };
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let output = directory.path().join("result.json");
    let more = ["--samples", "400", "--output", text(&output)];
    let mut run = process::start(&bench_arguments("lifecycle", &scratch, &more));
    run.wait_for("a result", |_| output.exists().then_some(()));
    run.signal(Signal::INT);
    let interrupted = run.end().expect_code(ENDED_BY_SIGINT);
    interrupted.assert_said("incomplete");
    assert!(entries(&scratch).is_empty(), "nothing is left behind");
    let earlier = read(&output);
    assert_eq!(earlier["controls"]["complete"], false);
    let samples = |result: &Value| result["backends"][BACKEND.name()]["samples_ms"].clone();
    let taken = samples(&earlier).as_array().unwrap().clone();
    assert!(!taken.is_empty());
    process::run(&arguments(["perf", "validate", text(&output)], []))
        .expect_code(BAD_INPUT)
        .line_with("controls.complete");

    let other = ["--samples", "401", "--output", text(&output), "--resume"];
    bench("lifecycle", &scratch, &other)
        .expect_code(BAD_INPUT)
        .assert_said("--resume: controls.runs differs: it was 400, is 401");
    assert_eq!(
        read(&output),
        earlier,
        "a refused resumption changes nothing"
    );
    // As if the machine had got another kernel or more memory meanwhile.
    let mut elsewhere = earlier.clone();
    elsewhere["host"]["fingerprint"] = "another".into();
    std::fs::write(&output, elsewhere.to_string()).unwrap();
    bench("lifecycle", &scratch, &[&more[..], &["--resume"]].concat())
        .expect_code(BAD_INPUT)
        .assert_said("--resume: the host differs: it was another");
    std::fs::write(&output, earlier.to_string()).unwrap();

    let resumed = [&more[..], &["--resume"]].concat();
    bench("lifecycle", &scratch, &resumed).expect_code(0);
    let whole = read(&output);
    assert_eq!(whole["controls"]["complete"], true);
    let all = samples(&whole).as_array().unwrap().clone();
    assert_eq!((all.len(), &all[..taken.len()]), (400, &taken[..]));
    for section in ["snapshot_capture", "snapshot_restore"] {
        let series = &whole[section][BACKEND.name()]["samples_ms"];
        assert_eq!(series.as_array().unwrap().len(), 400);
    }
}

#[test]
fn only_what_can_be_accepted_is_measured_for_it() {
    let Some(directory) = begin("only_what_can_be_accepted_is_measured_for_it") else {
        return;
    };
    let accept = directory.path().join("accept");
    let full = ["--memory", "128M", "--accept"];
    let refused = |more: &[&str], why: &str| {
        bench("lifecycle", directory.path(), more)
            .expect_code(BAD_INPUT)
            .assert_said(why);
        assert!(
            !accept.exists(),
            "refused before anything is measured or made"
        );
    };
    refused(
        &["--accept", text(&accept)],
        "--memory: only results of 128 MiB",
    );
    let few = [&full[..], &[text(&accept), "--samples", "9"]].concat();
    refused(&few, "--samples 9");
    let cold = [&full[..], &[text(&accept), "--cache", "cold"]].concat();
    refused(&cold, "--cache cold");
    let disturbed = [&full[..], &[text(&accept), "--disturb", "cpu@1"]].concat();
    refused(&disturbed, "--disturb");
    // Whatever this machine is, it is not this one.
    let other = accept.join("windows-whp-bare-metal");
    let other = [&full[..], &[text(&other)]].concat();
    refused(&other, "of platform windows-whp-bare-metal");
}

#[test]
fn the_policy_ends_with_an_acceptance_or_with_two_attempts() {
    let Some(directory) = begin("the_policy_ends_with_an_acceptance_or_with_two_attempts") else {
        return;
    };
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let accept = directory.path().join("accept");
    let more = ["--memory", "128M", "--accept", text(&accept)];
    let done = bench("lifecycle", &scratch, &more);
    let attempts = ["acceptance-attempt-1.json", "acceptance-attempt-2.json"];
    match done.status.code() {
        Some(0) => {
            let accepted = read(&accept.join("acceptance.json"));
            assert_eq!(accepted["controls"]["validated"], true);
            let last = entries(&accept)
                .iter()
                .filter(|name| attempts.contains(&name.as_str()))
                .count();
            assert_eq!(accepted, read(&accept.join(attempts[last - 1])));
            run(["perf", "validate", text(&accept.join("acceptance.json"))]).expect_code(0);
        }
        // A busy machine's series may be unstable twice.
        Some(UNSTABLE) => assert_eq!(entries(&accept), attempts),
        _ => panic!("{done:?}"),
    }
}

#[test]
fn cold_restores_are_cold_or_refused() {
    let Some(directory) = begin("cold_restores_are_cold_or_refused") else {
        return;
    };
    if Path::new("/dev/shm").is_dir() {
        let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
        for cache in ["cold", "both"] {
            bench("lifecycle", in_memory.path(), &["--cache", cache])
                .expect_code(BAD_INPUT)
                .assert_said("--cache cold");
        }
        assert!(entries(in_memory.path()).is_empty());
    }
    let output = directory.path().join("result.json");
    let series = |cache: &str, more: &[&str]| {
        let common = [
            "--samples",
            "3",
            "--cache",
            cache,
            "--output",
            text(&output),
        ];
        let done = bench("lifecycle", directory.path(), &[&common[..], more].concat());
        if done.messages.contains("in memory") {
            skip(
                "cold_restores_are_cold_or_refused",
                "the temporary directory is in memory",
            );
            return None;
        }
        done.expect_code(0);
        Some(read(&output))
    };
    let Some(both) = series("both", &["--memories", "16M,24M"]) else {
        return;
    };
    assert_eq!(both["controls"]["cache_state"], "both");
    let cells: Vec<(u64, &str)> = both["restore_matrix"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| {
            (
                cell["memory_mib"].as_u64().unwrap(),
                cell["cache_state"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(cells, [(16, "cold"), (24, "warm"), (24, "cold")]);
    for cell in both["restore_matrix"].as_array().unwrap() {
        assert_eq!(cell["result"]["samples_ms"].as_array().unwrap().len(), 3);
    }
    let cold = series("cold", &[]).unwrap();
    assert_eq!(cold["controls"]["cache_state"], "cold");
    assert!(cold.get("restore_matrix").is_none());
}

#[test]
fn builds_with_different_guests_are_incomparable() {
    let Some(directory) = begin("builds_with_different_guests_are_incomparable") else {
        return;
    };
    // A build whose guest says something else to a line that it does not know.
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_nvx")).unwrap();
    let (before, after) = (b"PROBE-WHAT", b"PROBE-HUH?");
    let places: Vec<usize> = program
        .windows(before.len())
        .enumerate()
        .filter_map(|(at, window)| (window == before).then_some(at))
        .collect();
    for at in places {
        program[at..at + after.len()].copy_from_slice(after);
    }
    let other = directory.path().join("other");
    std::fs::copy(env!("CARGO_BIN_EXE_nvx"), &other).unwrap();
    std::fs::write(&other, program).unwrap();
    let this = format!("this={}", env!("CARGO_BIN_EXE_nvx"));
    let other = format!("other={}", text(&other));
    bench(
        "compare",
        directory.path(),
        &["--build", &this, "--build", &other],
    )
    .expect_code(INCOMPARABLE)
    .assert_said("incomparable: the guest (kernel_blake3) of this is");
}

/// The probe guest's file in `directory`, which boots as any kernel with a PVH entry does.
fn export_probe(directory: &Path) -> std::path::PathBuf {
    let kernel = directory.join("probe.elf");
    run(["guest", "export", text(&kernel)]).expect_code(0);
    kernel
}

#[test]
fn a_kernel_is_measured_and_told_apart_from_the_probe_guest() {
    let Some(directory) = begin("a_kernel_is_measured_and_told_apart_from_the_probe_guest") else {
        return;
    };
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let kernel = export_probe(directory.path());
    let initramfs = directory.path().join("initramfs");
    std::fs::write(&initramfs, "ignored by this kernel").unwrap();
    let output = directory.path().join("result.json");
    let guest = ["--kernel", text(&kernel), "--initrd", text(&initramfs)];
    let bench = |command: &str, more: &[&str]| {
        let common = [
            "bench",
            command,
            "--backend",
            BACKEND.name(),
            "--scratch",
            text(&scratch),
            "--memory",
            "16M",
            "--cmdline",
            "fill=top:16 seed=1",
        ];
        let all = common.iter().chain(&guest).chain(more);
        process::run(&arguments(all.copied(), []))
    };
    let done = bench("lifecycle", &["--output", text(&output)]).expect_code(0);
    done.line_with("linux kernel");
    assert!(entries(&scratch).is_empty(), "nothing is left behind");
    let result = read(&output);
    assert_eq!(result["controls"]["guest"], "linux");
    assert_eq!(result["controls"]["kernel"], text(&kernel));
    assert_eq!(result["controls"]["command_line"], "fill=top:16 seed=1");
    for name in ["kernel_blake3", "initramfs_blake3"] {
        let digest = result["build"][name].as_str().unwrap();
        assert_eq!(digest.len(), 64, "{name}");
    }

    let other = ["--output", text(&output), "--resume"];
    std::fs::write(&initramfs, "another").unwrap();
    bench("lifecycle", &other)
        .expect_code(BAD_INPUT)
        .assert_said("--resume: the initramfs differs");

    let build = format!("this={}", env!("CARGO_BIN_EXE_nvx"));
    let compare = |output: &Path| {
        let more = ["--build", &build, "--aa", "--output", text(output)];
        let done = bench("compare", &more);
        assert!(
            matches!(done.status.code(), Some(0 | 1)),
            "{}",
            done.events()
        );
    };
    let [first, second] = ["first", "second"].map(|name| directory.path().join(name));
    compare(&first);
    std::fs::write(&initramfs, "a third").unwrap();
    compare(&second);
    let compared = read(&first);
    assert_eq!(compared["subject"]["guest"], "linux");
    assert_eq!(
        compared["subject"]["kernel_blake3"],
        result["build"]["kernel_blake3"]
    );
    run(["bench", "merge", text(&first), text(&second)])
        .expect_code(INCOMPARABLE)
        .assert_said("the guest differs");
}

#[test]
fn files_of_a_kernels_guest_are_named_before_anything_runs() {
    let Some(directory) = begin("files_of_a_kernels_guest_are_named_before_anything_runs") else {
        return;
    };
    let kernel = export_probe(directory.path());
    let missing = directory.path().join("missing");
    let no_kernel = directory.path().join("no-kernel");
    std::fs::write(&no_kernel, "hello").unwrap();
    let accept = directory.path().join("accept");
    let output = directory.path().join("result.json");
    for (more, why) in [
        (vec!["--kernel", text(&missing)], "--kernel: "),
        (vec!["--kernel", text(&no_kernel)], "is no kernel"),
        (
            vec!["--kernel", text(&kernel), "--initrd", text(&missing)],
            "--initrd ",
        ),
        (
            vec!["--kernel", text(&kernel), "--root", text(&missing)],
            "guest pack ended",
        ),
        (
            vec!["--kernel", text(&kernel), "--accept", text(&accept)],
            "only results of the probe guest",
        ),
        (vec!["--initrd", text(&kernel)], "--kernel"),
        (vec!["--kernel", text(&kernel), "--fill", "all"], "--fill"),
    ] {
        let common = [
            "bench",
            "lifecycle",
            "--backend",
            BACKEND.name(),
            "--output",
            text(&output),
        ];
        let all = common.iter().chain(&more);
        process::run(&arguments(all.copied(), []))
            .expect_code(BAD_INPUT)
            .assert_said(why);
    }
    assert!(!accept.exists() && !output.exists());
}
