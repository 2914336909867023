//! The file system tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/file_systems.rs"]
mod file_systems;
