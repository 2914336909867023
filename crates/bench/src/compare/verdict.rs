//! What the samples say, in words.

use serde::{Deserialize, Serialize};

use super::{BuildSamples, MetricKind, TestPlan};
use crate::statistics::signed_rank::{Interval, SignedRankTest, pairs_to_tell, spread};
use crate::statistics::{holm, median, nearest_rank, sigma};

/// One build against the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonVerdict {
    /// The first build's name.
    pub base: String,
    /// The other build's.
    pub candidate: String,
    /// The metric that decides.
    pub primary: MetricVerdict,
    /// The others.
    pub secondaries: Vec<MetricVerdict>,
}

impl ComparisonVerdict {
    /// The primary, then the secondaries.
    pub fn all(&self) -> impl Iterator<Item = &MetricVerdict> {
        std::iter::once(&self.primary).chain(&self.secondaries)
    }
}

/// One metric of one build against the first. Percentages are of the first; above zero is worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricVerdict {
    /// The metric.
    pub metric: MetricKind,
    /// `ms` or `MiB`.
    pub unit: String,
    /// Pairs that were compared.
    pub pairs: usize,
    /// Median of the first build.
    pub base_p50: f64,
    /// Median of the other.
    pub candidate_p50: f64,
    /// 25 % quantile of the other, nearest rank.
    pub candidate_p25: f64,
    /// p50 over p25 of the other.
    pub candidate_p50_over_p25: f64,
    /// Standard deviation of the other.
    pub candidate_sigma: f64,
    /// The change.
    pub worse_percent: f64,
    /// Lower end of its interval; absent if it has none.
    pub low_percent: Option<f64>,
    /// Upper end of its interval; absent if it has none.
    pub high_percent: Option<f64>,
    /// The error probability of the interval and of the test.
    pub alpha: f64,
    /// The test's p; of a secondary comparable with all secondaries' error probability.
    pub p: f64,
    /// `better`, `worse`, `unchanged` or `cannot tell`.
    pub verdict: String,
    /// The verdict with its figures.
    pub words: String,
    /// Samples that would tell; absent if it can be told.
    pub samples_needed: Option<usize>,
}

impl MetricVerdict {
    /// Whether it is better or worse.
    pub fn is_change(&self) -> bool {
        self.verdict == "better" || self.verdict == "worse"
    }
}

/// Compares every further build with the first.
pub fn judge(builds: &[BuildSamples], tests: &TestPlan) -> Vec<ComparisonVerdict> {
    let Some((base, others)) = builds.split_first() else {
        return Vec::new();
    };
    let pairs = others.len();
    let secondaries: Vec<(usize, MetricKind)> = (0..pairs)
        .flat_map(|other| tests.secondaries.iter().map(move |metric| (other, *metric)))
        .collect();
    let p_values: Vec<f64> = secondaries
        .iter()
        .map(|(other, metric)| Paired::of(base, &others[*other], *metric).p())
        .collect();
    let decided = holm(&p_values, tests.secondary_alpha());
    let verdicts = |other: usize| -> Vec<MetricVerdict> {
        secondaries
            .iter()
            .zip(&decided)
            .filter(|((of, _), _)| *of == other)
            .map(|((_, metric), holm)| {
                let paired = Paired::of(base, &others[other], *metric);
                let mut verdict = paired.verdict(holm.level, tests.margin_percent);
                verdict.p = holm.adjusted_p;
                verdict
            })
            .collect()
    };
    others
        .iter()
        .enumerate()
        .map(|(index, other)| {
            let paired = Paired::of(base, other, tests.primary);
            ComparisonVerdict {
                base: base.name.clone(),
                candidate: other.name.clone(),
                primary: paired.verdict(tests.primary_alpha(pairs), tests.margin_percent),
                secondaries: verdicts(index),
            }
        })
        .collect()
}

/// One metric's samples of two builds.
struct Paired<'a> {
    metric: MetricKind,
    base: &'a [f64],
    other: &'a [f64],
    differences: Vec<f64>,
    test: SignedRankTest,
}

impl<'a> Paired<'a> {
    fn of(base: &'a BuildSamples, other: &'a BuildSamples, metric: MetricKind) -> Self {
        let samples = |build: &'a BuildSamples| {
            build
                .samples
                .get(&metric)
                .map_or(&[] as &[f64], Vec::as_slice)
        };
        let (base, other) = (samples(base), samples(other));
        let differences: Vec<f64> = base
            .iter()
            .zip(other)
            .map(|(base, other)| (other / base).ln())
            .collect();
        Self {
            metric,
            base,
            other,
            test: SignedRankTest::new(differences.len()),
            differences,
        }
    }

    fn p(&self) -> f64 {
        self.test.p(&self.differences)
    }

    fn verdict(&self, alpha: f64, margin_percent: f64) -> MetricVerdict {
        let interval = self.test.interval(&self.differences, alpha);
        let spread = spread(&self.differences);
        let needed = pairs_to_tell(spread, (margin_percent / 100.0).ln_1p(), alpha);
        // Rounds are mirrored, so samples come in twos; fewer than there are would not tell either.
        let needed = needed.max(self.differences.len() + 2);
        let needed = needed.saturating_add(needed % 2);
        let (verdict, words) = in_words(interval, margin_percent, needed);
        let p50 = |samples: &[f64]| median(samples).unwrap_or_default();
        let p25 = nearest_rank(self.other, 0.25).unwrap_or_default();
        let finite = |log: f64| log.is_finite().then(|| percent(log));
        MetricVerdict {
            metric: self.metric,
            unit: self.metric.unit().to_owned(),
            pairs: self.differences.len(),
            base_p50: p50(self.base),
            candidate_p50: p50(self.other),
            candidate_p25: p25,
            candidate_p50_over_p25: if p25 > 0.0 {
                p50(self.other) / p25
            } else {
                0.0
            },
            candidate_sigma: sigma(self.other).unwrap_or_default(),
            worse_percent: percent(interval.estimate),
            low_percent: finite(interval.low),
            high_percent: finite(interval.high),
            alpha,
            p: self.p(),
            verdict: verdict.to_owned(),
            words,
            samples_needed: (verdict == "cannot tell").then_some(needed),
        }
    }
}

/// A difference of logarithms as a change in percent.
fn percent(log: f64) -> f64 {
    log.exp_m1() * 100.0
}

fn in_words(interval: Interval, margin_percent: f64, needed: usize) -> (&'static str, String) {
    let (low, high) = (percent(interval.low), percent(interval.high));
    let change = percent(interval.estimate);
    if interval.low > 0.0 {
        return (
            "worse",
            format!("worse by {change:.1} % [{low:.1}, {high:.1}]"),
        );
    }
    if interval.high < 0.0 {
        let (change, least, most) = (-change, -high, -low);
        return (
            "better",
            format!("better by {change:.1} % [{least:.1}, {most:.1}]"),
        );
    }
    let widest = high.max(-low);
    if widest <= margin_percent {
        // Rounded up, so that what is said holds.
        let within = ((widest * 10.0).ceil() / 10.0).min(margin_percent);
        // A sum with zero has no minus sign before it.
        return (
            "unchanged",
            format!("unchanged within {:.1} %", within + 0.0),
        );
    }
    let words = match needed {
        10_000.. => "cannot tell: needs more than 10000 samples".to_owned(),
        _ => format!("cannot tell: needs about {needed} samples"),
    };
    ("cannot tell", words)
}
