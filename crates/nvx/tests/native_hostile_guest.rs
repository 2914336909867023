//! The tests of hostile guests on KVM.

mod support;

#[path = "suites/hostile_guest.rs"]
mod hostile_guest;
