use std::fs;

use super::*;
use crate::provenance::{CommitRange, ProvenanceVerdict};

const MEASURED: &str = "1111111111111111111111111111111111111111";
const SHIPPED: &str = "2222222222222222222222222222222222222222";

/// An accepted result of ten samples.
pub(crate) fn good() -> Value {
    let times: Vec<f64> = (0..10).map(|index| 100.0 + f64::from(index)).collect();
    let bytes: Vec<u64> = (0..10).map(|index| 10_485_760 + index).collect();
    let result = json!({
        "samples_ms": times, "p50_ms": 104.5,
        "teardown_samples_ms": times, "teardown_p50_ms": 104.5, "teardown_timeout_count": 0,
        "peak_rss_samples_bytes": bytes, "peak_rss_p50_bytes": 10_485_764,
    });
    json!({
        "schema": "nvx.lifecycle", "schema_version": 1,
        "controls": {
            "suite": "lifecycle", "validated": true, "disturbed": false, "complete": true,
            "emulated": false, "commit": MEASURED, "platform": "linux-kvm-bare-metal",
            "backend": "kvm", "microvm_abi_version": 2, "processors": 1, "memory_mib": 128,
            "runs": 10, "teardown_mode": "guest-exit",
        },
        "host": {"fingerprint": "blue", "cpu_model": "x"},
        "backends": {"kvm": result}, "snapshot_capture": {"kvm": result},
        "snapshot_restore": {"kvm": result},
        "something_new": [1, 2],
    })
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn write(&self, name: &str, value: &impl Serialize) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, serde_json::to_vec(value).expect("JSON")).expect("written");
        path
    }

    fn request(&self, result: &Value) -> CollectRequest {
        CollectRequest {
            result: self.write("result.json", result),
            history: None,
            platform: None,
            commit: None,
            provenance: None,
        }
    }
}

fn changed(path: &str, value: Value) -> Value {
    let mut result = good();
    *result.pointer_mut(path).expect("a member") = value;
    result
}

#[test]
fn an_accepted_result_gives_eight_rows() {
    let place = Place::new();
    let result = collect(&place.request(&good())).expect("collected");
    assert_eq!(result.rows, 8);
    let wanted = format!("linux-kvm-bare-metal,2,1,{MEASURED},nvx_cold_start,ms,lower,104.5\n");
    assert!(result.csv.contains(&wanted), "{}", result.csv);
    assert!(
        result
            .csv
            .contains("nvx_cold_start_peak_rss,MiB,lower,10.0000038147\n"),
        "{}",
        result.csv
    );
    let rows = place.directory.path().join("rows.csv");
    result.write(&rows).expect("written");
    assert_eq!(fs::read_to_string(&rows).expect("read"), result.csv);
    let hosts = Hosts::read_beside(&rows).expect("read");
    assert_eq!(hosts.fingerprint(MEASURED), Some("blue"));
    result.write(&rows).expect("written again");
}

#[test]
fn rows_take_the_names_of_the_target_history() {
    let place = Place::new();
    let history = place
        .directory
        .path()
        .join("linux-kvm-bare-metal-microvm-v2-1vcpu.csv");
    let text = format!(
        "{}\nlinux-kvm-bare-metal,2,1,{SHIPPED},openvmm_cold_start,ms,lower,1\n",
        crate::csv::HEADER
    );
    fs::write(&history, &text).expect("written");
    let mut request = place.request(&good());
    request.history = Some(history.clone());
    let result = collect(&request).expect("collected");
    assert!(
        result
            .csv
            .contains(",openvmm_snapshot_restore_peak_rss,MiB"),
        "{}",
        result.csv
    );
    assert!(!result.csv.contains("nvx_"));
    fs::write(&history, text.replace("kvm", "mshv")).expect("written");
    let error = collect(&request).expect_err("another platform's file");
    assert!(error.to_string().contains("file's name says"), "{error}");
}

#[test]
fn captures_that_only_claim_to_be_stable_are_refused() {
    let place = Place::new();
    for (samples, p50, wanted) in [
        (
            [100, 101, 102, 103, 104, 105, 106, 150, 151, 152],
            104.5,
            "is unstable by a ratio of 1.42, must be within 1.25: the result is unvalidated",
        ),
        // What is no sample at all is named as such.
        (
            [100, 101, 102, 103, 104, 105, 106, 0, 151, 152],
            103.5,
            "is 0, must be finite and above zero: the result is mismatched",
        ),
    ] {
        let mut result = good();
        result["snapshot_capture"]["kvm"]["samples_ms"] = json!(samples);
        result["snapshot_capture"]["kvm"]["p50_ms"] = json!(p50);
        let error = collect(&place.request(&result)).expect_err("refused captures");
        let message = error.to_string();
        let wanted = format!("snapshot_capture.kvm.samples_ms {wanted}");
        assert!(message.contains(&wanted), "{message}");
    }
}

#[test]
fn what_is_not_accepted_is_refused_by_name() {
    let place = Place::new();
    for (path, value, wanted) in [
        (
            "/controls/validated",
            json!(false),
            "controls.validated is false, must be true: the result is unvalidated",
        ),
        (
            "/controls/validated",
            Value::Null,
            "the result is unvalidated",
        ),
        (
            "/controls/disturbed",
            json!(true),
            "the result is disturbed",
        ),
        (
            "/controls/complete",
            json!(false),
            "the result is incomplete",
        ),
        ("/controls/emulated", json!(true), "the result is emulated"),
        (
            "/controls/emulated",
            Value::Null,
            "controls.emulated must be true or false",
        ),
        (
            "/controls/platform",
            json!("linux-kvm-emulated"),
            "the result is mismatched",
        ),
        (
            "/controls/memory_mib",
            json!(256),
            "controls.memory_mib is 256, must be 128: the result is mismatched",
        ),
        (
            "/controls/teardown_mode",
            json!("host-terminate"),
            "controls.teardown_mode is",
        ),
        ("/controls/suite", json!("e2e"), "controls.suite is"),
        (
            "/controls/runs",
            json!(3),
            "controls.runs is 3, must be at least 10: the result is incomplete",
        ),
        (
            "/controls/runs",
            json!(11),
            "backends.kvm.samples_ms is 10 numbers, must be 11 numbers",
        ),
        ("/controls/processors", json!(3), "'3' processors"),
        ("/controls/commit", json!("main"), "'main' is no commit"),
        (
            "/controls/backend",
            json!("whp"),
            "backends.whp.samples_ms must be a list of samples",
        ),
        ("/schema", json!("other"), "schema is \"other\""),
        ("/schema_version", json!(2), "schema_version is 2"),
        (
            "/backends/kvm/p50_ms",
            json!(90.0),
            "backends.kvm.p50_ms is 90, must be 104.5: the result is mismatched",
        ),
        (
            "/backends/kvm/samples_ms/3",
            json!(0.0),
            "must be finite and above zero",
        ),
        (
            "/backends/kvm/samples_ms/3",
            Value::Null,
            "the result is incomplete",
        ),
        (
            "/backends/kvm/teardown_timeout_count",
            json!(1),
            "the result is incomplete",
        ),
    ] {
        let error = collect(&place.request(&changed(path, value)))
            .expect_err(path)
            .to_string();
        assert!(error.contains(wanted), "{error} should contain {wanted}");
        assert!(
            error.contains("result.json") || error.contains("no commit"),
            "{error}"
        );
    }
}

#[test]
fn the_platform_may_be_named_but_not_changed() {
    let place = Place::new();
    let mut request = place.request(&good());
    request.platform = Some("linux-kvm-bare-metal".to_owned());
    collect(&request).expect("the same");
    request.platform = Some("linux-kvm-virtual-machine".to_owned());
    let error = collect(&request).expect_err("another").to_string();
    assert!(error.contains("the result is mismatched"), "{error}");
    let emulated = changed("/controls/emulated", json!(true));
    let mut emulated = place.request(&emulated);
    emulated.platform = Some("linux-kvm-bare-metal".to_owned());
    assert!(collect(&emulated).is_err());
}

#[test]
fn another_commit_needs_a_proof_that_is_recorded() {
    let place = Place::new();
    let range = |tip: &str| CommitRange {
        range: "a..b".to_owned(),
        base: "0".repeat(40),
        tip: tip.to_owned(),
        tree: "3".repeat(40),
        patch_id: Some("4".repeat(40)),
    };
    let proof = |verdict| Provenance {
        left: range(MEASURED),
        right: range(SHIPPED),
        verdict,
    };
    let mut request = place.request(&good());
    request.commit = Some(SHIPPED.to_owned());
    assert!(matches!(
        collect(&request),
        Err(CollectError::NeedsProof { .. })
    ));

    let same = proof(ProvenanceVerdict::SamePatch {
        files: vec!["a".to_owned()],
    });
    request.provenance = Some(place.write("proof.json", &same));
    let result = collect(&request).expect("proved");
    assert_eq!(
        (result.commit.as_str(), result.measured_commit.as_str()),
        (SHIPPED, MEASURED)
    );
    assert_eq!(result.provenance, Some(same));
    assert!(result.csv.contains(SHIPPED) && !result.csv.contains(MEASURED));

    let different = ProvenanceVerdict::Different {
        patch_ids_differ: true,
        files: Vec::new(),
        left_off: 0,
    };
    request.provenance = Some(place.write("proof.json", &proof(different)));
    assert!(matches!(collect(&request), Err(CollectError::Proof { .. })));
    request.provenance = Some(place.write("proof.json", &proof(ProvenanceVerdict::SameTree)));
    request.commit = Some("5".repeat(40));
    let error = collect(&request).expect_err("about others").to_string();
    assert!(error.contains("it is about"), "{error}");
}
