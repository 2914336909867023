//! Every commit of a history in turn, as a main branch sees them.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::fixed::{self, FixedFinding, FixedRule, FixedVerdict};
use super::{GateError, markdown};
use crate::adaptive::findings::{Finding, FindingKind, findings};
use crate::adaptive::judge::Judge;
use crate::adaptive::panel::Panel;
use crate::adaptive::rule::Rule;
use crate::csv::{History, NameRule};
use crate::exit_status::ExitStatus;
use crate::hosts::Hosts;
use crate::identity::Identity;

/// What to replay.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    /// The histories.
    pub files: Vec<PathBuf>,
    /// The fixed rule; `None`: the adaptive rules.
    pub fixed: Option<FixedRule>,
}

/// One history, replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayedFile {
    /// The file.
    pub path: PathBuf,
    /// What it is about.
    pub identity: Identity,
    /// How many commits it has.
    pub commits: usize,
    /// By the fixed rule: every regression.
    pub fixed: Vec<FixedFinding>,
    /// By the adaptive rules: every finding, in the order of time.
    pub findings: Vec<Finding>,
    /// What the newest commit brought: an old regression is old news.
    pub status: ExitStatus,
}

/// Histories, replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayResult {
    /// `fixed` or `adaptive`.
    pub rules: &'static str,
    /// Every file.
    pub files: Vec<ReplayedFile>,
    /// What the newest commits brought.
    pub status: ExitStatus,
}

/// Judges every commit of some histories by what came before it.
///
/// # Errors
/// A file is not a history, or the hosts beside one are wrong.
pub fn replay(request: &ReplayRequest) -> Result<ReplayResult, GateError> {
    let mut files = Vec::new();
    for path in &request.files {
        let history = History::read(path, NameRule::History)?;
        files.push(match &request.fixed {
            Some(rule) => replay_fixed(path, &history, rule),
            None => replay_adaptive(path, &history, &Hosts::read_beside(path)?),
        });
    }
    Ok(ReplayResult {
        rules: if request.fixed.is_some() {
            "fixed"
        } else {
            "adaptive"
        },
        status: files
            .iter()
            .fold(ExitStatus::Good, |status, file| status.and(file.status)),
        files,
    })
}

fn replay_fixed(path: &Path, history: &History, rule: &FixedRule) -> ReplayedFile {
    let mut found = fixed::replay(rule, history);
    found.retain(|finding| finding.verdict == FixedVerdict::Regression);
    let newest = history.commits.last().map(|block| block.commit.as_str());
    let is_newest = |finding: &FixedFinding| Some(finding.commit.as_str()) == newest;
    ReplayedFile {
        path: path.to_owned(),
        identity: history.identity.clone(),
        commits: history.commits.len(),
        status: if found.iter().any(is_newest) {
            ExitStatus::Regression
        } else {
            ExitStatus::Good
        },
        fixed: found,
        findings: Vec::new(),
    }
}

fn replay_adaptive(path: &Path, history: &History, hosts: &Hosts) -> ReplayedFile {
    let panel = Panel::of(history, hosts, usize::MAX);
    let mut judge = Judge::new(&panel.series, &Rule::STANDARD);
    let mut found = Vec::new();
    let mut status = ExitStatus::Good;
    for (at, column) in panel.columns.iter().enumerate() {
        let judgement = judge.step(column, panel.hosts[at]);
        let newest = findings(&panel, at, &judgement);
        status = newest.iter().fold(ExitStatus::Good, |status, finding| {
            status.and(match finding.kind {
                FindingKind::Regression => ExitStatus::Regression,
                FindingKind::Suspect => ExitStatus::Suspect,
                _ => ExitStatus::Good,
            })
        });
        found.extend(newest);
    }
    ReplayedFile {
        path: path.to_owned(),
        identity: history.identity.clone(),
        commits: history.commits.len(),
        fixed: Vec::new(),
        findings: found,
        status,
    }
}

impl ReplayResult {
    /// Every finding as a line.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            text.push_str(&format!(
                "{}: {} commits, {} rules; newest commit: {}\n",
                file.path.display(),
                file.commits,
                self.rules,
                markdown::status_word(file.status)
            ));
            for finding in &file.fixed {
                text.push_str(&format!(
                    "  {}: regression: {}\n",
                    finding.commit,
                    markdown::fixed_line(finding)
                ));
            }
            for finding in &file.findings {
                text.push_str(&format!("  {}: {}\n", finding.called, finding.to_text()));
            }
        }
        text
    }

    /// Every finding as Markdown.
    pub fn to_markdown(&self) -> String {
        markdown::replay(self)
    }
}
