//! The signed-rank test with capped ranks, its interval, and the samples that it needs.
//!
//! Given are n differences of pairs. Under "no shift" each difference is as likely to be above zero as
//! below, whatever its size, so all 2^n assignments of signs are equally likely: the test is a
//! permutation test, and its p-values are exact whatever the distribution. The statistic is the sum of
//! the ranks of the differences above zero, ranked by size, with ranks above two thirds of n counted
//! as two thirds of n. The cap keeps a few outliers from deciding, at a cost of under 1 % of power on
//! normal series.
//!
//! Ties are broken against the claim under test, so that p is never too small, and the distribution of
//! the statistic depends on n alone. For a supposed shift the statistic is that of the differences
//! minus the shift; it falls as the shift grows. The *interval* holds exactly the shifts that the
//! test does not reject, so that interval and p never disagree.

use super::{MAD_TO_SIGMA, median_absolute_deviation, normal_quantile, sigma};

/// The largest number of pairs that is taken: the exact distribution costs time with its third power.
pub const MAX_PAIRS: usize = 1000;

/// The test for one number of pairs: the exact distribution of its statistic.
#[derive(Clone, Debug)]
pub struct SignedRankTest {
    pairs: usize,
    /// `tail[w]` is the probability of a rank sum of at least w.
    tail: Vec<f64>,
}

/// A shift and the shifts that fit the data as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The shift at which the statistic is in balance.
    pub estimate: f64,
    /// The smallest shift that is not rejected; negative infinity if none can be.
    pub low: f64,
    /// The largest shift that is not rejected; infinity if none can be.
    pub high: f64,
}

impl Interval {
    /// Whether no shift at all is rejected.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

impl SignedRankTest {
    /// The test for `pairs` pairs, at most [`MAX_PAIRS`] of which count; more are an error of the caller
    /// and are tested as [`MAX_PAIRS`].
    pub fn new(pairs: usize) -> Self {
        let pairs = pairs.min(MAX_PAIRS);
        let scores = (1..=pairs).map(|rank| score(rank, pairs));
        let mut probability = vec![1.0];
        for score in scores {
            // A rank is in the sum or not, each with probability one half.
            let mut next = vec![0.0; probability.len() + score];
            for (sum, p) in probability.iter().enumerate() {
                next[sum] += p / 2.0;
                next[sum + score] += p / 2.0;
            }
            probability = next;
        }
        let mut tail = probability;
        for at in (1..tail.len()).rev() {
            tail[at - 1] += tail[at];
        }
        Self { pairs, tail }
    }

    /// The smallest two-sided p that this number of pairs can give.
    pub fn smallest_p(&self) -> f64 {
        smallest_p(self.pairs)
    }

    /// The two-sided p of "no shift". One if the number of differences is not that of the test.
    pub fn p(&self, differences: &[f64]) -> f64 {
        if differences.len() != self.pairs || self.pairs == 0 {
            return 1.0;
        }
        let above = self.p_above(differences, 0.0);
        let below = self.p_above(&negated(differences), 0.0);
        (2.0 * above.min(below)).min(1.0)
    }

    /// The shifts that a two-sided test at level `alpha` does not reject.
    pub fn interval(&self, differences: &[f64], alpha: f64) -> Interval {
        if differences.len() != self.pairs || self.pairs == 0 {
            return Interval {
                estimate: 0.0,
                low: f64::NEG_INFINITY,
                high: f64::INFINITY,
            };
        }
        let ups = Candidates::new(differences);
        let downs = Candidates::new(&negated(differences));
        let bound = |side: &Candidates| {
            if self.smallest_p() > alpha {
                return f64::NEG_INFINITY;
            }
            side.first(|shift| self.p_above(&side.differences, shift) > alpha / 2.0)
        };
        // In balance: as many ranks above as below.
        let half = (self.tail.len() - 1) / 2;
        let centre = |side: &Candidates| {
            side.first(|shift| self.rank_sum_above(&side.differences, shift) <= half)
        };
        Interval {
            estimate: f64::midpoint(centre(&ups), -centre(&downs)),
            low: bound(&ups),
            high: -bound(&downs),
        }
    }

    /// The one-sided p of "the shift is at most `shift`".
    fn p_above(&self, differences: &[f64], shift: f64) -> f64 {
        self.tail[self.rank_sum_above(differences, shift)]
    }

    /// The capped ranks of the differences above `shift`, summed. Of equally large ones those above come
    /// first, and one that equals the shift counts as below.
    fn rank_sum_above(&self, differences: &[f64], shift: f64) -> usize {
        let mut rest: Vec<(f64, bool)> = differences
            .iter()
            .map(|difference| difference - shift)
            .map(|rest| (rest.abs(), rest <= 0.0))
            .collect();
        rest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        rest.iter()
            .enumerate()
            .filter(|(_, (_, below))| !below)
            .map(|(index, _)| score(index + 1, self.pairs))
            .sum()
    }
}

/// The smallest two-sided p that `pairs` pairs can give: all signs alike.
pub fn smallest_p(pairs: usize) -> f64 {
    (2.0 * 0.5f64.powi(i32::try_from(pairs).unwrap_or(i32::MAX))).min(1.0)
}

/// The smallest number of pairs that can reach a two-sided p of `alpha`.
pub fn pairs_to_reach(alpha: f64) -> usize {
    (1..MAX_PAIRS)
        .find(|pairs| smallest_p(*pairs) <= alpha)
        .unwrap_or(MAX_PAIRS)
}

/// The pairs after which two builds that do not differ are called unchanged within `margin` in about
/// 90 % of comparisons at level `alpha`. `spread` is the standard deviation of the differences; it and
/// the margin are in the same unit.
pub fn pairs_to_tell(spread: f64, margin: f64, alpha: f64) -> usize {
    // Both ends of the interval must lie within the margin: each may fail in 5 %.
    pairs_for(spread, margin, alpha, 0.95)
}

/// The pairs after which a shift of `shift` is found in about 90 % of comparisons at level `alpha`.
pub fn pairs_to_find(spread: f64, shift: f64, alpha: f64) -> usize {
    pairs_for(spread, shift, alpha, 0.9)
}

fn pairs_for(spread: f64, shift: f64, alpha: f64, power: f64) -> usize {
    let critical = normal_quantile(1.0 - alpha / 2.0);
    let needed = (critical + normal_quantile(power)) * spread / shift.abs();
    // Capped ranks need a twentieth more than a normal test with known spread, and the last term
    // is the price of few pairs (both against simulation, see the tests).
    let pairs = 1.05 * needed * needed + critical * critical / 4.0;
    let least = pairs_to_reach(alpha);
    if pairs.is_finite() {
        (pairs.ceil() as usize).max(least)
    } else {
        usize::MAX
    }
}

/// The spread of differences as [`pairs_to_tell`] takes it: by the median absolute deviation, so that
/// outliers do not ask for more samples than the test, which caps them, needs. Where more than half of
/// the differences are equal it is the standard deviation.
pub fn spread(differences: &[f64]) -> f64 {
    let robust = median_absolute_deviation(differences).unwrap_or_default() * MAD_TO_SIGMA;
    if robust > 0.0 {
        robust
    } else {
        sigma(differences).unwrap_or_default()
    }
}

fn score(rank: usize, pairs: usize) -> usize {
    rank.min((2 * pairs).div_ceil(3))
}

fn negated(differences: &[f64]) -> Vec<f64> {
    differences.iter().map(|difference| -difference).collect()
}

/// Differences and the shifts at which their statistic changes: the means of all pairs of them.
struct Candidates {
    differences: Vec<f64>,
    shifts: Vec<f64>,
}

impl Candidates {
    fn new(differences: &[f64]) -> Self {
        let mut shifts = Vec::with_capacity(differences.len() * (differences.len() + 1) / 2);
        for (index, first) in differences.iter().enumerate() {
            shifts.extend(
                differences[index..]
                    .iter()
                    .map(|second| f64::midpoint(*first, *second)),
            );
        }
        shifts.sort_by(f64::total_cmp);
        shifts.dedup();
        Self {
            differences: differences.to_vec(),
            shifts,
        }
    }

    /// The first shift from which on, just above it, `holds`; the last if there is none.
    ///
    /// It is asked half-way to the next one, where rounding cannot make a tie of what is none.
    fn first(&self, holds: impl Fn(f64) -> bool) -> f64 {
        let pairs: Vec<(f64, f64)> = self.shifts.windows(2).map(|two| (two[0], two[1])).collect();
        let at = pairs.partition_point(|(this, next)| !holds(f64::midpoint(*this, *next)));
        self.shifts.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
