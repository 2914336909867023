//! What `nvx` does inside a Linux guest.
//!
//! The same binary that is the monitor on the host is packed into the guest's initramfs. There it is
//! process 1 ([`run_init`]): it mounts what every program expects, loads kernel modules, runs one command
//! as its child, reaps what that leaves behind, and powers the machine off with the command's status. It
//! hears from the monitor over the [control line](nvx_machine::control_line), and repairs a restored copy
//! before anything else is told that there was a restore. [`request_snapshot`] is what `nvx guest snapshot`
//! does, [`serve_probe`] what `nvx guest probe` does.
//!
//! On the host's side, [`pack`] makes the initramfs with all that, from the user's root, and [`modules`]
//! finds the kernel modules; [`config`] is what it writes for the guest's side.
#![forbid(unsafe_code)]

pub mod config;
pub mod modules;
pub mod pack;
mod probe;

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
use elsewhere as os;
#[cfg(target_os = "linux")]
use linux as os;

pub use os::{ask_port, is_init, request_snapshot, run_init};
pub use probe::{ProbeError, serve_probe};

/// What became of a snapshot that the guest asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// This is the restored copy, and it is repaired.
    Restored,
    /// No snapshot was taken.
    Refused,
    /// This is the guest that was captured; it goes on.
    Source,
}

impl SnapshotOutcome {
    /// The exit code of `nvx guest snapshot`: 0 in the copy, 10 refused, 11 in the source.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Restored => 0,
            Self::Refused => 10,
            Self::Source => 11,
        }
    }
}

/// Why a guest cannot ask for a snapshot, or cannot be sure of what came of it.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// This is no guest of nvx, as far as can be seen.
    #[error("this is not a guest of nvx, or not a process of its root user")]
    NoGuest(#[source] std::io::Error),
    /// The control line, or the init that has it, cannot be talked to.
    #[error("the monitor cannot be asked for a snapshot")]
    Line(#[source] std::io::Error),
    /// The monitor does not decide.
    #[error("the monitor did not answer within {seconds} s")]
    NoAnswer {
        /// How long was waited, in seconds of the guest's clock.
        seconds: u64,
    },
    /// The copy could not be repaired, so its random numbers may be those of another copy.
    #[error("restored, but the copy is not repaired")]
    NotRepaired(#[source] std::io::Error),
    /// There is no such thing on this operating system.
    #[error("only a Linux guest can ask for a snapshot")]
    NotLinux,
}
