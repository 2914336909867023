//! A recorded run with a competing writer: what the validator says of a real disturbance.
//!
//! The result is of `nvx bench lifecycle --disturb writer@7 --fill spread:16384` on ext4 on a loop device, on a
//! busy machine where guest code is emulated. The readings over time, the phases of the other suites, and what
//! tells the machine apart were left out.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use nvx_bench::validate::{Validation, Verdict, acceptance_rate, validate};
use serde_json::Value;

const RECORDED: &str = include_str!("data/competing_writer.json");

fn recorded() -> (Value, Validation) {
    let document: Value = serde_json::from_str(RECORDED).expect("JSON");
    let validation = validate(&document, None);
    (document, validation)
}

#[test]
fn the_samples_the_phase_and_the_outsider_are_named() {
    let (_, validation) = recorded();
    assert_eq!(validation.verdict, Verdict::Unstable);
    for words in [
        "samples 7-10 are 1.78 x samples 1-6",
        "mapped_memory_flush carries 53 % of it, which points to the host's storage",
        "the device had other writers",
    ] {
        assert!(
            validation.reason.contains(words),
            "{words}: {}",
            validation.reason
        );
    }
}

#[test]
fn what_was_disturbed_is_never_accepted() {
    let (mut document, validation) = recorded();
    assert!(!validation.acceptable);
    assert_eq!(document["controls"]["disturbed"], true);
    // Not even with a series that is stable.
    let capture = document["snapshot_capture"]["kvm"]
        .as_object_mut()
        .expect("a suite");
    let steady = 100.0;
    for name in ["p50_ms", "min_ms", "max_ms"] {
        capture.insert(name.to_owned(), steady.into());
    }
    capture.insert("samples_ms".to_owned(), vec![steady; 10].into());
    capture.remove("profile");
    let validation = validate(&document, None);
    assert_eq!(
        (validation.verdict, validation.acceptable),
        (Verdict::Valid, false)
    );
    assert!(validation.reason.contains("disturbed on purpose"));
}

#[test]
fn runs_like_it_would_seldom_be_accepted() {
    let (document, _) = recorded();
    let samples: Vec<f64> =
        serde_json::from_value(document["snapshot_capture"]["kvm"]["samples_ms"].clone())
            .expect("samples");
    let (accepted, of) = acceptance_rate(&samples, 20).expect("ten samples");
    assert!(accepted * 2 < of, "{accepted} of {of}");
}
