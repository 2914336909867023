use proptest::prelude::*;
use statrs::distribution::{ContinuousCDF as _, Normal};
use statrs::statistics::{Data, OrderStatistics as _, Statistics as _};

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

#[test]
fn short_series_have_no_spread() {
    assert_eq!(sigma(&[1.0]), None);
    assert_eq!(mean(&[]), None);
    assert_eq!(median_absolute_deviation(&[]), None);
    assert_eq!(median_absolute_deviation(&[4.0]), Some(0.0));
}

#[test]
fn one_outlier_does_not_move_the_median_absolute_deviation() {
    let calm = [9.0, 10.0, 11.0, 10.5, 9.5];
    let wild = [9.0, 10.0, 11.0, 1000.0, 9.5];
    assert_eq!(median_absolute_deviation(&calm), Some(0.5));
    assert_eq!(median_absolute_deviation(&wild), Some(1.0));
}

#[test]
fn the_scale_of_the_median_absolute_deviation_is_that_of_the_normal_distribution() {
    let normal = Normal::new(0.0, 1.0).expect("a distribution");
    assert!((MAD_TO_SIGMA - 1.0 / normal.inverse_cdf(0.75)).abs() < 1e-9);
}

#[test]
fn normal_quantiles_are_those_of_another_library() {
    let normal = Normal::new(0.0, 1.0).expect("a distribution");
    for p in [
        1e-6, 0.001, 0.015, 0.02425, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.999_999,
    ] {
        let ours = normal_quantile(p);
        assert!((ours - normal.inverse_cdf(p)).abs() < 1e-7, "{p}: {ours}");
    }
}

proptest! {
    #[test]
    fn descriptions_agree_with_another_library(
        samples in prop::collection::vec(0.01f64..1e6, 2..60)
    ) {
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
        prop_assert!(close(median(&samples).expect("some"), Data::new(samples.clone()).median()));
        prop_assert!(close(mean(&samples).expect("some"), samples.iter().mean()));
        prop_assert!(close(sigma(&samples).expect("two"), samples.iter().std_dev()));
    }

    #[test]
    fn a_quantile_is_a_sample_and_grows_with_q(
        samples in prop::collection::vec(-1e6f64..1e6, 1..60), a in 0.0f64..1.0, b in 0.0f64..1.0
    ) {
        let (low, high) = (a.min(b), a.max(b));
        let low = nearest_rank(&samples, low).expect("some");
        let high = nearest_rank(&samples, high).expect("some");
        prop_assert!(low <= high);
        prop_assert!(samples.contains(&low) && samples.contains(&high));
    }

    #[test]
    fn at_least_the_share_q_of_samples_is_at_most_the_quantile(
        samples in prop::collection::vec(-1e6f64..1e6, 1..60), q in 0.0f64..1.0
    ) {
        let quantile = nearest_rank(&samples, q).expect("some");
        let below = samples.iter().filter(|s| **s <= quantile).count();
        prop_assert!(below as f64 >= q * samples.len() as f64 - 1e-9);
    }

    #[test]
    fn holm_rejects_what_bonferroni_does_and_nothing_that_a_single_test_does_not(
        p_values in prop::collection::vec(0.0f64..0.2, 1..20)
    ) {
        let verdicts = holm(&p_values, 0.05);
        for (p, verdict) in p_values.iter().zip(&verdicts) {
            let by_bonferroni = p * p_values.len() as f64 <= 0.05;
            prop_assert!(verdict.rejected || !by_bonferroni);
            prop_assert!(!verdict.rejected || *p <= 0.05);
            prop_assert_eq!(verdict.rejected, *p <= verdict.level);
        }
    }
}

#[test]
fn holm_steps_down() {
    // 0.01 <= 0.05/3, then 0.04 > 0.05/2 stops, so that 0.045 <= 0.05 does not count any more.
    let verdicts = holm(&[0.045, 0.01, 0.04], 0.05);
    let rejected: Vec<bool> = verdicts.iter().map(|v| v.rejected).collect();
    assert_eq!(rejected, [false, true, false]);
    assert!((verdicts[1].adjusted_p - 0.03).abs() < 1e-12);
    // The step at which it stopped is the level of all that follow.
    assert!((verdicts[0].level - 0.025).abs() < 1e-12);
    assert!((verdicts[0].adjusted_p - 0.08).abs() < 1e-12);
    assert!(holm(&[], 0.05).is_empty());
}
