use super::*;
use crate::synthetic::Random;

const TRIALS: usize = 4000;

/// Share of random series in which `hit` holds, after `change` had its way with them.
fn share(
    seed: u64,
    sigma: f64,
    change: impl Fn(&mut Random, &mut [f64]),
    hit: impl Fn(&[f64]) -> bool,
) -> f64 {
    let mut random = Random::new(seed);
    let hits = (0..TRIALS)
        .filter(|_| {
            let mut samples = random.series(10, sigma);
            change(&mut random, &mut samples);
            hit(&samples)
        })
        .count();
    hits as f64 / TRIALS as f64
}

fn slow_from(samples: &mut [f64], start: usize, factor: f64) {
    for sample in &mut samples[start - 1..] {
        *sample *= factor;
    }
}

#[test]
fn the_rules_are_strict_and_exact() {
    let flat = [1.0; 10];
    assert_eq!(unstable_rule(&flat), None);
    // p50 = 1.25 = 1.25 x p25 passes, anything more does not.
    let at_limit = [1.0, 1.0, 1.0, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25];
    assert_eq!(unstable_rule(&at_limit), None);
    let above = at_limit.map(|sample| if sample > 1.0 { 1.2501 } else { 1.0 });
    assert!(matches!(
        unstable_rule(&above),
        Some(UnstableRule::Median { .. })
    ));
    // One outlier on either side passes, two do not.
    let mut one = flat;
    one[3] = 9.0;
    one[5] = 0.1;
    assert_eq!(unstable_rule(&one), None);
    one[4] = 9.0;
    assert_eq!(
        unstable_rule(&one),
        Some(UnstableRule::Groups {
            ratio: 9.0,
            quick: 8
        })
    );
}

#[test]
fn the_rules_reject_as_often_as_known() {
    let unchanged = |_: &mut Random, _: &mut [f64]| {};
    let rejected = |samples: &[f64]| unstable_rule(samples).is_some();
    for (sigma, least, most) in [
        (0.03, 0.0, 0.0),
        (0.08, 0.0, 0.003),
        (0.15, 0.02, 0.06),
        (0.2, 0.14, 0.22),
    ] {
        let found = share(1, sigma, unchanged, rejected);
        assert!((least..=most).contains(&found), "sigma {sigma}: {found}");
    }
    let two_slow = |random: &mut Random, samples: &mut [f64]| {
        let first = random.below(10);
        let second = (first + 1 + random.below(9)) % 10;
        samples[first] *= 1.5;
        samples[second] *= 1.5;
    };
    assert_eq!(share(2, 0.02, two_slow, rejected), 1.0);
    let step = share(3, 0.08, |_, samples| slow_from(samples, 7, 1.5), rejected);
    assert!((0.46..=0.58).contains(&step), "step passes 48 %: {step}");
    let drift = |_: &mut Random, samples: &mut [f64]| {
        for (index, sample) in samples.iter_mut().enumerate() {
            *sample *= 1.0 + 0.6 * index as f64 / 9.0;
        }
    };
    let drift = share(4, 0.05, drift, rejected);
    assert!(
        (0.03..=0.14).contains(&drift),
        "drift passes about 92 %: {drift}"
    );
}

#[test]
fn steps_are_named_with_their_exact_start() {
    for (factor, sigma) in [(2.3, 0.08), (1.5, 0.05), (1.5, 0.02), (1.0 / 1.5, 0.05)] {
        for start in 4..=8 {
            let found = share(
                start as u64,
                sigma,
                |_, samples| slow_from(samples, start, factor),
                |samples| matches!(trend(samples), Some(Trend::Step { start: found, .. }) if found == start),
            );
            assert!(
                found >= 0.95,
                "x{factor} sigma {sigma} start {start}: {found}"
            );
        }
    }
}

#[test]
fn trendless_series_have_no_steps() {
    for sigma in [0.01, 0.03, 0.05, 0.08, 0.1, 0.15] {
        for (outliers, factor) in [
            (0, 1.0),
            (1, 3.0),
            (2, 1.3),
            (2, 1.5),
            (2, 3.0),
            (2, 10.0),
            (2, 0.6),
        ] {
            let disturb = |random: &mut Random, samples: &mut [f64]| {
                let first = random.below(10);
                let second = (first + 1 + random.below(9)) % 10;
                for place in [first, second].iter().take(outliers) {
                    samples[*place] *= factor;
                }
            };
            let is_step = |samples: &[f64]| matches!(trend(samples), Some(Trend::Step { .. }));
            let found = share(outliers as u64, sigma, disturb, is_step);
            assert!(
                found <= 0.02,
                "sigma {sigma}, {outliers} x{factor}: {found}"
            );
        }
    }
}

#[test]
fn a_drift_is_named_as_drift() {
    let drift = |_: &mut Random, samples: &mut [f64]| {
        for (index, sample) in samples.iter_mut().enumerate() {
            *sample *= 1.0 + 0.6 * index as f64 / 9.0;
        }
    };
    let is_drift = |samples: &[f64]| matches!(trend(samples), Some(Trend::Drift { .. }));
    for (sigma, least) in [(0.02, 0.98), (0.05, 0.85), (0.08, 0.7)] {
        let found = share(9, sigma, drift, is_drift);
        assert!(found >= least, "sigma {sigma}: {found}");
    }
    let quiet = share(10, 0.1, |_, _| {}, is_drift);
    assert!(quiet <= 0.02, "{quiet}");
}

#[test]
fn slow_last_samples_are_too_few_to_tell() {
    for start in [9, 10] {
        let mut samples = Random::new(1).series(10, 0.03);
        slow_from(&mut samples, start, 2.3);
        match trend(&samples) {
            Some(
                trend @ Trend::LateSlow {
                    start: found,
                    ratio,
                },
            ) => {
                assert_eq!(found, start);
                assert!((2.0..2.6).contains(&ratio) && !trend.is_unstable());
            }
            other => panic!("{start}: {other:?}"),
        }
    }
}

#[test]
fn odd_series_have_no_trend() {
    for samples in [
        &[] as &[f64],
        &[1.0],
        &[1.0, 2.0],
        &[1.0; 10],
        &[1.0, 0.0, 3.0, 4.0, 5.0, 6.0],
    ] {
        assert_eq!(trend(samples), None, "{samples:?}");
    }
}
