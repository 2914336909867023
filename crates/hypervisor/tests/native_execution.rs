//! The trial run on `/dev/kvm`, and the capabilities that it answers.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::io::Write as _;

use nvx_hypervisor::kvm::Kvm;
use nvx_hypervisor::{OpenError, measure_execution, probe_backends};

fn skip(test: &str, reason: &OpenError) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

#[test]
fn a_guest_runs_and_its_speed_is_told() {
    let kvm = match Kvm::open() {
        Ok(kvm) => kvm,
        Err(error) => return skip("a_guest_runs_and_its_speed_is_told", &error),
    };
    // Whether it is hardware differs from host to host; that there is an answer does not.
    let speed = measure_execution(&kvm).unwrap();
    assert!(speed.instructions_per_ms > 0);
    println!("{speed:?}: {:?}", speed.execution());
}

#[test]
fn capabilities_that_every_machine_needs_are_there() {
    let backends = probe_backends();
    let kvm = backends.iter().find(|found| found.name == "kvm").unwrap();
    let capabilities = match &kvm.capabilities {
        Ok(capabilities) => capabilities,
        Err(error) => return skip("capabilities_that_every_machine_needs_are_there", error),
    };
    for capability in capabilities {
        assert!(
            capability.is_present() || !capability.required,
            "{capability:?}"
        );
    }
}
