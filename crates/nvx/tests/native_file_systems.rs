//! The file system tests on KVM.

mod support;

#[path = "suites/file_systems.rs"]
mod file_systems;
