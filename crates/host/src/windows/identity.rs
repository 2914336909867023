//! Which host this is.

/// `None`: Windows has no value that no other host and no other boot of this host has.
pub fn boot_identity() -> Option<Vec<u8>> {
    None
}
