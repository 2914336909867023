//! Digests as they are written: the algorithm's name, a colon, lowercase hexadecimal.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// Length of a digest in bytes (BLAKE3 with its default output length).
pub const DIGEST_BYTES: usize = blake3::OUT_LEN;

const ALGORITHM_PREFIX: &str = "blake3:";

/// Length in bytes of a digest as text.
pub(crate) const DIGEST_TEXT_BYTES: usize = ALGORITHM_PREFIX.len() + 2 * DIGEST_BYTES;

/// A BLAKE3 digest; as text `blake3:` and 64 lowercase hexadecimal digits.
///
/// It detects damage and mix-ups. It is no signature: whoever can write a snapshot can write its
/// digests too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; DIGEST_BYTES]);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a digest of the form blake3:<64 lowercase hexadecimal digits>")]
pub struct DigestParseError;

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// A digest that was stored as bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; DIGEST_BYTES]) -> Self {
        Self(bytes)
    }

    /// The digest as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; DIGEST_BYTES] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(ALGORITHM_PREFIX)?;
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text
            .strip_prefix(ALGORITHM_PREFIX)
            .ok_or(DigestParseError)?
            .as_bytes();
        let mut bytes = [0; DIGEST_BYTES];
        if digits.len() != 2 * bytes.len() {
            return Err(DigestParseError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

/// One text per digest: uppercase digits are refused.
fn nibble(digit: u8) -> Result<u8, DigestParseError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(DigestParseError),
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let digest = Digest::of(b"abc");
        let text = digest.to_string();
        assert_eq!(text.len(), DIGEST_TEXT_BYTES);
        // BLAKE3 of "abc", from the algorithm's published test vectors.
        assert_eq!(
            text,
            "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(Digest::from_bytes(*digest.as_bytes()), digest);
    }

    #[test]
    fn other_forms_are_refused() {
        let good = Digest::of(b"").to_string();
        for bad in [
            "",
            "blake3:",
            &good[..good.len() - 1],
            &format!("{good}0"),
            &good.to_uppercase(),
            &good.replace("blake3", "sha256"),
            &good.replacen('a', "A", 1),
            &good.replacen("blake3:a", "blake3:é", 1),
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestParseError), "{bad}");
        }
    }
}
