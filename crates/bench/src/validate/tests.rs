use serde_json::{Value, json};

use super::*;
use crate::example::result;
use crate::storage::{SampleStorage, StorageReading, StorageTelemetry};

fn steady() -> Vec<f64> {
    vec![
        100.0, 101.0, 99.0, 100.5, 98.5, 102.0, 100.2, 99.7, 100.9, 101.3,
    ]
}

fn competing_writer() -> Vec<f64> {
    let mut flush = steady();
    for sample in &mut flush[6..] {
        *sample *= 2.3;
    }
    flush
}

#[test]
fn a_steady_result_is_valid_and_acceptable() {
    let validation = validate(&result(&steady()), Some("linux-kvm-emulated"));
    assert_eq!(
        (validation.verdict, validation.reason.as_str()),
        (Verdict::Valid, "valid")
    );
    assert!(validation.acceptable);
    assert_eq!(validation.profile, ValidationProfile::Nvx);
    assert_eq!(validation.series.len(), 3);
}

#[test]
fn a_competing_writer_is_named() {
    let mut document = result(&competing_writer());
    let mib = 1 << 20;
    let reading = |written: u64, own: u64| StorageReading {
        device_written_bytes: Some(written * mib),
        own_written_bytes: Some(own * mib),
        dirty_bytes: Some(0),
        writeback_bytes: Some(0),
        ..Default::default()
    };
    let telemetry = StorageTelemetry {
        samples: (0..10)
            .map(|index| SampleStorage {
                suite: "generation".to_owned(),
                index,
                before: reading(0, 0),
                after: reading(if index < 6 { 128 } else { 400 }, 128),
            })
            .collect(),
        ..Default::default()
    };
    document["storage_telemetry"] = serde_json::to_value(telemetry).expect("JSON");
    let validation = validate(&document, None);
    assert_eq!(validation.verdict, Verdict::Unstable);
    assert_eq!(validation.verdict.exit_code(), 75);
    for part in [
        "samples 7-10 are 2.2",
        "x samples 1-6",
        "mapped_memory_flush carries 100 % of it",
        "the host's storage",
        "the device had other writers",
    ] {
        assert!(
            validation.reason.contains(part),
            "{part}: {}",
            validation.reason
        );
    }
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 17] = [
        (|d| d["schema"] = "other".into(), "schema must be"),
        (
            |d| d["controls"]["complete"] = false.into(),
            "controls.complete must be true",
        ),
        (|d| d["controls"]["suite"] = "e2e".into(), "controls.suite"),
        (
            |d| d["controls"]["marker"] = "X".into(),
            "controls.marker must be",
        ),
        (
            |d| d["controls"]["runs"] = 9.into(),
            "controls.runs must be at least 10",
        ),
        (
            |d| d["controls"]["runs"] = 11.into(),
            "snapshot_capture.kvm.samples_ms has 10 samples",
        ),
        (
            |d| d["controls"]["teardown_mode"] = "host-terminate".into(),
            "controls.teardown_mode",
        ),
        (
            |d| d["controls"]["backend"] = "whp".into(),
            "snapshot_capture.whp is missing",
        ),
        (
            |d| d["snapshot_capture"]["kvm"]["p50_ms"] = 5.0.into(),
            "snapshot_capture.kvm.p50_ms is 5",
        ),
        (
            |d| d["snapshot_capture"]["kvm"]["samples_ms"][2] = (-1.0).into(),
            "sample 3 -1",
        ),
        (
            |d| d["snapshot_capture"]["kvm"]["samples_ms"][2] = 0.into(),
            "sample 3 0",
        ),
        (
            |d| d["snapshot_capture"]["kvm"]["samples_ms"][0] = "NaN".into(),
            "sample 1 \"NaN\"",
        ),
        (
            |d| d["backends"]["kvm"]["max_ms"] = 1.0.into(),
            "backends.kvm.max_ms",
        ),
        (
            |d| d["backends"]["kvm"]["teardown_timeout_count"] = 1.into(),
            "teardown_timeout_count must be 0",
        ),
        (
            |d| d["snapshot_restore"]["kvm"]["teardown_samples_ms"][1] = Value::Null,
            "sample 2 null",
        ),
        (
            |d| d["snapshot_restore"]["kvm"]["peak_rss_p50_bytes"] = 7.into(),
            "peak_rss_p50_bytes is 7",
        ),
        (
            |d| d["snapshot_capture"]["kvm"]["peak_rss_samples_bytes"] = json!([1]),
            "has 1 samples",
        ),
    ];
    for (change, part) in cases {
        let mut document = result(&steady());
        change(&mut document);
        let validation = validate(&document, None);
        assert_eq!(validation.verdict, Verdict::Invalid, "{part}");
        assert!(
            validation.reason.contains(part),
            "{part}: {}",
            validation.reason
        );
        assert!(!validation.reason.contains('\n') && !validation.acceptable);
    }
    let validation = validate(&result(&steady()), Some("linux-kvm-bare-metal"));
    assert!(
        validation.reason.contains("controls.platform"),
        "{}",
        validation.reason
    );
}

#[test]
fn structure_comes_before_stability_and_stability_before_the_rest() {
    let mut document = result(&competing_writer());
    document["backends"]["kvm"]["teardown_timeout_count"] = 1.into();
    assert_eq!(validate(&document, None).verdict, Verdict::Unstable);
    document["snapshot_capture"]["kvm"]["min_ms"] = 1.0.into();
    assert_eq!(validate(&document, None).verdict, Verdict::Invalid);
}

#[test]
fn other_sizes_and_disturbed_runs_are_never_accepted() {
    let mut document = result(&steady());
    document["controls"]["memory_mib"] = 256.into();
    document["backends"]["kvm"]["teardown_timeout_count"] = 1.into();
    let validation = validate(&document, None);
    assert_eq!(
        (validation.verdict, validation.acceptable),
        (Verdict::Valid, false)
    );
    let mut document = result(&steady());
    document["controls"]["disturbed"] = true.into();
    let validation = validate(&document, None);
    assert_eq!(
        (validation.verdict, validation.acceptable),
        (Verdict::Valid, false)
    );
}

#[test]
fn the_public_format_is_held_to_its_own_words_and_rules() {
    // A step of x1.3: only the order of the samples shows it.
    let mut flush = steady();
    for sample in &mut flush[6..] {
        *sample *= 1.28;
    }
    let ours = result(&flush);
    assert_eq!(validate(&ours, None).verdict, Verdict::Unstable);
    let mut theirs = ours;
    let members = theirs.as_object_mut().expect("an object");
    members.remove("schema");
    members.remove("schema_version");
    assert!(validate(&theirs, None).reason.contains("controls.suite"));
    theirs["controls"]["suite"] = "e2e".into();
    theirs["controls"]["marker"] = "ALPINE-MICROVM-BOOT-OK".into();
    theirs["controls"]["restore_marker"] = "OPENVMM-SNAPSHOT-RESTORE-OK".into();
    theirs["controls"]["snapshot_capture_timing"] = "openvmm-input-gate-to-publication".into();
    let validation = validate(&theirs, None);
    assert_eq!(validation.profile, ValidationProfile::Openvmm);
    assert_eq!(validation.verdict, Verdict::Valid, "{}", validation.reason);
    assert!(
        !validation.series[0].findings.is_empty(),
        "named all the same"
    );
}

#[test]
fn files_that_are_no_results_are_told_apart() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("result.json");
    assert!(matches!(
        validate_file(&path, None),
        Err(FieldError::Read { .. })
    ));
    for text in ["", "{\"a\": NaN}", "[1e400]"] {
        std::fs::write(&path, text).expect("space");
        assert!(
            matches!(validate_file(&path, None), Err(FieldError::Json { .. })),
            "{text}"
        );
    }
    std::fs::write(&path, "[]").expect("space");
    let validation = validate_file(&path, None).expect("JSON");
    assert_eq!(validation.verdict, Verdict::Invalid);
}

#[test]
fn clean_series_are_accepted_and_wild_ones_are_not() {
    assert_eq!(acceptance_rate(&steady(), 20), Some((20, 20)));
    let wild: Vec<f64> = (0..10).map(|i| 1.5f64.powi(i)).collect();
    let (accepted, of) = acceptance_rate(&wild, 20).expect("ten samples");
    assert!(accepted < of / 2, "{accepted}");
    assert_eq!(acceptance_rate(&[1.0], 20), None);
}

#[test]
fn doubtful_records_are_wrong_for_good() {
    type Edit = fn(&mut Vec<Value>);
    let edits: [(Edit, &str); 6] = [
        (
            |records| records[1]["pid"] = 8.into(),
            "mapped_memory_flush is of process 8, the monitor was 7",
        ),
        (
            |records| records.push(records[0].clone()),
            "input_gate is there twice",
        ),
        (|records| drop(records.remove(0)), "no input_gate"),
        (|records| records.clear(), "no input_gate"),
        (
            |records| records[2]["process_elapsed_ns"] = 1000.into(),
            "out of order",
        ),
        (
            |records| records[0]["duration_ns"] = 1.into(),
            "samples_ms says",
        ),
    ];
    for (edit, expected) in edits {
        let mut document = result(&steady());
        let sample = &mut document["snapshot_capture"]["kvm"]["profile"]["raw_samples"][3];
        let mut records = sample["records"].as_array().expect("records").clone();
        edit(&mut records);
        sample["records"] = records.into();
        let validation = validate(&document, None);
        assert_eq!(validation.verdict, Verdict::Invalid, "{expected}");
        let reason = validation.reason;
        assert!(
            reason.contains("raw_samples of sample 4: ") && reason.contains(expected),
            "{reason}"
        );
    }
    let mut document = result(&steady());
    let raw = &mut document["snapshot_capture"]["kvm"]["profile"]["raw_samples"];
    let mut fewer = raw.as_array().expect("a list").clone();
    fewer.pop();
    *raw = fewer.into();
    let reason = validate(&document, None).reason;
    assert!(
        reason.contains("are of 9 samples, there are 10"),
        "{reason}"
    );
}
