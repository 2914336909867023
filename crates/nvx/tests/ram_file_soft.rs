//! The RAM file tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/ram_file.rs"]
mod ram_file;
