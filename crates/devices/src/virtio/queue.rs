//! Split virtqueues (Virtual I/O Device specification 1.2, section 2.7).

use std::sync::atomic::{Ordering, fence};

use nvx_memory::{AccessError, GuestAddress, GuestMemory};

use super::state::QueueState;

/// Descriptor flag: the chain goes on.
const DESCRIPTOR_NEXT: u16 = 1;
/// Descriptor flag: the device writes.
const DESCRIPTOR_WRITE: u16 = 2;
const DESCRIPTOR_BYTES: u64 = 16;
/// Flag of the available ring: the driver wants no interrupt.
const AVAILABLE_NO_INTERRUPT: u16 = 1;
/// Both rings begin with flags and an index of two bytes each.
const RING_INDEX: u64 = 2;
const RING_ENTRIES: u64 = 4;
const AVAILABLE_ENTRY_BYTES: u64 = 2;
const USED_ENTRY_BYTES: u64 = 8;

/// How a driver breaks the rules of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A part of the queue is no guest RAM.
    #[error("a part of the queue is no guest RAM")]
    Access(#[from] AccessError),
    /// The available ring claims more entries than the queue has.
    #[error("{pending} available entries in a queue of {size}")]
    TooManyAvailable {
        /// What the ring claims.
        pending: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// A descriptor number beyond the table.
    #[error("descriptor {index} in a table of {size}")]
    Descriptor {
        /// The number.
        index: u16,
        /// Descriptors of the table.
        size: u16,
    },
    /// A chain longer than the table, so one that goes in circles.
    #[error("a chain of descriptors does not end")]
    Endless,
}

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it begins.
    pub address: GuestAddress,
    /// Its length in bytes.
    pub length_bytes: u32,
    /// The device writes to it; else the device reads.
    pub device_writes: bool,
}

/// A chain of buffers that the driver has made available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    head: u16,
    /// The buffers in order.
    pub descriptors: Vec<Descriptor>,
}

/// One queue as the driver has set it up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    pub(super) max_size: u16,
    pub(super) size: u16,
    pub(super) ready: bool,
    pub(super) descriptor_table: u64,
    pub(super) available_ring: u64,
    pub(super) used_ring: u64,
    next_available: u16,
    next_used: u16,
}

impl Queue {
    /// A queue of at most `max_size` entries, a power of two, not set up yet.
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: max_size,
            ..Self::default()
        }
    }

    /// Whether `size` is one that a driver may choose.
    pub(super) fn allows_size(&self, size: u32) -> bool {
        size.is_power_of_two() && size <= u32::from(self.max_size)
    }

    /// The next chain that the driver has made available, if there is one.
    ///
    /// # Errors
    /// The driver breaks the rules of the queue.
    pub fn take(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, QueueError> {
        if !self.ready {
            return Ok(None);
        }
        let available = memory.load_u16(at(self.available_ring, RING_INDEX))?;
        let pending = available.wrapping_sub(self.next_available);
        if pending == 0 {
            return Ok(None);
        }
        if pending > self.size {
            return Err(QueueError::TooManyAvailable {
                pending,
                size: self.size,
            });
        }
        // The entry was written before the index that covers it; it must not be read before.
        fence(Ordering::Acquire);
        let slot = u64::from(self.next_available % self.size);
        let entry = at(
            self.available_ring,
            RING_ENTRIES + slot * AVAILABLE_ENTRY_BYTES,
        );
        let head = memory.load_u16(entry)?;
        let descriptors = self.chain(memory, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(Chain { head, descriptors }))
    }

    fn chain(&self, memory: &GuestMemory, head: u16) -> Result<Vec<Descriptor>, QueueError> {
        let mut descriptors = Vec::new();
        let mut next = Some(head);
        while let Some(index) = next {
            if descriptors.len() >= usize::from(self.size) {
                return Err(QueueError::Endless);
            }
            if index >= self.size {
                return Err(QueueError::Descriptor {
                    index,
                    size: self.size,
                });
            }
            let mut raw = [0; DESCRIPTOR_BYTES as usize];
            let place = at(self.descriptor_table, u64::from(index) * DESCRIPTOR_BYTES);
            memory.read(place, &mut raw)?;
            let [
                a0,
                a1,
                a2,
                a3,
                a4,
                a5,
                a6,
                a7,
                l0,
                l1,
                l2,
                l3,
                f0,
                f1,
                n0,
                n1,
            ] = raw;
            let flags = u16::from_le_bytes([f0, f1]);
            descriptors.push(Descriptor {
                address: GuestAddress(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
                length_bytes: u32::from_le_bytes([l0, l1, l2, l3]),
                device_writes: flags & DESCRIPTOR_WRITE != 0,
            });
            next = (flags & DESCRIPTOR_NEXT != 0).then(|| u16::from_le_bytes([n0, n1]));
        }
        Ok(descriptors)
    }

    /// Gives a chain back, `written_bytes` of which the device has filled.
    ///
    /// # Errors
    /// The used ring is no guest RAM.
    pub fn give_back(
        &mut self,
        memory: &GuestMemory,
        chain: &Chain,
        written_bytes: u32,
    ) -> Result<(), QueueError> {
        let slot = u64::from(self.next_used % self.size.max(1));
        let entry = at(self.used_ring, RING_ENTRIES + slot * USED_ENTRY_BYTES);
        let mut raw = [0; USED_ENTRY_BYTES as usize];
        let (id, length) = raw.split_at_mut(4);
        id.copy_from_slice(&u32::from(chain.head).to_le_bytes());
        length.copy_from_slice(&written_bytes.to_le_bytes());
        memory.write(entry, &raw)?;
        let next = self.next_used.wrapping_add(1);
        // The driver may read the entry as soon as it sees the index.
        fence(Ordering::Release);
        memory.store_u16(at(self.used_ring, RING_INDEX), next)?;
        self.next_used = next;
        Ok(())
    }

    /// Whether the driver wants an interrupt for what was given back.
    ///
    /// # Errors
    /// The available ring is no guest RAM.
    pub fn wants_interrupt(&self, memory: &GuestMemory) -> Result<bool, QueueError> {
        // A driver that switches interrupts on and then looks at the used index must not miss both.
        fence(Ordering::SeqCst);
        let flags = memory.load_u16(at(self.available_ring, 0))?;
        Ok(flags & AVAILABLE_NO_INTERRUPT == 0)
    }

    pub(super) fn save(&self) -> QueueState {
        let Self {
            max_size: _,
            size,
            ready,
            descriptor_table,
            available_ring,
            used_ring,
            next_available,
            next_used,
        } = self;
        QueueState {
            size: u32::from(*size),
            ready: *ready,
            descriptor_table: *descriptor_table,
            available_ring: *available_ring,
            used_ring: *used_ring,
            next_available: u32::from(*next_available),
            next_used: u32::from(*next_used),
        }
    }

    /// A queue of at most `max_size` entries with this state, or the field that is impossible and its value.
    pub(super) fn restored(max_size: u16, state: &QueueState) -> Result<Self, (&'static str, u64)> {
        let QueueState {
            size,
            ready,
            descriptor_table,
            available_ring,
            used_ring,
            next_available,
            next_used,
        } = *state;
        let fresh = Self::new(max_size);
        if !fresh.allows_size(size) {
            return Err(("queue.size", u64::from(size)));
        }
        let index = |field, value: u32| u16::try_from(value).map_err(|_| (field, u64::from(value)));
        Ok(Self {
            max_size,
            size: index("queue.size", size)?,
            ready,
            descriptor_table,
            available_ring,
            used_ring,
            next_available: index("queue.next_available", next_available)?,
            next_used: index("queue.next_used", next_used)?,
        })
    }
}

/// An address that a driver may have chosen so that it wraps around: then it is no RAM.
fn at(start: u64, offset: u64) -> GuestAddress {
    GuestAddress(start.saturating_add(offset))
}
