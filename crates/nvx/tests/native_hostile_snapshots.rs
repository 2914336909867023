//! The tests of snapshots as hostile input on KVM.

mod support;

#[path = "suites/hostile_snapshots.rs"]
mod hostile_snapshots;
