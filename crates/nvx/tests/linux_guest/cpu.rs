//! What of its CPU a guest is shown, and what a restoring host must have of it.

use nvx_snapshot::{CpuFeatureWord, CpuRegister, MANIFEST_FILE};

use crate::copies::capture;
use crate::guest::{KernelFile, Linux, restored_shell};
use crate::support::{copy_snapshot, manifest, restore, run};

/// Of x86-64-v3; the emulated processor has it.
const BEYOND_BASELINE: &str = "bmi2";
/// Of x86-64-v2.
const WITHIN_BASELINE: [&str; 3] = ["sse4_2", "popcnt", "cx16"];

#[test]
fn baseline_hides_what_other_hosts_may_lack() {
    let Some(mut linux) = Linux::begin("cpu::baseline", KernelFile::Cloud) else {
        return;
    };
    let flags = "grep -m 1 ^flags /proc/cpuinfo";
    let host = linux.run(flags).expect_code(0).output;
    assert!(
        host.split_whitespace().any(|flag| flag == BEYOND_BASELINE),
        "{host}"
    );
    linux.options = vec!["--cpu".to_owned(), "baseline".to_owned()];
    let baseline = linux.run(flags).expect_code(0).output;
    let baseline: Vec<&str> = baseline.split_whitespace().collect();
    assert!(!baseline.contains(&BEYOND_BASELINE), "{baseline:?}");
    for flag in WITHIN_BASELINE {
        assert!(baseline.contains(&flag), "no {flag} in {baseline:?}");
    }
}

#[test]
fn a_host_that_lacks_a_feature_is_told_which() {
    let Some(mut linux) = Linux::begin("cpu::refused", KernelFile::Cloud) else {
        return;
    };
    let (shell, socket) = linux.controlled_shell();
    let snapshot = linux.path("snapshot");
    capture(shell, &socket, &snapshot);
    // As if it came from a host with one feature more (leaf 7 EDX: AMX-INT8 is bit 25), and from another boot.
    let elsewhere = linux.path("elsewhere");
    copy_snapshot(&snapshot, &elsewhere);
    let mut changed = manifest(&elsewhere);
    let features = &mut changed.cpu.features;
    let place = |word: &CpuFeatureWord| {
        (word.leaf, word.subleaf, word.register) == (7, 0, CpuRegister::Edx)
    };
    match features.iter_mut().find(|word| place(word)) {
        Some(word) => word.bits |= 1 << 25,
        None => features.push(CpuFeatureWord {
            leaf: 7,
            subleaf: 0,
            register: CpuRegister::Edx,
            bits: 1 << 25,
        }),
    }
    changed.cpu.captured_on = None;
    std::fs::write(elsewhere.join(MANIFEST_FILE), changed.encode().unwrap()).unwrap();
    let done = run(&restore(&elsewhere, &[])).expect_code(125);
    done.assert_said("the guest uses CPU features that this host lacks: amx_int8");
    // The same from another boot of this host, which has all.
    changed.cpu.features = manifest(&snapshot).cpu.features;
    std::fs::write(elsewhere.join(MANIFEST_FILE), changed.encode().unwrap()).unwrap();
    let mut copy = restored_shell(&elsewhere, &[]);
    copy.order("true");
    copy.exit(0);
}
