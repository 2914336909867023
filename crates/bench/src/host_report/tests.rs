//! Verdicts of made-up hosts, and a look at this one.

use std::io;
use std::path::PathBuf;

use nvx_host::probe::{
    ConfinementFacts, HugePageFacts, KernelFacts, MachineFacts, PageInterfaceFacts, ScratchError,
    ScratchFacts, Support,
};
use nvx_host::{FileSystem, FileSystemKind, RenameMethod};
use nvx_hypervisor::{BackendFacts, Capability, ExecutionSpeed, OpenError, TrialError};

use super::backends::{NoTrial, Trial};
use super::*;

fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    let found: Vec<_> = checks.iter().filter(|check| check.name == name).collect();
    assert_eq!(found.len(), 1, "{name} in {checks:#?}");
    found[0]
}

/// What every report keeps: whatever is not as it should be says how to get it.
fn assert_remedies(checks: &[Check]) {
    for check in checks {
        let needs = matches!(check.status, Status::Warn | Status::Fail);
        assert!(!needs || check.remedy.is_some(), "{check:?}");
        assert!(!check.detail.is_empty(), "{check:?}");
    }
}

fn kvm(capabilities: Result<Vec<Capability>, OpenError>) -> BackendFacts {
    BackendFacts {
        name: "kvm",
        interface: Some("/dev/kvm"),
        purpose: None,
        capabilities,
    }
}

fn trial(backend: &'static str, instructions_per_ms: u64) -> Trial {
    Trial {
        backend: Some(backend),
        speed: Ok(ExecutionSpeed {
            instructions_per_ms,
        }),
    }
}

fn capability(required: bool, value: i32) -> Capability {
    Capability {
        name: "KVM_CAP_X",
        purpose: "a purpose",
        required,
        value,
    }
}

#[test]
fn a_host_without_kvm_runs_the_demo_in_software() {
    let device = PathBuf::from("/dev/kvm");
    let backends = [kvm(Err(OpenError::NotPresent { device }))];
    let checks = backends::checks(&backends, &trial("soft", 100));
    assert_remedies(&checks);
    assert_eq!(find(&checks, "kvm").status, Status::Warn);
    let guest = find(&checks, "a guest on auto");
    assert_eq!(guest.status, Status::Warn);
    assert!(guest.detail.contains("soft, emulated"), "{guest:?}");
    assert!(checks.iter().all(|check| check.status != Status::Fail));
}

#[test]
fn the_group_that_may_open_the_device_is_named_with_the_command() {
    let error = OpenError::NoPermission {
        device: PathBuf::from("/dev/kvm"),
        group: "virt".to_owned(),
        group_may_open: true,
    };
    let checks = backends::checks(&[kvm(Err(error))], &trial("soft", 100));
    let check = find(&checks, "kvm");
    assert!(check.detail.contains("'virt'"), "{check:?}");
    let remedy = check.remedy.as_deref();
    assert!(remedy.is_some_and(|text| text.contains("usermod -aG virt")));
}

#[test]
fn missing_capabilities_are_named_with_their_purpose() {
    for (missing, status) in [
        (capability(true, 0), Status::Fail),
        (capability(false, 0), Status::Warn),
        (capability(true, 1), Status::Ok),
    ] {
        let backends = [kvm(Ok(vec![missing]))];
        let checks = backends::checks(&backends, &trial("kvm", 10_000_000));
        assert_remedies(&checks);
        let check = find(&checks, "capabilities");
        assert_eq!(check.status, status);
        let is_named = check.detail.contains("KVM_CAP_X (a purpose)");
        assert_eq!(is_named, status != Status::Ok, "{check:?}");
        assert_eq!(backends::capability_rows(&backends).len(), 1);
    }
}

#[test]
fn a_back_end_that_opens_and_does_not_run_is_a_failure_and_counts_as_emulated() {
    let trial = Trial {
        backend: Some("kvm"),
        speed: Err(NoTrial::Run(TrialError::TimedOut)),
    };
    let checks = backends::checks(&[kvm(Ok(Vec::new()))], &trial);
    assert_remedies(&checks);
    assert_eq!(find(&checks, "a guest on auto").status, Status::Fail);
    assert_eq!(backends::execution_name(&trial), "emulated");
}

#[test]
fn hardware_is_told_by_speed() {
    let trial = trial("kvm", 5_000_000);
    let checks = backends::checks(&[kvm(Ok(Vec::new()))], &trial);
    assert_eq!(find(&checks, "a guest on auto").status, Status::Ok);
    assert_eq!(backends::execution_name(&trial), "hardware");
}

fn scratch_of(file_system: FileSystemKind, every: &Support) -> ScratchFacts {
    let every = || every.clone();
    ScratchFacts {
        path: "/scratch".into(),
        file_system: FileSystem {
            kind: file_system,
            magic: 0,
        },
        driver: "driver".to_owned(),
        source: Some("/dev/disk".to_owned()),
        valid_data_length: Support::No,
        free_bytes: 1 << 40,
        nameless_files: every(),
        rename_method: RenameMethod::NoReplace,
        locks: every(),
        shared_mapping: every(),
        reflink: every(),
        hole_punching: every(),
        directory_sync: every(),
    }
}

#[test]
fn a_file_system_with_everything_is_fine() {
    let facts = scratch_of(FileSystemKind::Ext4, &Support::Yes);
    let checks = scratch::checks(Path::new("/scratch"), &Ok(facts));
    assert!(
        checks
            .iter()
            .all(|check| matches!(check.status, Status::Ok | Status::Info)),
        "{checks:#?}"
    );
    let text = &find(&checks, "file system").detail;
    assert_eq!(text, "driver on /dev/disk");
}

#[test]
fn a_file_system_with_nothing_says_what_each_lack_costs() {
    let reason = "why".to_owned();
    for every in [Support::No, Support::Unclear { reason }] {
        let facts = ScratchFacts {
            valid_data_length: Support::Yes,
            free_bytes: 4096,
            rename_method: RenameMethod::ClaimedDirectory,
            ..scratch_of(FileSystemKind::Tmpfs, &every)
        };
        let checks = scratch::checks(Path::new("/scratch"), &Ok(facts));
        assert_remedies(&checks);
        let count = |status| checks.iter().filter(|one| one.status == status).count();
        assert_eq!((count(Status::Warn), count(Status::Fail)), (7, 1));
        // Without a shared mapping there is no RAM file.
        assert_eq!(find(&checks, "shared mapping").status, Status::Fail);
        assert!(find(&checks, "file system").detail.contains("in memory"));
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_the_only_line() {
    let error = ScratchError::Examine {
        path: "/scratch".into(),
        source: io::ErrorKind::ReadOnlyFilesystem.into(),
    };
    let checks = scratch::checks(Path::new("/scratch"), &Err(error));
    assert_remedies(&checks);
    assert_eq!(checks.len(), 1);
    assert_eq!(checks[0].status, Status::Fail);
    assert!(checks[0].detail.contains("/scratch: cannot examine"));
}

#[test]
fn an_old_kernel_on_another_processor_gets_remedies() {
    let kernel = KernelFacts {
        name: "Linux".to_owned(),
        release: "4.9".to_owned(),
        architecture: "riscv64".to_owned(),
    };
    let machine = MachineFacts::default();
    let mut checks = machine::checks(&kernel, None, &machine, &HugePageFacts::default());
    checks.extend(machine::interface_checks(
        ConfinementFacts {
            seccomp_filter: false,
            landlock_abi: None,
        },
        PageInterfaceFacts {
            page_map: true,
            page_map_scan: false,
            cachestat: false,
        },
    ));
    assert_remedies(&checks);
    for name in ["architecture", "seccomp", "Landlock", "page map"] {
        assert_eq!(find(&checks, name).status, Status::Warn, "{name}");
    }
    // Nothing of it keeps the demo from running.
    assert!(checks.iter().all(|check| check.status != Status::Fail));
}

#[test]
fn this_host_is_examined_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let report = examine(directory.path());
    assert_remedies(&report.checks);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    // The software back end is everywhere, unless a /dev/kvm is there that does not work.
    assert_eq!(report.can_run_demo, report.backend.is_some());
    // Areas come in order, each in one piece, so that a table can have headings.
    let mut areas: Vec<_> = report.checks.iter().map(|check| check.area).collect();
    areas.dedup();
    assert_eq!(
        areas,
        [
            Area::Machine,
            Area::BackEnds,
            Area::Scratch,
            Area::KernelInterfaces
        ]
    );
}

#[test]
fn sizes_are_for_people() {
    assert_eq!(size(128 << 20), "128 MiB");
    assert_eq!(size(3 << 29), "1.5 GiB");
}
