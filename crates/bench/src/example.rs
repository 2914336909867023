//! A whole result for tests.

use std::path::Path;

use serde_json::{Value, json};

use crate::host::{ExecutionFacts, HostFingerprint};
use crate::result::{
    CaptureResult, CaptureSample, MONITOR_SOURCE, PhaseRecord, RawSample, StartResult, StartSample,
};
use crate::synthetic::Random;

/// A result of our own whose generation series has the given flush times.
pub fn result(flush_ms: &[f64]) -> Value {
    let record = |phase: &str, duration_ms: f64, end_ms: f64| PhaseRecord {
        process_elapsed_ns: Some((end_ms * 1e6).round() as u64),
        source: MONITOR_SOURCE.to_owned(),
        ..PhaseRecord::of_observer(
            "capture",
            phase,
            true,
            std::time::Duration::from_secs_f64(duration_ms / 1e3),
            7,
        )
    };
    let captures = flush_ms
        .iter()
        .map(|flush| CaptureSample {
            generation_ms: flush + 3.0,
            request_to_publication_ms: flush + 4.0,
            post_publication_exit_ms: 1.0,
            peak_rss_bytes: Some(2 << 20),
            remeasured: 0,
            raw: RawSample {
                pid: 7,
                records: vec![
                    record("input_gate", 1.0, 1.0),
                    record("mapped_memory_flush", *flush, 1.0 + flush),
                    record("publication_commit", 2.0, 3.0 + flush),
                    record("publication_parent_sync", 9.0, 12.0 + flush),
                ],
                ..Default::default()
            },
        })
        .collect();
    let starts = || -> Vec<StartSample> {
        let mut random = Random::new(3);
        random
            .series(flush_ms.len(), 0.02)
            .into_iter()
            .map(|elapsed_ms| StartSample {
                elapsed_ms,
                teardown_ms: Some(elapsed_ms / 10.0),
                peak_rss_bytes: Some(1 << 20),
                remeasured: 0,
                raw: RawSample::default(),
            })
            .collect()
    };
    let host = HostFingerprint::of_this_host(Path::new("."), ExecutionFacts::default());
    let host = host.expect("a host");
    json!({
        "schema": "nvx.lifecycle",
        "schema_version": 1,
        "timestamp_utc": "2026-01-01T00:00:00+00:00",
        "host": host,
        "build": { "program": "nvx", "program_blake3": "00", "kernel_blake3": "11" },
        "controls": {
            "suite": "lifecycle", "complete": true, "disturbed": false, "runs": flush_ms.len(),
            "memory_mib": 128, "backend": "kvm", "platform": "linux-kvm-emulated",
            "teardown_mode": "guest-exit", "marker": "PROBE-READY",
            "restore_marker": "PROBE-RESTORED",
            "snapshot_capture_timing": "nvx-input-gate-to-publication",
            "snapshot_restore_guest_exit_prequeued": true,
            "validated": false, "emulated": true, "commit": null, "warmups": 1,
            "microvm_abi_version": 2, "processors": 1, "guest": "probe",
            "probe": "fill=top:256,seed=1", "teardown_timeout_seconds": 15.0, "timeout_seconds": 120,
            "snapshot_profile": true, "cache_state": "warm", "scratch_directory": "/",
        },
        "backends": { "kvm": StartResult::of(starts()) },
        "snapshot_capture": { "kvm": CaptureResult::of(captures) },
        "snapshot_restore": { "kvm": StartResult::of(starts()) },
    })
}
