//! The Windows side of the crate.
//!
//! Files are reached relative to a directory's handle, as on Linux; Win32 has no call for that, so it
//! goes through the native interface ([`nt`]). What can be waited for is an *event* ([`event`]): where
//! Windows has no state of readiness of its own (anonymous pipes, consoles), a thread makes one.

pub mod confine;
pub mod control_socket;
pub mod entry;
mod event;
mod facts;
pub mod files;
pub mod identity;
pub mod lock;
mod nt;
pub mod page_cache;
pub mod probe;
pub mod publish;
pub mod random;
pub mod reflink;
mod security;
pub mod signals;
pub mod stale;
pub mod stdio;
pub mod terminal;
pub mod usage;
pub mod wait;
pub mod wait_set;

/// What has an open file or directory behind it.
pub use std::os::windows::io::AsHandle as AsFile;

#[cfg(test)]
mod tests;
