//! The Linux side of the crate.

pub mod confine;
pub mod control_socket;
pub mod entry;
pub mod files;
pub mod identity;
pub mod inside_guest;
pub mod lock;
pub mod page_cache;
pub mod probe;
pub mod publish;
pub mod random;
pub mod reflink;
pub mod signals;
pub mod stale;
pub mod stdio;
pub mod terminal;
#[cfg(feature = "tracer")]
pub mod tracer;
pub mod usage;
pub mod wait;
pub mod wait_set;

/// What has an open file or directory behind it.
pub use std::os::fd::AsFd as AsFile;

#[cfg(test)]
mod tests;
