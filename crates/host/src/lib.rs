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
pub mod probe;
mod processor;
mod stale_report;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;

pub use file_error::{CreateError, FileKind, LinkError, OpenError, ReflinkError, RenameError};
pub use stale_report::{LeftEntry, LeftReason, StaleReport};

pub use os::control_socket::{
    ControlListener, ControlSocketError, ControlStream, MAX_CONTROL_PATH_BYTES, StreamRead,
};
pub use os::files::{Directory, DirectorySync, FileIdentity, FileSystem, FileSystemKind};
pub use os::identity::boot_identity;
pub use os::lock::{FileLock, try_lock_exclusive};
pub use os::page_cache::cached_pages;
pub use os::publish::{
    RenameMethod, link_open_file, rename_no_replace, rename_no_replace_by, start_writeback,
    start_writeback_of,
};
pub use os::reflink::{check_reflink, reflink};
pub use os::signals::{Termination, TerminationSignals};
pub use os::stale::{
    LockedDirectory, RAM_FILE_PREFIX, STAGING_PREFIX, create_locked_directory, random_name,
    remove_stale,
};
pub use os::stdio::{ConsoleInput, ConsoleOutput, InputRead};
pub use os::usage::{allocated_bytes, process_peak_rss_bytes};
pub use os::wait::{Interest, WaitSource, Waitable, Waker, wait_any};
pub use os::wait_set::{WaitSet, Waiting};
