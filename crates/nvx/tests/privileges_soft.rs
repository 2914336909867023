//! The privileges tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/privileges.rs"]
mod privileges;
