//! The control tests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/control.rs"]
mod control;
