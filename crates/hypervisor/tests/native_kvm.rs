//! The conformance suite on `/dev/kvm`.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

mod conformance;

conformance::suite!(crate::conformance::backends::kvm);
