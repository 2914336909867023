//! The tests of faults at each step on KVM.

#![cfg(target_os = "linux")]

mod support;

#[path = "suites/step_faults.rs"]
mod step_faults;
