//! Statistics of a series of samples.

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

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn with_ten_samples_p25_is_the_third_smallest() {
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(nearest_rank(&ten, 0.25), Some(3.0));
        assert_eq!(nearest_rank(&ten, 0.95), Some(10.0));
        assert_eq!(nearest_rank(&ten, 0.0), Some(1.0));
        assert_eq!(nearest_rank(&[], 0.5), None);
    }
}
