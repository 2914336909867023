//! The signals tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/signals.rs"]
mod signals;
