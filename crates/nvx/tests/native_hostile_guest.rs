//! The tests of hostile guests on KVM.

#![cfg(unix)]

mod support;

#[path = "suites/hostile_guest.rs"]
mod hostile_guest;
