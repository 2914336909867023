//! The tests of hostile guests on the back end soft, which every machine has.

#![cfg(unix)]

mod support;

#[path = "suites/hostile_guest.rs"]
mod hostile_guest;
