//! The lifecycle tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/lifecycle.rs"]
mod lifecycle;
