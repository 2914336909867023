//! Holm's step-down procedure: many tests, one error rate.

/// What the procedure says of one test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HolmVerdict {
    /// Whether the hypothesis "no difference" is rejected.
    pub rejected: bool,
    /// The level at which this test was decided: it is rejected exactly if its p is at most this. An
    /// interval with this error probability therefore agrees with the verdict.
    pub level: f64,
    /// p made comparable with the error rate of all tests together; at most 1.
    pub adjusted_p: f64,
}

/// Decides all of `p_values` so that any false rejection has at most the probability `alpha`, whatever
/// the tests have to do with one another. Verdicts come in the order of `p_values`.
pub fn holm(p_values: &[f64], alpha: f64) -> Vec<HolmVerdict> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let undecided = HolmVerdict {
        rejected: false,
        level: alpha,
        adjusted_p: 1.0,
    };
    let mut verdicts = vec![undecided; p_values.len()];
    let mut stopped_at: Option<f64> = None;
    let mut largest_adjusted: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        let p = p_values[index];
        let level = stopped_at.unwrap_or(alpha / left);
        let rejected = stopped_at.is_none() && p <= level;
        if !rejected {
            stopped_at = Some(level);
        }
        largest_adjusted = largest_adjusted.max((p * left).min(1.0));
        verdicts[index] = HolmVerdict {
            rejected,
            level,
            adjusted_p: largest_adjusted,
        };
    }
    verdicts
}
