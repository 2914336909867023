//! The tests of snapshots as hostile input on the back end soft, which every machine has.

mod support;

#[path = "suites/hostile_snapshots.rs"]
mod hostile_snapshots;
