//! The constants of the adaptive rules. One set for every file; doc/design/history-gate.md has the
//! reason for each.

use super::robust::{median_of_three_tail, student5_tail};

/// What the adaptive rules are made of. Sizes are natural logarithms of ratios: 0.07 is 7 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Rows that a metric must have before its first judgement.
    pub minimum_history: usize,
    /// Most points that a level is the median of.
    pub level_points: usize,
    /// Fewest points that a level may rest on after a shift.
    pub minimum_level_points: usize,
    /// Points before the ones under test that noise and loadings are learned from.
    pub noise_points: usize,
    /// More metrics than this have more chances to stray: the sigmas grow with their number.
    pub family: usize,
    /// Newest points that a shift is called from.
    pub test_points: usize,
    /// In a family of at most [`Rule::family`] metrics a shift is beyond this many sigma of noise...
    pub shift_sigmas: f64,
    /// ...and at least this large.
    pub shift_floor: f64,
    /// Every tested point lies beyond this part of the limit: two outliers are no shift.
    pub least_part: f64,
    /// A common shift is at least this large.
    pub common_floor: f64,
    /// A common shift is beyond this many sigma of the factor's noise.
    pub common_sigmas: f64,
    /// In such a family one point is suspect beyond this many sigma of noise...
    pub suspect_sigmas: f64,
    /// ...and at least this large.
    pub suspect_floor: f64,
    /// Smallest noise that a series is credited with.
    pub sigma_floor: f64,
    /// The upper-quantile spread counts up to this multiple of the other two.
    pub tail_cap: f64,
    /// The quantile of the upper-quantile spread.
    pub tail_quantile: f64,
    /// The normal distribution's value at that quantile of absolute values.
    pub tail_normal: f64,
    /// Spread of loadings around 1 before anything is known of them.
    pub loading_spread: f64,
    /// A common level within this of one that at least two earlier commits had is a known one.
    pub known_level_margin: f64,
    /// Newest points that must all lie at a known level until it counts as a shift.
    pub known_level_run: usize,
    /// Fewest metrics that can share something.
    pub group_minimum: usize,
    /// A host can have changed within a run where a known factor is this much worse...
    pub mixed_step: f64,
    /// ...and so many metrics lie nearer to it.
    pub mixed_metrics: usize,
    /// Commits between two events that are one.
    pub merge_commits: usize,
}

impl Rule {
    /// The constants that every command uses.
    pub const STANDARD: Self = Self {
        minimum_history: 10,
        level_points: 20,
        minimum_level_points: 7,
        noise_points: 40,
        family: 36,
        test_points: 3,
        shift_sigmas: 2.5,
        shift_floor: 0.05,
        least_part: 0.3,
        common_floor: 0.07,
        common_sigmas: 2.6,
        suspect_sigmas: 4.5,
        suspect_floor: 0.10,
        sigma_floor: 0.005,
        tail_cap: 2.0,
        tail_quantile: 0.9,
        tail_normal: 1.645,
        loading_spread: 0.5,
        known_level_margin: 0.04,
        known_level_run: 6,
        group_minimum: 5,
        mixed_step: 0.07,
        mixed_metrics: 3,
        merge_commits: 2,
    };

    /// The rule for a file with so many metrics: the chance that any of them strays beyond a limit by
    /// noise alone is not larger than in a family of [`Rule::family`].
    pub(crate) fn for_family(&self, metrics: usize) -> Self {
        if metrics <= self.family {
            return *self;
        }
        let part = self.family as f64 / metrics as f64;
        let of_three = |sigmas| median_of_three_tail(student5_tail(sigmas));
        Self {
            shift_sigmas: sigmas_at(of_three, part * of_three(self.shift_sigmas)),
            suspect_sigmas: sigmas_at(student5_tail, part * student5_tail(self.suspect_sigmas)),
            ..*self
        }
    }

    /// How many commits are looked at before the newest one.
    pub fn lookback(&self) -> usize {
        self.noise_points + self.test_points
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// The sigmas beyond which a falling tail has a probability.
fn sigmas_at(tail: impl Fn(f64) -> f64, probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 100.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if tail(middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_family_and_never_shrink() {
        let rule = Rule::STANDARD;
        assert_eq!(rule.for_family(1), rule);
        assert_eq!(rule.for_family(36), rule);
        let hundred = rule.for_family(100);
        let thousand = rule.for_family(1000);
        assert!(hundred.shift_sigmas > rule.shift_sigmas);
        assert!(thousand.shift_sigmas > hundred.shift_sigmas);
        assert!(thousand.shift_sigmas < 5.0, "{}", thousand.shift_sigmas);
        assert!(
            thousand.suspect_sigmas < 12.0,
            "{}",
            thousand.suspect_sigmas
        );
    }
}
