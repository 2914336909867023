//! The tests of lane linux-guest: on a complete KVM, inside a machine that `cargo xtask test --lane linux-guest`
//! emulates. Elsewhere each says that it is skipped.
//!
//! Tests that take long (4 and 8 vCPUs, many rounds) are marked as ignored; `--long` runs them.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod boot;
mod busy;
mod contents;
mod copies;
mod cpu;
mod guest;
mod kernels;
mod speed;
mod terminal;

/// The probe guest's life: what other machines' KVM may only emulate in part is complete here.
#[path = "../suites/lifecycle.rs"]
mod lifecycle;
