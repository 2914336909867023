use std::fs;
use std::path::Path;

use super::*;
use crate::adaptive::findings::FindingKind;
use crate::csv::History;
use crate::generated::{Recipe, commit, part};
use crate::hosts::{HostEntry, Hosts};

const BASE: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.csv";

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, history: &History) -> PathBuf {
        fs::write(self.path(name), history.to_csv()).expect("written");
        self.path(name)
    }

    /// The history of a recipe as base, its last commit as candidate.
    fn split(&self, recipe: &Recipe) -> GateRequest {
        let history = recipe.history();
        let last = recipe.commits - 1;
        GateRequest {
            base: self.write(BASE, &part(&history, 0..last)),
            candidate: self.write("rows.csv", &part(&history, last..last + 1)),
            candidate_history: None,
            allow_reset: false,
            rules: GateRules::Adaptive {
                again: None,
                compare: None,
            },
        }
    }
}

fn fixed(mut request: GateRequest) -> GateRequest {
    request.rules = GateRules::Fixed(FixedRule::default());
    request
}

/// One metric is worse by a factor at the last commit.
fn last_worse(metric: usize, factor: f64) -> Recipe {
    let recipe = Recipe::default();
    Recipe {
        changes: vec![(metric, recipe.commits - 1, recipe.commits, f64::ln(factor))],
        ..recipe
    }
}

fn kinds(result: &GateResult) -> Vec<(FindingKind, &str)> {
    result
        .findings
        .iter()
        .map(|finding| (finding.kind, finding.scope.as_str()))
        .collect()
}

#[test]
fn the_fixed_rule_wants_half_as_much_again_and_ten_milliseconds() {
    for (metric, factor, status) in [
        (2, 1.40, ExitStatus::Good),
        (2, 1.60, ExitStatus::Regression),
        // rate_0 halves and a bit: more than 50 % of the median is lost.
        (12, 2.2, ExitStatus::Regression),
        (12, 1.9, ExitStatus::Good),
        (18, 1.60, ExitStatus::Regression),
        (2, 0.2, ExitStatus::Good),
    ] {
        let place = Place::new();
        let result = gate(&fixed(place.split(&last_worse(metric, factor)))).expect("judged");
        assert_eq!(result.status, status, "metric {metric} x{factor}");
        assert_eq!(result.judged, 20);
    }
}

#[test]
fn the_fixed_rule_passes_a_small_time_that_grows_ninefold() {
    let place = Place::new();
    let mut recipe = last_worse(0, 9.0);
    recipe.sigma = 0.0;
    let request = fixed(place.split(&recipe));
    for path in [&request.base, &request.candidate] {
        let text = fs::read_to_string(path)
            .expect("read")
            .replace(",ms,lower,100", ",ms,lower,1")
            .replace(",ms,lower,900", ",ms,lower,9");
        fs::write(path, text).expect("written");
    }
    assert_eq!(gate(&request).expect("judged").status, ExitStatus::Good);
}

#[test]
fn fewer_than_ten_rows_are_warm_up() {
    let place = Place::new();
    for (commits, judged) in [(10, 0), (11, 20)] {
        let recipe = Recipe {
            commits,
            changes: vec![(0, commits - 1, commits, 1.0)],
            ..Recipe::default()
        };
        let result = gate(&fixed(place.split(&recipe))).expect("judged");
        assert_eq!((result.judged, result.warm_up.len()), (judged, 20 - judged));
        assert_eq!(result.status == ExitStatus::Regression, judged > 0);
        let result = gate(&place.split(&recipe)).expect("judged");
        assert_eq!((result.judged, result.warm_up.len()), (judged, 20 - judged));
        assert_eq!(result.status == ExitStatus::Suspect, judged > 0);
    }
    let mut request = place.split(&Recipe::default());
    fs::remove_file(&request.base).expect("removed");
    request = fixed(request);
    let result = gate(&request).expect("a base that does not exist yet is empty");
    assert_eq!(
        (result.status, result.warm_up.len()),
        (ExitStatus::Good, 20)
    );
}

#[test]
fn a_metric_that_the_candidate_s_history_dropped_begins_anew() {
    let place = Place::new();
    let recipe = last_worse(2, 2.0);
    for rules in [
        GateRules::Fixed(FixedRule::default()),
        GateRules::Adaptive {
            again: None,
            compare: None,
        },
    ] {
        let mut request = place.split(&recipe);
        request.rules = rules;
        assert_ne!(gate(&request).expect("judged").status, ExitStatus::Good);
        let kept: String = fs::read_to_string(&request.base)
            .expect("read")
            .lines()
            .filter(|line| !line.contains("time_2,"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::create_dir_all(place.path("branch")).expect("created");
        let candidate = place.path(&format!("branch/{BASE}"));
        fs::write(&candidate, kept).expect("written");
        request.candidate_history = Some(candidate.clone());
        let result = gate(&request).expect("judged");
        assert_eq!(result.status, ExitStatus::Good);
        assert_eq!(result.resets, ["time_2"]);
        assert!(result.warm_up.contains(&"time_2".to_owned()));

        // More than half at once needs to be allowed; a file that is missing resets nothing.
        fs::write(&candidate, format!("{}\n", crate::csv::HEADER)).expect("written");
        assert!(matches!(
            gate(&request),
            Err(GateError::TooManyResets {
                count: 20,
                of: 20,
                ..
            })
        ));
        request.allow_reset = true;
        assert_eq!(gate(&request).expect("allowed").resets.len(), 20);
        fs::remove_file(&candidate).expect("removed");
        assert_eq!(gate(&request).expect("judged").resets.len(), 0);
    }
}

#[test]
fn one_slow_point_is_a_suspect_that_a_second_measurement_decides() {
    let place = Place::new();
    let recipe = last_worse(3, 1.2);
    let mut request = place.split(&recipe);
    let result = gate(&request).expect("judged");
    assert_eq!(result.status, ExitStatus::Suspect);
    assert_eq!(kinds(&result), [(FindingKind::Suspect, "time_3")]);
    let finding = &result.findings[0];
    assert!((finding.worse_percent - 20.0).abs() < 6.0, "{finding:?}");
    assert!(
        finding.to_be_sure.contains("a second measurement above"),
        "{finding:?}"
    );
    assert!((finding.expected.expect("known") / 400.0 - 1.0).abs() < 0.05);
    assert_eq!(finding.since, commit(39));

    // The same commit again, as slow as before.
    request.rules = GateRules::Adaptive {
        again: Some(request.candidate.clone()),
        compare: None,
    };
    let result = gate(&request).expect("judged");
    assert_eq!(result.status, ExitStatus::Regression);

    // And as fast as always.
    let quiet = part(&Recipe::default().history(), 39..40);
    request.rules = GateRules::Adaptive {
        again: Some(place.write("again.csv", &quiet)),
        compare: None,
    };
    let result = gate(&request).expect("judged");
    assert_eq!(result.status, ExitStatus::Good);
    assert_eq!(kinds(&result), [(FindingKind::Cleared, "time_3")]);
}

fn comparison(place: &Place, low: f64, worse: f64) -> PathBuf {
    let path = place.path("compare.json");
    let text = serde_json::json!({
        "schema": COMPARISON_SCHEMA, "schema_version": COMPARISON_SCHEMA_VERSION,
        "interleaved": true, "base_commit": commit(38), "candidate_commit": commit(39),
        "metrics": {"time_3": {"unit": "ms", "worse_percent": worse, "worse_percent_low": low,
            "worse_percent_high": worse + 5.0}},
    });
    fs::write(&path, text.to_string()).expect("written");
    path
}

#[test]
fn an_interleaved_comparison_decides_before_a_second_measurement() {
    let place = Place::new();
    let mut request = place.split(&last_worse(3, 1.2));
    for (low, worse, status) in [
        (12.0, 19.0, ExitStatus::Regression),
        (-3.0, 2.0, ExitStatus::Good),
        (0.5, 3.0, ExitStatus::Good),
    ] {
        let again = Some(request.candidate.clone());
        let compare = Some(comparison(&place, low, worse));
        request.rules = GateRules::Adaptive { again, compare };
        assert_eq!(
            gate(&request).expect("judged").status,
            status,
            "{low} {worse}"
        );
    }
    for (from, to, wanted) in [
        (
            "\"interleaved\":true",
            "\"interleaved\":false",
            "did not take turns",
        ),
        ("nvx.comparison", "other", "schema is 'other'"),
        ("time_3", "time_4", "does not have the suspect time_3"),
        (
            "\"schema_version\":1",
            "\"schema_version\":true",
            "not a comparison",
        ),
    ] {
        let path = comparison(&place, 12.0, 19.0);
        fs::write(
            &path,
            fs::read_to_string(&path).expect("read").replace(from, to),
        )
        .expect("written");
        request.rules = GateRules::Adaptive {
            again: None,
            compare: Some(path),
        };
        let error = gate(&request).expect_err("wrong").to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn what_all_metrics_share_is_one_suspect() {
    let place = Place::new();
    let recipe = Recipe::default();
    let changes = (0..18).map(|metric| (metric, 39, 40, 0.14)).collect();
    let result = gate(&place.split(&Recipe { changes, ..recipe })).expect("judged");
    assert_eq!(result.status, ExitStatus::Suspect);
    assert_eq!(
        kinds(&result),
        [(FindingKind::Suspect, "common to all metrics")]
    );
}

#[test]
fn a_slowness_that_the_base_has_already_is_not_the_candidate_s() {
    let place = Place::new();
    for since in [37, 38] {
        let recipe = Recipe {
            changes: vec![(3, since, 40, 0.2)],
            ..Recipe::default()
        };
        let result = gate(&place.split(&recipe)).expect("judged");
        assert_eq!(result.status, ExitStatus::Good, "{:?}", result.findings);
        assert_eq!(kinds(&result), [(FindingKind::BeganBefore, "time_3")]);
    }
}

#[test]
fn an_improvement_needs_nothing() {
    let place = Place::new();
    let result = gate(&place.split(&last_worse(3, 0.5))).expect("judged");
    assert_eq!(result.status, ExitStatus::Good);
}

#[test]
fn bad_input_is_named() {
    let place = Place::new();
    let request = place.split(&Recipe::default());
    let good = fs::read_to_string(&request.candidate).expect("read");
    let history = Recipe::default().history();
    for (text, wanted) in [
        (
            good.replace(",2,1,", ",2,4,"),
            "is of linux-kvm-bare-metal, microVM ABI 2, 4 vCPU, but",
        ),
        (
            good.replace(",ms,", ",us,"),
            "metric time_0 is in us lower, but",
        ),
        (part(&history, 38..40).to_csv(), "has rows of 2 commits"),
        (good.replace("lower,", "lower,-"), "is not above zero"),
    ] {
        fs::write(&request.candidate, text).expect("written");
        let error = gate(&request).expect_err("wrong").to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let renamed = |text: &str, prefix: &str| text.replace("time_", &format!("{prefix}time_"));
    fs::write(
        &request.base,
        renamed(
            &fs::read_to_string(&request.base).expect("read"),
            "openvmm_",
        ),
    )
    .expect("written");
    fs::write(&request.candidate, renamed(&good, "nvx_")).expect("written");
    let error = gate(&request).expect_err("two prefixes").to_string();
    assert!(error.contains("names metrics 'nvx_...'"), "{error}");
}

#[test]
fn a_second_measurement_must_be_of_the_same_commit_and_have_the_suspect() {
    let place = Place::new();
    let mut request = place.split(&last_worse(3, 1.2));
    let other = part(&Recipe::default().history(), 38..39);
    request.rules = GateRules::Adaptive {
        again: Some(place.write("again.csv", &other)),
        compare: None,
    };
    assert!(matches!(gate(&request), Err(GateError::OtherCommit { .. })));
    let lacking: String = fs::read_to_string(&request.candidate)
        .expect("read")
        .lines()
        .filter(|line| !line.contains("time_3,"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(place.path("again.csv"), lacking).expect("written");
    assert!(matches!(
        gate(&request),
        Err(GateError::LacksSuspect { .. })
    ));
}

fn write_hosts(csv: &Path, hosts: impl Fn(usize) -> &'static str, commits: usize) {
    let mut book = Hosts::default();
    for at in 0..commits {
        book.add(HostEntry {
            commit: commit(at),
            fingerprint: hosts(at).to_owned(),
            host: None,
        });
    }
    fs::write(Hosts::path_beside(csv), book.to_json_lines()).expect("written");
}

fn replayed(path: &Path) -> ReplayedFile {
    let request = ReplayRequest {
        files: vec![path.to_owned()],
        fixed: None,
    };
    replay(&request).expect("replayed").files.remove(0)
}

fn common(file: &ReplayedFile, kind: FindingKind) -> usize {
    let of_kind = |finding: &&Finding| finding.kind == kind && finding.scope.starts_with("common");
    file.findings.iter().filter(of_kind).count()
}

#[test]
fn a_change_that_comes_with_another_host_is_named_so() {
    let place = Place::new();
    let recipe = Recipe {
        slow_host: (25..40).collect(),
        ..Recipe::default()
    };
    let path = place.write(BASE, &recipe.history());
    assert_eq!(common(&replayed(&path), FindingKind::Regression), 1);
    write_hosts(&path, |at| if at < 25 { "fast" } else { "slow" }, 40);
    let file = replayed(&path);
    assert_eq!(
        common(&file, FindingKind::Regression),
        0,
        "{:?}",
        file.findings
    );
    assert_eq!(common(&file, FindingKind::HostChange), 1);
}

/// The last commit is measured on a slower kind of host.
fn with_slow_candidate() -> Recipe {
    Recipe {
        slow_host: vec![39],
        ..Recipe::default()
    }
}

#[test]
fn a_candidate_on_another_kind_of_host_is_named_so() {
    let place = Place::new();
    let mut request = place.split(&with_slow_candidate());
    assert_eq!(gate(&request).expect("judged").status, ExitStatus::Suspect);
    write_hosts(&request.base, |_| "fast", 39);
    let slow = HostEntry {
        commit: commit(39),
        fingerprint: "slow".to_owned(),
        host: None,
    };
    let mut book = Hosts::default();
    book.add(slow);
    fs::write(Hosts::path_beside(&request.candidate), book.to_json_lines()).expect("written");
    let result = gate(&request).expect("judged");
    assert_eq!(result.status, ExitStatus::Incomparable);
    assert_eq!(
        kinds(&result),
        [(FindingKind::HostChange, "common to all metrics")]
    );

    // A second measurement says nothing new there; one on the base's kind of host does.
    let slow = part(&with_slow_candidate().history(), 39..40);
    let fast = part(&Recipe::default().history(), 39..40);
    for (rows, host, status) in [
        (&slow, None, ExitStatus::Incomparable),
        (&slow, Some("fast"), ExitStatus::Regression),
        (&fast, Some("fast"), ExitStatus::Good),
    ] {
        let again = place.write("again.csv", rows);
        let beside = Hosts::path_beside(&again);
        let _ = fs::remove_file(&beside);
        if let Some(host) = host {
            let entry = HostEntry {
                commit: commit(39),
                fingerprint: host.to_owned(),
                host: None,
            };
            let mut book = Hosts::default();
            book.add(entry);
            fs::write(&beside, book.to_json_lines()).expect("written");
        }
        request.rules = GateRules::Adaptive {
            again: Some(again),
            compare: None,
        };
        let result = gate(&request).expect("judged");
        assert_eq!(result.status, status, "{host:?}: {:?}", result.findings);
    }
}

#[test]
fn flips_between_two_hosts_are_no_regressions_unless_the_host_is_the_same() {
    let place = Place::new();
    // Slow at first, then fast, then three slow commits in a row.
    let slow_host: Vec<usize> = (0..12).chain([20, 24, 30, 31, 32]).collect();
    let recipe = Recipe {
        slow_host,
        ..Recipe::default()
    };
    let path = place.write(BASE, &recipe.history());
    let file = replayed(&path);
    assert_eq!(common(&file, FindingKind::Improvement), 1);
    assert_eq!(common(&file, FindingKind::Regression), 0);
    assert!(common(&file, FindingKind::Flip) >= 4, "{:?}", file.findings);
    write_hosts(&path, |_| "the only one", 40);
    assert_eq!(common(&replayed(&path), FindingKind::Regression), 1);
}

#[test]
fn replay_calls_a_shift_in_one_metric_and_names_its_first_commit() {
    let place = Place::new();
    let changes = vec![(4, 22, 40, 0.15), (13, 28, 40, -0.2)];
    let path = place.write(
        BASE,
        &Recipe {
            changes,
            ..Recipe::default()
        }
        .history(),
    );
    let file = replayed(&path);
    let found: Vec<_> = file
        .findings
        .iter()
        .map(|f| (f.kind, f.scope.as_str(), f.since.clone()))
        .collect();
    assert_eq!(
        found,
        [
            (FindingKind::Suspect, "time_4", commit(22)),
            (FindingKind::Regression, "time_4", commit(22)),
            (FindingKind::Improvement, "rate_1", commit(28)),
        ]
    );
    assert_eq!(file.status, ExitStatus::Good, "old news");
}

#[test]
fn the_summary_is_a_markdown_table() {
    let place = Place::new();
    let request = place.split(&last_worse(2, 2.0));
    let text = gate(&fixed(request.clone())).expect("judged").to_markdown();
    assert!(
        text.starts_with("### Performance gate: regression\n"),
        "{text}"
    );
    assert!(text.contains("| time\\_2 | **regression** | "), "{text}");
    let text = gate(&request).expect("judged").to_markdown();
    assert!(text.contains("| suspect | time\\_2 | +"), "{text}");
    assert_eq!(markdown::escaped("a|b<c"), "a\\|b&lt;c");
}
