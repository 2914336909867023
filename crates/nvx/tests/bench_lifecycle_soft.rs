//! The tests of the lifecycle benchmark on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/bench_lifecycle.rs"]
mod bench_lifecycle;
