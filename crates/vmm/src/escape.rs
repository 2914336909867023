//! The user's way out of a guest that has the keyboard and does not hear: every key goes to the guest then, Ctrl-C
//! as well.

/// The key: Ctrl and the closing bracket (ASCII group separator), as in telnet.
pub const ESCAPE_KEY: u8 = 0x1d;
/// How often it is pressed, with no other key in between. Programs that use the key themselves get it too.
pub const ESCAPE_PRESSES: u32 = 3;

/// Counts presses of [`ESCAPE_KEY`].
#[derive(Debug, Default)]
pub(crate) struct EscapeKeys {
    pressed: u32,
}

impl EscapeKeys {
    /// Whether `keys`, after those that came before, complete the way out.
    pub(crate) fn are_in(&mut self, keys: &[u8]) -> bool {
        keys.iter().any(|key| {
            self.pressed = match *key {
                ESCAPE_KEY => self.pressed + 1,
                _ => 0,
            };
            self.pressed >= ESCAPE_PRESSES
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presses_count_only_one_after_the_other() {
        let mut keys = EscapeKeys::default();
        assert!(!keys.are_in(b"\x1d\x1dx\x1d"));
        assert!(!keys.are_in(b""));
        assert!(!keys.are_in(b"\x1d"));
        assert!(keys.are_in(b"\x1d"));
        assert!(EscapeKeys::default().are_in(b"abc\x1d\x1d\x1d"));
    }
}
