//! What the operating system gives NVX.
//!
//! Everything here is a thin, typed wrapper over one kernel interface, and nothing here knows what a
//! virtual machine or a snapshot is. Files are reached *by handle*: a [`Directory`] is opened once and
//! every name is then a single component relative to it, so a path that is swapped under a running
//! process cannot lead it elsewhere.
//!
//! The operating systems differ inside `linux.rs` (and its siblings) only; the rest of the workspace
//! sees the names that this file exports.

mod file_error;
mod stale_report;

#[cfg(target_os = "linux")]
mod linux;

pub use file_error::{CreateError, FileKind, LinkError, OpenError, RenameError};
pub use stale_report::{LeftEntry, LeftReason, StaleReport};

#[cfg(target_os = "linux")]
pub use linux::files::{Directory, DirectorySync, FileIdentity, FileSystem, FileSystemKind};
#[cfg(target_os = "linux")]
pub use linux::lock::{FileLock, try_lock_exclusive};
#[cfg(target_os = "linux")]
pub use linux::publish::{
    RenameMethod, link_open_file, rename_no_replace, rename_no_replace_by, start_writeback,
};
#[cfg(target_os = "linux")]
pub use linux::signals::{Termination, TerminationSignals};
#[cfg(target_os = "linux")]
pub use linux::stale::{
    LockedDirectory, RAM_FILE_PREFIX, STAGING_PREFIX, create_locked_directory, random_name,
    remove_stale,
};
#[cfg(target_os = "linux")]
pub use linux::stdio::{ConsoleInput, ConsoleOutput, InputRead};
#[cfg(target_os = "linux")]
pub use linux::wait::{Interest, Waker, wait_any};
