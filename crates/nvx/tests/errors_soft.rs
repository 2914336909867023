//! The errors tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/errors.rs"]
mod errors;
