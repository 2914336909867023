//! Which host this is.

/// `None`: Windows has no value that no other host and no other boot of this host has.
pub fn boot_identity() -> Option<Vec<u8>> {
    None
}

/// The release of the Linux kernel that runs, as `uname -r` prints it; `None` on other systems.
pub fn kernel_release() -> Option<String> {
    None
}

/// The user and group that this process acts as; `None` for root, and where files have no such owners.
pub fn unprivileged_owner() -> Option<(u32, u32)> {
    None
}
