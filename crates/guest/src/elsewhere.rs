//! Where no guest can be: operating systems other than Linux.

use crate::{SnapshotError, SnapshotOutcome};

/// Never.
#[must_use]
pub fn is_init() -> bool {
    false
}

/// Gives an exit status.
pub fn run_init() -> u8 {
    1
}

/// There is none to ask for.
///
/// # Errors
/// Always.
pub fn request_snapshot() -> Result<SnapshotOutcome, SnapshotError> {
    Err(SnapshotError::NotLinux)
}

/// There is no port.
#[must_use]
pub fn ask_port() -> u8 {
    u8::MAX
}
