//! The control tests on KVM.

mod support;

#[path = "suites/control.rs"]
mod control;
