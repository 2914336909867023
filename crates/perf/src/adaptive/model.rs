//! What the last commits say about every metric: its own level and noise, and what it shares.
//!
//! A value is modelled as `level + loading * factor + noise`, in logarithms. The *factor* is one
//! number per commit: what the host, the toolchain or a broad change did to everything. The *loading*
//! says how much of it a metric feels. What is left over, the *residual*, is the metric's own doing.

use std::collections::VecDeque;

use super::panel::{Host, Series};
use super::robust::{median_in_place, quantile_in_place, weighted_median_in_place};
use super::rule::Rule;

/// The values of one commit, with every older one brought to the newest level of its metric.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// The commit's place in the history.
    pub(crate) at: usize,
    /// One value per series; NaN where it was not measured.
    pub(crate) values: Vec<f64>,
    /// The host that it was measured on.
    pub(crate) host: Host,
    /// What all metrics share at this commit.
    pub(crate) factor: f64,
    /// The known worse factor that part of the metrics were measured at, where the host changed
    /// within the run.
    pub(crate) other_factor: Option<f64>,
}

impl Column {
    /// A metric's value without the factor's part. Where the host changed within the run, a metric
    /// that lies nearer to the other level was measured there.
    pub(crate) fn residual(&self, index: usize, track: &Track) -> f64 {
        let value = self.values[index];
        let residual = value - track.loading * self.factor;
        match self.other_factor {
            Some(other) if residual - track.base > 0.5 * track.loading * (other - self.factor) => {
                value - track.loading * other
            }
            _ => residual,
        }
    }
}

/// What is known of one metric.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// How much of the factor it feels.
    pub(crate) loading: f64,
    /// Variance of the loading.
    pub(crate) loading_variance: f64,
    /// Its value at factor zero.
    pub(crate) base: f64,
    /// Its noise, without the factor's part.
    pub(crate) sigma: f64,
    /// First commit of its present level.
    pub(crate) level_start: usize,
    /// Rows that it had so far.
    pub(crate) rows: usize,
}

/// One metric's newest points against its level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The median of the level's points, without the factor's part.
    pub(crate) level: f64,
    /// The newest residual above the level.
    pub(crate) newest: f64,
    /// The median of the newest points above the level.
    pub(crate) shift: f64,
    /// The newest point that is least shifted to the shift's side, above the level.
    pub(crate) least: f64,
    /// Noise of one point.
    pub(crate) sigma: f64,
    /// Uncertainty of `newest` from not knowing the loading.
    pub(crate) newest_loading_error: f64,
    /// Uncertainty of `shift` from not knowing the loading.
    pub(crate) shift_loading_error: f64,
}

/// The commits that are looked back at, and what they say.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) columns: VecDeque<Column>,
    pub(crate) tracks: Vec<Track>,
}

impl Model {
    pub(crate) fn new(series: &[Series], rule: &Rule) -> Self {
        let track = Track {
            loading: 1.0,
            loading_variance: rule.loading_spread * rule.loading_spread,
            base: f64::NAN,
            sigma: 0.02,
            level_start: 0,
            rows: 0,
        };
        Self {
            columns: VecDeque::new(),
            tracks: vec![track; series.len()],
        }
    }

    /// Takes the next commit's values and learns from them.
    pub(crate) fn push(
        &mut self,
        at: usize,
        values: &[f64],
        host: Host,
        series: &[Series],
        rule: &Rule,
    ) {
        for (track, value) in self.tracks.iter_mut().zip(values) {
            if value.is_finite() {
                track.rows += 1;
                if track.base.is_nan() {
                    track.base = *value;
                    track.level_start = at;
                }
            }
        }
        self.columns.push_back(Column {
            at,
            values: values.to_vec(),
            host,
            factor: 0.0,
            other_factor: None,
        });
        while self.columns.len() > rule.lookback() {
            self.columns.pop_front();
        }
        self.fit(series, rule);
        self.find_other_factor(series, rule);
    }

    /// Finds out whether the host changed within the newest run: several metrics lie where a worse
    /// factor that the history knows would have put them.
    fn find_other_factor(&mut self, series: &[Series], rule: &Rule) {
        let Some((newest, before)) = self.columns.make_contiguous().split_last_mut() else {
            return;
        };
        let mut factors: Vec<f64> = before.iter().map(|column| column.factor).collect();
        factors.sort_unstable_by(|left, right| right.total_cmp(left));
        let Some(&known) = factors.get(1) else {
            return;
        };
        let step = known - newest.factor;
        if step < rule.mixed_step {
            return;
        }
        let nearer = |(index, track): (usize, &Track)| {
            let residual = newest.values[index] - track.base - track.loading * newest.factor;
            series[index].shares && residual > (0.5 * track.loading * step).max(2.5 * track.sigma)
        };
        let count = self
            .tracks
            .iter()
            .enumerate()
            .filter(|track| nearer(*track))
            .count();
        if count >= rule.mixed_metrics {
            newest.other_factor = Some(known);
        }
    }

    /// Learns factors, loadings, bases and noise from the commits that are held.
    pub(crate) fn fit(&mut self, series: &[Series], rule: &Rule) {
        self.fit_factors(series, rule);
        self.fit_tracks(series, rule);
        self.fit_factors(series, rule);
    }

    fn fit_factors(&mut self, series: &[Series], rule: &Rule) {
        let mut pairs = Vec::with_capacity(series.len());
        for column in &mut self.columns {
            column.factor = factor_of(&column.values, &self.tracks, rule, &mut pairs, |index| {
                series[index].shares
            })
            .unwrap_or(0.0);
        }
    }

    fn fit_tracks(&mut self, series: &[Series], rule: &Rule) {
        let mut points = Vec::with_capacity(self.columns.len());
        let mut residuals = Vec::with_capacity(self.columns.len());
        let mut scratch = Vec::with_capacity(self.columns.len());
        for (index, track) in self.tracks.iter_mut().enumerate() {
            points.clear();
            points.extend(
                self.columns
                    .iter()
                    .map(|column| (column.factor, column.values[index]))
                    .filter(|(_, value)| value.is_finite()),
            );
            let learned = points.len().saturating_sub(rule.test_points);
            points.truncate(learned.max(1).min(points.len()));
            if points.is_empty() {
                continue;
            }
            if series[index].shares {
                fit_line(&points, track, rule);
            } else {
                track.loading = 0.0;
                track.loading_variance = 0.0;
                scratch.clear();
                scratch.extend(points.iter().map(|(_, value)| *value));
                track.base = median_in_place(&mut scratch);
            }
            residuals.clear();
            residuals.extend(
                points
                    .iter()
                    .map(|(factor, value)| value - track.base - track.loading * factor),
            );
            track.sigma = noise(&residuals, &mut scratch, rule);
        }
    }

    /// The newest points of a metric against its level; `None` where it was not measured at the
    /// newest commit or has too few points.
    pub(crate) fn reading(&self, index: usize, rule: &Rule) -> Option<Reading> {
        let track = self.tracks.get(index)?;
        let newest = self.columns.back()?;
        if !newest.values[index].is_finite() || track.rows <= rule.minimum_history {
            return None;
        }
        let mut residuals = Vec::with_capacity(self.columns.len());
        let mut factors = Vec::with_capacity(self.columns.len());
        let mut plain = Vec::with_capacity(self.columns.len());
        for column in self
            .columns
            .iter()
            .filter(|column| column.values[index].is_finite())
        {
            if column.at >= track.level_start {
                residuals.push(column.residual(index, track));
                plain.push(column.values[index] - track.loading * column.factor);
                factors.push(column.factor);
            }
        }
        let tested = residuals.len().checked_sub(rule.test_points)?;
        if tested < rule.minimum_level_points {
            return None;
        }
        let first = tested.saturating_sub(rule.level_points);
        let level = median_in_place(&mut residuals[first..tested].to_vec());
        let factor_level = median_in_place(&mut factors[first..tested].to_vec());
        let deviation = track.loading_variance.sqrt();
        let last = residuals.len() - 1;
        let shift = median_in_place(&mut residuals[tested..].to_vec()) - level;
        let error = |factor: f64| (factor - factor_level).abs() * deviation;
        Some(Reading {
            level,
            newest: residuals[last] - level,
            newest_loading_error: error(factors[last]),
            shift_loading_error: error(median_in_place(&mut factors[tested..].to_vec())),
            shift,
            least: least_shifted(&plain[tested..], level, shift),
            sigma: track.sigma,
        })
    }

    /// Whether the newest points and most of the level before them were measured on one known host.
    pub(crate) fn same_host(&self, level_start: usize, rule: &Rule) -> bool {
        let tested = self.columns.len().saturating_sub(rule.test_points);
        let Some(newest) = self.columns.back().and_then(|column| column.host) else {
            return false;
        };
        let same = |column: &&Column| column.host == Some(newest);
        let level = || {
            self.columns
                .iter()
                .take(tested)
                .filter(|column| column.at >= level_start)
        };
        self.columns.iter().skip(tested).all(|column| same(&column))
            && 2 * level().filter(same).count() > level().count()
    }

    /// Whether every commit from `begin` on was measured on a known host that none before it, since the
    /// level's start, was measured on.
    pub(crate) fn host_changed(&self, level_start: usize, begin: usize) -> bool {
        let hosts = |new: bool| {
            self.columns
                .iter()
                .filter(move |column| column.at >= level_start && (column.at >= begin) == new)
                .map(|column| column.host)
        };
        let Some(newest) = self.columns.back().and_then(|column| column.host) else {
            return false;
        };
        hosts(true).all(|host| host == Some(newest))
            && hosts(false).all(|host| host.is_some_and(|host| host != newest))
    }

    /// Brings the older values of a metric to its new level, which starts at a commit.
    pub(crate) fn realign(&mut self, index: usize, start: usize, shift: f64) {
        for column in self.columns.iter_mut().filter(|column| column.at < start) {
            column.values[index] += shift;
        }
        let track = &mut self.tracks[index];
        track.base += shift;
        track.level_start = start;
    }
}

/// The weighted median of what each metric that `takes_part` says the factor is.
pub(crate) fn factor_of(
    values: &[f64],
    tracks: &[Track],
    rule: &Rule,
    pairs: &mut Vec<(f64, f64)>,
    takes_part: impl Fn(usize) -> bool,
) -> Option<f64> {
    pairs.clear();
    for (index, (value, track)) in values.iter().zip(tracks).enumerate() {
        // A loading near zero says nothing about the factor, and would divide by nothing.
        if value.is_finite() && takes_part(index) && track.loading > 0.2 {
            let weight = track.loading / track.sigma.max(2.0 * rule.sigma_floor);
            pairs.push(((value - track.base) / track.loading, weight));
        }
    }
    (pairs.len() >= rule.group_minimum).then(|| weighted_median_in_place(pairs))
}

/// Of the tested points, the one that is least shifted to the shift's side, above the level.
pub(crate) fn least_shifted(tested: &[f64], level: f64, shift: f64) -> f64 {
    let sign = shift.signum();
    sign * tested
        .iter()
        .map(|value| sign * (value - level))
        .fold(f64::INFINITY, f64::min)
}

/// Loading and base of one metric by least squares, with a prior on the loading and outliers clipped.
fn fit_line(points: &[(f64, f64)], track: &mut Track, rule: &Rule) {
    let count = points.len() as f64;
    let prior_variance = rule.loading_spread * rule.loading_spread;
    for _ in 0..2 {
        let clip = 2.5 * track.sigma;
        let (mut sum_x, mut sum_y) = (0.0, 0.0);
        let clipped = |(x, y): (f64, f64)| {
            let fitted = track.base + track.loading * x;
            fitted + (y - fitted).clamp(-clip, clip)
        };
        for point in points {
            sum_x += point.0;
            sum_y += clipped(*point);
        }
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (mut xx, mut xy) = (0.0, 0.0);
        for point in points {
            let x = point.0 - mean_x;
            xx += x * x;
            xy += x * (clipped(*point) - mean_y);
        }
        let variance = track.sigma * track.sigma;
        let prior = variance / prior_variance;
        track.loading = (xy + prior) / (xx + prior);
        track.loading_variance = variance / (xx + prior);
        track.base = mean_y - track.loading * mean_x;
    }
}

/// The noise of residuals in the order of time: the largest of three spreads, of which the last is
/// capped.
pub(crate) fn noise(residuals: &[f64], scratch: &mut Vec<f64>, rule: &Rule) -> f64 {
    scratch.clear();
    scratch.extend(residuals.windows(2).map(|pair| (pair[1] - pair[0]).abs()));
    let successive = median_in_place(scratch) / 0.954;
    scratch.clear();
    scratch.extend(residuals);
    let middle = median_in_place(scratch);
    scratch.clear();
    scratch.extend(residuals.iter().map(|value| (value - middle).abs()));
    let absolute = 1.4826 * median_in_place(scratch);
    let body = successive.max(absolute).max(rule.sigma_floor);
    // Only what was worse than usual makes another worse point less surprising.
    scratch.clear();
    scratch.extend(residuals.iter().map(|value| (value - middle).max(0.0)));
    let upper = quantile_in_place(scratch, (1.0 + rule.tail_quantile) / 2.0) / rule.tail_normal;
    body.max(upper.min(rule.tail_cap * body))
}
