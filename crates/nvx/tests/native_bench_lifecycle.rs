//! The tests of the lifecycle benchmark on KVM.

mod support;

#[path = "suites/bench_lifecycle.rs"]
mod bench_lifecycle;
