use super::*;
use crate::synthetic::Random;

fn build(name: &str, samples: BTreeMap<MetricKind, Vec<f64>>) -> BuildSamples {
    BuildSamples {
        name: name.to_owned(),
        program: PathBuf::from(name),
        program_blake3: name.to_owned(),
        kernel_blake3: String::new(),
        commit: None,
        samples,
    }
}

/// A build whose every metric has samples of that sigma; the primary is `factor` times the usual.
fn random_build(
    random: &mut Random,
    name: &str,
    n: usize,
    sigma: f64,
    factor: f64,
) -> BuildSamples {
    let samples = MetricKind::ALL.map(|metric| {
        let mut series = random.series(n, sigma);
        for sample in &mut series {
            if metric == MetricKind::SnapshotGeneration {
                *sample *= factor;
            }
            if random.uniform() < 0.05 {
                *sample *= 1.5 + random.uniform();
            }
        }
        (metric, series)
    });
    build(name, samples.into())
}

fn all_tests() -> TestPlan {
    TestPlan {
        primary: MetricKind::SnapshotGeneration,
        secondaries: MetricKind::ALL
            .into_iter()
            .filter(|metric| *metric != MetricKind::SnapshotGeneration)
            .collect(),
        margin_percent: 5.0,
    }
}

#[test]
fn a_comparison_of_equal_builds_raises_few_false_alarms_over_all_metrics_and_pairs() {
    for (builds, n) in [(2, 10), (3, 12)] {
        let mut random = Random::new(builds as u64);
        let trials = 1500;
        let alarms = (0..trials)
            .filter(|_| {
                let all: Vec<BuildSamples> = (0..builds)
                    .map(|index| random_build(&mut random, &index.to_string(), n, 0.05, 1.0))
                    .collect();
                judge(&all, &all_tests())
                    .iter()
                    .any(|verdict| verdict.all().any(MetricVerdict::is_change))
            })
            .count();
        let rate = alarms as f64 / f64::from(trials);
        assert!(rate <= 0.055, "{builds} builds: {rate}");
    }
}

#[test]
fn an_improvement_is_told_with_its_interval() {
    let base: Vec<f64> = (0..10).map(|i| 100.0 + f64::from(i % 3)).collect();
    let other: Vec<f64> = base
        .iter()
        .enumerate()
        .map(|(i, b)| b * (0.77 + 0.002 * i as f64))
        .collect();
    let builds = [
        build(
            "base",
            [(MetricKind::SnapshotGeneration, base.clone())].into(),
        ),
        build("new", [(MetricKind::SnapshotGeneration, other)].into()),
    ];
    let tests = TestPlan {
        secondaries: Vec::new(),
        ..all_tests()
    };
    let verdict = &judge(&builds, &tests)[0];
    assert_eq!(
        (verdict.base.as_str(), verdict.candidate.as_str()),
        ("base", "new")
    );
    let primary = &verdict.primary;
    assert_eq!(primary.verdict, "better");
    assert!(
        primary.words.starts_with("better by 22."),
        "{}",
        primary.words
    );
    assert_eq!(primary.alpha, ALPHA);
    assert!((0.7..0.8).contains(&(primary.candidate_p50 / primary.base_p50)));

    let swapped = [builds[1].clone(), builds[0].clone()];
    assert_eq!(judge(&swapped, &tests)[0].primary.verdict, "worse");
    let same = [builds[0].clone(), build("again", builds[0].samples.clone())];
    assert_eq!(
        judge(&same, &tests)[0].primary.words,
        "unchanged within 0.0 %"
    );
}

#[test]
fn noise_cannot_be_told_and_says_what_would() {
    let mut random = Random::new(7);
    let builds = [
        random_build(&mut random, "a", 10, 0.2, 1.0),
        random_build(&mut random, "b", 10, 0.2, 1.0),
    ];
    let primary = &judge(&builds, &all_tests())[0].primary;
    assert_eq!(primary.verdict, "cannot tell");
    let needed = primary.samples_needed.expect("a number");
    assert!((200..1500).contains(&needed), "{needed}");
    assert!(
        primary
            .words
            .contains(&format!("needs about {needed} samples")),
        "{}",
        primary.words
    );
}

#[test]
fn a_shift_of_the_primary_is_found_beside_all_secondaries() {
    let mut random = Random::new(11);
    let sigma = 0.05;
    let found = (0..2000)
        .filter(|_| {
            let samples = |random: &mut Random, factor: f64| -> BTreeMap<MetricKind, Vec<f64>> {
                MetricKind::ALL
                    .map(|metric| {
                        let series = random.series(10, sigma).into_iter().map(|s| s * factor);
                        (metric, series.collect())
                    })
                    .into()
            };
            let builds = [
                build("a", samples(&mut random, 1.0)),
                build("b", samples(&mut random, (1.9 * sigma).exp())),
            ];
            judge(&builds, &all_tests())[0].primary.verdict == "worse"
        })
        .count();
    assert!(found >= 1780, "{found} of 2000");
}

#[test]
fn too_few_samples_are_told_with_the_number_that_is_needed() {
    assert_eq!(all_tests().check(10, 1), Ok(()));
    assert_eq!(all_tests().check(8, 1), Err(10));
    assert_eq!(all_tests().check(10, 2), Err(12));
    let alone = TestPlan {
        secondaries: Vec::new(),
        ..all_tests()
    };
    assert_eq!(alone.check(6, 1), Ok(()));
    assert_eq!(alone.check(5, 1), Err(6));
}

#[test]
fn metrics_are_read_by_every_name() {
    assert_eq!("generation".parse(), Ok(MetricKind::SnapshotGeneration));
    assert_eq!("nvx_cold_start".parse(), Ok(MetricKind::ColdStart));
    let error = "speed".parse::<MetricKind>().expect_err("unknown");
    assert!(error.contains("snapshot_restore_peak_rss"), "{error}");
}

#[test]
#[cfg(unix)]
fn builds_are_checked_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let own = std::env::current_exe().expect("a path");
    let copy = directory.path().join("copy");
    std::fs::copy(&own, &copy).expect("space");
    let text = directory.path().join("text");
    std::fs::write(&text, "#!/bin/sh\n").expect("space");
    let other_machine = directory.path().join("other");
    let mut bytes = b"\x7fELF".to_vec();
    bytes.resize(64, 0);
    std::fs::write(&other_machine, bytes).expect("space");
    let named = |name: &str, program: &std::path::Path| NamedBuild {
        name: name.to_owned(),
        program: program.to_owned(),
        commit: None,
    };
    for (builds, part) in [
        (vec![named("a", &own)], "two builds are needed"),
        (
            vec![named("a", &own), named("a", &copy)],
            "name a is there twice",
        ),
        (
            vec![named("a", &own), named("b", &copy)],
            "are the same file",
        ),
        (
            vec![named("a", &own), named("b", &text)],
            "not an executable program",
        ),
        (
            vec![named("a", &own), named("b", &other_machine)],
            "another processor architecture",
        ),
        (
            vec![named("a", &own), named("b", &directory.path().join("none"))],
            "b=",
        ),
    ] {
        let error = check_builds(&builds, false).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        check_builds(&[named("a", &own), named("b", &copy)], true)
            .expect("A/A")
            .len(),
        2
    );
}
