//! Decoded instructions, kept by their address.
//!
//! Guest code may change: by the guest's own stores, and by the monitor while the guest stands
//! still. An entry is therefore good for one *epoch* only. A new epoch begins whenever the guest
//! is entered and whenever it stores to an address among those of kept instructions; an entry from
//! an earlier epoch is used only after its bytes have been compared with memory.

use nvx_memory::{GuestAddress, GuestMemory};

use super::instruction::{self, Instruction, LENGTH_MAX_BYTES};

/// Number of entries; an instruction's place is its address modulo this. The built-in guest's code
/// is shorter, so its instructions never displace each other.
const ENTRIES: usize = 4096;

#[derive(Clone, Copy)]
struct Entry {
    address: u32,
    epoch: u64,
    instruction: Instruction,
    bytes: [u8; LENGTH_MAX_BYTES],
}

/// The instructions decoded so far.
pub(super) struct CodeCache {
    /// Empty until the first instruction, so that a vCPU that never runs costs nothing.
    entries: Vec<Option<Entry>>,
    epoch: u64,
    /// Lowest address of a kept instruction, and the highest address behind one.
    low: u32,
    high: u32,
}

impl CodeCache {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            epoch: 0,
            low: u32::MAX,
            high: 0,
        }
    }

    /// Memory may have changed by other hands than the guest's.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch += 1;
    }

    /// The guest stores `size_bytes` at `address`.
    pub(super) fn note_store(&mut self, address: u32, size_bytes: usize) {
        if address < self.high && address.saturating_add(size_bytes as u32) > self.low {
            self.begin_epoch();
        }
    }

    /// The instruction at `address`. `None`: there is no memory, or the instruction is none that
    /// is executed.
    pub(super) fn fetch(&mut self, address: u32, memory: &GuestMemory) -> Option<Instruction> {
        if let Some(Some(entry)) = self.entries.get_mut(address as usize % ENTRIES)
            && entry.address == address
        {
            if entry.epoch == self.epoch {
                return Some(entry.instruction);
            }
            if entry.is_unchanged(memory) {
                entry.epoch = self.epoch;
                return Some(entry.instruction);
            }
        }
        self.decode(address, memory)
    }

    fn decode(&mut self, address: u32, memory: &GuestMemory) -> Option<Instruction> {
        let (bytes, length) = read_code(address, memory);
        let instruction = instruction::decode(address, bytes.get(..length)?)?;
        self.low = self.low.min(address);
        self.high = self
            .high
            .max(address.saturating_add(u32::from(instruction.length)));
        if self.entries.is_empty() {
            self.entries = vec![None; ENTRIES];
        }
        if let Some(entry) = self.entries.get_mut(address as usize % ENTRIES) {
            *entry = Some(Entry {
                address,
                epoch: self.epoch,
                instruction,
                bytes,
            });
        }
        Some(instruction)
    }
}

impl Entry {
    fn is_unchanged(&self, memory: &GuestMemory) -> bool {
        let length = usize::from(self.instruction.length);
        let mut now = [0; LENGTH_MAX_BYTES];
        let (Some(now), Some(before)) = (now.get_mut(..length), self.bytes.get(..length)) else {
            return false;
        };
        memory
            .read(GuestAddress(u64::from(self.address)), now)
            .is_ok()
            && now == before
    }
}

/// The bytes from `address` on, as many of an instruction's as are RAM.
pub(super) fn read_code(address: u32, memory: &GuestMemory) -> ([u8; LENGTH_MAX_BYTES], usize) {
    let mut bytes = [0; LENGTH_MAX_BYTES];
    for length in (1..=LENGTH_MAX_BYTES).rev() {
        let fits = bytes
            .get_mut(..length)
            .is_some_and(|bytes| memory.read(GuestAddress(u64::from(address)), bytes).is_ok());
        if fits {
            return (bytes, length);
        }
    }
    (bytes, 0)
}
