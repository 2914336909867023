//! Hypervisor traits, neutral register state, and the back ends behind them.
//!
//! A *back end* ([`Hypervisor`]) makes a *partition* ([`Partition`]: the machine without its
//! devices) over guest RAM, and the partition makes *vCPUs* ([`Vcpu`]). All three are object
//! safe, so the rest of NVX holds them as trait objects and never names a back end.
//!
//! Back ends: [`kvm`] on Linux; `whp` on Windows; [`soft`], which is there on every host and runs the built-in guest only; and
//! [`fake`], which replays scripts for unit tests.
//!
//! Two ideas keep the traits small:
//! - a power that not every back end has is an `Option` ([`Partition::irq_chip`],
//!   [`Partition::dirty_log`], [`Partition::clock`]), never a method that fails;
//! - vCPU state is neutral data ([`VcpuState`]) that each back end moves by one declared table
//!   (for KVM: [`kvm::state_table`]), so what is saved, in which order and why stands in one place.
//!
//! `unsafe` stands only in the back ends' own modules.

#![deny(unsafe_code)]

mod cpu;
mod error;
mod execution;
mod exit;
pub mod fake;
#[cfg(target_os = "linux")]
pub mod kvm;
mod probe;
mod registers;
mod select;
pub mod soft;
mod state;
mod traits;
#[cfg(windows)]
pub mod whp;

pub use cpu::{
    BelowBaseline, CpuModel, CpuidEntry, FeatureRegister, FeatureWord, missing_features,
};
pub use error::{CreateError, OpenError, RunError, StateError, SystemError};
pub use execution::{
    Execution, ExecutionSpeed, HARDWARE_INSTRUCTIONS_PER_MS, TrialError, measure_execution,
};
pub use exit::VcpuExit;
pub use probe::{BackendFacts, Capability, probe_backends};
pub use registers::{Registers, Segment, SystemRegisters, TableRegister};
pub use select::{BACKEND_CHOICES, BackendChoice, Selected, UnknownBackend, open_backend};
pub use state::{
    ClockState, DebugRegisters, ExtendedControlRegister, IrqChipState, Msr, PendingEvents,
    RunState, SavedState, VcpuState,
};
pub use traits::{
    DirtyLog, GuestClock, Hypervisor, IrqChip, Partition, PartitionOptions, StopHandle, Vcpu,
};

/// The most vCPUs a partition has; the machine contract's bound.
pub const MAX_VCPUS: u8 = 8;
