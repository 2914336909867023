//! What the operating system gives NVX.
//!
//! Everything here is a thin, typed wrapper over one kernel interface, and nothing here knows what a
//! virtual machine or a snapshot is. Files are reached *by handle*: a [`Directory`] is opened once and
//! every name is then a single component relative to it, so a path that is swapped under a running
//! process cannot lead it elsewhere.
//!
//! The operating systems differ inside `linux.rs` (and its siblings) only; the rest of the workspace
//! sees the names that this file exports.

mod answers;
mod confinement;
mod control_error;
mod file_error;
mod owned_names;
pub mod probe;
mod processor;
mod stale_report;

#[cfg(all(target_os = "linux", feature = "test-support"))]
pub mod faults;
#[cfg(all(target_os = "linux", not(feature = "test-support")))]
#[path = "no_faults.rs"]
mod faults;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as os;

#[cfg(all(target_os = "linux", feature = "tracer"))]
pub use linux::tracer;

pub use answers::{
    DirectorySync, FileLock, FileSystemKind, InputRead, Interest, RenameMethod, StreamRead, Waiting,
};
pub use confinement::{ConfineError, Confined, ConfinedThread, Confinement};
pub use control_error::ControlSocketError;
pub use file_error::{CreateError, FileKind, LinkError, OpenError, ReflinkError, RenameError};
pub use owned_names::{RAM_FILE_PREFIX, REPLACEMENT_PREFIX, STAGING_PREFIX};
pub use stale_report::{LeftEntry, LeftReason, StaleReport};

pub use os::AsFile;
pub use os::confine::{confine, confine_thread, confinement_support};
pub use os::control_socket::{ControlListener, ControlStream, MAX_CONTROL_PATH_BYTES};
pub use os::entry;
pub use os::files::{Directory, FileIdentity, FileSystem, read_exact_at};
pub use os::identity::{boot_identity, kernel_release, unprivileged_owner};
#[cfg(target_os = "linux")]
pub use os::inside_guest::{ask_port, bring_loopback_up, lead_session, reseed_random_generator};
pub use os::lock::try_lock_exclusive;
pub use os::page_cache::{cached_pages, drop_cached_pages};
pub use os::publish::{
    link_open_file, rename_no_replace, rename_no_replace_by, replace_file, start_writeback,
    start_writeback_of, sync_data, write_all,
};
pub use os::random::random_bytes;
pub use os::reflink::{check_reflink, reflink};
pub use os::signals::{Termination, TerminationSignals};
pub use os::stale::{LockedDirectory, create_locked_directory, random_name, remove_stale};
pub use os::stdio::{ConsoleInput, ConsoleOutput};
pub use os::terminal::UserTerminal;
pub use os::usage::{
    allocated_bytes, available_bytes, check_executable, modified_file_bytes, process_peak_rss_bytes,
};
pub use os::wait::{WaitSource, Waitable, Waker, wait_any};
pub use os::wait_set::WaitSet;
