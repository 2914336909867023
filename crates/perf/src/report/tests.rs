use std::fs;

use super::*;
use crate::generated::{Recipe, commit};

const NAME: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.csv";

fn made(recipe: &Recipe) -> Report {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(NAME);
    fs::write(&path, recipe.history().to_csv()).expect("written");
    report(&ReportRequest { files: vec![path] }).expect("a report")
}

fn with_events() -> Recipe {
    Recipe {
        changes: vec![(4, 22, 40, 0.2), (2, 39, 40, 0.3)],
        ..Recipe::default()
    }
}

#[test]
fn every_series_is_on_the_page_with_a_text_alternative() {
    let page = made(&with_events()).to_html();
    assert_eq!(page.matches("<figure ").count(), 20);
    assert_eq!(page.matches("<svg ").count(), 20);
    assert_eq!(page.matches("role=\"img\"").count(), 20);
    assert_eq!(page.matches("<polyline class=\"line\"").count(), 20);
    // The band of the shifted metric has a gap where its new level begins.
    assert_eq!(page.matches("class=\"band\"").count(), 21);
    assert!(page.contains("regression 2"), "the shift is told in words");
    assert!(page.contains("class=\"m-suspect\""));
    assert!(page.contains("prefers-color-scheme:dark"));
    for word in [
        "<script", "http://", "https://", "url(", "@import", "<link", "<img",
    ] {
        let own_name_space = "xmlns=\"http://www.w3.org/2000/svg\"";
        assert!(!page.replace(own_name_space, "").contains(word), "{word}");
    }
}

#[test]
fn identifiers_are_unique_and_text_is_escaped() {
    let mut history = Recipe::default().history();
    history.metrics[0].name = "a<b>&c".to_owned();
    let one = of_history(&history, &Hosts::default());
    let page = Report {
        histories: vec![one.clone(), one],
    }
    .to_html();
    assert!(!page.contains("<b>&c"));
    assert!(page.contains("a&lt;b&gt;&amp;c"));
    let mut identifiers: Vec<&str> = page
        .match_indices(" id=\"")
        .filter_map(|(at, found)| page[at + found.len()..].split('"').next())
        .collect();
    let all = identifiers.len();
    identifiers.sort_unstable();
    identifiers.dedup();
    assert_eq!(identifiers.len(), all);
}

#[test]
fn a_series_tells_its_newest_value_band_and_marks() {
    let report = made(&with_events());
    let series = &report.histories[0].series[4];
    assert_eq!(series.points.len(), 40);
    assert!(series.band.len() >= 20);
    let mark = series
        .marks
        .iter()
        .find(|mark| mark.kind == FindingKind::Regression);
    let mark = mark.expect("the shift");
    assert_eq!(mark.since, 22);
    assert!(
        series
            .description(&report.histories[0].commits)
            .contains("40 commits, from")
    );
    assert_eq!(series.verdict, "passed");
    assert_eq!(report.histories[0].series[2].verdict, "suspect");
    let short = &commit(22)[..10];
    assert!(mark.to_text(&report.histories[0].commits).contains(short));
}

#[test]
fn markdown_and_pictures() {
    let report = made(&with_events());
    let text = report.to_markdown();
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("| time")
                || line.starts_with("| rate")
                || line.starts_with("| size"))
            .count(),
        20
    );
    let picture = report.to_svg("time_4").expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>"));
    assert!(picture.contains("<style>") && picture.contains("m-regression"));
    assert_eq!(report.to_svg("nothing"), None);
}

#[test]
fn thinning_keeps_extremes_ends_and_marks() {
    let mut points: Vec<(usize, f64)> = (0..10_000).map(|at| (at, 100.0)).collect();
    points[1234].1 = 900.0;
    points[4321].1 = 1.0;
    let kept = chart::thinned(&points, &[777, 9000], 400);
    assert!(kept.len() <= 402, "{}", kept.len());
    for at in [0, 777, 1234, 4321, 9000, 9999] {
        assert!(kept.iter().any(|(kept, _)| *kept == at), "{at}");
    }
    assert!(kept.is_sorted_by_key(|(at, _)| *at));
    assert_eq!(chart::thinned(&points[..10], &[], 400).len(), 10);
}

#[test]
fn a_history_of_one_commit_or_none_is_shown() {
    let page = made(&Recipe {
        commits: 1,
        ..Recipe::default()
    })
    .to_html();
    assert_eq!(page.matches("class=\"dot\"").count(), 20);
    let empty = made(&Recipe {
        commits: 0,
        ..Recipe::default()
    });
    assert!(empty.to_html().contains("0 commits"));
}
