//! Power control: ACPI's sleep and reset registers in hardware-reduced form (ACPI 6.5, sections 4.8.3.6 and
//! 4.8.3.7), and the keyboard controller's reset line.
//!
//! The machine has one sleep state, soft off (`\_S5`). A device without state: each write that means
//! something ends the machine.

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::numbers::{
    FLOATING, KEYBOARD_COMMAND, KEYBOARD_COMMAND_RESET, RESET_CONTROL, RESET_VALUE, SLEEP_CONTROL,
    SLEEP_STATUS, SLEEP_TYPE_OFF,
};

/// A device that is only registers has an empty message as its state.
#[derive(Clone, PartialEq, prost::Message)]
struct PowerState {}

const FORMAT: UnitFormat = UnitFormat {
    name: PowerControl::NAME,
    kind: "nvx.power-control",
    version: 1,
    max_bytes: 256,
};

/// Sleep control: bit 5 begins the sleep state that bits 2 to 4 name.
const SLEEP_ENABLE: u8 = 1 << 5;
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_BITS: u8 = 0b111;

/// The power control device.
#[derive(Debug, Default)]
pub struct PowerControl {}

impl PowerControl {
    /// Name in the device inventory.
    pub const NAME: &'static str = "power-control";
}

impl Device for PowerControl {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        let Self {} = self;
        FORMAT.encode(&PowerState {})
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let PowerState {} = FORMAT.decode(kind, version, bytes)?;
        Ok(())
    }
}

impl PortDevice for PowerControl {
    fn read(&mut self, port: u16) -> u8 {
        match port {
            // Not asleep, and the keyboard controller is ready for a command and has nothing to say.
            SLEEP_CONTROL | SLEEP_STATUS | RESET_CONTROL | KEYBOARD_COMMAND => 0,
            _ => FLOATING,
        }
    }

    fn write(&mut self, port: u16, value: u8) -> Effect {
        match port {
            SLEEP_CONTROL
                if value & SLEEP_ENABLE != 0
                    && (value >> SLEEP_TYPE_SHIFT) & SLEEP_TYPE_BITS == SLEEP_TYPE_OFF =>
            {
                Effect::PowerOff
            }
            RESET_CONTROL if value == RESET_VALUE => Effect::Reset,
            KEYBOARD_COMMAND if value == KEYBOARD_COMMAND_RESET => Effect::Reset,
            _ => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documented_writes_end_the_machine() {
        let mut power = PowerControl::default();
        for value in 0..=255 {
            let off = power.write(SLEEP_CONTROL, value);
            let asks = value & 0x20 != 0 && (value >> 2) & 7 == SLEEP_TYPE_OFF;
            assert_eq!(off == Effect::PowerOff, asks, "{value:#x}");
            assert_eq!(power.write(SLEEP_STATUS, value), Effect::None);
            let reset = power.write(RESET_CONTROL, value);
            assert_eq!(reset == Effect::Reset, value == RESET_VALUE);
            let keyboard = power.write(KEYBOARD_COMMAND, value);
            assert_eq!(keyboard == Effect::Reset, value == 0xfe);
        }
    }

    #[test]
    fn the_keyboard_controller_never_keeps_a_guest_waiting() {
        // Bit 1: the controller has not taken the last byte yet.
        assert_eq!(PowerControl::default().read(KEYBOARD_COMMAND) & 2, 0);
    }
}
