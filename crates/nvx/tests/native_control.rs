//! The control tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/control.rs"]
mod control;
