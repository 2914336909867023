//! `nvx perf report`: histories for people.
//!
//! One page shows every series as a line with its noise band, level shifts and marks. The page is one
//! file: it loads nothing, needs no script, follows the reader's light or dark setting, and fits a
//! phone. Long series are thinned for drawing: in every strip of the chart the first, last, smallest
//! and largest value stay, and every marked one.

mod chart;
mod page;
mod tables;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::Serialize;

use crate::adaptive::findings::{Finding, FindingKind, findings};
use crate::adaptive::judge::Judge;
use crate::adaptive::panel::{Panel, value_of};
use crate::adaptive::rule::Rule;
use crate::csv::{Direction, History, Metric, NameRule};
use crate::gate::GateError;
use crate::hosts::Hosts;
use crate::identity::Identity;

/// Noise band: this many sigma to each side of the expected value hold most points.
const BAND_SIGMAS: f64 = 2.0;

/// What to show.
#[derive(Clone, Debug)]
pub struct ReportRequest {
    /// The histories.
    pub files: Vec<PathBuf>,
}

/// Histories, ready to be shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One per file.
    pub histories: Vec<HistoryReport>,
}

/// One history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryReport {
    /// What it is about.
    pub identity: Identity,
    /// The commits, oldest first.
    pub commits: Vec<String>,
    /// What all metrics share: its findings.
    pub common: Vec<Finding>,
    /// Every metric.
    pub series: Vec<SeriesReport>,
}

/// One metric's history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesReport {
    /// The metric.
    pub metric: Metric,
    /// Its values: index of the commit, and p50 in the metric's unit.
    pub points: Vec<(usize, f64)>,
    /// The noise band: index of the commit, and lower and upper edge in the metric's unit.
    pub band: Vec<(usize, f64, f64)>,
    /// Its findings, also those that it shares.
    pub marks: Vec<Mark>,
    /// What the gate said at the newest commit.
    pub verdict: &'static str,
}

/// A finding at its place in a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// Index of the first commit that it is about.
    pub since: usize,
    /// Index of the commit at which it was called.
    pub called: usize,
    /// What it is.
    pub kind: FindingKind,
    /// How much worse, in percent.
    pub worse_percent: f64,
    /// Whether it is common to several metrics.
    pub common: bool,
}

/// Reads histories and judges them for showing.
///
/// # Errors
/// A file is not a history, or the hosts beside one are wrong.
pub fn report(request: &ReportRequest) -> Result<Report, GateError> {
    let mut histories = Vec::new();
    for path in &request.files {
        let history = History::read(path, NameRule::History)?;
        histories.push(of_history(&history, &Hosts::read_beside(path)?));
    }
    Ok(Report { histories })
}

fn of_history(history: &History, hosts: &Hosts) -> HistoryReport {
    let panel = Panel::of(history, hosts, usize::MAX);
    let rule = Rule::STANDARD;
    let mut judge = Judge::new(&panel.series, &rule);
    let mut series: Vec<SeriesReport> = history.metrics.iter().map(empty_series).collect();
    let mut common = Vec::new();
    for (at, column) in panel.columns.iter().enumerate() {
        let judgement = judge.step(column, panel.hosts[at]);
        for (index, one) in series.iter_mut().enumerate() {
            if !column[index].is_finite() {
                continue;
            }
            one.points
                .push((at, value_of(one.metric.direction, column[index])));
            one.verdict = "warm-up";
            if let Some(reading) = judge.model.reading(index, &rule) {
                let expected = column[index] - reading.newest;
                let edge =
                    |sigmas: f64| value_of(one.metric.direction, expected + sigmas * reading.sigma);
                let (one_edge, other) = (edge(-BAND_SIGMAS), edge(BAND_SIGMAS));
                one.band
                    .push((at, one_edge.min(other), one_edge.max(other)));
                one.verdict = "passed";
            }
        }
        for finding in findings(&panel, at, &judgement) {
            mark(&mut series, &panel.commits, at, &finding);
            if finding.scope.starts_with("common") {
                common.push(finding);
            }
        }
    }
    HistoryReport {
        identity: history.identity.clone(),
        commits: panel.commits,
        common,
        series,
    }
}

fn empty_series(metric: &Metric) -> SeriesReport {
    SeriesReport {
        metric: metric.clone(),
        points: Vec::new(),
        band: Vec::new(),
        marks: Vec::new(),
        verdict: "no rows",
    }
}

/// Puts a finding into every series that it names.
fn mark(series: &mut [SeriesReport], commits: &[String], at: usize, finding: &Finding) {
    // It begins a few commits before the one at which it is called.
    let since = commits[..=at]
        .iter()
        .rposition(|commit| *commit == finding.since)
        .unwrap_or(at);
    for one in series.iter_mut() {
        if !finding.metrics.contains(&one.metric.name) {
            continue;
        }
        if one.points.last().is_some_and(|(last, _)| *last == at) {
            one.verdict = finding.kind.word();
        }
        one.marks.push(Mark {
            since,
            called: at,
            kind: finding.kind,
            worse_percent: finding.worse_percent,
            common: finding.metrics.len() > 1,
        });
    }
}

impl SeriesReport {
    /// The newest value, in the metric's unit.
    pub fn newest(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }

    /// The direction in words.
    pub fn direction_text(&self) -> &'static str {
        match self.metric.direction {
            Direction::Lower => "lower is better",
            Direction::Higher => "higher is better",
        }
    }

    /// What the chart shows, for those who do not see it.
    pub fn description(&self, commits: &[String]) -> String {
        let unit = &self.metric.unit;
        let (low, high) = self.range();
        let mut text = format!(
            "{} commits, from {} to {} {unit}, newest {} {unit}, {}; verdict: {}.",
            self.points.len(),
            chart::number(low),
            chart::number(high),
            self.newest()
                .map_or_else(|| "none".to_owned(), chart::number),
            self.direction_text(),
            self.verdict
        );
        for mark in &self.marks {
            text.push_str(&format!(" {}", mark.to_text(commits)));
        }
        text
    }

    /// Smallest and largest value.
    pub(crate) fn range(&self) -> (f64, f64) {
        let values = || self.points.iter().map(|(_, value)| *value);
        (
            values().fold(f64::INFINITY, f64::min),
            values().fold(0.0, f64::max),
        )
    }
}

impl Mark {
    /// The mark in words.
    pub fn to_text(&self, commits: &[String]) -> String {
        let commit = commits
            .get(self.since)
            .map_or("", |commit| crate::adaptive::findings::short(commit));
        let (size, side) = if self.worse_percent < 0.0 {
            (-self.worse_percent, "better")
        } else {
            (self.worse_percent, "worse")
        };
        format!(
            "{}{} {size:.1} % {side} since {commit}.",
            if self.common { "common " } else { "" },
            self.kind.word(),
        )
    }
}

impl Report {
    /// The page.
    pub fn to_html(&self) -> String {
        page::page(self)
    }

    /// Tables for a pull request.
    pub fn to_markdown(&self) -> String {
        tables::markdown(self)
    }

    /// The chart of one metric as a picture of its own, from the first history that has it.
    pub fn to_svg(&self, metric: &str) -> Option<String> {
        self.histories.iter().find_map(|history| {
            let series = history
                .series
                .iter()
                .find(|series| series.metric.name == metric)?;
            Some(chart::picture(series, &history.commits))
        })
    }
}
