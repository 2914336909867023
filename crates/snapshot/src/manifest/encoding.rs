//! Bytes of a manifest: pretty-printed JSON whose last member is a checksum over all bytes before it.
//!
//! What follows the checksummed bytes has one form only, so no byte of the file can change unnoticed.

use serde::Deserialize;
use serde_json::Value;

use super::limits::MAX_MANIFEST_BYTES;
use super::{Manifest, ManifestError, SCHEMA_VERSION};
use crate::digest::{DIGEST_TEXT_BYTES, Digest};
use crate::printable;

const BEFORE_CHECKSUM: &str = ",\n  \"checksum\": \"";
const AFTER_CHECKSUM: &str = "\"\n}\n";
const TAIL_BYTES: usize = BEFORE_CHECKSUM.len() + DIGEST_TEXT_BYTES + AFTER_CHECKSUM.len();

impl Manifest {
    /// The content of `manifest.json`.
    ///
    /// # Errors
    ///
    /// Those of [`Manifest::decode`]: what could not be read is not written.
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        self.validate()?;
        let mut bytes = serde_json::to_vec_pretty(self).map_err(ManifestError::Syntax)?;
        if let Some(members) = bytes.strip_suffix(b"\n}") {
            bytes.truncate(members.len());
        }
        let tail = tail(&Digest::of(&bytes));
        bytes.extend_from_slice(tail.as_bytes());
        check_size(bytes.len())?;
        Ok(bytes)
    }

    /// Reads and checks the content of a `manifest.json`.
    ///
    /// # Errors
    ///
    /// The first [`ManifestError`] in the order that the module describes.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        check_size(bytes.len())?;
        check_version(bytes)?;
        let members = check_checksum(bytes)?;
        // The checksummed part is the document without its closing brace.
        let mut document = Vec::with_capacity(members.len() + 1);
        document.extend_from_slice(members);
        document.push(b'}');
        let manifest: Self = serde_json::from_slice(&document).map_err(ManifestError::Syntax)?;
        manifest.validate()?;
        Ok(manifest)
    }
}

fn tail(digest: &Digest) -> String {
    format!("{BEFORE_CHECKSUM}{digest}{AFTER_CHECKSUM}")
}

fn check_size(length: usize) -> Result<(), ManifestError> {
    if length <= MAX_MANIFEST_BYTES {
        return Ok(());
    }
    Err(ManifestError::TooLarge {
        length_bytes: length as u64,
    })
}

/// The two members that every schema version has.
#[derive(Deserialize)]
struct Peek {
    schema_version: u64,
    #[serde(default)]
    producer: Value,
}

/// Refuses another schema version by name. Whatever else is wrong is left for the checks that follow.
fn check_version(bytes: &[u8]) -> Result<(), ManifestError> {
    let Ok(peek) = serde_json::from_slice::<Peek>(bytes) else {
        return Ok(());
    };
    if peek.schema_version == u64::from(SCHEMA_VERSION) {
        return Ok(());
    }
    Err(ManifestError::VersionMismatch {
        found: peek.schema_version,
        supported: SCHEMA_VERSION,
        producer: peek
            .producer
            .as_str()
            .map_or_else(|| "an unnamed program".to_owned(), printable),
    })
}

/// The bytes that the checksum covers, once it has been found right.
fn check_checksum(bytes: &[u8]) -> Result<&[u8], ManifestError> {
    let (members, found) = bytes
        .len()
        .checked_sub(TAIL_BYTES)
        .and_then(|length| bytes.split_at_checked(length))
        .ok_or(ManifestError::NoChecksum)?;
    let has_form =
        found.starts_with(BEFORE_CHECKSUM.as_bytes()) && found.ends_with(AFTER_CHECKSUM.as_bytes());
    if !has_form {
        return Err(ManifestError::NoChecksum);
    }
    if found != tail(&Digest::of(members)).as_bytes() {
        return Err(ManifestError::Checksum);
    }
    Ok(members)
}
