//! `nvx perf gate`: does a candidate pass?
//!
//! *Pull request* ([`gate`]): one commit's rows against the base branch's history. By the fixed rule a
//! metric passes or fails at once. By the adaptive rules one point has no later commits to confirm it,
//! so that a metric beyond its limit is a *suspect*: a second measurement, or an interleaved comparison
//! of the two builds, decides. Neither of them is ever a row of the history.
//!
//! *Main branch* ([`replay()`]): every commit of a history is judged in turn, and later commits confirm.

mod comparison;
pub(crate) mod fixed;
mod inputs;
mod markdown;
mod pull_request;
mod replay;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::Serialize;

use crate::adaptive::findings::Finding;
use crate::csv::HistoryError;
use crate::exit_status::ExitStatus;
use crate::hosts::HostsError;
use crate::identity::Identity;
use fixed::{FixedFinding, FixedRule, FixedVerdict};

pub(crate) use markdown::escaped;

pub use comparison::{COMPARISON_SCHEMA, COMPARISON_SCHEMA_VERSION, ComparedMetric, Comparison};
pub use pull_request::gate;
pub use replay::{ReplayRequest, ReplayResult, ReplayedFile, replay};

/// By which rules a candidate is judged.
#[derive(Clone, Debug)]
pub enum GateRules {
    /// One threshold for all metrics.
    Fixed(FixedRule),
    /// Every metric by its own noise.
    Adaptive {
        /// Rows of a second measurement of the same commit.
        again: Option<PathBuf>,
        /// An interleaved comparison of base and candidate ([`Comparison`]); it decides.
        compare: Option<PathBuf>,
    },
}

/// What to judge.
#[derive(Clone, Debug)]
pub struct GateRequest {
    /// The base branch's history. One that does not exist is an empty one.
    pub base: PathBuf,
    /// Rows of the candidate: exactly one commit.
    pub candidate: PathBuf,
    /// The candidate branch's history file, in which metrics may have been reset; or the directory that
    /// it lies in, under the base's name.
    pub candidate_history: Option<PathBuf>,
    /// Allow more than half of a file's metrics to be reset at once.
    pub allow_reset: bool,
    /// The rules.
    pub rules: GateRules,
}

/// What the gate says of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateResult {
    /// What the history is about.
    pub identity: Identity,
    /// The candidate's commit.
    pub commit: String,
    /// `fixed` or `adaptive`.
    pub rules: &'static str,
    /// The verdict.
    pub status: ExitStatus,
    /// By the fixed rule: every metric.
    pub fixed: Vec<FixedFinding>,
    /// By the adaptive rules: what there is to tell.
    pub findings: Vec<Finding>,
    /// Metrics that were judged.
    pub judged: usize,
    /// Metrics with too few rows to be judged.
    pub warm_up: Vec<String>,
    /// Metrics that the candidate's history has dropped, and that begin anew.
    pub resets: Vec<String>,
    /// Metrics of the base's newest commit that the candidate did not measure.
    pub not_measured: Vec<String>,
}

impl GateResult {
    /// Metrics with a regression.
    pub fn regressions(&self) -> usize {
        let by_fixed = |finding: &&FixedFinding| finding.verdict == FixedVerdict::Regression;
        self.fixed.iter().filter(by_fixed).count()
            + self
                .findings
                .iter()
                .filter(|finding| finding.is_regression())
                .count()
    }

    /// The verdict in a few lines.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} rules, commit {}: {}\n{} judged, {} in warm-up\n",
            self.identity,
            self.rules,
            self.commit,
            markdown::status_word(self.status),
            self.judged,
            self.warm_up.len()
        );
        for finding in self
            .fixed
            .iter()
            .filter(|f| f.verdict == FixedVerdict::Regression)
        {
            text.push_str(&format!("regression: {}\n", markdown::fixed_line(finding)));
        }
        for finding in &self.findings {
            text.push_str(&format!("{}\n", finding.to_text()));
        }
        for reset in &self.resets {
            text.push_str(&format!("reset: {reset} begins anew\n"));
        }
        for missing in &self.not_measured {
            text.push_str(&format!("not measured: {missing}\n"));
        }
        text
    }

    /// The verdict as a Markdown section, to be appended to a summary.
    pub fn to_markdown(&self) -> String {
        markdown::gate(self)
    }
}

/// Why nothing was judged.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// A history or rows are wrong.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The hosts beside a history are wrong.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// Two files are about different things.
    #[error("{}: is of {found}, but {} is of {wanted}", path.display(), other.display())]
    OtherIdentity {
        /// The file.
        path: PathBuf,
        /// What it is about.
        found: Identity,
        /// The file that it must agree with.
        other: PathBuf,
        /// What that is about.
        wanted: Identity,
    },
    /// Rows of a candidate are of more than one commit, or of none.
    #[error("{}: has rows of {count} commits; a candidate is exactly one", path.display())]
    CommitCount {
        /// The rows.
        path: PathBuf,
        /// How many commits there are.
        count: usize,
    },
    /// A metric's unit or direction is not what the base says.
    #[error("{}: metric {metric} is in {found}, but {} has it in {wanted}", path.display(), other.display())]
    MetricChanged {
        /// The rows.
        path: PathBuf,
        /// The metric.
        metric: String,
        /// Unit and direction here.
        found: String,
        /// The base.
        other: PathBuf,
        /// Unit and direction there.
        wanted: String,
    },
    /// The candidate names lifecycle metrics by the other prefix, so that none would be compared.
    #[error(
        "{}: names metrics '{found}...', but {} has '{wanted}...'; collect them under the history's names",
        path.display(), other.display()
    )]
    OtherPrefix {
        /// The rows.
        path: PathBuf,
        /// The prefix here.
        found: &'static str,
        /// The base.
        other: PathBuf,
        /// The prefix there.
        wanted: &'static str,
    },
    /// Too many metrics are reset at once.
    #[error("{}: {count} of {of} metrics are reset at once; that needs to be allowed (--allow-reset)", path.display())]
    TooManyResets {
        /// The candidate's history.
        path: PathBuf,
        /// How many are reset.
        count: usize,
        /// How many there are.
        of: usize,
    },
    /// A second measurement is of another commit.
    #[error("{}: is of commit {found}, the candidate is {wanted}", path.display())]
    OtherCommit {
        /// The second measurement or comparison.
        path: PathBuf,
        /// Its commit.
        found: String,
        /// The candidate's.
        wanted: String,
    },
    /// A second measurement does not have a suspect metric.
    #[error("{}: does not have the suspect {metric}", path.display())]
    LacksSuspect {
        /// The second measurement or comparison.
        path: PathBuf,
        /// The metric.
        metric: String,
    },
    /// A comparison is not what it must be.
    #[error("{}: {what}", path.display())]
    Comparison {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A comparison is not JSON of the form that it must have.
    #[error("{}: not a comparison", path.display())]
    ComparisonJson {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
}
