//! The tests of the lifecycle benchmark on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/bench_lifecycle.rs"]
mod bench_lifecycle;
