//! The RAM file tests on KVM.

mod support;

#[path = "suites/ram_file.rs"]
mod ram_file;
