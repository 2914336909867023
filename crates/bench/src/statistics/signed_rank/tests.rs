use proptest::prelude::*;

use super::*;
use crate::synthetic::Random;

/// p by going through every assignment of signs, with nothing of the implementation but the scores.
fn p_by_enumeration(differences: &[f64]) -> f64 {
    let n = differences.len();
    let cap = (2 * n).div_ceil(3);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| differences[*a].abs().total_cmp(&differences[*b].abs()));
    let mut scores = vec![0; n];
    for (rank, index) in order.iter().enumerate() {
        scores[*index] = (rank + 1).min(cap);
    }
    let observed: usize = (0..n)
        .filter(|i| differences[*i] > 0.0)
        .map(|i| scores[i])
        .sum();
    let total: usize = scores.iter().sum();
    let extreme = observed.max(total - observed);
    let all = 1u32 << n;
    let as_extreme = (0..all)
        .filter(|signs| {
            let sum: usize = (0..n)
                .filter(|i| signs >> i & 1 == 1)
                .map(|i| scores[i])
                .sum();
            sum >= extreme
        })
        .count();
    (2.0 * as_extreme as f64 / f64::from(all)).min(1.0)
}

fn differences_of(max: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-1.0f64..1.0, 1..max)
}

/// Values that often tie and often are zero.
fn coarse_differences() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((-3i32..4).prop_map(f64::from), 1..14)
}

proptest! {
    #[test]
    fn p_is_that_of_all_assignments_of_signs(differences in differences_of(12)) {
        let ours = SignedRankTest::new(differences.len()).p(&differences);
        prop_assert!((ours - p_by_enumeration(&differences)).abs() < 1e-12);
    }

    #[test]
    fn interval_and_p_never_disagree(
        differences in prop_oneof![differences_of(14), coarse_differences()], alpha in 0.005f64..0.3
    ) {
        let test = SignedRankTest::new(differences.len());
        let interval = test.interval(&differences, alpha);
        prop_assert_eq!(interval.excludes_zero(), test.p(&differences) <= alpha);
        prop_assert!(interval.low <= interval.estimate && interval.estimate <= interval.high);
    }

    #[test]
    fn the_interval_moves_with_the_data_and_mirrors(
        differences in differences_of(14), shift in -1.0f64..1.0
    ) {
        let test = SignedRankTest::new(differences.len());
        let there = test.interval(&differences, 0.1);
        let moved: Vec<f64> = differences.iter().map(|d| d + shift).collect();
        let moved = test.interval(&moved, 0.1);
        let mirrored = test.interval(&negated(&differences), 0.1);
        let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-9;
        prop_assert!(close(there.low + shift, moved.low) && close(there.high + shift, moved.high));
        prop_assert!(close(there.low, -mirrored.high) && close(there.estimate, -mirrored.estimate));
    }

    #[test]
    fn a_smaller_error_gives_a_wider_interval(differences in differences_of(14)) {
        let test = SignedRankTest::new(differences.len());
        let wide = test.interval(&differences, 0.01);
        let narrow = test.interval(&differences, 0.2);
        prop_assert!(wide.low <= narrow.low && narrow.high <= wide.high);
    }
}

#[test]
fn too_few_pairs_reject_nothing() {
    let differences = [1.0; 5];
    let test = SignedRankTest::new(5);
    assert_eq!(test.p(&differences), 0.0625);
    let interval = test.interval(&differences, 0.05);
    assert_eq!(
        (interval.low, interval.high),
        (f64::NEG_INFINITY, f64::INFINITY)
    );
    assert_eq!(pairs_to_reach(0.05), 6);
    assert_eq!(pairs_to_reach(0.02 / 7.0), 10);
}

#[test]
fn series_that_are_equal_do_not_differ() {
    let test = SignedRankTest::new(10);
    assert_eq!(test.p(&[0.0; 10]), 1.0);
    let interval = test.interval(&[0.0; 10], 0.05);
    assert_eq!(
        (interval.low, interval.estimate, interval.high),
        (0.0, 0.0, 0.0)
    );
    assert_eq!(test.p(&[1.0; 9]), 1.0, "another number of pairs");
}

/// Share of `trials` in which `hit` of two series of logarithms with the given shift holds.
fn share(trials: usize, n: usize, sigma: f64, shift: f64, hit: impl Fn(&[f64]) -> bool) -> f64 {
    let mut random = Random::new(n as u64);
    let hits = (0..trials)
        .filter(|_| {
            let differences: Vec<f64> = (0..n)
                .map(|_| shift + sigma * (random.normal() - random.normal()))
                .collect();
            hit(&differences)
        })
        .count();
    hits as f64 / trials as f64
}

#[test]
fn intervals_cover_the_true_shift() {
    for (n, alpha) in [(10, 0.05), (10, 0.03), (25, 0.05)] {
        let test = SignedRankTest::new(n);
        let covered = share(4000, n, 0.05, 0.1, |differences| {
            let interval = test.interval(differences, alpha);
            interval.low <= 0.1 && 0.1 <= interval.high
        });
        assert!(covered >= 1.0 - alpha - 0.008, "{n} {alpha}: {covered}");
        assert!(covered >= 0.94, "{n} {alpha}: {covered}");
    }
}

#[test]
fn a_shift_of_1_9_sigma_is_found_with_ten_samples() {
    let test = SignedRankTest::new(10);
    for (alpha, least) in [(0.05, 0.93), (0.03, 0.90)] {
        let power = share(20_000, 10, 0.05, 1.9 * 0.05, |d| test.p(d) <= alpha);
        assert!(power >= least, "{alpha}: {power}");
    }
}

#[test]
fn outliers_raise_no_false_alarms() {
    let mut random = Random::new(5);
    let test = SignedRankTest::new(10);
    let alarms = (0..10_000)
        .filter(|_| {
            let mut draw = || {
                let outlier = if random.uniform() < 0.1 {
                    random.uniform()
                } else {
                    0.0
                };
                0.03 * random.normal() + outlier
            };
            let differences: Vec<f64> = (0..10).map(|_| draw() - draw()).collect();
            test.p(&differences) <= 0.05
        })
        .count();
    assert!(alarms <= 520, "{alarms} of 10000");
}

#[test]
fn the_samples_said_to_be_needed_are_what_simulation_needs() {
    let ln = |percent: f64| (1.0 + percent / 100.0).ln();
    for (sigma, alpha) in [(0.03, 0.03), (0.05, 0.03), (0.08, 0.03), (0.05, 0.05)] {
        let spread = sigma * std::f64::consts::SQRT_2;
        let margin = ln(5.0);
        let found = |n: usize, shift: f64| {
            let test = SignedRankTest::new(n);
            share(600, n, sigma, shift, |d| test.p(d) <= alpha)
        };
        let unchanged = |n: usize| {
            let test = SignedRankTest::new(n);
            share(600, n, sigma, 0.0, |d| {
                let interval = test.interval(d, alpha);
                -margin <= interval.low && interval.high <= margin
            })
        };
        for (what, said, reached) in [
            (
                "find",
                pairs_to_find(spread, margin, alpha),
                &(|n| found(n, margin)) as &dyn Fn(usize) -> f64,
            ),
            ("tell", pairs_to_tell(spread, margin, alpha), &unchanged),
        ] {
            let more = reached((said as f64 * 1.5).ceil() as usize);
            let less = reached(((said as f64 / 1.5) as usize).max(1));
            assert!(
                more >= 0.9,
                "{what} {sigma} {alpha}: {said} are far too few: {more}"
            );
            assert!(
                less <= 0.9,
                "{what} {sigma} {alpha}: {said} are far too many: {less}"
            );
        }
    }
    // What the user pages promise for 5 % with one metric.
    let needed = [0.03, 0.05, 0.08]
        .map(|sigma| pairs_to_find(sigma * std::f64::consts::SQRT_2, ln(5.0), 0.05));
    assert_eq!(needed, [10, 25, 61], "{needed:?}");
}
