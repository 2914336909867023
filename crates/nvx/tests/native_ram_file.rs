//! The RAM file tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/ram_file.rs"]
mod ram_file;
