//! VM generation ID: 16 bytes in guest RAM that change when this machine becomes a copy of another
//! (Microsoft, "Virtual Machine Generation ID", 2012).
//!
//! The guest finds the bytes by ACPI, and is told of a change by an event. The device writes the bytes
//! when the machine starts and again at each restore; it does nothing else.

mod state;

use nvx_memory::{AccessError, GuestAddress, GuestMemory};

use crate::device::{Device, RestoreError, SavedUnit, UnitFormat};
use crate::interrupt::InterruptLine;
use state::GenerationIdState;

const FORMAT: UnitFormat = UnitFormat {
    name: GenerationId::NAME,
    kind: "nvx.generation-id",
    version: 1,
    max_bytes: 256,
};

/// Bytes of an ID.
pub const GENERATION_ID_BYTES: usize = 16;

/// The generation ID device.
pub struct GenerationId {
    id: [u8; GENERATION_ID_BYTES],
    line: Box<dyn InterruptLine>,
}

impl GenerationId {
    /// Name in the device inventory.
    pub const NAME: &'static str = "generation-id";

    /// A device whose event line is `line`, without an ID yet.
    #[must_use]
    pub fn new(line: Box<dyn InterruptLine>) -> Self {
        Self {
            id: [0; GENERATION_ID_BYTES],
            line,
        }
    }

    /// The machine's present ID.
    #[must_use]
    pub fn id(&self) -> [u8; GENERATION_ID_BYTES] {
        self.id
    }

    /// Gives a new machine its first ID, of which the guest needs no telling.
    ///
    /// # Errors
    /// `address` is no guest RAM.
    pub fn begin(
        &mut self,
        memory: &GuestMemory,
        address: GuestAddress,
        id: [u8; GENERATION_ID_BYTES],
    ) -> Result<(), AccessError> {
        memory.write(address, &id)?;
        self.id = id;
        Ok(())
    }

    /// Gives a restored machine an ID of its own and tells the guest. After the interrupt chip has its state.
    ///
    /// # Errors
    /// `address` is no guest RAM.
    pub fn change(
        &mut self,
        memory: &GuestMemory,
        address: GuestAddress,
        id: [u8; GENERATION_ID_BYTES],
    ) -> Result<(), AccessError> {
        self.begin(memory, address, id)?;
        // The event's input is edge-triggered.
        self.line.set(true);
        self.line.set(false);
        Ok(())
    }
}

impl Device for GenerationId {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        let Self { id, line: _ } = self;
        FORMAT.encode(&GenerationIdState { id: id.to_vec() })
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let GenerationIdState { id } = FORMAT.decode(kind, version, bytes)?;
        self.id = id
            .try_into()
            .map_err(|id: Vec<u8>| FORMAT.impossible("id", id.len() as u64))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvx_memory::{RamLayout, RamRange};

    use super::*;
    use crate::device::restore;
    use crate::interrupt::recorded::RecordedLine;

    fn memory() -> GuestMemory {
        let layout = RamLayout::new(vec![RamRange {
            start: GuestAddress(0),
            size_bytes: 65536,
            file_offset_bytes: 0,
        }])
        .unwrap();
        GuestMemory::anonymous(layout).unwrap()
    }

    #[test]
    fn a_change_reaches_memory_before_the_event() {
        let (memory, line) = (memory(), RecordedLine::default());
        let mut device = GenerationId::new(Box::new(line.clone()));
        device
            .begin(&memory, GuestAddress(0x1000), [7; 16])
            .unwrap();
        assert_eq!(line.rises(), 0);
        let saved = device.save();

        let mut copy = GenerationId::new(Box::new(line.clone()));
        restore(&mut copy, &saved).unwrap();
        assert_eq!(copy.id(), [7; 16]);
        copy.change(&memory, GuestAddress(0x1000), [8; 16]).unwrap();
        let mut found = [0; 16];
        memory.read(GuestAddress(0x1000), &mut found).unwrap();
        assert_eq!((found, line.rises(), line.level()), ([8; 16], 1, false));
        copy.change(&memory, GuestAddress(0xffff), [9; 16])
            .unwrap_err();
        assert_eq!((copy.id(), line.rises()), ([8; 16], 1));
    }

    #[test]
    fn an_id_of_another_length_is_refused() {
        let mut device = GenerationId::new(Box::new(RecordedLine::default()));
        let state = GenerationIdState { id: vec![1; 15] };
        let error = restore(&mut device, &FORMAT.encode(&state)).unwrap_err();
        assert!(error.to_string().contains("'id'"), "{error}");
    }
}
