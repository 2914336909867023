use std::fs;

use super::*;

const COMMIT: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

fn result() -> Value {
    let times: Vec<f64> = (0..10).map(|index| 20.0 + f64::from(index)).collect();
    let bytes: Vec<u64> = vec![2_097_152; 10];
    let result = json!({
        "samples_ms": times, "p50_ms": 24.5, "wall_samples_ms": times,
        "teardown_samples_ms": times, "teardown_p50_ms": 24.5,
        "peak_rss_samples_bytes": bytes, "peak_rss_p50_bytes": 2_097_152,
    });
    json!({
        "timestamp_utc": "2026-01-01T00:00:00+00:00",
        "controls": {
            "suite": "e2e", "warmups": 1, "runs": 10, "memory_mib": 128,
            "platform": "windows-whp-virtual-machine", "backend": "whp",
            "microvm_abi_version": 2, "processors": 1, "teardown_mode": "guest-exit",
            "marker": "ALPINE-MICROVM-BOOT-OK", "restore_marker": "OPENVMM-SNAPSHOT-RESTORE-OK",
            "snapshot_capture_timing": "openvmm-input-gate-to-publication",
            "snapshot_restore_guest_exit_prequeued": true,
            "artifact_revisions": {"openvmm": COMMIT},
        },
        "backends": {"whp": result}, "snapshot_capture": {"whp": result},
        "snapshot_restore": {"whp": result},
        "phase2": {}, "storage_telemetry": {"schema_version": 1},
    })
}

fn run(content: impl AsRef<[u8]>) -> Result<ImportResult, ImportError> {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    fs::write(&source, content).expect("written");
    import(&ImportRequest {
        source,
        history: None,
        platform: None,
        commit: None,
    })
}

#[test]
fn a_public_result_becomes_rows_and_keeps_what_is_unknown() {
    let ImportResult::Lifecycle(imported) = run(result().to_string()).expect("imported") else {
        panic!("a result");
    };
    assert_eq!(imported.commit, COMMIT);
    assert_eq!(imported.rows, 8);
    let row = format!(
        "windows-whp-virtual-machine,2,1,{COMMIT},openvmm_snapshot_generation,ms,lower,24.5\n"
    );
    assert!(imported.csv.contains(&row), "{}", imported.csv);
    assert!(
        imported
            .csv
            .contains("openvmm_snapshot_restore_peak_rss,MiB,lower,2\n")
    );
    assert_eq!(
        imported.unknown.keys().collect::<Vec<_>>(),
        ["storage_telemetry"]
    );
}

#[test]
fn older_and_other_results_are_refused() {
    for (member, value) in [
        ("snapshot_capture_timing", Value::Null),
        ("snapshot_restore_guest_exit_prequeued", json!(false)),
        ("marker", json!("other")),
        ("suite", json!("snapshot-profile")),
        ("platform", Value::Null),
        ("artifact_revisions", json!({})),
    ] {
        let mut changed = result();
        changed["controls"][member] = value;
        let error = run(changed.to_string()).expect_err(member).to_string();
        assert!(error.contains(&format!("controls.{member}")), "{error}");
    }
}

#[test]
fn profile_lines_of_both_prefixes_are_read() {
    let log = "booting\n\
        OPENVMM_SNAPSHOT_PROFILE_V1 operation=capture phase=input_gate exclusive=1 duration_ns=2000000 \
        process_elapsed_ns=9 pid=7 unix_ns=5 logical_bytes=3\r\n\
        NVX_PROFILE_V1 operation=capture phase=input_gate exclusive=1 duration_ns=4000000 \
        process_elapsed_ns=9 pid=8\n\
        OPENVMM_SNAPSHOT_PROFILE_V12 is no record\n";
    let ImportResult::Profile(imported) = run(log).expect("imported") else {
        panic!("a log");
    };
    assert_eq!(imported.records.len(), 2);
    assert_eq!(imported.records[0].other["unix_ns"], "5");
    let phase = &imported.phases["capture.input_gate"];
    assert_eq!(phase.samples_ms, [2.0, 4.0]);
    assert_eq!((phase.p50_ms, phase.min_ms, phase.max_ms), (3.0, 2.0, 4.0));
}

#[test]
fn what_is_neither_is_refused() {
    let error = run("OPENVMM_SNAPSHOT_PROFILE_V1 operation=capture").expect_err("half a line");
    assert!(error.to_string().ends_with("source:1"), "{error}");
    assert!(matches!(run("nothing\n"), Err(ImportError::Nothing { .. })));
    assert!(matches!(run("{\"a\":"), Err(ImportError::Collect(_))));
    assert!(matches!(run(""), Err(ImportError::Nothing { .. })));
}
