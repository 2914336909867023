//! The signals tests on KVM.

mod support;

#[path = "suites/signals.rs"]
mod signals;
