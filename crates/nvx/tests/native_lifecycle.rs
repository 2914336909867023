//! The lifecycle tests on KVM.

mod support;

#[path = "suites/lifecycle.rs"]
mod lifecycle;
