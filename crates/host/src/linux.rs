//! The Linux side of the crate.

pub mod control_socket;
pub mod files;
pub mod lock;
pub mod publish;
pub mod signals;
pub mod stale;
pub mod stdio;
pub mod usage;
pub mod wait;

#[cfg(test)]
mod tests;
