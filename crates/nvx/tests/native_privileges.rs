//! The privileges tests on KVM.

mod support;

#[path = "suites/privileges.rs"]
mod privileges;
