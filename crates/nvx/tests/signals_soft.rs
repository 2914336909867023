//! The signals tests on the back end soft, which every machine has.

mod support;

#[path = "suites/signals.rs"]
mod signals;
