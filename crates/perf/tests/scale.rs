//! How a history of 100,000 rows is gated and reported. Run with
//! `cargo test --release -p nvx-perf --test scale -- --ignored --nocapture`.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a test stops and prints where something is wrong"
)]

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use nvx_perf::{GateRequest, GateRules, HEADER, ReportRequest, gate, report};

const ROWS: usize = 100_000;
const PLATFORM: &str = "linux-kvm-bare-metal,2,1";

/// A number that looks random, between 0.98 and 1.02.
fn noise(seed: usize) -> f64 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    0.98 + 0.04 * ((mixed >> 11) as f64 / (1u64 << 53) as f64)
}

fn rows(commits: std::ops::Range<usize>, metrics: usize) -> String {
    let mut text = format!("{HEADER}\n");
    for commit in commits {
        for metric in 0..metrics {
            // One level shift half-way, which thinning must not lose.
            let shift = if metric == 1 && commit * metrics > ROWS / 2 {
                1.2
            } else {
                1.0
            };
            let value = 100.0 * shift * noise(commit * metrics + metric);
            writeln!(
                text,
                "{PLATFORM},{commit:040x},metric_{metric},ms,lower,{value:.4}"
            )
            .expect("written");
        }
    }
    text
}

fn measure(metrics: usize) -> (Duration, Duration, usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory
        .path()
        .join("linux-kvm-bare-metal-microvm-v2-1vcpu.csv");
    let candidate = directory.path().join("rows.csv");
    let commits = ROWS / metrics;
    fs::write(&base, rows(0..commits, metrics)).expect("written");
    fs::write(&candidate, rows(commits..commits + 1, metrics)).expect("written");
    let request = GateRequest {
        base: base.clone(),
        candidate,
        candidate_history: None,
        allow_reset: false,
        rules: GateRules::Adaptive {
            again: None,
            compare: None,
        },
    };
    let start = Instant::now();
    let result = gate(&request).expect("judged");
    let gated = start.elapsed();
    assert_eq!(result.judged, metrics);
    let start = Instant::now();
    let report = report(&ReportRequest { files: vec![base] }).expect("a report");
    let page = report.to_html();
    let reported = start.elapsed();
    assert!(page.contains("class=\"m-regression\""));
    for mark in report
        .histories
        .iter()
        .flat_map(|h| &h.series)
        .flat_map(|s| &s.marks)
    {
        assert!(page.contains(&mark.to_text(&report.histories[0].commits)));
    }
    println!(
        "{metrics} metrics, {commits} commits, {ROWS} rows: gate {gated:?}, report {reported:?}, \
         page {} bytes",
        page.len()
    );
    (gated, reported, page.len())
}

#[test]
#[ignore = "a benchmark: its figures mean something in a release build on a quiet machine"]
fn one_hundred_thousand_rows() {
    for metrics in [36, 200, 1000] {
        let (gated, reported, page_bytes) = measure(metrics);
        assert!(gated < Duration::from_millis(500), "{gated:?}");
        assert!(reported < Duration::from_secs(5), "{reported:?}");
        assert!(page_bytes < 5_000_000, "{page_bytes}");
    }
}

/// The same at a size that any build manages: the page stays small, whatever the number of rows.
#[test]
fn a_page_does_not_grow_with_its_rows() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory
        .path()
        .join("linux-kvm-bare-metal-microvm-v2-1vcpu.csv");
    let mut sizes = Vec::new();
    for commits in [1000, 3000] {
        fs::write(&base, rows(0..commits, 2)).expect("written");
        let report = report(&ReportRequest {
            files: vec![base.clone()],
        })
        .expect("a report");
        sizes.push(report.to_html().len());
    }
    assert!(sizes[1] < sizes[0] * 3 / 2, "{sizes:?}");
}
