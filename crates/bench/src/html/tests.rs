use super::*;
use crate::host::{ExecutionFacts, HostFingerprint};
use crate::result::{
    BuildIdentity, CaptureResult, CaptureSample, Controls, PhaseRecord, RawSample,
};
use crate::storage::{StorageReading, StorageTelemetry};

fn result() -> LifecycleResult {
    let record = |phase: &str, ms: u64| {
        PhaseRecord::of_observer(
            "capture",
            phase,
            true,
            std::time::Duration::from_millis(ms),
            7,
        )
    };
    let captures = (1..=3u64)
        .map(|ms| CaptureSample {
            generation_ms: ms as f64 + 1.0,
            request_to_publication_ms: 1.0,
            post_publication_exit_ms: 1.0,
            peak_rss_bytes: Some(1),
            remeasured: 0,
            raw: RawSample {
                records: vec![record("<flush>", ms), record("commit", 1)],
                ..Default::default()
            },
        })
        .collect();
    let facts = ExecutionFacts::default();
    let host = HostFingerprint::of_this_host(std::path::Path::new("."), facts).expect("a host");
    let reading = |elapsed_us: u64, written: u64| StorageReading {
        elapsed_us,
        device_written_bytes: Some(written),
        ..Default::default()
    };
    LifecycleResult {
        schema: String::new(),
        schema_version: 1,
        timestamp_utc: "2026-01-01T00:00:00+00:00".to_owned(),
        controls: Controls {
            suite: String::new(),
            complete: false,
            validated: false,
            disturbed: false,
            disturbances: Vec::new(),
            emulated: true,
            commit: None,
            warmups: 1,
            runs: 3,
            memory_mib: 128,
            platform: "linux-kvm-emulated".to_owned(),
            backend: "kvm".to_owned(),
            microvm_abi_version: 2,
            processors: 1,
            guest: "probe".to_owned(),
            probe: "fill=all".to_owned(),
            kernel: None,
            initrd: None,
            command_line: None,
            contents: Vec::new(),
            teardown_mode: String::new(),
            teardown_timeout_seconds: 15.0,
            timeout_seconds: 1,
            marker: String::new(),
            restore_marker: String::new(),
            snapshot_capture_timing: String::new(),
            snapshot_restore_guest_exit_prequeued: true,
            snapshot_profile: true,
            cache_state: "warm".to_owned(),
            scratch_directory: ".".into(),
            ram_file: "auto".to_owned(),
            writeback: "auto".to_owned(),
        },
        host,
        build: BuildIdentity {
            program: "nvx".into(),
            program_blake3: "0123456789abcdef01".to_owned(),
            kernel_blake3: String::new(),
            initramfs_blake3: None,
        },
        backends: Default::default(),
        snapshot_capture: [("kvm".to_owned(), CaptureResult::of(captures))].into(),
        snapshot_restore: Default::default(),
        restore_matrix: Vec::new(),
        storage_telemetry: Some(StorageTelemetry {
            device: Some("vda".to_owned()),
            time_line: vec![
                reading(0, 0),
                reading(50_000, 1 << 20),
                reading(100_000, 1 << 20),
            ],
            ..Default::default()
        }),
        warnings: vec!["mind <this>".to_owned()],
    }
}

#[test]
fn the_page_shows_everything_and_loads_nothing() {
    let page = page(&result());
    for part in [
        "aria-label=\"snapshot generation: 3 samples from 2.000 to 4.000 ms, median 3.000 ms\"",
        "the phases of 3 samples, up to 4.000 ms together",
        "device writes over 0.1 s of the run, up to 20.0 MiB/s",
        "Incomplete",
        "mind &lt;this&gt;",
        "&lt;flush&gt;",
        "prefers-color-scheme",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    for absent in ["<script", "<flush>", "src=", "url(", "NaN", "inf"] {
        assert!(!page.contains(absent), "{absent}");
    }
    assert_eq!(page.matches("<circle").count(), 3);
    assert_eq!(page.matches("<rect").count(), 6);
}

#[test]
fn the_table_shows_what_the_page_shows() {
    let text = crate::show::text(&result());
    for part in [
        "snapshot generation",
        "3.000",
        "capture.commit",
        "INCOMPLETE",
        "warning: mind",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}
