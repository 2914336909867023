//! The signals tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/signals.rs"]
mod signals;
