//! The lifecycle tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/lifecycle.rs"]
mod lifecycle;
