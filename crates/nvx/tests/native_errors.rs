//! The errors tests on KVM, and those that only KVM has.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

#[path = "suites/errors.rs"]
mod errors;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Process, begin, is_root, skip, text};

/// The monitor failed.
const FAILED: i32 = 125;

#[test]
fn no_permission_for_the_hypervisor() {
    let name = "no_permission_for_the_hypervisor";
    let Some(dir) = begin(name) else {
        return;
    };
    let mode = Path::new("/dev/kvm")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    if !is_root() || mode & 0o006 != 0 {
        return skip(
            name,
            "needs root, and a /dev/kvm that not everybody may open",
        );
    }
    // The binary may lie where only root may go.
    let binary = dir.path().join("nvx");
    std::fs::copy(env!("CARGO_BIN_EXE_nvx"), &binary).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    if Command::new("setpriv").arg("--version").output().is_err() {
        return skip(name, "setpriv is not installed");
    }
    let unprivileged = |backend: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--clear-groups", text(&binary)])
            .args(["run", "--memory", "16M", "--backend", backend])
            .stdin(Stdio::piped());
        let mut process = Process::spawn(command);
        process.send("x0\n");
        process.end()
    };
    let advice = ["/dev/kvm: no permission; ", "group '"];
    let done = unprivileged("kvm").expect_code(FAILED);
    assert_eq!(done.output, "");
    advice.iter().for_each(|part| done.assert_said(part));
    // Without a demand for KVM the guest runs all the same, and why not on KVM is said.
    let done = unprivileged("auto").expect_code(0);
    done.line("PROBE-READY");
    advice.iter().for_each(|part| done.assert_said(part));
    done.assert_said("back end soft");
}
