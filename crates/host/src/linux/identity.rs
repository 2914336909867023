//! Which host this is.

/// Where Linux keeps the random number that it draws at boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A value that no other host and no other boot of this host has; `None` where the system does not
/// tell.
pub fn boot_identity() -> Option<Vec<u8>> {
    std::fs::read(BOOT_ID).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_stays_the_same() {
        assert_eq!(boot_identity(), boot_identity());
    }
}
