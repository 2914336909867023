//! The conformance suite on back end `soft`, which every host has.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

#[allow(
    dead_code,
    reason = "the suite has helpers and back ends that this one does not use"
)]
mod conformance;

use nvx_hypervisor::Hypervisor;
use nvx_hypervisor::soft::Soft;

const NO_STRING_INSTRUCTIONS: &str = "the built-in guest has no string instructions";
const ONE_RUNNING_VCPU: &str = "one running vCPU, as there is nothing that could start others";
const NO_EXCEPTIONS: &str =
    "no exceptions: an instruction that would raise one is reported as it is";

/// Behaviours that the back end does not have by design, and why.
const ABSENT: [(&str, &str); 8] = [
    (
        "ports::string_output_delivers_every_element",
        NO_STRING_INSTRUCTIONS,
    ),
    ("ports::string_input_fills_memory", NO_STRING_INSTRUCTIONS),
    (
        "stop::string_input_survives_a_stop_after_each_exit",
        NO_STRING_INSTRUCTIONS,
    ),
    (
        "state::run_states_of_a_waiting_vcpu_survive",
        ONE_RUNNING_VCPU,
    ),
    ("vcpus::all_counts_run_and_stop", ONE_RUNNING_VCPU),
    (
        "vcpus::a_restored_vcpu_is_started_by_the_first",
        ONE_RUNNING_VCPU,
    ),
    ("faults::triple_fault_is_a_shutdown", NO_EXCEPTIONS),
    (
        "memory::ram_that_cannot_be_backed_is_reported",
        "this process itself touches the page, so its loss ends the process (crate memory)",
    ),
];

fn soft(test: &str) -> Option<Box<dyn Hypervisor>> {
    match ABSENT.iter().find(|(absent, _)| *absent == test) {
        Some((_, reason)) => {
            conformance::backends::skip(test, reason);
            None
        }
        None => Some(Box::new(Soft::new())),
    }
}

conformance::suite!(crate::soft);
