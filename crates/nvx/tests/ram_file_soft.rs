//! The RAM file tests on the back end soft, which every machine has.

mod support;

#[path = "suites/ram_file.rs"]
mod ram_file;
