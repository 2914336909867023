//! `state.bin`: a table of named, typed, versioned payloads.
//!
//! The envelope knows nothing of what it carries. Each *unit* of a machine (a virtual processor, the
//! interrupt controller, a serial port) puts one payload in and takes it out again; the label of a
//! payload is its unit name, its kind and its version. Restoring must consume every payload: one that
//! nobody takes belongs to a machine that this one is not.
//!
//! All integers are little endian. The layout, in bytes:
//!
//! | part | content |
//! | --- | --- |
//! | header | magic `NVXSTATE` 8, header version 4, number of payloads 4, length of the whole file 8 |
//! | table, one entry per payload | unit name 64, kind 64 (both padded with NUL), version 4, length 4, BLAKE3 digest 32 |
//! | payloads | in table order, without gaps |

use std::ops::{Range, RangeInclusive};

use thiserror::Error;

use crate::digest::{DIGEST_BYTES, Digest};
use crate::{MAX_NAME_BYTES, is_name};

/// Version of the envelope itself.
pub const STATE_HEADER_VERSION: u32 = 1;
/// Largest state file, in bytes.
pub const MAX_STATE_BYTES: usize = 16 << 20;
/// Most payloads in one state file.
pub const MAX_STATE_UNITS: usize = 256;

/// Room for the state of a machine with one vCPU.
const USUAL_STATE_BYTES: usize = 12 << 10;

const MAGIC: [u8; 8] = *b"NVXSTATE";
const HEADER_BYTES: usize = MAGIC.len() + 4 + 4 + 8;
const ENTRY_BYTES: usize = 2 * MAX_NAME_BYTES + 4 + 4 + DIGEST_BYTES;

const _: () = {
    const SEE: &str = "the state format changed: see doc/design/snapshot.md before changing this";
    assert!(STATE_HEADER_VERSION == 1, "{}", SEE);
    assert!(
        u64::from_le_bytes(MAGIC) == 0x4554_4154_5358_564e,
        "{}",
        SEE
    );
    assert!(HEADER_BYTES == 24, "{}", SEE);
    assert!(ENTRY_BYTES == 168, "{}", SEE);
    assert!(DIGEST_BYTES == 32, "{}", SEE);
    assert!(MAX_NAME_BYTES == 64, "{}", SEE);
    assert!(MAX_STATE_BYTES == 16 * 1024 * 1024, "{}", SEE);
    assert!(MAX_STATE_UNITS == 256, "{}", SEE);
};

/// Why a state file could not be written, read or consumed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StateError {
    /// The file ends inside the header or the table.
    #[error("{length_bytes} bytes are too few for the {part}")]
    TooShort {
        /// Length of the file in bytes.
        length_bytes: usize,
        /// The part that is cut off.
        part: &'static str,
    },
    /// The file is longer than any state may be.
    #[error("{length_bytes} bytes, more than the limit of {MAX_STATE_BYTES}")]
    TooLong {
        /// Length of the file in bytes.
        length_bytes: usize,
    },
    /// The file does not start as a state file does.
    #[error("does not start with NVXSTATE")]
    Magic,
    /// The envelope has a version that this build cannot read.
    #[error("header version {found}, this build reads {STATE_HEADER_VERSION}")]
    HeaderVersion {
        /// The version in the file.
        found: u32,
    },
    /// The header and the table say another length than the file has.
    #[error("{length_bytes} bytes, the {source_of_length} says {expected_bytes}")]
    Length {
        /// Length of the file in bytes.
        length_bytes: u64,
        /// Length in bytes that it must have.
        expected_bytes: u64,
        /// Where that length stands.
        source_of_length: &'static str,
    },
    /// More payloads than allowed.
    #[error("{count} payloads, more than the limit of {MAX_STATE_UNITS}")]
    TooManyUnits {
        /// How many.
        count: usize,
    },
    /// A unit name or kind has a form that is not allowed.
    #[error("payload {index}: the {field} is not 1 to 64 characters of [a-z0-9._-]")]
    Name {
        /// Position of the payload, from 0.
        index: usize,
        /// Which of the two.
        field: &'static str,
    },
    /// Two payloads have the same unit name.
    #[error("unit {unit}: more than one payload")]
    Duplicate {
        /// The unit name.
        unit: String,
    },
    /// A payload does not have the digest that the table gives.
    #[error("unit {unit}: the payload does not match its digest")]
    PayloadDigest {
        /// The unit name.
        unit: String,
    },
    /// The unit has no payload, or it has been taken already.
    #[error("unit {unit}: no payload")]
    Missing {
        /// The unit name.
        unit: String,
    },
    /// The payload is of another kind than the unit that asks for it.
    #[error("unit {unit}: kind {found}, this machine has {expected}")]
    Kind {
        /// The unit name.
        unit: String,
        /// Kind of the payload.
        found: String,
        /// Kind of the unit.
        expected: String,
    },
    /// The payload has a version that this build cannot read.
    #[error("unit {unit}: version {found}, this build reads {oldest} to {newest}")]
    PayloadVersion {
        /// The unit name.
        unit: String,
        /// Version of the payload.
        found: u32,
        /// Oldest version that can be read.
        oldest: u32,
        /// Newest version that can be read.
        newest: u32,
    },
    /// Payloads that no unit of this machine took.
    #[error("no unit takes: {}", units.join(", "))]
    Unconsumed {
        /// Their unit names, in file order.
        units: Vec<String>,
    },
}

/// Collects payloads into a state file.
#[derive(Debug, Default)]
pub struct StateWriter {
    units: Vec<String>,
    table: Vec<u8>,
    payloads: Vec<u8>,
}

impl StateWriter {
    /// An empty state.
    #[must_use]
    pub fn new() -> Self {
        Self {
            payloads: Vec::with_capacity(USUAL_STATE_BYTES),
            ..Self::default()
        }
    }

    /// Adds the payload of `unit`.
    ///
    /// # Errors
    ///
    /// [`StateError::Name`], [`StateError::Duplicate`], [`StateError::TooManyUnits`],
    /// [`StateError::TooLong`]. The writer is unchanged after an error.
    pub fn put(
        &mut self,
        unit: &str,
        kind: &str,
        version: u32,
        payload: &[u8],
    ) -> Result<(), StateError> {
        let index = self.units.len();
        for (field, text) in [("unit name", unit), ("kind", kind)] {
            if !is_name(text) {
                return Err(StateError::Name { index, field });
            }
        }
        if self.units.iter().any(|known| known == unit) {
            let unit = unit.to_owned();
            return Err(StateError::Duplicate { unit });
        }
        if index == MAX_STATE_UNITS {
            return Err(StateError::TooManyUnits { count: index + 1 });
        }
        let length_bytes = HEADER_BYTES
            .saturating_add(ENTRY_BYTES * (index + 1))
            .saturating_add(self.payloads.len())
            .saturating_add(payload.len());
        // Also what makes every length below fit its field.
        if length_bytes > MAX_STATE_BYTES {
            return Err(StateError::TooLong { length_bytes });
        }
        for text in [unit, kind] {
            let mut field = [0; MAX_NAME_BYTES];
            field[..text.len()].copy_from_slice(text.as_bytes());
            self.table.extend_from_slice(&field);
        }
        self.table.extend_from_slice(&version.to_le_bytes());
        let payload_bytes = payload.len() as u32;
        self.table.extend_from_slice(&payload_bytes.to_le_bytes());
        self.table.extend_from_slice(Digest::of(payload).as_bytes());
        self.payloads.extend_from_slice(payload);
        self.units.push(unit.to_owned());
        Ok(())
    }

    /// The state file's bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let head_bytes = HEADER_BYTES + self.table.len();
        let payload_bytes = self.payloads.len();
        let length = head_bytes + payload_bytes;
        // A machine stands still meanwhile, and each fresh page of memory costs it a fault, so no second buffer is
        // taken.
        let mut bytes = self.payloads;
        bytes.resize(length, 0);
        bytes.copy_within(..payload_bytes, head_bytes);
        let mut head = &mut bytes[..head_bytes];
        for part in [
            &MAGIC[..],
            &STATE_HEADER_VERSION.to_le_bytes(),
            &(self.units.len() as u32).to_le_bytes(),
            &(length as u64).to_le_bytes(),
            &self.table,
        ] {
            let (field, rest) = head.split_at_mut(part.len());
            field.copy_from_slice(part);
            head = rest;
        }
        bytes
    }
}

/// One payload with its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePayload<'a> {
    /// Name of the unit that wrote it.
    pub unit: &'a str,
    /// What kind of unit that was.
    pub kind: &'a str,
    /// Version of the payload's own format.
    pub version: u32,
    /// The payload.
    pub bytes: &'a [u8],
}

impl<'a> StatePayload<'a> {
    /// The payload's bytes, if it is of `kind` and has one of `versions`.
    ///
    /// # Errors
    ///
    /// [`StateError::Kind`], [`StateError::PayloadVersion`].
    pub fn require(
        &self,
        kind: &str,
        versions: RangeInclusive<u32>,
    ) -> Result<&'a [u8], StateError> {
        if self.kind != kind {
            return Err(StateError::Kind {
                unit: self.unit.to_owned(),
                found: self.kind.to_owned(),
                expected: kind.to_owned(),
            });
        }
        if !versions.contains(&self.version) {
            return Err(StateError::PayloadVersion {
                unit: self.unit.to_owned(),
                found: self.version,
                oldest: *versions.start(),
                newest: *versions.end(),
            });
        }
        Ok(self.bytes)
    }
}

/// The table of a state file whose structure has been checked: where each payload lies. It stands
/// apart from the file's bytes, so that one owner can keep both.
#[derive(Debug, Clone)]
pub(crate) struct StateTable {
    entries: Vec<TableEntry>,
}

#[derive(Debug, Clone)]
struct TableEntry {
    unit: Range<usize>,
    kind: Range<usize>,
    version: u32,
    payload: Range<usize>,
    digest: Digest,
}

impl TableEntry {
    /// The payload and its label; `None` if `file` is not the file that the entry was read from.
    fn payload_in<'a>(&self, file: &'a [u8]) -> Option<StatePayload<'a>> {
        let text = |range: &Range<usize>| std::str::from_utf8(file.get(range.clone())?).ok();
        Some(StatePayload {
            unit: text(&self.unit)?,
            kind: text(&self.kind)?,
            version: self.version,
            bytes: file.get(self.payload.clone())?,
        })
    }
}

impl StateTable {
    /// Reads the table and checks the file's structure: all lengths and all names, no digest.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, StateError> {
        Ok(Self {
            entries: parse_entries(file)?,
        })
    }

    /// Checks each payload of `file` against its digest.
    pub(crate) fn verify(&self, file: &[u8]) -> Result<(), StateError> {
        for (entry, payload) in self.entries.iter().zip(self.payloads(file)?) {
            if Digest::of(payload.bytes) != entry.digest {
                return Err(StateError::PayloadDigest {
                    unit: payload.unit.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// A reader over `file`, from which this table was read.
    pub(crate) fn reader<'a>(&self, file: &'a [u8]) -> Result<StateReader<'a>, StateError> {
        Ok(StateReader {
            payloads: self.payloads(file)?,
        })
    }

    fn payloads<'a>(&self, file: &'a [u8]) -> Result<Vec<StatePayload<'a>>, StateError> {
        let payloads = self.entries.iter().map(|entry| entry.payload_in(file));
        payloads.collect::<Option<_>>().ok_or(StateError::TooShort {
            length_bytes: file.len(),
            part: "table",
        })
    }
}

/// Hands out the payloads of a state file, each once.
#[derive(Debug, Clone)]
pub struct StateReader<'a> {
    payloads: Vec<StatePayload<'a>>,
}

impl<'a> StateReader<'a> {
    /// Reads and checks the envelope: all lengths, all names, all digests.
    ///
    /// # Errors
    ///
    /// Any [`StateError`] that concerns the file itself.
    pub fn parse(file: &'a [u8]) -> Result<Self, StateError> {
        let table = StateTable::parse(file)?;
        table.verify(file)?;
        table.reader(file)
    }

    /// The payloads that have not been taken yet, in file order.
    #[must_use]
    pub fn payloads(&self) -> &[StatePayload<'a>] {
        &self.payloads
    }

    /// Takes the payload of `unit`.
    ///
    /// # Errors
    ///
    /// [`StateError::Missing`] if there is none, or it has been taken.
    pub fn take(&mut self, unit: &str) -> Result<StatePayload<'a>, StateError> {
        let position = self.payloads.iter().position(|known| known.unit == unit);
        position
            .map(|index| self.payloads.remove(index))
            .ok_or_else(|| StateError::Missing {
                unit: crate::printable(unit),
            })
    }

    /// Ends reading.
    ///
    /// # Errors
    ///
    /// [`StateError::Unconsumed`] if any payload was not taken.
    pub fn finish(self) -> Result<(), StateError> {
        if self.payloads.is_empty() {
            return Ok(());
        }
        let units = self
            .payloads
            .iter()
            .map(|payload| payload.unit.to_owned())
            .collect();
        Err(StateError::Unconsumed { units })
    }
}

/// Splits a file into the places of its payloads and their labels.
fn parse_entries(file: &[u8]) -> Result<Vec<TableEntry>, StateError> {
    let length_bytes = file.len();
    if length_bytes > MAX_STATE_BYTES {
        return Err(StateError::TooLong { length_bytes });
    }
    let mut rest = Cursor { rest: file };
    let mut header = || -> Option<_> {
        Some((
            rest.array::<8>()?,
            u32::from_le_bytes(rest.array()?),
            u32::from_le_bytes(rest.array()?),
            u64::from_le_bytes(rest.array()?),
        ))
    };
    // A file of another kind is named as such even if it is short.
    if !file.starts_with(&MAGIC[..length_bytes.min(MAGIC.len())]) {
        return Err(StateError::Magic);
    }
    let (_, version, count, recorded_bytes) = header().ok_or(StateError::TooShort {
        length_bytes,
        part: "header",
    })?;
    if version != STATE_HEADER_VERSION {
        return Err(StateError::HeaderVersion { found: version });
    }
    let count = count as usize;
    if count > MAX_STATE_UNITS {
        return Err(StateError::TooManyUnits { count });
    }
    check_length(length_bytes, recorded_bytes, "header")?;
    let table = rest
        .slice(count * ENTRY_BYTES)
        .ok_or(StateError::TooShort {
            length_bytes,
            part: "table",
        })?;

    let mut end = HEADER_BYTES + table.len();
    let mut entries: Vec<TableEntry> = Vec::with_capacity(count);
    let mut units: Vec<&str> = Vec::with_capacity(count);
    for (index, bytes) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let (unit, kind, version, payload_bytes, digest) = parse_entry(index, bytes)?;
        let start = end;
        end = end.saturating_add(payload_bytes as usize);
        if end > length_bytes {
            return Err(StateError::Length {
                length_bytes: length_bytes as u64,
                expected_bytes: end as u64,
                source_of_length: "table",
            });
        }
        if units.contains(&unit) {
            let unit = unit.to_owned();
            return Err(StateError::Duplicate { unit });
        }
        units.push(unit);
        let unit_start = HEADER_BYTES + index * ENTRY_BYTES;
        let kind_start = unit_start + MAX_NAME_BYTES;
        entries.push(TableEntry {
            unit: unit_start..unit_start + unit.len(),
            kind: kind_start..kind_start + kind.len(),
            version,
            payload: start..end,
            digest,
        });
    }
    check_length(length_bytes, end as u64, "table")?;
    Ok(entries)
}

fn check_length(
    length_bytes: usize,
    expected_bytes: u64,
    source_of_length: &'static str,
) -> Result<(), StateError> {
    let length_bytes = length_bytes as u64;
    if length_bytes == expected_bytes {
        return Ok(());
    }
    Err(StateError::Length {
        length_bytes,
        expected_bytes,
        source_of_length,
    })
}

/// Reads one table entry: unit name, kind, version, length of the payload, its digest.
fn parse_entry(index: usize, entry: &[u8]) -> Result<(&str, &str, u32, u32, Digest), StateError> {
    let mut rest = Cursor { rest: entry };
    let mut fields = || -> Option<_> {
        Some((
            rest.slice(MAX_NAME_BYTES)?,
            rest.slice(MAX_NAME_BYTES)?,
            u32::from_le_bytes(rest.array()?),
            u32::from_le_bytes(rest.array()?),
            Digest::from_bytes(rest.array()?),
        ))
    };
    let (unit, kind, version, payload_bytes, digest) = fields().ok_or(StateError::TooShort {
        length_bytes: entry.len(),
        part: "table",
    })?;
    let name = |field, bytes| padded_name(bytes).ok_or(StateError::Name { index, field });
    Ok((
        name("unit name", unit)?,
        name("kind", kind)?,
        version,
        payload_bytes,
        digest,
    ))
}

/// A name field: an allowed name, then NUL bytes only.
fn padded_name(field: &[u8]) -> Option<&str> {
    let length = field.iter().position(|&byte| byte == 0);
    let (name, padding) = field.split_at(length.unwrap_or(field.len()));
    let name = std::str::from_utf8(name).ok()?;
    (is_name(name) && padding.iter().all(|&byte| byte == 0)).then_some(name)
}

/// What has not been read yet.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn slice(&mut self, length_bytes: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(length_bytes)?;
        self.rest = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests;
