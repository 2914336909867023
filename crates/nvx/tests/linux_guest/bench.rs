//! `nvx bench lifecycle` of a stock kernel: one sample of each suite, packed and answered by nvx itself.

use serde_json::Value;

use crate::guest::{KernelFile, Linux};
use crate::support::{arguments, entries, run, text};

#[test]
fn a_stock_kernel_is_measured() {
    let Some(linux) = Linux::begin("bench::lifecycle", KernelFile::Cloud) else {
        return;
    };
    let kernel = KernelFile::Cloud.path();
    let (scratch, output) = (linux.path("scratch"), linux.path("result.json"));
    std::fs::create_dir(&scratch).unwrap();
    let words = [
        "bench",
        "lifecycle",
        "--kernel",
        text(&kernel),
        "--samples",
        "1",
        "--warmups",
        "0",
        "--scratch",
        text(&scratch),
        "--output",
        text(&output),
    ];
    let done = run(&arguments(words, [])).expect_code(0);
    done.line_with("linux kernel");
    assert!(entries(&scratch).is_empty(), "nothing is left behind");
    let result: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(result["controls"]["guest"], "linux");
    assert_eq!(result["controls"]["emulated"], true);
    assert!(result["build"]["initramfs_blake3"].is_string());
    for suite in ["backends", "snapshot_capture", "snapshot_restore"] {
        let samples = result[suite]["kvm"]["samples_ms"].as_array().unwrap();
        assert_eq!(samples.len(), 1, "{suite}");
    }
    let restore = &result["snapshot_restore"]["kvm"];
    assert_eq!(restore["teardown_timeout_count"], 0);
}
