use std::path::Path;

use super::*;
use crate::generated::Recipe;

/// Fewer than the command draws: a build without optimization is slow.
const DRAWS: usize = 25;

fn evaluated(recipe: &Recipe) -> Evaluation {
    let evaluation = evaluate_with(
        Path::new("made"),
        &recipe.history(),
        &Hosts::default(),
        DRAWS,
    );
    println!("{}", evaluation.to_text());
    evaluation
}

#[track_caller]
fn at_least(share: Share, percent: f64) {
    assert!(share.percent().expect("tried") >= percent, "{share:?}");
}

/// A family of few and short series, so that every place can be tried quickly.
fn small() -> Recipe {
    Recipe {
        commits: 32,
        milliseconds: 5,
        operations: 5,
        sizes: 1,
        ..Recipe::default()
    }
}

#[test]
fn a_quiet_history_meets_the_targets() {
    let evaluation = evaluated(&small());
    assert_eq!(evaluation.eligible_series, 11);
    assert_eq!(
        (evaluation.regression_events, evaluation.suspects.len()),
        (0, 0)
    );
    for ((_, share), wanted) in evaluation.steps.iter().zip([85.0, 95.0, 96.0]) {
        at_least(*share, wanted);
    }
    at_least(evaluation.single_points, 85.0);
    at_least(evaluation.all_milliseconds, 95.0);
    at_least(evaluation.creeps_with_room, 70.0);
    assert!(evaluation.resampled_events <= 1.0);
}

#[test]
fn a_history_that_flips_between_hosts_meets_them_too() {
    let slow_host = (0..10).chain([13, 16, 21, 22, 23, 27]).collect();
    let evaluation = evaluated(&Recipe {
        slow_host,
        seed: 3,
        ..small()
    });
    assert_eq!(evaluation.regression_events, 0, "{:?}", evaluation.events);
    assert_eq!(evaluation.events.len(), 1, "{:?}", evaluation.events);
    assert!(evaluation.events[0].scope.starts_with("common to 10 of 10"));
    assert_eq!(evaluation.events[0].start, 10);
    for ((_, share), wanted) in evaluation.steps.iter().zip([85.0, 95.0, 96.0]) {
        at_least(*share, wanted);
    }
    assert!(evaluation.resampled_events <= 1.0);
}

#[test]
fn a_noisy_history_has_no_percentage() {
    let recipe = Recipe {
        sigma: 0.15,
        milliseconds: 2,
        operations: 0,
        sizes: 0,
        ..small()
    };
    let evaluation = evaluated(&recipe);
    assert_eq!(evaluation.eligible_series, 0);
    assert!(!evaluation.to_text().contains("found ("));
}

#[test]
fn regressions_within_two_commits_are_one_event() {
    let changes = vec![(0, 20, 32, 0.3), (6, 21, 32, 0.3), (3, 27, 32, 0.3)];
    let evaluation = evaluated(&Recipe { changes, ..small() });
    assert_eq!(
        evaluation
            .events
            .iter()
            .filter(|event| event.regression)
            .count(),
        3
    );
    assert_eq!(evaluation.regression_events, 2);
}

#[test]
fn two_runs_give_the_same_figures() {
    let recipe = Recipe {
        commits: 20,
        ..small()
    };
    assert_eq!(evaluated(&recipe), evaluated(&recipe));
}
