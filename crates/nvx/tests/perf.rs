//! `nvx perf` through the built binary: every command, its exit codes, and what it leaves on disk. What
//! it says of bad input is in `perf_input.rs`.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod perf_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use perf_support::{
    BAD_INPUT, GOOD, HISTORY, HOSTS, INCOMPARABLE, LIFECYCLE_METRICS, METRICS, PLATFORM,
    REGRESSION, SUSPECT, commit, entries, git, perf, public_history, quiet, result, rows, step,
    text, write,
};
use serde_json::json;

/// A history of 40 commits as base, and the next commit as candidate.
fn base_and_candidate(directory: &Path, worse: impl Fn(&str, usize) -> f64) -> (PathBuf, PathBuf) {
    (
        write(directory, HISTORY, rows(PLATFORM, 0..40, &worse)),
        write(directory, "rows.csv", rows(PLATFORM, 40..41, &worse)),
    )
}

#[test]
fn a_result_becomes_rows_and_a_history() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let document = result(&commit(7), 7, |_| 1.0).to_string();
    let accepted = write(here, "acceptance.json", document);
    let out = here.join("rows.csv");
    let collect = ["collect", text(&accepted)];

    let printed = perf(collect).ends_with(GOOD).output;
    let told = perf(collect.into_iter().chain(["--out", text(&out)])).ends_with(GOOD);
    assert_eq!(fs::read_to_string(&out).unwrap(), printed);
    assert!(
        told.output.contains("8 rows of linux-kvm-bare-metal"),
        "{told:?}"
    );
    let document = perf(collect.into_iter().chain(["--json"]))
        .ends_with(GOOD)
        .json();
    assert_eq!(document["csv"], printed.as_str());
    assert_eq!(document["host"]["fingerprint"], "the-runner");

    let history = here.join(HISTORY);
    let persist = ["persist", text(&history), text(&out), "--json"];
    let done = perf(persist).ends_with(GOOD).json();
    assert_eq!(done["created"], true);
    assert_eq!(
        done["appended"].as_array().unwrap().len(),
        LIFECYCLE_METRICS
    );
    assert_eq!(fs::read_to_string(&history).unwrap(), printed);
    let hosts = fs::read_to_string(here.join(HOSTS)).unwrap();
    assert!(hosts.contains("the-runner"), "{hosts}");

    // The same rows again are nothing new, and other values of them change nothing.
    let before = fs::metadata(&history).unwrap().modified().unwrap();
    write(
        here,
        "rows.csv",
        printed.replace(",ms,lower,1", ",ms,lower,3"),
    );
    let done = perf(persist).ends_with(GOOD).json();
    assert_eq!(done["appended"], json!([]));
    assert_eq!(done["kept"].as_array().unwrap().len(), LIFECYCLE_METRICS);
    assert_eq!(fs::metadata(&history).unwrap().modified().unwrap(), before);
    let files = [
        "acceptance.json",
        HISTORY,
        HOSTS,
        "rows.csv",
        "rows.hosts.jsonl",
    ];
    assert_eq!(entries(here), files);

    let renamed = perf(["persist", text(&history), "--rename-metrics", "openvmm"]).ends_with(GOOD);
    assert!(
        renamed
            .output
            .contains("renamed nvx_cold_start to openvmm_cold_start")
    );
    assert!(!fs::read_to_string(&history).unwrap().contains("nvx_"));
    // From now on the file's names are used.
    let named = perf(collect.into_iter().chain(["--history", text(&history)])).ends_with(GOOD);
    assert!(named.output.contains(",openvmm_cold_start,"), "{named:?}");
}

#[test]
fn a_result_that_may_not_enter_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let out = here.join("rows.csv");
    for (field, value, name) in [
        ("validated", json!(false), "unvalidated"),
        ("disturbed", json!(true), "disturbed"),
        ("complete", json!(false), "incomplete"),
        ("emulated", json!(true), "emulated"),
        ("memory_mib", json!(256), "mismatched"),
        ("platform", json!("linux-kvm-emulated"), "mismatched"),
    ] {
        let mut document = result(&commit(1), 1, |_| 1.0);
        document["controls"][field] = value;
        let path = write(here, "result.json", document.to_string());
        let done = perf(["collect", text(&path), "--out", text(&out)]).ends_with(BAD_INPUT);
        let said = &done.messages;
        assert!(
            said.contains("result.json: controls.") && said.contains(name),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!out.exists() && done.output.is_empty());
    }
}

#[test]
fn public_results_and_logs_are_imported() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let mut document = result(&commit(3), 3, |_| 1.0);
    document["schema"].take();
    document["controls"]["suite"] = json!("e2e");
    document["controls"]["platform"] = json!(null);
    for (field, value) in [
        ("marker", json!("ALPINE-MICROVM-BOOT-OK")),
        ("restore_marker", json!("OPENVMM-SNAPSHOT-RESTORE-OK")),
        (
            "snapshot_capture_timing",
            json!("openvmm-input-gate-to-publication"),
        ),
        ("snapshot_restore_guest_exit_prequeued", json!(true)),
        ("artifact_revisions", json!({"openvmm": commit(3)})),
    ] {
        document["controls"][field] = value;
    }
    document["telemetry"] = json!({"new": 1});
    let path = write(here, "public.json", document.to_string());
    let out = here.join("rows.csv");
    let import = ["import", text(&path), "--platform", PLATFORM];
    let done = perf(import.into_iter().chain(["--out", text(&out)])).ends_with(GOOD);
    assert!(done.output.contains("telemetry"), "{done:?}");
    assert!(
        fs::read_to_string(&out)
            .unwrap()
            .contains(",openvmm_snapshot_generation,ms,lower,")
    );
    let kept = perf(import.into_iter().chain(["--json"]))
        .ends_with(GOOD)
        .json();
    assert_eq!(kept["unknown"]["telemetry"]["new"], 1);
    perf(&import[..2]).ends_with(BAD_INPUT);

    let line = "OPENVMM_SNAPSHOT_PROFILE_V1 operation=capture phase=input_gate exclusive=1 \
                duration_ns=1500000 process_elapsed_ns=9 pid=4\n";
    let log = write(here, "vmm.log", format!("noise\n{line}{line}"));
    let done = perf(["import", text(&log)]).ends_with(GOOD);
    assert!(done.output.contains("capture.input_gate"), "{done:?}");
    let document = perf(["import", text(&log), "--json"])
        .ends_with(GOOD)
        .json();
    assert_eq!(
        document["phases"]["capture.input_gate"]["samples_ms"],
        json!([1.5, 1.5])
    );
    let done = perf(["import", text(&log), "--out", text(&out)]).ends_with(BAD_INPUT);
    assert!(done.messages.contains("is a log"), "{done:?}");
    let half = write(
        here,
        "half.log",
        "x\nOPENVMM_SNAPSHOT_PROFILE_V1 operation=capture\n",
    );
    let done = perf(["import", text(&half)]).ends_with(BAD_INPUT);
    assert!(done.messages.contains("half.log:2"), "{done:?}");
}

#[test]
fn the_fixed_rules_pass_or_fail_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let summary = write(here, "summary.md", "before\n");
    let (base, candidate) = base_and_candidate(here, step("nvx_cold_start", 40, 1.6));
    let gate = [
        "gate",
        "--base",
        text(&base),
        "--candidate",
        text(&candidate),
        "--rules",
        "fixed",
    ];
    let judged = |more: &[&str]| perf(gate.iter().chain(more));

    let done = judged(&["--summary", text(&summary)]).ends_with(REGRESSION);
    assert!(
        done.output.contains("regression: nvx_cold_start"),
        "{done:?}"
    );
    let markdown = fs::read_to_string(&summary).unwrap();
    assert!(
        markdown.starts_with("before\n### Performance gate: regression"),
        "{markdown}"
    );
    assert!(
        markdown.contains("| nvx\\_cold\\_start | **regression** |"),
        "{markdown}"
    );
    judged(&["--threshold", "70"]).ends_with(GOOD);
    judged(&["--absolute-tolerance-ms", "90"]).ends_with(GOOD);
    judged(&["--window", "5"]).ends_with(REGRESSION);
    let warm_up = judged(&["--minimum-history", "41", "--json"])
        .ends_with(GOOD)
        .json();
    assert_eq!(warm_up["warm_up"].as_array().unwrap().len(), METRICS.len());
    assert_eq!(warm_up["status"], "good");

    // A metric that the candidate's own history has dropped begins anew; a missing file drops none.
    let branch = here.join("branch");
    fs::create_dir(&branch).unwrap();
    let resets = ["--candidate-history", text(&branch)];
    judged(&resets).ends_with(REGRESSION);
    let without = |names: &[&str]| -> String {
        let all = rows(PLATFORM, 0..40, quiet);
        let kept = |line: &&str| !names.iter().any(|name| line.contains(&format!(",{name},")));
        all.lines()
            .filter(kept)
            .map(|line| format!("{line}\n"))
            .collect()
    };
    write(&branch, HISTORY, without(&["nvx_cold_start"]));
    let done = judged(&resets).ends_with(GOOD);
    assert!(done.output.contains("reset: nvx_cold_start"), "{done:?}");
    let many: Vec<&str> = METRICS[..LIFECYCLE_METRICS]
        .iter()
        .map(|metric| metric.0)
        .collect();
    write(&branch, HISTORY, without(&many));
    let done = judged(&resets).ends_with(BAD_INPUT);
    assert!(done.messages.contains("8 of 14") && done.messages.contains("--allow-reset"));
    judged(&[&resets[..], &["--allow-reset"]].concat()).ends_with(GOOD);
}

#[test]
fn the_adaptive_rules_ask_for_a_second_measurement() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (base, candidate) = base_and_candidate(here, step("nvx_snapshot_restore", 40, 1.2));
    let gate = [
        "gate",
        "--base",
        text(&base),
        "--candidate",
        text(&candidate),
    ];
    let judged = |more: &[&str]| perf(gate.iter().chain(more));

    let done = judged(&[]).ends_with(SUSPECT);
    assert!(
        done.output.contains("suspect: nvx_snapshot_restore"),
        "{done:?}"
    );
    let slow = write(
        here,
        "slow.csv",
        rows(PLATFORM, 40..41, step("nvx_snapshot_restore", 0, 1.19)),
    );
    judged(&["--again", text(&slow)]).ends_with(REGRESSION);
    let fast = write(here, "fast.csv", rows(PLATFORM, 40..41, quiet));
    let done = judged(&["--again", text(&fast)]).ends_with(GOOD);
    assert!(
        done.output.contains("cleared: nvx_snapshot_restore"),
        "{done:?}"
    );
    let compared = |worse: f64| {
        json!({
            "schema": "nvx.comparison", "schema_version": 1, "interleaved": true,
            "base_commit": commit(39), "candidate_commit": commit(40),
            "metrics": {"nvx_snapshot_restore": {"unit": "ms", "worse_percent": worse,
                "worse_percent_low": worse - 2.0, "worse_percent_high": worse + 2.0}},
        })
        .to_string()
    };
    let compare = write(here, "compare.json", compared(18.0));
    judged(&["--again", text(&fast), "--compare", text(&compare)]).ends_with(REGRESSION);
    write(here, "compare.json", compared(1.0));
    judged(&["--again", text(&slow), "--compare", text(&compare)]).ends_with(GOOD);

    for (option, value, rules) in [
        ("--window", "3", "adaptive"),
        ("--threshold", "3", "adaptive"),
        ("--again", text(&fast), "fixed"),
    ] {
        let done = judged(&[option, value, "--rules", rules]).ends_with(BAD_INPUT);
        assert!(
            done.messages
                .contains(&format!("{option} belongs to --rules")),
            "{done:?}"
        );
    }
    for more in [
        ["--threshold", "-1"],
        ["--threshold", "nan"],
        ["--window", "0"],
    ] {
        judged(&["--rules", "fixed", more[0], more[1]]).ends_with(BAD_INPUT);
    }
    let summary = here.join("no/such/place.md");
    let done = judged(&["--summary", text(&summary)]).ends_with(BAD_INPUT);
    assert!(
        done.messages.contains("cannot append") && done.output.is_empty(),
        "{done:?}"
    );
}

#[test]
fn a_first_measurement_ever_and_few_rows_are_warm_up() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let candidate = write(here, "rows.csv", rows(PLATFORM, 5..6, |_, _| 9.0));
    let base = here.join(HISTORY);
    for commits in [0, 5] {
        if commits > 0 {
            write(here, HISTORY, rows(PLATFORM, 0..commits, quiet));
        }
        for rules in ["fixed", "adaptive"] {
            let gate = [
                "gate",
                "--base",
                text(&base),
                "--candidate",
                text(&candidate),
                "--json",
            ];
            let done = perf(gate.into_iter().chain(["--rules", rules]))
                .ends_with(GOOD)
                .json();
            assert_eq!(
                done["warm_up"].as_array().unwrap().len(),
                METRICS.len(),
                "{rules}"
            );
        }
    }
}

#[test]
fn another_kind_of_host_is_neither_good_nor_bad() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let slower = |name: &str, at: usize| {
        if at >= 40 && !name.ends_with("rss") {
            1.2
        } else {
            1.0
        }
    };
    let (base, candidate) = base_and_candidate(here, slower);
    let gate = [
        "gate",
        "--base",
        text(&base),
        "--candidate",
        text(&candidate),
    ];
    perf(gate).ends_with(SUSPECT);
    let host = |at: usize, name: &str| {
        format!(
            "{{\"commit\":\"{}\",\"fingerprint\":\"{name}\"}}\n",
            commit(at)
        )
    };
    write(
        here,
        HOSTS,
        (0..40).map(|at| host(at, "old")).collect::<String>(),
    );
    write(here, "rows.hosts.jsonl", host(40, "new"));
    let done = perf(gate).ends_with(INCOMPARABLE);
    assert!(done.output.contains("host change"), "{done:?}");
    let again = write(here, "again.csv", rows(PLATFORM, 40..41, quiet));
    write(here, "again.hosts.jsonl", host(40, "old"));
    perf(gate.into_iter().chain(["--again", text(&again)])).ends_with(GOOD);
}

#[test]
fn a_history_is_replayed_evaluated_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let csv = rows(PLATFORM, 0..30, step("live_read", 20, 1.3));
    let history = write(here, HISTORY, csv);
    let whole = perf(["gate", "--replay", text(&history)])
        .ends_with(GOOD)
        .output;
    assert!(
        whole.contains("regression: live_read") && whole.contains(&commit(22)),
        "{whole}"
    );
    // The commit that completes the shift is the one that fails.
    let called = write(
        here,
        HISTORY,
        rows(PLATFORM, 0..23, step("live_read", 20, 1.3)),
    );
    perf(["gate", "--replay", text(&called)]).ends_with(REGRESSION);
    write(
        here,
        HISTORY,
        rows(PLATFORM, 0..30, step("live_read", 20, 1.3)),
    );

    let page = here.join("page.html");
    let silent = perf(["report", text(&history), "--html", text(&page)]).ends_with(GOOD);
    assert_eq!((silent.output.as_str(), silent.messages.as_str()), ("", ""));
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .starts_with("<!DOCTYPE html>")
    );
    let tables = perf(["report", text(&history), "--markdown"])
        .ends_with(GOOD)
        .output;
    assert!(tables.contains("| live\\_read |"), "{tables}");
    let picture = perf(["report", text(&history), "--svg", "live_read"])
        .ends_with(GOOD)
        .output;
    assert!(
        picture.starts_with("<svg ") && picture.contains("m-regression"),
        "{picture}"
    );
    let done = perf(["report", text(&history), "--svg", "nothing"]).ends_with(BAD_INPUT);
    assert!(
        done.messages.contains("no history has a metric 'nothing'"),
        "{done:?}"
    );
    let document = perf(["report", text(&history), "--json"])
        .ends_with(GOOD)
        .json();
    assert_eq!(
        document["histories"][0]["series"].as_array().unwrap().len(),
        METRICS.len()
    );
    perf(["report", text(&history)]).ends_with(BAD_INPUT);
    perf(["report", text(&history), "--markdown", "--json"]).ends_with(BAD_INPUT);

    let figures = perf(["evaluate", text(&history)]).ends_with(GOOD).output;
    assert!(
        figures.contains("found (") && figures.contains("live_read"),
        "{figures}"
    );
    let document = perf(["evaluate", text(&history), "--json"])
        .ends_with(GOOD)
        .json();
    assert_eq!(document[0]["commits"], 30);
}

#[test]
fn a_measured_build_is_told_from_a_shipped_one() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    git(here, &["init", "-q"]);
    let save = |file: &str, content: &str| {
        write(here, file, content);
        git(here, &["add", "."]);
        git(here, &["commit", "-q", "-m", file]);
        git(here, &["rev-parse", "HEAD"])
    };
    save("a", "1\n");
    git(here, &["checkout", "-q", "-b", "measured"]);
    let measured = save("flush", "once\n");
    git(here, &["checkout", "-q", "main"]);
    save("unrelated", "x\n");
    git(here, &["checkout", "-q", "-b", "shipped"]);
    let shipped = save("flush", "once\n");
    git(here, &["checkout", "-q", "-b", "changed", "main"]);
    save("flush", "twice\n");

    let ask = |other: &str| {
        perf([
            "provenance",
            "main~1..measured",
            &format!("main..{other}"),
            "--repository",
            text(here),
            "--json",
        ])
    };
    let proof = ask("shipped").ends_with(GOOD);
    assert_eq!(proof.json()["verdict"], "same-patch");
    assert_eq!(
        ask("changed").ends_with(REGRESSION).json()["verdict"],
        "different"
    );
    ask("no-such-branch").ends_with(BAD_INPUT);

    // A result is collected under the shipped commit with that proof, and not without it.
    let document = result(&measured, 1, |_| 1.0).to_string();
    let accepted = write(here, "acceptance.json", document);
    let collect = ["collect", text(&accepted), "--commit", &shipped];
    perf(collect).ends_with(BAD_INPUT);
    let proof = write(here, "proof.json", &proof.output);
    let done = perf(
        collect
            .into_iter()
            .chain(["--provenance", text(&proof), "--json"]),
    );
    let done = done.ends_with(GOOD).json();
    assert_eq!(done["commit"], shipped.as_str());
    assert_eq!(done["provenance"]["verdict"], "same-patch");
    let proof = write(here, "proof.json", ask("changed").output);
    let done = perf(collect.into_iter().chain(["--provenance", text(&proof)])).ends_with(BAD_INPUT);
    assert!(
        done.messages
            .contains("proof.json: it says that the two differ"),
        "{done:?}"
    );
}

#[test]
fn a_killed_persist_leaves_the_old_history_or_the_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let history = write(here, HISTORY, rows(PLATFORM, 0..40, quiet));
    let mut old = fs::read(&history).unwrap();
    let mut whole_run = Duration::from_millis(8);
    for kill in 0..24 {
        let commits = 40 + kill;
        let batch = write(
            here,
            "rows.csv",
            rows(PLATFORM, commits..commits + 1, quiet),
        );
        let persist = ["perf", "persist", text(&history), text(&batch)];
        let begin = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvx"))
            .args(persist)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Later from turn to turn, over the time that a whole run takes.
        std::thread::sleep(whole_run.mul_f64(f64::from(u32::try_from(kill).unwrap()) / 24.0));
        let _ = child.kill();
        child.wait().unwrap();
        let now = fs::read(&history).unwrap();
        if now != old {
            assert_eq!(
                now,
                rows(PLATFORM, 0..commits + 1, quiet).into_bytes(),
                "kill {kill}"
            );
        } else {
            // Nothing that a killed one has left stands in the way of the next.
            perf(&persist[1..]).ends_with(GOOD);
            whole_run = begin.elapsed().min(Duration::from_millis(200));
        }
        old = fs::read(&history).unwrap();
        assert_eq!(
            old,
            rows(PLATFORM, 0..commits + 1, quiet).into_bytes(),
            "kill {kill}"
        );
    }
}

#[test]
fn the_fixed_rules_flag_exactly_the_two_known_points_of_the_public_histories() {
    let names = [
        "linux-kvm-virtual-machine-microvm-v2-1vcpu.csv",
        "linux-mshv-virtual-machine-microvm-v2-2vcpu.csv",
        "windows-whp-virtual-machine-microvm-v2-1vcpu.csv",
    ];
    let test = "the_fixed_rules_flag_exactly_the_two_known_points_of_the_public_histories";
    let Some(files) = names
        .iter()
        .map(|name| public_history(test, name))
        .collect::<Option<Vec<PathBuf>>>()
    else {
        return;
    };
    let mut arguments = vec!["gate", "--rules", "fixed", "--json", "--replay"];
    arguments.extend(files.iter().map(|path| text(path)));
    let result = perf(arguments).ends_with(GOOD).json();
    let flagged: Vec<(String, String)> = result["files"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|file| file["fixed"].as_array().unwrap())
        .map(|finding| {
            let word = |key: &str| finding[key].as_str().unwrap().to_owned();
            (word("commit")[..8].to_owned(), word("metric"))
        })
        .collect();
    let known = [
        ("62178bd4", "openvmm_snapshot_generation"),
        ("509718e2", "openvmm_snapshot_restore"),
    ];
    assert_eq!(
        flagged,
        known.map(|(commit, metric)| (commit.to_owned(), metric.to_owned()))
    );
}
