//! One build against itself on recorded samples: how often the tests of a comparison raise a false alarm
//! on series as they are, with their outliers, drifts and several levels.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;

use nvx_bench::compare::{ALPHA, BuildSamples, MetricKind, MetricVerdict, TestPlan, judge};
use nvx_bench::statistics::signed_rank::SignedRankTest;

const RECORDED: &str = include_str!("data/same_build.txt");
/// Samples of each build in one comparison.
const SAMPLES: usize = 10;

fn recorded() -> BTreeMap<MetricKind, Vec<f64>> {
    RECORDED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (metric, samples) = line.split_once(' ').expect("a metric and samples");
            let samples = samples
                .split(' ')
                .map(|sample| sample.parse().expect("a number"));
            (metric.parse().expect("a metric"), samples.collect())
        })
        .collect()
}

/// Neighbouring samples as pairs in mirrored rounds: first A then B, then first B then A.
fn pairs(samples: &[f64]) -> Vec<(f64, f64)> {
    samples
        .chunks_exact(2)
        .enumerate()
        .map(|(round, two)| match round % 2 {
            0 => (two[0], two[1]),
            _ => (two[1], two[0]),
        })
        .collect()
}

/// Deviations of a binomial count that are exceeded in 2 of 100 sets, and in 2 of 800: eight metrics are
/// looked at one by one, and all eight shall stay below their bounds in 98 of 100 sets.
const ONE_LOOK: f64 = 2.06;
const EIGHT_LOOKS: f64 = 2.81;

/// The largest number of alarms that a true rate of [`ALPHA`] explains.
fn bound(trials: usize, deviations: f64) -> usize {
    let n = trials as f64;
    (n * ALPHA + deviations * (n * ALPHA * (1.0 - ALPHA)).sqrt()).floor() as usize
}

#[test]
fn at_least_two_hundred_pairs_of_each_metric_are_recorded() {
    let recorded = recorded();
    for metric in MetricKind::ALL {
        assert!(
            pairs(&recorded[&metric]).len() >= 200,
            "{}",
            metric.ending()
        );
    }
}

#[test]
fn no_metric_alone_raises_too_many_false_alarms() {
    let test = SignedRankTest::new(SAMPLES);
    let (mut all_alarms, mut all_trials) = (0, 0);
    for (metric, samples) in recorded() {
        let pairs = pairs(&samples);
        let comparisons = pairs.chunks_exact(SAMPLES);
        let trials = comparisons.len();
        let alarms = comparisons
            .filter(|chunk| {
                let differences: Vec<f64> = chunk.iter().map(|(a, b)| (b / a).ln()).collect();
                test.p(&differences) <= ALPHA
            })
            .count();
        println!(
            "{}: {alarms} alarms in {trials} comparisons",
            metric.ending()
        );
        assert!(
            alarms <= bound(trials, EIGHT_LOOKS),
            "{}: {alarms} of {trials}",
            metric.ending()
        );
        all_alarms += alarms;
        all_trials += trials;
    }
    println!("all metrics one by one: {all_alarms} alarms in {all_trials} comparisons");
    assert!(
        all_alarms <= bound(all_trials, ONE_LOOK),
        "{all_alarms} of {all_trials}"
    );
}

#[test]
fn a_whole_comparison_raises_at_most_five_percent_false_alarms() {
    let recorded = recorded();
    let tests = TestPlan {
        primary: MetricKind::SnapshotGeneration,
        secondaries: MetricKind::ALL
            .into_iter()
            .filter(|metric| *metric != MetricKind::SnapshotGeneration)
            .collect(),
        margin_percent: 5.0,
    };
    let shortest = recorded
        .values()
        .map(|samples| pairs(samples).len())
        .min()
        .expect("metrics");
    let trials = shortest / SAMPLES;
    let alarms = (0..trials)
        .filter(|trial| {
            let build = |name: &str, of: fn(&(f64, f64)) -> f64| BuildSamples {
                name: name.to_owned(),
                program: name.into(),
                program_blake3: String::new(),
                kernel_blake3: String::new(),
                commit: None,
                samples: recorded
                    .iter()
                    .map(|(metric, samples)| {
                        let pairs = pairs(samples);
                        let chunk = &pairs[trial * SAMPLES..][..SAMPLES];
                        (*metric, chunk.iter().map(of).collect())
                    })
                    .collect(),
            };
            let builds = [build("a", |pair| pair.0), build("b", |pair| pair.1)];
            judge(&builds, &tests)[0]
                .all()
                .any(MetricVerdict::is_change)
        })
        .count();
    println!("{alarms} alarms in {trials} comparisons of all metrics");
    assert!(alarms <= bound(trials, ONE_LOOK), "{alarms} of {trials}");
}
