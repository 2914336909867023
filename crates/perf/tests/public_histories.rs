//! The rules on the real public histories, which are not part of the repository. They lie in
//! `data/history` below the directory that `NVX_SHARED` names, or below `../shared` beside the
//! repository; without them these tests say so and pass.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a test stops and prints where something is wrong"
)]

use std::path::{Path, PathBuf};

use nvx_perf::{
    Evaluation, ExitStatus, FixedRule, History, NameRule, ReplayRequest, evaluate, replay,
};

const KVM: &str = "linux-kvm-virtual-machine-microvm-v2-1vcpu.csv";
const MSHV: &str = "linux-mshv-virtual-machine-microvm-v2-2vcpu.csv";
const WHP: &str = "windows-whp-virtual-machine-microvm-v2-1vcpu.csv";

fn public_history(name: &str) -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared =
        std::env::var_os("NVX_SHARED").map_or_else(|| repository.join("../shared"), PathBuf::from);
    let path = shared.join("data/history").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!(
        "skipped: {} is not there (NVX_SHARED names its place)",
        path.display()
    );
    None
}

/// At least this many percent of the places.
#[track_caller]
fn at_least(name: &str, share: nvx_perf::Share, percent: f64) {
    let found = share.percent().expect("tried");
    assert!(
        found >= percent,
        "{name}: {found:.1} % of {}, wanted {percent} %",
        share.of
    );
}

fn check(evaluation: &Evaluation, steps: [f64; 3]) {
    println!("{}", evaluation.to_text());
    for ((percent, share), wanted) in evaluation.steps.iter().zip(steps) {
        at_least(&format!("+{percent} %"), *share, wanted);
    }
    at_least("one point", evaluation.single_points, 85.0);
    at_least("all milliseconds", evaluation.all_milliseconds, 95.0);
    at_least("creep", evaluation.creeps, 70.0);
    at_least("creep with room", evaluation.creeps_with_room, 70.0);
    assert!(evaluation.regression_events <= 1);
    assert!(evaluation.suspects.len() <= 3, "{:?}", evaluation.suspects);
    assert!(
        evaluation.resampled_events <= 1.0,
        "{}",
        evaluation.resampled_events
    );
}

#[test]
fn adaptive_targets_on_kvm() {
    let Some(path) = public_history(KVM) else {
        return;
    };
    let evaluation = evaluate(&path).expect("a history");
    assert_eq!(evaluation.eligible_series, 26);
    check(&evaluation, [85.0, 95.0, 96.0]);
}

#[test]
fn adaptive_targets_on_whp() {
    let Some(path) = public_history(WHP) else {
        return;
    };
    let evaluation = evaluate(&path).expect("a history");
    assert_eq!(evaluation.eligible_series, 23);
    check(&evaluation, [90.0, 97.0, 99.0]);
    // The shared improvement is one event, and no flip back is a regression.
    assert_eq!(evaluation.events.len(), 1, "{:?}", evaluation.events);
    let event = &evaluation.events[0];
    assert!(
        !event.regression && event.scope.starts_with("common to 29 of 33"),
        "{event:?}"
    );
    assert!(event.start == 10 || event.start == 11, "{event:?}");
    assert_eq!(evaluation.resampled_from, 11);
    // The two known points are suspects.
    for (at, metric) in [
        (13, "openvmm_snapshot_generation"),
        (30, "openvmm_snapshot_restore"),
    ] {
        let suspect = evaluation.suspects.iter().find(|suspect| suspect.at == at);
        assert!(suspect.is_some_and(|suspect| suspect.metrics.contains(&metric.to_owned())));
    }
}

#[test]
fn a_file_without_a_quiet_series_gets_no_percentage() {
    let Some(path) = public_history(MSHV) else {
        return;
    };
    let evaluation = evaluate(&path).expect("a history");
    assert_eq!(evaluation.eligible_series, 0);
    let text = evaluation.to_text();
    assert!(text.contains("no series is quiet enough"), "{text}");
    assert!(!text.contains("found ("), "{text}");
}

#[test]
fn the_fixed_rule_flags_exactly_the_two_known_points() {
    let files: Vec<PathBuf> = [KVM, MSHV, WHP]
        .into_iter()
        .filter_map(public_history)
        .collect();
    if files.len() < 3 {
        return;
    }
    let request = ReplayRequest {
        files,
        fixed: Some(FixedRule::default()),
    };
    let result = replay(&request).expect("replayed");
    let flagged: Vec<(&str, &str)> = result
        .files
        .iter()
        .flat_map(|file| &file.fixed)
        .map(|finding| (&finding.commit[..8], finding.metric.as_str()))
        .collect();
    assert_eq!(
        flagged,
        [
            ("62178bd4", "openvmm_snapshot_generation"),
            ("509718e2", "openvmm_snapshot_restore"),
        ]
    );
    let worse: Vec<i64> = result.files[2]
        .fixed
        .iter()
        .filter_map(|finding| finding.worse_percent)
        .map(|percent| percent.round() as i64)
        .collect();
    assert_eq!(worse, [65, 67]);
    assert_eq!(result.status, ExitStatus::Good);
}

#[test]
fn public_histories_are_written_back_byte_for_byte() {
    for path in [KVM, MSHV, WHP].into_iter().filter_map(public_history) {
        let content = std::fs::read_to_string(&path).expect("read");
        let history = History::read(&path, NameRule::History).expect("a history");
        assert_eq!(history.commits.len(), 41);
        assert!(history.to_csv() == content, "{} changed", path.display());
    }
}
