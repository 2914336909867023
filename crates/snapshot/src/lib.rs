//! The snapshot artifact: what a captured machine is on disk.
//!
//! A snapshot is a directory of three files. `manifest.json` says what the machine was and how it was
//! captured, `state.bin` holds the state of processors and devices, `memory.bin` is guest RAM byte for
//! byte. The format is described in `doc/design/snapshot.md`.
//!
//! * [`Staging`] builds one beside its destination and gives it its name by a single rename that never
//!   replaces anything; until then nothing can be opened, and dropping it leaves nothing behind.
//! * [`Snapshot`] opens one. Everything is checked that can be checked without reading memory content,
//!   and every refusal names the file at fault, before any virtual machine exists.
//! * [`Manifest`] and [`StateWriter`] / [`StateReader`] are the two formats. They are never shared with
//!   runtime types: a machine converts to and from them.
//!
//! * [`Snapshot::verify_memory`] reads guest RAM's content and checks it against digests, if they were made.
//!
//! Nothing here writes to a snapshot that has been published, but for [`seal()`], which adds digests to its
//! manifest when its owner asks for it.

#![forbid(unsafe_code)]

mod destination;
mod digest;
mod manifest;
mod memory_digests;
mod open;
#[cfg(test)]
mod sample;
mod seal;
mod staging;
mod state;
#[cfg(test)]
#[cfg(windows)]
mod windows_tests;

pub use destination::{Destination, parent_of};
pub use digest::{DIGEST_BYTES, Digest, DigestParseError};
pub use manifest::limits;
pub use manifest::{
    CaptureFacts, ChunkDigests, Cpu, CpuFeatureWord, CpuRegister, Device, Extent, Manifest,
    ManifestError, MemoryLayer, Publication, SCHEMA_VERSION, SavedRamRange, StateFile,
};
pub use memory_digests::{ChunkDigester, MemoryError, MemoryReport, Sink, chunk_bytes_for};
pub use open::{OpenError, Snapshot};
pub use seal::{SealError, Sealed, seal};
pub use staging::{PublishError, Published, Staging};
pub use state::{
    MAX_STATE_BYTES, MAX_STATE_UNITS, STATE_HEADER_VERSION, StateError, StatePayload, StateReader,
    StateWriter,
};

/// Name of the manifest in a snapshot directory.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name of the processor and device state in a snapshot directory.
pub const STATE_FILE: &str = "state.bin";
/// Name of guest RAM in a snapshot directory.
pub const MEMORY_FILE: &str = "memory.bin";

/// Longest name of a unit, kind, device or back end, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// True for a name of 1 to [`MAX_NAME_BYTES`] characters out of `[a-z0-9._-]`.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// Text from an untrusted file, made fit for a message: short, and printable ASCII only.
pub(crate) fn printable(text: &str) -> String {
    const MAX_CHARACTERS: usize = 64;
    let mut shown: String = text
        .chars()
        .take(MAX_CHARACTERS)
        .map(|c| {
            if c == ' ' || c.is_ascii_graphic() {
                c
            } else {
                '?'
            }
        })
        .collect();
    if text.chars().nth(MAX_CHARACTERS).is_some() {
        shown.push_str("...");
    }
    shown
}
