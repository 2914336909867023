//! The file system tests on the back end soft, which every machine has.

mod support;

#[path = "suites/file_systems.rs"]
mod file_systems;
