//! The privileges tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/privileges.rs"]
mod privileges;
