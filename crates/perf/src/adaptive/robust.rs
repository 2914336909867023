//! Order statistics and tail probabilities that the rules are made of.
//!
//! They work in place on a buffer that the caller gives up, because one commit asks for hundreds of
//! them.

use std::cmp::Ordering;

/// The ordinary median; reorders the buffer. Zero for an empty one.
pub(crate) fn median_in_place(buffer: &mut [f64]) -> f64 {
    let middle = buffer.len() / 2;
    if buffer.is_empty() {
        return 0.0;
    }
    let even = buffer.len().is_multiple_of(2);
    let (below, upper, _) = buffer.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if !even {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    f64::midpoint(lower, upper)
}

/// The nearest-rank quantile; reorders the buffer. Zero for an empty one.
pub(crate) fn quantile_in_place(buffer: &mut [f64], q: f64) -> f64 {
    if buffer.is_empty() {
        return 0.0;
    }
    let rank = (q * buffer.len() as f64).ceil() as usize;
    let at = rank.clamp(1, buffer.len()) - 1;
    *buffer.select_nth_unstable_by(at, f64::total_cmp).1
}

/// The weighted median of (value, weight) pairs: the value at which half of the weight is passed.
/// Reorders the buffer. Zero for an empty one.
pub(crate) fn weighted_median_in_place(buffer: &mut [(f64, f64)]) -> f64 {
    buffer.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
    let half = buffer.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut passed = 0.0;
    for (index, (value, weight)) in buffer.iter().enumerate() {
        passed += weight;
        match passed.total_cmp(&half) {
            Ordering::Less => {}
            Ordering::Equal => {
                let next = buffer.get(index + 1).map_or(*value, |(next, _)| *next);
                return f64::midpoint(*value, next);
            }
            Ordering::Greater => return *value,
        }
    }
    buffer.last().map_or(0.0, |(value, _)| *value)
}

/// The upper tail probability of Student's t with five degrees of freedom: heavier than a normal
/// distribution's, as the noise of a series is.
pub(crate) fn student5_tail(t: f64) -> f64 {
    let scaled = t / 5f64.sqrt();
    let bracket = scaled.atan()
        + scaled / (1.0 + scaled * scaled)
        + 2.0 / 3.0 * scaled / (1.0 + scaled * scaled).powi(2);
    (0.5 - bracket / std::f64::consts::PI).clamp(0.0, 1.0)
}

/// The probability that the median of three independent values lies beyond what one does with
/// probability `single`.
pub(crate) fn median_of_three_tail(single: f64) -> f64 {
    single * single * (3.0 - 2.0 * single)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        assert_eq!(median_in_place(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median_in_place(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median_in_place(&mut []), 0.0);
        assert_eq!(quantile_in_place(&mut [5.0, 1.0, 4.0, 2.0, 3.0], 0.8), 4.0);
        assert_eq!(quantile_in_place(&mut [7.0], 0.9), 7.0);
        let mut pairs = [(1.0, 1.0), (10.0, 5.0), (2.0, 1.0)];
        assert_eq!(weighted_median_in_place(&mut pairs), 10.0);
        let mut even = [(1.0, 1.0), (3.0, 1.0)];
        assert_eq!(weighted_median_in_place(&mut even), 2.0);
    }

    #[test]
    fn tails_agree_with_tables() {
        // Tables of t with 5 degrees of freedom: 2.015 at 5 %, 4.032 at 0.5 %.
        assert!((student5_tail(2.015) - 0.05).abs() < 1e-4);
        assert!((student5_tail(4.032) - 0.005).abs() < 1e-4);
        assert!((student5_tail(-2.015) - 0.95).abs() < 1e-4);
        assert!((median_of_three_tail(0.5) - 0.5).abs() < 1e-12);
    }
}
