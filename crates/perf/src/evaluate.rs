//! `nvx perf evaluate`: what the adaptive rules find in a history when something is put into it, and
//! what they find when nothing is.
//!
//! Changes are put into one metric from a commit on, at every place where that metric has been quiet,
//! and count as found when a regression that names the metric is called within three commits. The
//! history as it is, and histories whose commits are drawn from it, tell how often the rules cry wolf.
//! Every draw follows from a fixed seed, so that two runs give the same figures.

pub(crate) mod random;
mod trials;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::adaptive::findings::{FindingKind, describe_shift, percent};
use crate::adaptive::judge::Shift;
use crate::adaptive::panel::Panel;
use crate::adaptive::rule::Rule;
use crate::csv::{History, NameRule};
use crate::gate::GateError;
use crate::hosts::Hosts;
use trials::{Plain, STEPS_PERCENT, is_eligible};

/// How many of the places were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Places where it was found.
    pub found: usize,
    /// Places where it was tried.
    pub of: usize,
}

impl Share {
    fn add(&mut self, found: bool) {
        self.of += 1;
        self.found += usize::from(found);
    }

    fn join(&mut self, other: Self) {
        self.of += other.of;
        self.found += other.found;
    }

    /// The share in percent; `None` where nothing was tried.
    pub fn percent(self) -> Option<f64> {
        (self.of > 0).then(|| 100.0 * self.found as f64 / self.of as f64)
    }
}

/// An event of the unmodified file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluatedEvent {
    /// Index of the commit since which, from 0.
    pub start: usize,
    /// Index of the commit at which it was called.
    pub called: usize,
    /// Whether it is worse.
    pub regression: bool,
    /// The metric, or how many it is common to.
    pub scope: String,
    /// How much, in percent; above zero is worse.
    pub worse_percent: f64,
}

/// A commit of the unmodified file with a suspect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuspectCommit {
    /// Index of the commit, from 0.
    pub at: usize,
    /// The suspect metrics; `common` where it is what all share.
    pub metrics: Vec<String>,
}

/// What the rules do on one history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// The file.
    pub path: PathBuf,
    /// Commits in it.
    pub commits: usize,
    /// Commits that were judged.
    pub judged: usize,
    /// Metrics in it.
    pub metrics: usize,
    /// Series that are quiet enough for a percentage to mean something.
    pub eligible_series: usize,
    /// Per size in percent: steps in one metric that were found within three commits.
    pub steps: Vec<(u32, Share)>,
    /// Single points of +15 % that were suspect or worse at once.
    pub single_points: Share,
    /// Steps of +15 % in all millisecond metrics at once that were found within three commits.
    pub all_milliseconds: Share,
    /// Creeps of +1 % per commit that were found within 15 commits, at every eligible place, also where
    /// the file ends before.
    pub creeps: Share,
    /// The same, at the places that have 15 commits after them.
    pub creeps_with_room: Share,
    /// Events of the unmodified file.
    pub events: Vec<EvaluatedEvent>,
    /// Regression events of the unmodified file, with all that were called within 2 commits as one.
    pub regression_events: usize,
    /// Commits of the unmodified file with a suspect.
    pub suspects: Vec<SuspectCommit>,
    /// Mean regression events of resampled histories with 40 judged commits.
    pub resampled_events: f64,
    /// Index of the first commit that resampling draws from.
    pub resampled_from: usize,
}

/// Evaluates the adaptive rules on a history file.
///
/// # Errors
/// The file is not a history, or the hosts beside it are wrong.
pub fn evaluate(path: &Path) -> Result<Evaluation, GateError> {
    let history = History::read(path, NameRule::History)?;
    let hosts = Hosts::read_beside(path)?;
    Ok(evaluate_history(path, &history, &hosts))
}

/// Evaluates the adaptive rules on a history that was read.
pub fn evaluate_history(path: &Path, history: &History, hosts: &Hosts) -> Evaluation {
    evaluate_with(path, history, hosts, trials::DRAWS)
}

fn evaluate_with(path: &Path, history: &History, hosts: &Hosts, draws: usize) -> Evaluation {
    let rule = Rule::STANDARD;
    let panel = Panel::of(history, hosts, usize::MAX);
    let plain = Plain::run(&panel, &rule);
    let eligible: Vec<usize> = (0..panel.series.len())
        .filter(|index| is_eligible(&panel, *index))
        .collect();
    let mut evaluation = describe(path, &panel, &plain, eligible.len(), &rule);
    if !eligible.is_empty() {
        plain.try_single_metrics(&eligible, &mut evaluation);
        plain.try_all_milliseconds(&mut evaluation);
    }
    (evaluation.resampled_events, evaluation.resampled_from) = plain.resample(draws);
    evaluation
}

fn describe(
    path: &Path,
    panel: &Panel,
    plain: &Plain<'_>,
    eligible_series: usize,
    rule: &Rule,
) -> Evaluation {
    let shifts = || {
        plain
            .judgements
            .iter()
            .flat_map(|judgement| &judgement.shifts)
    };
    let suspects = plain
        .judgements
        .iter()
        .enumerate()
        .filter_map(|(at, judgement)| {
            let name = |metric: Option<usize>| {
                metric
                    .and_then(|index| panel.series.get(index))
                    .map_or_else(|| "common".to_owned(), |series| series.name.clone())
            };
            let metrics: Vec<String> = judgement
                .suspicions
                .iter()
                .map(|suspicion| name(suspicion.metric))
                .collect();
            (!metrics.is_empty()).then_some(SuspectCommit { at, metrics })
        });
    Evaluation {
        path: path.to_owned(),
        commits: panel.columns.len(),
        judged: panel.columns.len().saturating_sub(rule.minimum_history),
        metrics: panel.series.len(),
        eligible_series,
        steps: STEPS_PERCENT
            .map(|percent| (percent, Share::default()))
            .to_vec(),
        single_points: Share::default(),
        all_milliseconds: Share::default(),
        creeps: Share::default(),
        creeps_with_room: Share::default(),
        events: shifts()
            .map(|shift| EvaluatedEvent {
                start: shift.start,
                called: shift.called,
                regression: FindingKind::of(shift) == FindingKind::Regression,
                scope: describe_shift(shift, &panel.series),
                worse_percent: percent(shift.size),
            })
            .collect(),
        regression_events: regression_events(shifts(), rule),
        suspects: suspects.collect(),
        resampled_events: 0.0,
        resampled_from: 0,
    }
}

/// Regressions that are called within two commits of an event's first are one event.
fn regression_events<'a>(shifts: impl Iterator<Item = &'a Shift>, rule: &Rule) -> usize {
    let mut events = 0;
    let mut first: Option<usize> = None;
    for shift in shifts.filter(|shift| FindingKind::of(shift) == FindingKind::Regression) {
        if first.is_none_or(|first| shift.called > first + rule.merge_commits) {
            events += 1;
            first = Some(shift.called);
        }
    }
    events
}

impl Evaluation {
    /// The figures as text.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} commits, {} judged; {} metrics\n",
            self.path.display(),
            self.commits,
            self.judged,
            self.metrics
        );
        for event in &self.events {
            text.push_str(&format!(
                "  {} {:+.1} % since commit {}, called at {}: {}\n",
                if event.regression {
                    "regression"
                } else {
                    "improvement"
                },
                event.worse_percent,
                event.start,
                event.called,
                event.scope
            ));
        }
        text.push_str(&format!(
            "  regression events as it is: {}\n",
            self.regression_events
        ));
        text.push_str(&format!(
            "  suspect commits: {} of {}\n",
            self.suspects.len(),
            self.judged
        ));
        for suspect in &self.suspects {
            text.push_str(&format!(
                "    {}: {}\n",
                suspect.at,
                suspect.metrics.join(", ")
            ));
        }
        text.push_str(&self.shares_text());
        text.push_str(&format!(
            "  regression events in 40 judged commits drawn from commit {} on: {:.2}\n",
            self.resampled_from, self.resampled_events
        ));
        text
    }

    fn shares_text(&self) -> String {
        if self.eligible_series == 0 {
            return "  no series is quiet enough for a percentage to mean something\n".to_owned();
        }
        let mut text = format!("  eligible series: {}\n", self.eligible_series);
        let mut line = |name: &str, share: Share| {
            if let Some(percent) = share.percent() {
                text.push_str(&format!(
                    "  {name}: {percent:.1} % found ({} of {})\n",
                    share.found, share.of
                ));
            }
        };
        for (percent, share) in &self.steps {
            line(
                &format!("+{percent} % in one metric, within 3 commits"),
                *share,
            );
        }
        line("one point of +15 %, at once", self.single_points);
        line(
            "+15 % in all ms metrics, within 3 commits",
            self.all_milliseconds,
        );
        line("+1 % per commit, within 15 commits", self.creeps);
        line("the same where 15 commits follow", self.creeps_with_room);
        text
    }
}

#[cfg(test)]
mod tests;
