//! `manifest.json`: what a snapshot is.
//!
//! The types here are the file's own vocabulary. [`Manifest::encode`] writes only what
//! [`Manifest::decode`] would accept, and decoding goes from the outside in, so that each check may rely
//! on the ones before it:
//!
//! 1. size, before anything is looked at;
//! 2. `schema_version`, read leniently: a newer file is called newer, not broken;
//! 3. `checksum` over every byte before it;
//! 4. strict parse: no unknown, missing or repeated member;
//! 5. every number, text and list against its bounds.

mod encoding;
pub mod limits;
mod validate;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use nvx_memory::{GuestAddress, LayoutError, RamLayout, RamRange};

use crate::Digest;

/// Version of the manifest's own format.
pub const SCHEMA_VERSION: u32 = 1;

/// Why a manifest could not be written or read. The text names the member at fault.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The file is too big to be a manifest.
    #[error(
        "{length_bytes} bytes, more than the limit of {}",
        limits::MAX_MANIFEST_BYTES
    )]
    TooLarge {
        /// Length of the file in bytes.
        length_bytes: u64,
    },
    /// The file was written with another schema version.
    #[error(
        "schema_version {found}, this build reads {supported}; the snapshot was written by {producer}"
    )]
    VersionMismatch {
        /// The version in the file.
        found: u64,
        /// The version that this build reads.
        supported: u32,
        /// Who wrote the file, as far as it says so.
        producer: String,
    },
    /// The file does not end with a checksum member, or has bytes after it.
    #[error("does not end with a checksum")]
    NoChecksum,
    /// The file was altered after it was written.
    #[error("checksum: does not match the file's content")]
    Checksum,
    /// The content is not what this schema version allows.
    #[error("not a manifest of schema version {SCHEMA_VERSION}")]
    Syntax(#[source] serde_json::Error),
    /// A member has a value that is not allowed.
    #[error("{member}: {problem}")]
    Value {
        /// The member, as a path such as `devices[2].name`.
        member: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The RAM ranges do not form a RAM layout.
    #[error("ram: not a layout of guest RAM")]
    Ram(#[source] LayoutError),
}

/// Content of `manifest.json`, without its checksum.
///
/// Member order is file order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name and version of the program that wrote the snapshot, such as `nvx 0.1.0`.
    pub producer: String,
    /// When the manifest was made, in milliseconds since 1970-01-01 UTC.
    pub created_unix_ms: u64,
    /// Version of the machine contract: memory map, ports, slots.
    pub machine_contract: u32,
    /// Name of the hypervisor back end, such as `kvm`.
    pub backend: String,
    /// The processor that the guest saw.
    pub cpu: Cpu,
    /// Number of virtual processors, 1 to 8.
    pub vcpus: u8,
    /// Guest RAM, ascending by guest address.
    pub ram: Vec<SavedRamRange>,
    /// Every device, in inventory order.
    pub devices: Vec<Device>,
    /// The layers that make up guest RAM, base first. This version has exactly one.
    pub memory: Vec<MemoryLayer>,
    /// Length and digest of `state.bin`.
    pub state: StateFile,
    /// How the snapshot was captured.
    pub capture: CaptureFacts,
}

/// The processor that the guest saw: what a destination must offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Vendor identification, such as `AuthenticAMD`.
    pub vendor: String,
    /// Feature words of CPUID.
    pub features: Vec<CpuFeatureWord>,
    /// [`Cpu::mark_of_host`] of the host that captured: there the features need not be compared
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_on: Option<Digest>,
}

impl Cpu {
    /// Binds vendor and features to a running host: `host_identity` is a value that no other host and
    /// no other boot of this host has. A manifest whose vendor or features are changed no longer
    /// matches its mark.
    #[must_use]
    pub fn mark_of_host(&self, host_identity: &[u8]) -> Digest {
        let Self {
            vendor,
            features,
            captured_on: _,
        } = self;
        let mut bytes = Vec::with_capacity(64 + 16 * features.len());
        for text in [host_identity, vendor.as_bytes()] {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        }
        for word in features {
            let CpuFeatureWord {
                leaf,
                subleaf,
                register,
                bits,
            } = *word;
            for number in [leaf, subleaf, register as u32, bits] {
                bytes.extend(number.to_le_bytes());
            }
        }
        Digest::of(&bytes)
    }
}

/// One register of one CPUID leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuFeatureWord {
    /// Value of EAX that selects the leaf.
    pub leaf: u32,
    /// Value of ECX that selects the subleaf; 0 where the leaf has none.
    pub subleaf: u32,
    /// The register that holds the word.
    pub register: CpuRegister,
    /// The feature bits.
    pub bits: u32,
}

/// A register that CPUID answers in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuRegister {
    /// EAX.
    Eax,
    /// EBX.
    Ebx,
    /// ECX.
    Ecx,
    /// EDX.
    Edx,
}

/// One range of guest RAM and its place in `memory.bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRamRange {
    /// Guest physical address of the first byte.
    pub start: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Offset of the first byte in `memory.bin`.
    pub file_offset_bytes: u64,
}

impl From<RamRange> for SavedRamRange {
    fn from(range: RamRange) -> Self {
        let RamRange {
            start: GuestAddress(start),
            size_bytes,
            file_offset_bytes,
        } = range;
        Self {
            start,
            size_bytes,
            file_offset_bytes,
        }
    }
}

impl From<SavedRamRange> for RamRange {
    fn from(range: SavedRamRange) -> Self {
        let SavedRamRange {
            start,
            size_bytes,
            file_offset_bytes,
        } = range;
        Self {
            start: GuestAddress(start),
            size_bytes,
            file_offset_bytes,
        }
    }
}

/// One device of the inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name of the device, unique in the machine; also the unit name of its state.
    pub name: String,
    /// What it is, such as `uart16550`.
    pub kind: String,
    /// Version of its saved state.
    pub version: u32,
}

/// One layer of guest RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLayer {
    /// The file, a name in the snapshot directory.
    pub file: String,
    /// Exact length of the file in bytes.
    pub length_bytes: u64,
    /// The parts of the file that hold data, ascending; every other byte is zero. Absent: unknown, any
    /// part may hold data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<Extent>>,
    /// The layer below this one. Always absent in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Digests of the file's content, if they were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<ChunkDigests>,
}

impl MemoryLayer {
    /// The one layer of a snapshot whose `memory.bin` has this length.
    #[must_use]
    pub fn whole(length_bytes: u64) -> Self {
        Self {
            file: crate::MEMORY_FILE.to_owned(),
            length_bytes,
            extents: None,
            parent: None,
            digests: None,
        }
    }
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u64,
}

/// Digests of a file, chunk by chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkDigests {
    /// Size of every chunk but the last, in bytes; a power of two.
    pub chunk_bytes: u64,
    /// One digest per chunk.
    pub chunks: Vec<Digest>,
}

/// Length and digest of `state.bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateFile {
    /// Exact length in bytes.
    pub length_bytes: u64,
    /// Digest of the whole file.
    pub digest: Digest,
}

/// How `memory.bin` came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Publication {
    /// The RAM file itself, under a new name.
    Link,
    /// A clone that shares the RAM file's blocks.
    Reflink,
    /// A copy of guest RAM.
    Copy,
}

/// The word that the manifest has.
impl std::fmt::Display for Publication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Link => "link",
            Self::Reflink => "reflink",
            Self::Copy => "copy",
        })
    }
}

/// How the snapshot was captured: for people and reports, not for restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureFacts {
    /// How `memory.bin` came to be.
    pub publication: Publication,
    /// Why it came to be so.
    pub publication_reason: String,
    /// Where guest RAM lived while the machine ran, such as `file` or `anonymous`.
    pub ram_backing: String,
    /// Why it lived there.
    pub ram_backing_reason: String,
    /// The writeback strategy, in the form that the command line takes.
    pub strategy: String,
    /// Pages of 4 KiB written between the input gate and the commit. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
    /// Bytes written between the input gate and the commit. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of system calls that wrote them.
    pub calls: u64,
    /// Bytes that the kernel had written back by itself before. Absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_bytes: Option<u64>,
    /// Second choices that the file system or kernel made necessary, in order.
    pub fallbacks: Vec<String>,
}

impl Manifest {
    /// The layout of guest RAM.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Ram`] if the ranges form none.
    pub fn ram_layout(&self) -> Result<RamLayout, ManifestError> {
        let ranges = self.ram.iter().copied().map(RamRange::from).collect();
        RamLayout::new(ranges).map_err(ManifestError::Ram)
    }
}

#[cfg(test)]
mod tests;
