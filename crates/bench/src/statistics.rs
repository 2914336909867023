//! Statistics of series of samples.
//!
//! A series is described by order statistics ([`median`], [`nearest_rank`]) and by two spreads,
//! [`sigma`] and the outlier-proof [`median_absolute_deviation`]. Two builds are compared by
//! [`signed_rank`] on the paired differences of the samples' logarithms; several comparisons at
//! once are held to one error rate by [`holm()`].

mod holm;
mod normal;
pub mod signed_rank;

pub use holm::{HolmVerdict, holm};
pub use normal::normal_quantile;

/// The ordinary median: the middle sample, or the mean of the two middle ones. `None` for an
/// empty series.
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    let upper = sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(*upper);
    }
    let lower = sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(*lower, *upper))
}

/// The nearest-rank quantile: element ceil(q n) of the sorted series, counted from one. `None` for
/// an empty series; `q` outside of 0 to 1 is taken as the nearer end.
pub fn nearest_rank(samples: &[f64], q: f64) -> Option<f64> {
    let sorted = sorted(samples);
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// The arithmetic mean. `None` for an empty series.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The sample standard deviation (divided by n - 1), in the samples' unit. `None` for fewer than
/// two samples.
pub fn sigma(samples: &[f64]) -> Option<f64> {
    if samples.len() < 2 {
        return None;
    }
    let mean = mean(samples)?;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    Some((squares / (samples.len() - 1) as f64).sqrt())
}

/// The median of the distances from the median, unscaled. `None` for an empty series.
pub fn median_absolute_deviation(samples: &[f64]) -> Option<f64> {
    let center = median(samples)?;
    let distances: Vec<f64> = samples.iter().map(|s| (s - center).abs()).collect();
    median(&distances)
}

/// By what the median absolute deviation of a normal distribution is multiplied to give its
/// standard deviation: 1 / (the 75 % quantile of the standard normal distribution).
pub const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests;
