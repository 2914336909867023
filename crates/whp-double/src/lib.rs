//! A double of `WinHvPlatform.dll` for tests, so that the back end for it runs where there is none: real
//! program, real library boundary, real views of memory.
//!
//! It exports the functions that the back end calls, with the documented structures, and runs guests on
//! the software CPU. It is strict: a call in the wrong order, an unknown property or register, a
//! structure of the wrong size end the process with a line that says so. So it proves that the back end
//! keeps to the interface as documented, not that Windows does.
//!
//! Interrupts reach 32-bit guests through their own tables, from a local APIC with a timer. What it has
//! not: messages between local APICs, logical destinations, other modes of the processor, paging.
#![cfg(windows)]
#![allow(
    non_snake_case,
    non_upper_case_globals,
    reason = "the exports and constants have the names that Microsoft gave them"
)]
#![allow(
    unsafe_code,
    reason = "the interface is one of raw pointers, as the library that it stands for"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "each export's contract is Microsoft's documentation"
)]

mod apic;
mod exit;
mod exports;
mod instructions;
mod partition;
mod registers;
mod vcpu;

/// Ends the process: the back end has broken the interface's contract, or needs what is not there.
fn refuse(call: &str, what: &str) -> ! {
    eprintln!("whp-double: {call}: {what}");
    std::process::exit(99);
}
