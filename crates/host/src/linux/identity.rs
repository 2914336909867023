//! Which host this is, and for whom this process acts.

/// Where Linux keeps the random number that it draws at boot (random(4)).
pub(super) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A value that no other host and no other boot of this host has; `None` where the system does not
/// tell.
pub fn boot_identity() -> Option<Vec<u8>> {
    std::fs::read(BOOT_ID).ok().filter(|text| !text.is_empty())
}

/// The release of the Linux kernel that runs, as `uname -r` prints it; `None` on other systems.
pub fn kernel_release() -> Option<String> {
    let name = rustix::system::uname();
    Some(name.release().to_string_lossy().into_owned())
}

/// The user and group that this process acts as; `None` for root, and where files have no such owners.
pub fn unprivileged_owner() -> Option<(u32, u32)> {
    let user = rustix::process::geteuid();
    let group = rustix::process::getegid();
    (!user.is_root()).then(|| (user.as_raw(), group.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_stays_the_same() {
        assert_eq!(boot_identity(), boot_identity());
    }
}
