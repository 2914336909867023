//! Measuring a VM's life from outside: fresh processes, the guest's own markers, and the
//! monitor's profile records.
//!
//! [`run_turn`] is one turn of the probe guest's life with its proof that nothing was lost;
//! [`Monitor`] is the process under observation. [`run_lifecycle`] takes the samples of every suite
//! into a [`result`], which [`validate`] judges, [`accept`] accepts and [`show`] and [`html`] show;
//! [`compare`] measures builds in turns and [`peers`] other monitors. [`statistics`] and [`stability`] are
//! what they are judged by.

#![forbid(unsafe_code)]

pub mod accept;
pub mod compare;
pub mod digests;
pub mod disturb;
mod document;
#[cfg(test)]
mod example;
mod guest;
mod guest_image;
pub mod host;
pub mod host_report;
pub mod html;
mod lifecycle;
mod monitor;
mod page_cache;
pub mod peers;
pub mod result;
mod run;
mod sampling;
pub mod show;
pub mod stability;
pub mod statistics;
pub mod storage;
#[cfg(test)]
mod synthetic;
mod timestamp;
pub mod validate;
mod warnings;
mod work_dir;
pub mod writeback;

pub use document::{DocumentError, read_comparison, read_lifecycle};
pub use guest::{Guest, InitramfsChoice, LinuxGuest};
pub use guest_image::GuestImageError;
pub use lifecycle::{
    LifecycleError, LifecycleRequest, LifecycleSample, Proof, generation, guest_field, run_turn,
};
pub use monitor::{CaptureSeen, Ended, GuestLine, Monitor, MonitorError};
pub use page_cache::PageCacheError;
pub use run::{
    CacheState, MICROVM_ABI_VERSION, MatrixCell, RunError, RunPlan, Step, Watcher, run_lifecycle,
};
pub use sampling::{READY_MARKER, RESTORED_MARKER, Sampler};
pub use timestamp::iso_8601;
