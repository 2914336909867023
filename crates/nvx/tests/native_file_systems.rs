//! The file system tests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/file_systems.rs"]
mod file_systems;
