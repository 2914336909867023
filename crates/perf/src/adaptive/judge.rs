//! Judging one commit after the other: events, suspects, and what becomes the new level.

use super::model::{Model, Reading, factor_of, least_shifted, noise};
use super::panel::{Host, Series};
use super::robust::median_in_place;
use super::rule::Rule;

/// Who shifted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scope {
    /// One metric, by its index.
    Metric(usize),
    /// What metrics share; of one unit only where one is given.
    Common {
        unit: Option<String>,
        members: Vec<usize>,
        judged: usize,
    },
}

/// A level shift.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shift {
    pub(crate) scope: Scope,
    /// First commit of the new level.
    pub(crate) start: usize,
    /// The commit at which it was called.
    pub(crate) called: usize,
    /// How much, as a logarithm; above zero is worse.
    pub(crate) size: f64,
    /// Noise of one point.
    pub(crate) sigma: f64,
    /// What it had to exceed.
    pub(crate) limit: f64,
    /// One metric's newest value as it was expected.
    pub(crate) expected: Option<f64>,
    /// It came together with another kind of host.
    pub(crate) host_changed: bool,
}

impl Shift {
    pub(crate) fn names(&self, index: usize) -> bool {
        match &self.scope {
            Scope::Metric(metric) => *metric == index,
            Scope::Common { members, .. } => members.contains(&index),
        }
    }
}

/// A single point that one more measurement must confirm.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Suspicion {
    /// The metric; `None`: what all share.
    pub(crate) metric: Option<usize>,
    /// What all metrics of one unit share.
    pub(crate) unit: Option<String>,
    /// How much, as a logarithm.
    pub(crate) size: f64,
    /// Noise of one point.
    pub(crate) sigma: f64,
    /// What it had to exceed.
    pub(crate) limit: f64,
    /// The metric's value as it was expected.
    pub(crate) expected: Option<f64>,
}

/// What one commit brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) shifts: Vec<Shift>,
    pub(crate) suspicions: Vec<Suspicion>,
    /// The factor lies at a level that the history knows, other than the present one.
    pub(crate) flip: bool,
    /// The newest factor above its level.
    pub(crate) factor_above_level: f64,
}

/// The whole state: cheap to copy, so that a what-if can start from any commit.
#[derive(Clone, Debug)]
pub(crate) struct Judge<'a> {
    rule: Rule,
    series: &'a [Series],
    pub(crate) model: Model,
    factor_start: usize,
    units: Vec<UnitTrack>,
    next: usize,
}

/// What the metrics of one unit share beyond the factor.
#[derive(Clone, Debug)]
struct UnitTrack {
    unit: String,
    start: usize,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(series: &'a [Series], rule: &Rule) -> Self {
        let rule = rule.for_family(series.len());
        let mut units: Vec<UnitTrack> = Vec::new();
        let sharing = || series.iter().filter(|series| series.shares);
        for one in sharing() {
            let members = sharing().filter(|other| other.unit == one.unit).count();
            let others = sharing().count() - members;
            if members >= rule.group_minimum
                && others >= rule.group_minimum
                && !units.iter().any(|known| known.unit == one.unit)
            {
                units.push(UnitTrack {
                    unit: one.unit.clone(),
                    start: 0,
                });
            }
        }
        Self {
            model: Model::new(series, &rule),
            rule,
            series,
            factor_start: 0,
            units,
            next: 0,
        }
    }

    /// Judges the next commit; `host` is the kind of host that it was measured on, where that is known.
    pub(crate) fn step(&mut self, values: &[f64], host: Host) -> Judgement {
        let at = self.next;
        self.next += 1;
        self.model.push(at, values, host, self.series, &self.rule);
        let mut judgement = Judgement::default();
        if at < self.rule.minimum_history {
            return judgement;
        }
        self.judge_units(at, &mut judgement);
        self.judge_factor(at, &mut judgement);
        self.judge_metrics(at, &mut judgement);
        judgement
    }

    fn judge_units(&mut self, at: usize, judgement: &mut Judgement) {
        for place in 0..self.units.len() {
            let unit = self.units[place].unit.clone();
            let values = self.unit_values(&unit);
            let start = self.units[place].start;
            let Some(reading) = self.read_shared(&values, start) else {
                continue;
            };
            let error = self.shared_loading_error();
            let limit =
                (self.rule.common_sigmas * reading.sigma.hypot(error)).max(self.rule.common_floor);
            if reading.shift.abs() <= limit {
                let limit = (self.rule.suspect_sigmas * reading.sigma.hypot(error))
                    .max(self.rule.suspect_floor);
                if reading.newest > limit {
                    judgement.suspicions.push(Suspicion {
                        metric: None,
                        unit: Some(unit),
                        size: reading.newest,
                        sigma: reading.sigma,
                        limit,
                        expected: None,
                    });
                }
                continue;
            }
            let begin = start_of_shift(&values, start, reading.shift);
            let members = self.members(begin, reading.shift, Some(&unit));
            for index in 0..self.series.len() {
                if self.series[index].unit == unit && self.series[index].shares {
                    self.model.realign(index, begin, reading.shift);
                }
            }
            let host_changed = self.model.host_changed(start, begin);
            self.model.fit(self.series, &self.rule);
            self.units[place].start = begin;
            judgement.shifts.push(Shift {
                scope: Scope::Common {
                    judged: members.1,
                    members: members.0,
                    unit: Some(unit),
                },
                start: begin,
                called: at,
                size: reading.shift,
                sigma: reading.sigma,
                limit,
                expected: None,
                host_changed,
            });
        }
    }

    /// What the metrics of a unit share at each commit beyond what the others say the factor is.
    fn unit_values(&self, unit: &str) -> Vec<(usize, f64)> {
        let tracks = &self.model.tracks;
        let mut pairs = Vec::new();
        let mut scratch = Vec::new();
        let mut values = Vec::new();
        for column in &self.model.columns {
            let outside = factor_of(&column.values, tracks, &self.rule, &mut pairs, |index| {
                self.series[index].shares && self.series[index].unit != unit
            });
            let Some(outside) = outside else { continue };
            scratch.clear();
            for (index, track) in tracks.iter().enumerate() {
                let value = column.values[index];
                if self.series[index].unit == unit && value.is_finite() {
                    scratch.push(value - track.base - track.loading * outside);
                }
            }
            if scratch.len() >= self.rule.group_minimum {
                values.push((column.at, median_in_place(&mut scratch)));
            }
        }
        values
    }

    /// How wrong the factor's part may be while loadings are not known yet.
    fn shared_loading_error(&self) -> f64 {
        let tested = self
            .model
            .columns
            .len()
            .saturating_sub(self.rule.test_points);
        let mut newest: Vec<f64> = self
            .model
            .columns
            .iter()
            .skip(tested)
            .map(|column| column.factor)
            .collect();
        let mut before: Vec<f64> = self
            .model
            .columns
            .iter()
            .take(tested)
            .map(|column| column.factor)
            .collect();
        let moved = median_in_place(&mut newest) - median_in_place(&mut before);
        let mut deviations: Vec<f64> = self
            .model
            .tracks
            .iter()
            .zip(self.series)
            .filter(|(_, series)| series.shares)
            .map(|(track, _)| track.loading_variance.sqrt())
            .collect();
        moved.abs() * median_in_place(&mut deviations)
    }

    /// A shared series' newest points against its level.
    fn read_shared(&self, values: &[(usize, f64)], start: usize) -> Option<Reading> {
        let rule = self.rule;
        let held: Vec<f64> = values
            .iter()
            .filter(|(at, _)| *at >= start)
            .map(|(_, value)| *value)
            .collect();
        let tested = held.len().checked_sub(rule.test_points)?;
        if tested < rule.minimum_level_points {
            return None;
        }
        let first = tested.saturating_sub(rule.level_points);
        let level = median_in_place(&mut held[first..tested].to_vec());
        let mut scratch = Vec::new();
        let shift = median_in_place(&mut held[tested..].to_vec()) - level;
        Some(Reading {
            level,
            newest: held[held.len() - 1] - level,
            shift,
            least: least_shifted(&held[tested..], level, shift),
            sigma: noise(&held[..tested], &mut scratch, &rule),
            newest_loading_error: 0.0,
            shift_loading_error: 0.0,
        })
    }

    fn judge_factor(&mut self, at: usize, judgement: &mut Judgement) {
        let rule = self.rule;
        let values: Vec<(usize, f64)> = self
            .model
            .columns
            .iter()
            .map(|column| (column.at, column.factor))
            .collect();
        let Some(reading) = self.read_shared(&values, self.factor_start) else {
            return;
        };
        let limit = (rule.common_sigmas * reading.sigma).max(rule.common_floor);
        judgement.factor_above_level = reading.newest;
        judgement.flip = self.is_known(&values, reading.level + reading.newest, reading.newest)
            && reading.newest.abs() > rule.common_floor;
        if reading.shift.abs() > limit
            && !self.is_known(&values, reading.level + reading.shift, reading.shift)
        {
            let begin = start_of_shift(&values, self.factor_start, reading.shift);
            let members = self.members(begin, reading.shift, None);
            let host_changed = self.model.host_changed(self.factor_start, begin);
            self.factor_start = begin;
            judgement.shifts.push(Shift {
                scope: Scope::Common {
                    unit: None,
                    judged: members.1,
                    members: members.0,
                },
                start: begin,
                called: at,
                size: reading.shift,
                sigma: reading.sigma,
                limit,
                expected: None,
                host_changed,
            });
            return;
        }
        let limit = (rule.suspect_sigmas * reading.sigma).max(rule.suspect_floor);
        if reading.newest > limit
            && !self.is_known(&values, reading.level + reading.newest, reading.newest)
        {
            judgement.suspicions.push(Suspicion {
                metric: None,
                unit: None,
                size: reading.newest,
                sigma: reading.sigma,
                limit,
                expected: None,
            });
        }
    }

    /// Whether at least two earlier commits were at least as far to this side of the level, and the
    /// newest ones have not stayed there long enough to count. On one and the same host a level does
    /// not come back by itself, so there it counts at once.
    fn is_known(&self, values: &[(usize, f64)], value: f64, side: f64) -> bool {
        if self.model.same_host(self.factor_start, &self.rule) {
            return false;
        }
        let sign = side.signum();
        let tested = values.len().saturating_sub(self.rule.test_points);
        let there =
            |(_, other): &&(usize, f64)| sign * (value - *other) <= self.rule.known_level_margin;
        let before = values[..tested].iter().filter(there).count();
        let run = values.iter().rev().take_while(there).count();
        before >= 2 && run < self.rule.known_level_run
    }

    /// The metrics whose own newest points moved with a common shift, and how many could have.
    fn members(&self, begin: usize, shift: f64, unit: Option<&str>) -> (Vec<usize>, usize) {
        let mut members = Vec::new();
        let mut judged = 0;
        for (index, series) in self.series.iter().enumerate() {
            if !series.shares || unit.is_some_and(|unit| series.unit != unit) {
                continue;
            }
            let side = |new: bool| {
                let mut values: Vec<f64> = self
                    .model
                    .columns
                    .iter()
                    .filter(|column| (column.at >= begin) == new)
                    .map(|column| column.values[index])
                    .filter(|value| value.is_finite())
                    .collect();
                (!values.is_empty()).then(|| median_in_place(&mut values))
            };
            if let (Some(before), Some(after)) = (side(false), side(true)) {
                judged += 1;
                if (after - before) / shift > 0.5 {
                    members.push(index);
                }
            }
        }
        (members, judged)
    }

    fn judge_metrics(&mut self, at: usize, judgement: &mut Judgement) {
        let rule = self.rule;
        let mut moved = false;
        for index in 0..self.series.len() {
            let Some(reading) = self.model.reading(index, &rule) else {
                continue;
            };
            let newest = self.model.columns.back().map(|column| column.values[index]);
            let expected = newest.map(|newest| newest - reading.newest);
            let sigma = reading.sigma.hypot(reading.shift_loading_error);
            let limit = (rule.shift_sigmas * sigma).max(rule.shift_floor);
            let all_moved = reading.least * reading.shift.signum() > rule.least_part * limit;
            // What the newest point does beyond a shift that is called is another matter.
            let mut newest_above = reading.newest;
            if reading.shift.abs() > limit && all_moved {
                newest_above -= reading.shift.max(0.0);
                let level_start = self.model.tracks[index].level_start;
                let begin = start_of_shift(&self.residuals(index), level_start, reading.shift);
                judgement.shifts.push(Shift {
                    scope: Scope::Metric(index),
                    start: begin,
                    called: at,
                    size: reading.shift,
                    sigma,
                    limit,
                    expected,
                    host_changed: self.model.host_changed(level_start, begin),
                });
                self.model.realign(index, begin, reading.shift);
                moved = true;
            }
            let sigma = reading.sigma.hypot(reading.newest_loading_error);
            let limit = (rule.suspect_sigmas * sigma).max(rule.suspect_floor);
            if newest_above > limit {
                judgement.suspicions.push(Suspicion {
                    metric: Some(index),
                    unit: None,
                    size: newest_above,
                    sigma,
                    limit,
                    expected: expected.map(|level| level + reading.newest - newest_above),
                });
            }
        }
        if moved {
            self.model.fit(self.series, &rule);
        }
    }

    fn residuals(&self, index: usize) -> Vec<(usize, f64)> {
        let track = &self.model.tracks[index];
        self.model
            .columns
            .iter()
            .filter(|column| column.values[index].is_finite())
            .map(|column| (column.at, column.residual(index, track)))
            .collect()
    }
}

/// The commit at which a shift that was called at the last one began: the split that leaves the least
/// absolute deviation around the two medians, among the newest ten points.
fn start_of_shift(values: &[(usize, f64)], level_start: usize, shift: f64) -> usize {
    let held: Vec<(usize, f64)> = values
        .iter()
        .copied()
        .filter(|(at, _)| *at >= level_start)
        .collect();
    let last = held.len();
    let mut best = (f64::INFINITY, last.saturating_sub(1));
    for split in last.saturating_sub(10).max(1)..last {
        let cost = |part: &[(usize, f64)]| {
            let mut values: Vec<f64> = part.iter().map(|(_, value)| *value).collect();
            let middle = median_in_place(&mut values);
            (
                middle,
                values
                    .iter()
                    .map(|value| (value - middle).abs())
                    .sum::<f64>(),
            )
        };
        let (before, left) = cost(&held[..split]);
        let (after, right) = cost(&held[split..]);
        // A split after which the values lie on the other side explains nothing.
        if (after - before) * shift > 0.0 && left + right < best.0 {
            best = (left + right, split);
        }
    }
    held.get(best.1).map_or(0, |(at, _)| *at)
}
