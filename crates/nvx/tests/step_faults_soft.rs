//! The tests of faults at each step on the back end soft, which every machine has.

#![cfg(target_os = "linux")]

mod support;

#[path = "suites/step_faults.rs"]
mod step_faults;
