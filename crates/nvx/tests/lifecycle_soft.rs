//! The lifecycle tests on the back end soft, which every machine has.

mod support;

#[path = "suites/lifecycle.rs"]
mod lifecycle;
