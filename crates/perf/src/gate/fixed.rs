//! The fixed rule: a metric against the median of its last rows, with one threshold for all.

use std::collections::HashSet;

use nvx_bench::statistics::median;
use serde::Serialize;

use crate::csv::{Direction, History, Metric};

/// The numbers of the fixed rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FixedRule {
    /// The baseline is the median of at most this many of a metric's last rows.
    pub window: usize,
    /// With fewer rows than this a metric is in warm-up.
    pub minimum_history: usize,
    /// Worse by more than this many percent of the baseline is a regression.
    pub threshold_percent: f64,
    /// A lower-is-better time in milliseconds must also be worse by more than this many milliseconds.
    pub absolute_tolerance_ms: f64,
}

impl Default for FixedRule {
    fn default() -> Self {
        Self {
            window: 10,
            minimum_history: 10,
            threshold_percent: 50.0,
            absolute_tolerance_ms: 10.0,
        }
    }
}

/// What the fixed rule says of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixedVerdict {
    /// Not worse by more than the threshold.
    Passed,
    /// Worse by more than the threshold.
    Regression,
    /// Too few rows to judge.
    WarmUp,
}

/// One metric under the fixed rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FixedFinding {
    /// The commit that is judged.
    pub commit: String,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Which values are good.
    pub direction: Direction,
    /// The verdict.
    pub verdict: FixedVerdict,
    /// The judged value, in the metric's unit.
    pub p50: f64,
    /// The median of the window, in the metric's unit; `None` without any row.
    pub baseline: Option<f64>,
    /// How many rows the baseline rests on.
    pub rows: usize,
    /// How much worse, in percent of the baseline; negative when better.
    pub worse_percent: Option<f64>,
}

/// Judges one value against the rows before it, oldest first.
pub(crate) fn judge_value(
    rule: &FixedRule,
    metric: &Metric,
    commit: &str,
    p50: f64,
    before: &[f64],
) -> FixedFinding {
    let window = before
        .get(before.len().saturating_sub(rule.window)..)
        .unwrap_or_default();
    let baseline = median(window);
    let worse_percent = baseline.map(|level| metric.direction.worse_percent(level, p50));
    let verdict = match (baseline, worse_percent) {
        (Some(level), Some(worse)) if before.len() >= rule.minimum_history => {
            let is_time = metric.unit == "ms" && metric.direction == Direction::Lower;
            let beyond_tolerance = !is_time || p50 - level > rule.absolute_tolerance_ms;
            if worse > rule.threshold_percent && beyond_tolerance {
                FixedVerdict::Regression
            } else {
                FixedVerdict::Passed
            }
        }
        _ => FixedVerdict::WarmUp,
    };
    FixedFinding {
        commit: commit.to_owned(),
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        direction: metric.direction,
        verdict,
        p50,
        baseline,
        rows: window.len(),
        worse_percent,
    }
}

/// Judges every row of one commit of `rows` against a history. Metrics in `reset` begin anew.
pub(crate) fn judge_rows(
    rule: &FixedRule,
    history: &History,
    rows: &History,
    reset: &HashSet<&str>,
) -> Vec<FixedFinding> {
    let mut findings = Vec::new();
    for block in &rows.commits {
        // A commit that was accepted already is judged against what came before it.
        let end = history
            .commits
            .iter()
            .position(|known| known.commit == block.commit)
            .unwrap_or(history.commits.len());
        for row in &block.rows {
            let Some(metric) = rows.metrics.get(row.metric) else {
                continue;
            };
            let before: Vec<f64> = match history.metric_index(&metric.name) {
                Some(known) if !reset.contains(metric.name.as_str()) => history
                    .values(known)
                    .filter(|(at, _)| *at < end)
                    .map(|(_, value)| value)
                    .collect(),
                _ => Vec::new(),
            };
            findings.push(judge_value(rule, metric, &block.commit, row.p50, &before));
        }
    }
    findings
}

/// Judges every row of a history against the rows before it.
pub(crate) fn replay(rule: &FixedRule, history: &History) -> Vec<FixedFinding> {
    let mut before: Vec<Vec<f64>> = vec![Vec::new(); history.metrics.len()];
    let mut findings = Vec::new();
    for block in &history.commits {
        for row in &block.rows {
            let (Some(metric), Some(values)) =
                (history.metrics.get(row.metric), before.get_mut(row.metric))
            else {
                continue;
            };
            findings.push(judge_value(rule, metric, &block.commit, row.p50, values));
            values.push(row.p50);
        }
    }
    findings
}
