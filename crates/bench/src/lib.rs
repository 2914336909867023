//! Measuring a VM's life from outside: fresh processes, the guest's own markers, and the
//! monitor's profile records.
//!
//! [`run_turn`] is one turn of the probe guest's life with its proof that nothing was lost;
//! [`Monitor`] is the process under observation; [`statistics`] condenses series.

#![forbid(unsafe_code)]

mod lifecycle;
mod monitor;
pub mod statistics;

pub use lifecycle::{
    LifecycleError, LifecycleRequest, LifecycleSample, Proof, generation, guest_field, run_turn,
};
pub use monitor::{Ended, GuestLine, Monitor, MonitorError};
