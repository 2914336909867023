//! Shutdown port: a write ends the machine.

mod state;

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::numbers::{FLOATING, SHUTDOWN};
use state::ShutdownState;

const FORMAT: UnitFormat = UnitFormat {
    name: Shutdown::NAME,
    kind: "nvx.shutdown",
    version: 1,
    max_bytes: 256,
};

/// The shutdown device. It has no state: the machine ends with the first write.
#[derive(Debug, Default)]
pub struct Shutdown {}

impl Shutdown {
    /// Name in the device inventory.
    pub const NAME: &'static str = "shutdown";
}

impl Device for Shutdown {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        let Self {} = self;
        FORMAT.encode(&ShutdownState {})
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let ShutdownState {} = FORMAT.decode(kind, version, bytes)?;
        Ok(())
    }
}

impl PortDevice for Shutdown {
    fn read(&mut self, _port: u16) -> u8 {
        FLOATING
    }

    fn write(&mut self, port: u16, value: u8) -> Effect {
        if port == SHUTDOWN {
            Effect::Exit { status: value }
        } else {
            Effect::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_is_the_exit_status() {
        let mut shutdown = Shutdown::default();
        assert_eq!(shutdown.write(SHUTDOWN, 0), Effect::Exit { status: 0 });
        assert_eq!(shutdown.write(SHUTDOWN, 255), Effect::Exit { status: 255 });
        assert_eq!(shutdown.read(SHUTDOWN), FLOATING);
    }
}
