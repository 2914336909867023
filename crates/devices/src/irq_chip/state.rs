//! Saved state of the chip's parts.

use prost::Message;

use crate::device::{RestoreError, UnitFormat};

const fn part(name: &'static str, kind: &'static str, max_bytes: usize) -> UnitFormat {
    UnitFormat {
        name,
        kind,
        version: 1,
        max_bytes,
    }
}

pub(super) const PIC_PRIMARY: UnitFormat = part("primary PIC", "nvx.pic", 256);
pub(super) const PIC_SECONDARY: UnitFormat = part("secondary PIC", "nvx.pic", 256);
pub(super) const IOAPIC: UnitFormat = part("IOAPIC", "nvx.ioapic", 1024);
pub(super) const PIT: UnitFormat = part("PIT", "nvx.pit", 512);

/// Reads a payload, which the layout's name gives a kind and a version. An empty one would be that of a
/// device that nobody has saved.
pub(super) fn decode<S: Message + Default>(
    format: &UnitFormat,
    bytes: &[u8],
) -> Result<S, RestoreError> {
    if bytes.is_empty() {
        return Err(format.impossible("length", 0));
    }
    format.decode(format.kind, format.version, bytes)
}

/// Saved state of kind `nvx.pic`, version 1: one 8259A.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct PicState {
    /// Requests.
    #[prost(uint32, tag = "1")]
    pub(super) requests: u32,
    /// Interrupts in service.
    #[prost(uint32, tag = "2")]
    pub(super) in_service: u32,
    /// Masked lines.
    #[prost(uint32, tag = "3")]
    pub(super) masked: u32,
    /// Levels of the lines.
    #[prost(uint32, tag = "4")]
    pub(super) lines: u32,
    /// Level-triggered lines.
    #[prost(uint32, tag = "5")]
    pub(super) level_triggered: u32,
    /// Vector of line 0.
    #[prost(uint32, tag = "6")]
    pub(super) vector_base: u32,
    /// The line that comes first.
    #[prost(uint32, tag = "7")]
    pub(super) first_line: u32,
    /// The initialization word that is due: 0 none, 2 to 4, 5 before the first one.
    #[prost(uint32, tag = "8")]
    pub(super) due_word: u32,
    /// One bit for each mode, as in [`super::pic`].
    #[prost(uint32, tag = "9")]
    pub(super) modes: u32,
}

/// Saved state of kind `nvx.ioapic`, version 1.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct IoapicState {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub(super) id: u32,
    /// The register that is chosen.
    #[prost(uint32, tag = "2")]
    pub(super) selected: u32,
    /// Levels of the inputs.
    #[prost(uint32, tag = "3")]
    pub(super) lines: u32,
    /// The redirection table, 24 entries.
    #[prost(fixed64, repeated, tag = "4")]
    pub(super) redirections: Vec<u64>,
}

/// Saved state of kind `nvx.pit`, version 1.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct PitState {
    /// The three channels.
    #[prost(message, repeated, tag = "1")]
    pub(super) channels: Vec<ChannelState>,
    /// The speaker is connected to channel 2.
    #[prost(bool, tag = "2")]
    pub(super) has_speaker: bool,
}

/// One channel of the timer.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ChannelState {
    /// The count that was written; 0 stands for the largest.
    #[prost(uint32, tag = "1")]
    pub(super) count: u32,
    /// Mode 0 to 5.
    #[prost(uint32, tag = "2")]
    pub(super) mode: u32,
    /// Bytes of an access: 1 low, 2 high, 3 both.
    #[prost(uint32, tag = "3")]
    pub(super) access: u32,
    /// Counts are decimal.
    #[prost(bool, tag = "4")]
    pub(super) is_decimal: bool,
    /// A count has been written since the mode was.
    #[prost(bool, tag = "5")]
    pub(super) is_loaded: bool,
    /// The low byte of a count whose high byte is due.
    #[prost(uint32, optional, tag = "6")]
    pub(super) low_byte: Option<u32>,
    /// The next read gives the high byte.
    #[prost(bool, tag = "7")]
    pub(super) high_byte_is_next: bool,
    /// A count that was latched.
    #[prost(uint32, optional, tag = "8")]
    pub(super) latched_count: Option<u32>,
    /// A status that was latched.
    #[prost(uint32, optional, tag = "9")]
    pub(super) latched_status: Option<u32>,
    /// The gate is open.
    #[prost(bool, tag = "10")]
    pub(super) gate: bool,
    /// Nanoseconds for which it has counted.
    #[prost(uint64, tag = "11")]
    pub(super) age_ns: u64,
    /// Rises of the output that have been taken.
    #[prost(uint64, tag = "12")]
    pub(super) edges_taken: u64,
}
