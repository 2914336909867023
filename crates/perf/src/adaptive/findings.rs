//! Findings in words: since which commit, how much, how sure, and what it would take to be sure.

use serde::Serialize;

use super::judge::{Judgement, Scope, Shift, Suspicion};
use super::panel::{Panel, Series, value_of};
use super::robust::{median_of_three_tail, student5_tail};
use crate::csv::format_p50;

/// What a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A level shift to the worse.
    Regression,
    /// One point that is worse than noise explains; a second measurement decides.
    Suspect,
    /// A level shift to the better; it is the new level from now on.
    Improvement,
    /// A level shift that came together with another kind of host: nothing can be said of the code.
    HostChange,
    /// The shared level is one that the history had before, as with two kinds of host.
    Flip,
    /// Beyond the suspect limit, but the commits before were so already.
    BeganBefore,
    /// A suspect that the second measurement, or the comparison, did not confirm.
    Cleared,
}

impl FindingKind {
    pub(crate) fn of(shift: &Shift) -> Self {
        if shift.host_changed {
            Self::HostChange
        } else if shift.size > 0.0 {
            Self::Regression
        } else {
            Self::Improvement
        }
    }

    /// The kind in words.
    pub fn word(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::Suspect => "suspect",
            Self::Improvement => "improvement",
            Self::HostChange => "host change",
            Self::Flip => "flip",
            Self::BeganBefore => "began before",
            Self::Cleared => "cleared",
        }
    }
}

/// One finding of the adaptive rules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The metric, or how many metrics it is common to.
    pub scope: String,
    /// Every metric that it names.
    pub metrics: Vec<String>,
    /// Since which commit.
    pub since: String,
    /// At which commit it was called.
    pub called: String,
    /// How much worse, in percent; below zero is better.
    pub worse_percent: f64,
    /// The same with its uncertainty: 95 % of the time the size lies between the two.
    pub worse_percent_range: (f64, f64),
    /// What it had to exceed, in percent.
    pub limit_percent: f64,
    /// Noise of one point of the series, in percent.
    pub noise_percent: f64,
    /// The value that was expected, in the metric's unit; `None` for what is common.
    pub expected: Option<f64>,
    /// Noise alone does as much in one of this many commits of a file with as many metrics.
    pub by_chance_once_in_commits: f64,
    /// What it would take to be sure.
    pub to_be_sure: String,
}

impl Finding {
    /// Whether it fails a gate.
    pub fn is_regression(&self) -> bool {
        self.kind == FindingKind::Regression
    }

    /// The finding as one line.
    pub fn to_text(&self) -> String {
        if self.kind == FindingKind::Flip {
            return format!(
                "{}: {} {:+.1} % since {}; {}",
                self.kind.word(),
                self.scope,
                self.worse_percent,
                short(&self.since),
                self.to_be_sure
            );
        }
        format!(
            "{}: {} {:+.1} % ({:+.1} to {:+.1} %, limit {:.1} %) since {}; by chance once in {} commits; {}",
            self.kind.word(),
            self.scope,
            self.worse_percent,
            self.worse_percent_range.0,
            self.worse_percent_range.1,
            self.limit_percent,
            short(&self.since),
            rounded(self.by_chance_once_in_commits),
            self.to_be_sure
        )
    }
}

/// The first digits of a commit.
pub(crate) fn short(commit: &str) -> &str {
    commit.get(..10).unwrap_or(commit)
}

fn rounded(commits: f64) -> String {
    if commits >= 1e6 {
        "more than a million".to_owned()
    } else {
        format!("{commits:.0}")
    }
}

/// A size as percent of change: 0.0953 is 10 %.
pub(crate) fn percent(size: f64) -> f64 {
    (size.exp() - 1.0) * 100.0
}

/// Who shifted, in words.
pub(crate) fn describe_shift(shift: &Shift, series: &[Series]) -> String {
    match &shift.scope {
        Scope::Metric(index) => name_of(series, *index),
        Scope::Common {
            unit,
            members,
            judged,
        } => {
            let unit = unit
                .as_ref()
                .map(|unit| format!("{unit} "))
                .unwrap_or_default();
            format!("common to {} of {judged} {unit}metrics", members.len())
        }
    }
}

fn name_of(series: &[Series], index: usize) -> String {
    series
        .get(index)
        .map(|series| series.name.clone())
        .unwrap_or_default()
}

/// The findings of one commit, which is at this place of the panel.
pub(crate) fn findings(panel: &Panel, at: usize, judgement: &Judgement) -> Vec<Finding> {
    let commit = |at: usize| panel.commits.get(at).cloned().unwrap_or_default();
    let mut findings: Vec<Finding> = judgement
        .shifts
        .iter()
        .map(|shift| of_shift(panel, shift, commit(shift.start), commit(at)))
        .collect();
    findings.extend(
        judgement
            .suspicions
            .iter()
            .map(|suspicion| of_suspicion(&panel.series, suspicion, &commit(at))),
    );
    if judgement.flip {
        findings.push(flip(judgement, &commit(at)));
    }
    findings
}

fn of_shift(panel: &Panel, shift: &Shift, since: String, called: String) -> Finding {
    let metrics = match &shift.scope {
        Scope::Metric(index) => vec![name_of(&panel.series, *index)],
        Scope::Common { members, .. } => members
            .iter()
            .map(|index| name_of(&panel.series, *index))
            .collect(),
    };
    let kind = FindingKind::of(shift);
    let to_be_sure = match kind {
        FindingKind::HostChange => {
            "the host changed with it: measure both commits on one host".to_owned()
        }
        FindingKind::Improvement => "nothing: it is the new level".to_owned(),
        _ => "nothing: three commits agree".to_owned(),
    };
    // The median of three has 0.67 times the noise of one point.
    let uncertainty = 1.96 * 0.67 * shift.sigma;
    let single = student5_tail(shift.size.abs() / shift.sigma);
    Finding {
        kind,
        scope: describe_shift(shift, &panel.series),
        metrics,
        since,
        called,
        worse_percent: percent(shift.size),
        worse_percent_range: (
            percent(shift.size - uncertainty),
            percent(shift.size + uncertainty),
        ),
        limit_percent: percent(shift.limit),
        noise_percent: percent(shift.sigma),
        expected: expected(&panel.series, &shift.scope, shift.expected),
        by_chance_once_in_commits: once_in(panel.series.len(), median_of_three_tail(single)),
        to_be_sure,
    }
}

pub(crate) fn of_suspicion(series: &[Series], suspicion: &Suspicion, commit: &str) -> Finding {
    let one = suspicion.metric.and_then(|index| series.get(index));
    let scope = match (one, &suspicion.unit) {
        (Some(one), _) => one.name.clone(),
        (None, Some(unit)) => format!("common to all {unit} metrics"),
        (None, None) => "common to all metrics".to_owned(),
    };
    let expected = one
        .zip(suspicion.expected)
        .map(|(one, expected)| value_of(one.direction, expected));
    let to_be_sure = match one.zip(suspicion.expected) {
        Some((one, expected)) => {
            let limit = value_of(one.direction, expected + suspicion.limit);
            let side = match one.direction {
                crate::csv::Direction::Lower => "above",
                crate::csv::Direction::Higher => "below",
            };
            format!(
                "a second measurement {side} {} {}",
                format_p50(round4(limit)),
                one.unit
            )
        }
        None => "a second measurement that is as much worse".to_owned(),
    };
    let uncertainty = 1.96 * suspicion.sigma;
    Finding {
        kind: FindingKind::Suspect,
        metrics: one.map(|one| one.name.clone()).into_iter().collect(),
        scope,
        since: commit.to_owned(),
        called: commit.to_owned(),
        worse_percent: percent(suspicion.size),
        worse_percent_range: (
            percent(suspicion.size - uncertainty),
            percent(suspicion.size + uncertainty),
        ),
        limit_percent: percent(suspicion.limit),
        noise_percent: percent(suspicion.sigma),
        expected,
        by_chance_once_in_commits: once_in(
            series.len(),
            student5_tail(suspicion.size / suspicion.sigma),
        ),
        to_be_sure,
    }
}

fn flip(judgement: &Judgement, commit: &str) -> Finding {
    let size = judgement.factor_above_level;
    Finding {
        kind: FindingKind::Flip,
        scope: "common to all metrics".to_owned(),
        metrics: Vec::new(),
        since: commit.to_owned(),
        called: commit.to_owned(),
        worse_percent: percent(size),
        worse_percent_range: (percent(size), percent(size)),
        limit_percent: 0.0,
        noise_percent: 0.0,
        expected: None,
        by_chance_once_in_commits: 1.0,
        to_be_sure:
            "the history had this level before, as with two kinds of host: record the hosts, \
                     or measure both commits on one"
                .to_owned(),
    }
}

fn expected(series: &[Series], scope: &Scope, expected: Option<f64>) -> Option<f64> {
    match scope {
        Scope::Metric(index) => Some(value_of(series.get(*index)?.direction, expected?)),
        Scope::Common { .. } => None,
    }
}

fn once_in(metrics: usize, probability: f64) -> f64 {
    1.0 / (metrics.max(1) as f64 * probability).clamp(1e-12, 1.0)
}

/// Four significant digits: what a reader can use.
fn round4(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}
