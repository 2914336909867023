use serde_json::{Map, json};

use super::*;
use crate::validate::{Verdict, validate};

fn steady() -> Value {
    crate::example::result(&[
        100.0, 101.0, 99.0, 100.5, 98.5, 102.0, 100.2, 99.7, 100.9, 101.3,
    ])
}

/// One edit of a document.
struct Edit {
    /// The member's name.
    name: String,
    /// Where it is, for messages.
    place: String,
    document: Value,
}

/// Every member of `document` (of lists the first element only), each left out once and replaced by each of
/// the values.
fn edits(document: &Value) -> Vec<Edit> {
    let values = [
        json!(-1),
        json!(0),
        json!(1e308),
        json!(u64::MAX),
        json!("text"),
        json!(null),
        json!([]),
        json!({}),
    ];
    let mut pointers = Vec::new();
    pointers_of(document, String::new(), &mut pointers);
    let mut all = Vec::new();
    for pointer in pointers {
        let (parent, name) = pointer.rsplit_once('/').expect("below the root");
        let name_in_messages = name.replace("~1", "/");
        let mut edit = |what: &str, document: Value| {
            all.push(Edit {
                name: name_in_messages.clone(),
                place: format!("{pointer} {what}"),
                document,
            });
        };
        let mut without = document.clone();
        if let Some(Value::Object(parent)) = without.pointer_mut(parent) {
            parent.remove(name);
            edit("left out", without);
        }
        for value in &values {
            let mut with = document.clone();
            *with.pointer_mut(&pointer).expect("it is there") = value.clone();
            edit(&format!("is {value}"), with);
        }
    }
    all
}

fn pointers_of(value: &Value, pointer: String, all: &mut Vec<String>) {
    if !pointer.is_empty() {
        all.push(pointer.clone());
    }
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                pointers_of(member, format!("{pointer}/{name}"), all);
            }
        }
        Value::Array(elements) => {
            if let Some(first) = elements.first() {
                pointers_of(first, format!("{pointer}/0"), all);
            }
        }
        _ => {}
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// Whether a message names the member; an element of a list is named by the list.
fn names(message: &str, name: &str) -> bool {
    name == "0" || message.contains(name)
}

/// A result whose records of the observer and whose telemetry are there as well.
fn whole() -> Value {
    let mut document = steady();
    let raw = json!({
        "pid": 7, "begin_ms": 1.0, "end_ms": 2.0,
        "records": [{
            "operation": "startup", "phase": "process_startup", "exclusive": true,
            "duration_ns": 5, "process_elapsed_ns": 5, "pid": 7, "source": "nvx",
        }],
    });
    document["backends"]["kvm"]["profile"]["raw_samples"][0] = raw;
    let reading = json!({ "elapsed_us": 1, "device_written_bytes": 2 });
    document["storage_telemetry"] = json!(crate::storage::StorageTelemetry::default());
    let later = json!({ "elapsed_us": 9, "device_written_bytes": 3 });
    document["storage_telemetry"]["time_line"] = json!([reading, later]);
    document["storage_telemetry"]["samples"] = json!([{
        "suite": "generation", "index": 0, "before": reading, "after": reading,
    }]);
    document
}

#[test]
fn every_edit_of_a_result_is_read_or_named() {
    let document = whole();
    let path = Path::new("result.json");
    deserialize::<LifecycleResult>(path, &document).expect("a whole result");
    for edit in edits(&document) {
        let Edit {
            name,
            place,
            document,
        } = edit;
        let validation = validate(&document, Some("linux-kvm-emulated"));
        assert!(!validation.reason.is_empty() && !validation.reason.contains('\n'));
        if validation.verdict == Verdict::Invalid {
            let reason = &validation.reason;
            // Without a schema it is a result of the public format, and the section that a back end names
            // is looked for by its name.
            let decides = ["schema", "backend", "kvm"].contains(&name.as_str());
            // What does not fit together is told of the sample that it is in.
            let of_sample = place.contains("raw_samples") && reason.contains("of sample 1");
            assert!(
                decides || of_sample || names(reason, &name),
                "{place}: {reason}"
            );
        }
        match deserialize::<LifecycleResult>(path, &document) {
            Ok(result) => {
                assert!(!crate::show::text(&result).is_empty());
                assert!(crate::html::page(&result).ends_with("</html>"), "{place}");
            }
            Err(error) => {
                let message = chain(&error);
                assert!(names(&message, &name), "{place}: {message}");
                assert!(!message.contains('\n'), "{place}: {message}");
            }
        }
    }
}

fn comparison() -> Value {
    let samples = |base: f64| -> Map<String, Value> {
        let metrics = crate::compare::MetricKind::ALL.into_iter();
        metrics
            .map(|metric| {
                let series: Vec<f64> = (0..10).map(|index| base + f64::from(index)).collect();
                (metric.ending().to_owned(), json!(series))
            })
            .collect()
    };
    let build = |name: &str, base: f64| json!({ "name": name, "program": name, "program_blake3": name, "samples": samples(base) });
    json!({
        "schema": "nvx.comparison", "schema_version": 1,
        "timestamp_utc": "2026-01-01T00:00:00+00:00", "interleaved": true,
        "base_commit": "", "candidate_commit": "", "metrics": {},
        "tests": {
            "primary": "snapshot_generation", "secondaries": ["cold_start"], "margin_percent": 5.0,
        },
        "aa": false, "emulated": true, "host": steady()["host"], "subject": { "guest": "probe" },
        "builds": [build("old", 100.0), build("new", 101.0)], "verdicts": [],
    })
}

#[test]
fn every_edit_of_a_comparison_is_read_or_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("comparison.json");
    let read = |document: &Value| {
        std::fs::write(&path, document.to_string()).expect("space");
        read_comparison(&path)
    };
    assert_eq!(read(&comparison()).expect("a comparison").verdicts.len(), 1);
    for edit in edits(&comparison()) {
        match read(&edit.document) {
            Ok(result) => {
                let table = crate::compare::merge(&[("host".to_owned(), result)]);
                let table = table.expect("one is comparable with itself");
                assert!(
                    !table.contains("NaN") && !table.contains("inf"),
                    "{}: {table}",
                    edit.place
                );
            }
            Err(error) => {
                let message = chain(&error);
                assert!(names(&message, &edit.name), "{}: {message}", edit.place);
            }
        }
    }
}

#[test]
fn samples_that_nothing_measured_are_named() {
    let refused = |edit: fn(&mut Value), part: &str| {
        let mut document = comparison();
        edit(&mut document);
        let checked = check_samples(&document)
            .and_then(|()| check_counts(&serde_json::from_value(document).expect("a comparison")));
        let message = checked.expect_err("refused").to_string();
        assert!(message.contains(part), "{message}");
    };
    refused(
        |document| document["builds"][1]["samples"]["cold_start"][3] = (-1.0).into(),
        "builds[1].samples.cold_start has as sample 4 -1",
    );
    refused(
        |document| document["builds"][1]["samples"]["cold_start"] = json!([1.0]),
        "builds[1].samples.cold_start has 1 samples, the first build 10",
    );
    refused(
        |document| document["builds"] = json!([document["builds"][0]]),
        "builds has 1 of them",
    );
}
