//! Life of a virtual machine in one process: start it anew ([`boot()`]) or from a snapshot
//! ([`restore()`]), run it ([`Vm::run`]), capture it.
//!
//! This is the only crate that ties the others together. Threads: the main thread runs the first
//! vCPU, serves events (console input, requests to end, control, what the vCPUs met) and captures;
//! the watcher waits for the host and interrupts it; each further vCPU has a thread of its own, and
//! stands still at a gate while the main thread looks at it.

#![forbid(unsafe_code)]

mod assembly;
mod boot;
mod capture;
mod console;
pub mod control;
mod control_line;
mod error;
mod escape;
mod gate;
mod interrupt;
mod platform;
mod privileges;
mod ram;
mod restore;
mod state_file;
mod vcpu_thread;
mod vm;
mod watcher;

pub use boot::{BootGuest, BootRequest, CpuChoice, boot};
pub use capture::Captured;
pub use control_line::GuestLine;
pub use error::{BootError, CaptureError, MachineError, RestoreError, RunError, UnitError, chain};
pub use escape::{ESCAPE_KEY, ESCAPE_PRESSES};
pub use privileges::Privileges;
pub use ram::{RamError, RamPlace, RamRequest};
pub use restore::{ClockPolicy, RestoreRequest, restore};
pub use vcpu_thread::VcpuFault;
pub use vm::{CapturePolicy, Console, Observer, Outcome, Vm, VmOptions};
