//! `nvx perf evaluate`: what the adaptive rules find in a history when something is put into it, and
//! what they find when nothing is.

pub(crate) mod random;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::adaptive::judge::{Judge, Judgement, Scope, Shift};
use crate::adaptive::panel::{Panel, Series};
use crate::adaptive::robust::median_in_place;
use crate::adaptive::rule::Rule;
use crate::csv::{History, HistoryError, NameRule};
use random::SplitMix64;

/// Changes that are put into one metric, in percent.
const STEPS_PERCENT: [u32; 3] = [10, 15, 25];
/// Commits within which a step must be called.
const FOUND_WITHIN: usize = 3;
/// Commits within which a creep must be called.
const CREEP_WITHIN: usize = 15;
/// Most places that are tried; beyond it a seeded sample is.
const MAX_PLACES: usize = 5000;
/// The first commit that something is put at: the thirteenth.
const FIRST_PLACE: usize = 12;
/// A place has no event in this many commits before it.
const QUIET_BEFORE: usize = 10;
/// Resampled histories.
const DRAWS: usize = 200;
/// Judged commits of a resampled history.
const DRAWN_JUDGED: usize = 40;
const SEED: u64 = 8;

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

    /// The share in percent; `None` where nothing was tried.
    pub fn percent(self) -> Option<f64> {
        (self.of > 0).then(|| 100.0 * self.found as f64 / self.of as f64)
    }
}

/// An event of the unmodified file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluatedEvent {
    /// Index of the commit since which.
    pub start: usize,
    /// Index of the commit at which it was called.
    pub called: usize,
    /// Whether it is worse.
    pub regression: bool,
    /// The metric, or what the members are common to.
    pub scope: String,
    /// How much, in percent; above zero is worse.
    pub percent: f64,
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
    /// Steps of +15 % in all millisecond metrics at once.
    pub all_milliseconds: Share,
    /// Creeps of +1 % per commit that were found within 15 commits, at every eligible place.
    pub creeps: Share,
    /// The same at the places that have 15 commits after them.
    pub creeps_with_room: Share,
    /// Events of the unmodified file.
    pub events: Vec<EvaluatedEvent>,
    /// Regression events of the unmodified file, with all that were called within 2 commits as one.
    pub regression_events: usize,
    /// Commits of the unmodified file with a suspect.
    pub suspects: Vec<(usize, Vec<String>)>,
    /// Mean regression events of resampled histories with 40 judged commits.
    pub resampled_events: f64,
    /// The first commit that resampling draws from.
    pub resampled_from: usize,
}

/// Evaluates the adaptive rules on a history file.
///
/// # Errors
/// The file is not a history.
pub fn evaluate(path: &Path) -> Result<Evaluation, HistoryError> {
    let history = History::read(path, NameRule::History)?;
    Ok(evaluate_history(path, &history, &Rule::STANDARD))
}

pub(crate) fn evaluate_history(path: &Path, history: &History, rule: &Rule) -> Evaluation {
    let panel = Panel::of(history, usize::MAX);
    let plain = Plain::run(&panel, rule);
    let eligible: Vec<usize> = (0..panel.series.len())
        .filter(|index| is_eligible(&panel, *index))
        .collect();
    let mut evaluation = plain.describe(path, &panel, eligible.len(), rule);
    let places = plain.places(&panel, &eligible);
    for (place, metric) in &places {
        plain.try_one(*place, *metric, &mut evaluation);
    }
    if !eligible.is_empty() {
        plain.try_all(&mut evaluation);
    }
    (evaluation.resampled_events, evaluation.resampled_from) = plain.resample();
    evaluation
}

/// Whether the successive differences of a series are small enough.
fn is_eligible(panel: &Panel, index: usize) -> bool {
    let values: Vec<f64> = panel
        .columns
        .iter()
        .map(|column| column[index])
        .filter(|value| value.is_finite())
        .collect();
    let mut steps: Vec<f64> = values
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).abs())
        .collect();
    !steps.is_empty() && median_in_place(&mut steps) / 0.954 < 1.04f64.ln()
}

/// The unmodified history, judged, with the state before each commit.
struct Plain<'a> {
    panel: &'a Panel,
    rule: &'a Rule,
    before: Vec<Judge<'a>>,
    judgements: Vec<Judgement>,
}

impl<'a> Plain<'a> {
    fn run(panel: &'a Panel, rule: &'a Rule) -> Self {
        let mut judge = Judge::new(&panel.series, rule);
        let mut before = Vec::new();
        let mut judgements = Vec::new();
        for column in &panel.columns {
            before.push(judge.clone());
            judgements.push(judge.step(column));
        }
        Self {
            panel,
            rule,
            before,
            judgements,
        }
    }

    fn describe(&self, path: &Path, panel: &Panel, eligible: usize, rule: &Rule) -> Evaluation {
        let shifts = || {
            self.judgements
                .iter()
                .flat_map(|judgement| &judgement.shifts)
        };
        let suspects = self
            .judgements
            .iter()
            .enumerate()
            .filter(|(_, judgement)| !judgement.suspicions.is_empty())
            .map(|(at, judgement)| {
                let names = judgement.suspicions.iter().map(|suspicion| {
                    let name = suspicion
                        .metric
                        .and_then(|index| panel.series.get(index))
                        .map_or("common", |series| &series.name);
                    format!(
                        "{name} {:+.1}%/{:.1}%",
                        percent(suspicion.size),
                        percent(suspicion.limit)
                    )
                });
                (at, names.collect())
            })
            .collect();
        Evaluation {
            path: path.to_owned(),
            commits: panel.columns.len(),
            judged: panel.columns.len().saturating_sub(rule.minimum_history),
            metrics: panel.series.len(),
            eligible_series: eligible,
            steps: STEPS_PERCENT
                .iter()
                .map(|percent| (*percent, Share::default()))
                .collect(),
            single_points: Share::default(),
            all_milliseconds: Share::default(),
            creeps: Share::default(),
            creeps_with_room: Share::default(),
            events: shifts()
                .map(|shift| describe_shift(shift, &panel.series))
                .collect(),
            regression_events: regression_events(shifts()),
            suspects,
            resampled_events: 0.0,
            resampled_from: 0,
        }
    }

    /// Whether an event that `counts` was called in the ten commits before a place.
    fn quiet_before(&self, place: usize, counts: impl Fn(&Shift) -> bool) -> bool {
        let first = place.saturating_sub(QUIET_BEFORE);
        !self.judgements[first..place]
            .iter()
            .flat_map(|judgement| &judgement.shifts)
            .any(counts)
    }

    fn place_range(&self) -> std::ops::Range<usize> {
        FIRST_PLACE..self.panel.columns.len().saturating_sub(2)
    }

    fn places(&self, panel: &Panel, eligible: &[usize]) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for &metric in eligible {
            for place in self.place_range() {
                let measured = panel.columns[place][metric].is_finite();
                let disturbs = |shift: &Shift| {
                    matches!(shift.scope, Scope::Common { .. }) || shift.names(metric)
                };
                if measured && self.quiet_before(place, disturbs) {
                    places.push((place, metric));
                }
            }
        }
        let mut random = SplitMix64::new(SEED);
        while places.len() > MAX_PLACES {
            places.swap_remove(random.below(places.len()));
        }
        places
    }

    /// Whether something that `is_it` is called in the commits from a place on, with `change` added to
    /// the values there.
    fn found(
        &self,
        place: usize,
        within: usize,
        change: impl Fn(usize, usize) -> f64,
        is_it: impl Fn(&Judgement) -> bool,
    ) -> bool {
        let mut judge = self.before[place].clone();
        let columns = self
            .panel
            .columns
            .iter()
            .skip(place)
            .take(within)
            .enumerate();
        for (after, column) in columns {
            let changed: Vec<f64> = column
                .iter()
                .enumerate()
                .map(|(metric, value)| value + change(metric, after))
                .collect();
            if is_it(&judge.step(&changed)) {
                return true;
            }
        }
        false
    }

    fn try_one(&self, place: usize, metric: usize, evaluation: &mut Evaluation) {
        let called = |judgement: &Judgement| {
            judgement
                .shifts
                .iter()
                .any(|shift| shift.size > 0.0 && shift.names(metric))
        };
        for (percent, share) in &mut evaluation.steps {
            let size = (1.0 + f64::from(*percent) / 100.0).ln();
            let step = |changed, _| if changed == metric { size } else { 0.0 };
            share.add(self.found(place, FOUND_WITHIN, step, called));
        }
        let point = |changed, _| if changed == metric { 1.15f64.ln() } else { 0.0 };
        evaluation
            .single_points
            .add(self.found(place, 1, point, |judgement| {
                called(judgement)
                    || judgement
                        .suspicions
                        .iter()
                        .any(|suspect| suspect.metric == Some(metric))
            }));
        let creep = |changed, after: usize| {
            if changed == metric {
                (after + 1) as f64 * 1.01f64.ln()
            } else {
                0.0
            }
        };
        let crept = self.found(place, CREEP_WITHIN, creep, called);
        evaluation.creeps.add(crept);
        if place + CREEP_WITHIN <= self.panel.columns.len() {
            evaluation.creeps_with_room.add(crept);
        }
    }

    fn try_all(&self, evaluation: &mut Evaluation) {
        let common = |shift: &Shift| matches!(shift.scope, Scope::Common { .. });
        for place in self.place_range() {
            if !self.quiet_before(place, common) {
                continue;
            }
            let step = |metric: usize, _| {
                if self.panel.series[metric].unit == "ms" {
                    1.15f64.ln()
                } else {
                    0.0
                }
            };
            let found = self.found(place, FOUND_WITHIN, step, |judgement| {
                judgement
                    .shifts
                    .iter()
                    .any(|shift| shift.size > 0.0 && common(shift))
            });
            evaluation.all_milliseconds.add(found);
        }
    }

    /// Whole commits are drawn anew, so that nothing but chance orders them: every regression is false.
    /// Drawn from after the last common event, since commits of two levels in any order are flips.
    fn resample(&self) -> (f64, usize) {
        let from = self
            .judgements
            .iter()
            .rposition(|judgement| {
                judgement
                    .shifts
                    .iter()
                    .any(|shift| matches!(shift.scope, Scope::Common { .. }))
            })
            .unwrap_or(0);
        let pool = &self.panel.columns[from..];
        let mut random = SplitMix64::new(SEED);
        let mut events = 0;
        for _ in 0..DRAWS {
            let mut judge = Judge::new(&self.panel.series, self.rule);
            let mut shifts = Vec::new();
            for _ in 0..self.rule.minimum_history + DRAWN_JUDGED {
                shifts.extend(judge.step(&pool[random.below(pool.len())]).shifts);
            }
                for s in shifts.iter().filter(|s| s.size > 0.0) {
                    eprintln!(
                        "FALSE {} {:.1} {:.1}",
                        describe_shift(s, &self.panel.series).scope,
                        percent(s.size),
                        percent(s.limit)
                    );
                }
            }
            events += regression_events(shifts.iter());
        }
        (events as f64 / DRAWS as f64, from)
    }
}

/// Regressions that are called within two commits of an event's first are one event.
pub(crate) fn regression_events<'a>(shifts: impl Iterator<Item = &'a Shift>) -> usize {
    let mut events = 0;
    let mut first: Option<usize> = None;
    for shift in shifts.filter(|shift| shift.size > 0.0) {
        if first.is_none_or(|first| shift.called > first + 2) {
            events += 1;
            first = Some(shift.called);
        }
    }
    events
}

fn describe_shift(shift: &Shift, series: &[Series]) -> EvaluatedEvent {
    let scope = match &shift.scope {
        Scope::Metric(index) => series
            .get(*index)
            .map(|series| series.name.clone())
            .unwrap_or_default(),
        Scope::Common {
            unit,
            members,
            judged,
        } => format!(
            "common to {} of {judged} {}metrics",
            members.len(),
            unit.as_ref()
                .map(|unit| format!("{unit} "))
                .unwrap_or_default()
        ),
    };
    EvaluatedEvent {
        start: shift.start,
        called: shift.called,
        regression: shift.size > 0.0,
        scope,
        percent: percent(shift.size),
    }
}

fn percent(size: f64) -> f64 {
    (size.exp() - 1.0) * 100.0
}

impl Evaluation {
    /// The figures as text.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} commits, {} metrics, {} eligible series\n",
            self.path.display(),
            self.commits,
            self.metrics,
            self.eligible_series
        );
        for event in &self.events {
            text.push_str(&format!(
                "  event: {} {:+.1} % since {} (called at {}) {}\n",
                if event.regression {
                    "regression"
                } else {
                    "improvement"
                },
                event.percent,
                event.start,
                event.called,
                event.scope
            ));
        }
        text.push_str(&format!(
            "  regression events: {}\n",
            self.regression_events
        ));
        text.push_str(&format!(
            "  suspects: {} of {}\n",
            self.suspects.len(),
            self.judged
        ));
        for (at, names) in &self.suspects {
            text.push_str(&format!("    {at}: {}\n", names.join(", ")));
        }
        let share = |name: &str, share: Share| match share.percent() {
            Some(percent) => format!(
                "  {name}: {percent:.1} % ({} of {})\n",
                share.found, share.of
            ),
            None => String::new(),
        };
        for (percent, found) in &self.steps {
            text.push_str(&share(&format!("+{percent} %"), *found));
        }
        text.push_str(&share("single +15 %", self.single_points));
        text.push_str(&share("all ms +15 %", self.all_milliseconds));
        text.push_str(&share("creep", self.creeps));
        text.push_str(&share("creep with room", self.creeps_with_room));
        text.push_str(&format!(
            "  resampled from {}: {:.2} events\n",
            self.resampled_from, self.resampled_events
        ));
        text
    }
}
