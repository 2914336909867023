//! Putting changes into a history and seeing whether they are found.

use std::ops::Range;
use std::thread;

use super::random::SplitMix64;
use super::{Evaluation, Share, regression_events};
use crate::adaptive::judge::{Judge, Judgement, Scope, Shift};
use crate::adaptive::panel::Panel;
use crate::adaptive::robust::median_in_place;
use crate::adaptive::rule::Rule;

/// Changes that are put into one metric, in percent.
pub(super) const STEPS_PERCENT: [u32; 3] = [10, 15, 25];
/// Commits within which a step must be called.
const FOUND_WITHIN: usize = 3;
/// Commits within which a creep must be called.
const CREEP_WITHIN: usize = 15;
/// Most places that are tried; beyond it a seeded sample is.
const MAX_PLACES: usize = 5000;
/// The first commit that something is put at: the thirteenth.
const FIRST_PLACE: usize = 12;
/// Commits at the end that nothing is put at, so that three commits can call it.
const LAST_PLACES: usize = 2;
/// A place has no event in this many commits before it.
const QUIET_BEFORE: usize = 10;
/// Resampled histories.
pub(super) const DRAWS: usize = 200;
/// Judged commits of a resampled history.
const DRAWN_JUDGED: usize = 40;
/// Every sample and draw follows from this number.
const SEED: u64 = 8;

/// Whether the successive differences of a series are small enough for a percentage to mean something:
/// their median, as the deviation of normal noise, is below 4 %.
pub(super) fn is_eligible(panel: &Panel, index: usize) -> bool {
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
pub(super) struct Plain<'a> {
    panel: &'a Panel,
    rule: &'a Rule,
    before: Vec<Judge<'a>>,
    pub(super) judgements: Vec<Judgement>,
}

/// What was found at some places.
#[derive(Clone, Copy, Default)]
struct Found {
    steps: [Share; STEPS_PERCENT.len()],
    single_points: Share,
    creeps: Share,
    creeps_with_room: Share,
}

impl<'a> Plain<'a> {
    pub(super) fn run(panel: &'a Panel, rule: &'a Rule) -> Self {
        let mut judge = Judge::new(&panel.series, rule);
        let mut before = Vec::new();
        let mut judgements = Vec::new();
        for (column, host) in panel.columns.iter().zip(&panel.hosts) {
            before.push(judge.clone());
            judgements.push(judge.step(column, *host));
        }
        Self {
            panel,
            rule,
            before,
            judgements,
        }
    }

    /// Whether no event that `counts` was called in the ten commits before a place.
    fn quiet_before(&self, place: usize, counts: impl Fn(&Shift) -> bool) -> bool {
        let first = place.saturating_sub(QUIET_BEFORE);
        !self.judgements[first..place]
            .iter()
            .flat_map(|judgement| &judgement.shifts)
            .any(counts)
    }

    fn place_range(&self) -> Range<usize> {
        FIRST_PLACE..self.panel.columns.len().saturating_sub(LAST_PLACES)
    }

    /// Every place and metric that something can be put at; a sample where there are too many.
    fn places(&self, eligible: &[usize]) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for &metric in eligible {
            for place in self.place_range() {
                let measured = self.panel.columns[place][metric].is_finite();
                let disturbs = |shift: &Shift| is_common(shift) || shift.names(metric);
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
        (place..self.panel.columns.len()).take(within).any(|at| {
            let changed: Vec<f64> = self.panel.columns[at]
                .iter()
                .enumerate()
                .map(|(metric, value)| value + change(metric, at - place))
                .collect();
            is_it(&judge.step(&changed, self.panel.hosts[at]))
        })
    }

    /// Puts steps, points and creeps into one metric at every eligible place.
    pub(super) fn try_single_metrics(&self, eligible: &[usize], evaluation: &mut Evaluation) {
        let places = self.places(eligible);
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let parts = places.chunks(places.len().div_ceil(workers).max(1));
        let found: Vec<Found> = thread::scope(|scope| {
            let running: Vec<_> = parts
                .map(|part| {
                    scope.spawn(move || {
                        let mut found = Found::default();
                        for (place, metric) in part {
                            self.try_metric(*place, *metric, &mut found);
                        }
                        found
                    })
                })
                .collect();
            // A worker that panicked has said so; what it would have found is missing.
            running
                .into_iter()
                .filter_map(|worker| worker.join().ok())
                .collect()
        });
        for part in found {
            for ((_, sum), share) in evaluation.steps.iter_mut().zip(part.steps) {
                sum.join(share);
            }
            evaluation.single_points.join(part.single_points);
            evaluation.creeps.join(part.creeps);
            evaluation.creeps_with_room.join(part.creeps_with_room);
        }
    }

    fn try_metric(&self, place: usize, metric: usize, found: &mut Found) {
        let called = |judgement: &Judgement| {
            judgement
                .shifts
                .iter()
                .any(|shift| shift.size > 0.0 && shift.names(metric))
        };
        let only = |changed: usize, size: f64| if changed == metric { size } else { 0.0 };
        for (percent, share) in STEPS_PERCENT.iter().zip(&mut found.steps) {
            let size = (1.0 + f64::from(*percent) / 100.0).ln();
            share.add(self.found(
                place,
                FOUND_WITHIN,
                |changed, _| only(changed, size),
                called,
            ));
        }
        let point = |changed, _| only(changed, 1.15f64.ln());
        found
            .single_points
            .add(self.found(place, 1, point, |judgement| {
                let suspected = judgement
                    .suspicions
                    .iter()
                    .any(|suspicion| suspicion.metric == Some(metric));
                suspected || called(judgement)
            }));
        let creep = |changed, after: usize| only(changed, (after + 1) as f64 * 1.01f64.ln());
        let crept = self.found(place, CREEP_WITHIN, creep, called);
        found.creeps.add(crept);
        if place + CREEP_WITHIN <= self.panel.columns.len() {
            found.creeps_with_room.add(crept);
        }
    }

    /// Puts +15 % into all millisecond metrics at once, at every place without a common event before.
    pub(super) fn try_all_milliseconds(&self, evaluation: &mut Evaluation) {
        let slower = |metric: usize, _| {
            if self.panel.series[metric].unit == "ms" {
                1.15f64.ln()
            } else {
                0.0
            }
        };
        for place in self
            .place_range()
            .filter(|place| self.quiet_before(*place, is_common))
        {
            let found = self.found(place, FOUND_WITHIN, slower, |judgement| {
                judgement
                    .shifts
                    .iter()
                    .any(|shift| shift.size > 0.0 && is_common(shift))
            });
            evaluation.all_milliseconds.add(found);
        }
    }

    /// Mean regression events of histories whose commits are drawn from this one's: nothing but chance
    /// orders them, so every regression is false. Drawn from after the last common event, since the
    /// commits of two levels in any order are nothing but flips. Also says from where.
    pub(super) fn resample(&self, draws: usize) -> (f64, usize) {
        let from = self
            .judgements
            .iter()
            .rposition(|judgement| judgement.shifts.iter().any(is_common))
            .unwrap_or(0);
        let pool = &self.panel.columns[from..];
        let mut random = SplitMix64::new(SEED);
        let mut events = 0;
        for _ in 0..draws {
            let mut judge = Judge::new(&self.panel.series, self.rule);
            let mut shifts = Vec::new();
            for _ in 0..self.rule.minimum_history + DRAWN_JUDGED {
                shifts.extend(judge.step(&pool[random.below(pool.len())], None).shifts);
            }
            events += regression_events(shifts.iter(), self.rule);
        }
        (events as f64 / draws as f64, from)
    }
}

fn is_common(shift: &Shift) -> bool {
    matches!(shift.scope, Scope::Common { .. })
}
