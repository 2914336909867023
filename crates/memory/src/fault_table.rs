//! Which addresses belong to which RAM file, for a handler that runs when a page cannot be had.
//!
//! Such a handler may run at any point of the program, so it takes no lock and allocates nothing: the
//! ranges stand in a static table of atomics.

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The number of ranges that can be registered at a time. A view beyond it works like any other;
/// only its faults are then reported by the system's plain words.
const SLOTS: usize = 64;
/// The longest file name that is printed, in bytes; of a longer one, the end.
const NAME_BYTES: usize = 256;

/// One registered range. `end` is 0 unless the slot is complete, so that the handler never sees
/// half of an entry.
struct Slot {
    taken: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    name_bytes: AtomicUsize,
    name: [AtomicU8; NAME_BYTES],
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name_bytes: AtomicUsize::new(0),
        name: [const { AtomicU8::new(0) }; NAME_BYTES],
    }
}; SLOTS];

/// Keeps one mapped range in the table.
#[derive(Debug)]
pub(crate) struct Registration {
    slot: usize,
}

impl Registration {
    /// Registers `size_bytes` bytes at address `start`.
    /// `None` if the table is full.
    pub(crate) fn new(start: usize, size_bytes: usize, name: &Path) -> Option<Self> {
        let free = |slot: &Slot| {
            slot.taken
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let index = TABLE.iter().position(free)?;
        let slot = TABLE.get(index)?;
        let name = name.as_os_str().as_encoded_bytes();
        let shown = &name[name.len().saturating_sub(NAME_BYTES)..];
        for (target, &byte) in slot.name.iter().zip(shown) {
            target.store(byte, Ordering::Relaxed);
        }
        slot.name_bytes.store(shown.len(), Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.end
            .store(start.saturating_add(size_bytes), Ordering::Release);
        Some(Self { slot: index })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(slot) = TABLE.get(self.slot) {
            slot.end.store(0, Ordering::Release);
            slot.taken.store(0, Ordering::Release);
        }
    }
}

/// The name of a registered range, copied out of the table.
pub(crate) struct RangeName {
    bytes: [u8; NAME_BYTES],
    length: usize,
}

impl RangeName {
    /// The name of the range that has `address` in it, if one has. Safe to call from a handler.
    pub(crate) fn at(address: usize) -> Option<Self> {
        let slot = TABLE.iter().find(|slot| {
            let end = slot.end.load(Ordering::Acquire);
            address < end && address >= slot.start.load(Ordering::Relaxed)
        })?;
        let mut bytes = [0; NAME_BYTES];
        for (target, byte) in bytes.iter_mut().zip(&slot.name) {
            *target = byte.load(Ordering::Relaxed);
        }
        let length = slot.name_bytes.load(Ordering::Relaxed);
        Some(Self { bytes, length })
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The parts of the line that says what happened to the file.
pub(crate) fn line(name: &RangeName) -> [&[u8]; 3] {
    [
        b"nvx: RAM file ",
        name.as_bytes(),
        b": a page could not be read or stored (file truncated, or its file system is full)\n",
    ]
}
