//! Port console: one data port and one status port.
//!
//! The device itself keeps nothing between two accesses: pending input belongs to the back end.

mod state;

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::numbers::{CONSOLE, CONSOLE_STATUS, FLOATING, STATUS_INPUT_PENDING, STATUS_RESTORED};
use crate::snapshot_port::RestoreNotice;
use state::ConsoleState;

const FORMAT: UnitFormat = UnitFormat {
    name: PortConsole::NAME,
    kind: "nvx.port-console",
    version: 1,
    max_bytes: 256,
};

/// Where the console's bytes come from and go to. No call may block.
pub trait ConsoleIo: Send {
    /// Whether [`take_input`](Self::take_input) has a byte.
    fn input_pending(&mut self) -> bool;
    /// Takes the next byte of input.
    fn take_input(&mut self) -> Option<u8>;
    /// Takes output of the guest.
    fn write_output(&mut self, bytes: &[u8]);
}

/// The console device.
pub struct PortConsole {
    io: Box<dyn ConsoleIo>,
    notice: RestoreNotice,
}

impl PortConsole {
    /// Name in the device inventory.
    pub const NAME: &'static str = "port-console";

    /// A console on `io`, whose status shows `notice`.
    #[must_use]
    pub fn new(io: Box<dyn ConsoleIo>, notice: RestoreNotice) -> Self {
        Self { io, notice }
    }

    /// Whether input waits for the guest.
    pub fn input_pending(&mut self) -> bool {
        self.io.input_pending()
    }

    fn status(&mut self) -> u8 {
        let mut status = 0;
        if self.io.input_pending() {
            status |= STATUS_INPUT_PENDING;
        }
        if self.notice.is_pending() {
            status |= STATUS_RESTORED;
        }
        status
    }
}

impl Device for PortConsole {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        // The notice belongs to the snapshot port, the rest to the host.
        let Self { io: _, notice: _ } = self;
        FORMAT.encode(&ConsoleState {})
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let ConsoleState {} = FORMAT.decode(kind, version, bytes)?;
        Ok(())
    }
}

impl PortDevice for PortConsole {
    fn read(&mut self, port: u16) -> u8 {
        match port {
            CONSOLE => self.io.take_input().unwrap_or(0),
            CONSOLE_STATUS => self.status(),
            _ => FLOATING,
        }
    }

    fn write(&mut self, port: u16, value: u8) -> Effect {
        if port == CONSOLE {
            self.io.write_output(&[value]);
        }
        Effect::None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Io {
        input: VecDeque<u8>,
        output: Arc<Mutex<Vec<u8>>>,
    }

    impl ConsoleIo for Io {
        fn input_pending(&mut self) -> bool {
            !self.input.is_empty()
        }
        fn take_input(&mut self) -> Option<u8> {
            self.input.pop_front()
        }
        fn write_output(&mut self, bytes: &[u8]) {
            self.output.lock().unwrap().extend_from_slice(bytes);
        }
    }

    #[test]
    fn bytes_pass_in_both_directions() {
        let output = Arc::new(Mutex::new(Vec::new()));
        let notice = RestoreNotice::default();
        let io = Io {
            input: b"ab".iter().copied().collect(),
            output: Arc::clone(&output),
        };
        let mut console = PortConsole::new(Box::new(io), notice.clone());
        assert_eq!(console.read(CONSOLE_STATUS), STATUS_INPUT_PENDING);
        assert_eq!(console.read(CONSOLE), b'a');
        notice.set(true);
        assert_eq!(
            console.read(CONSOLE_STATUS),
            STATUS_INPUT_PENDING | STATUS_RESTORED
        );
        assert_eq!(console.read(CONSOLE), b'b');
        assert_eq!(console.read(CONSOLE_STATUS), STATUS_RESTORED);
        assert_eq!(console.read(CONSOLE), 0);
        for byte in *b"xy" {
            assert_eq!(console.write(CONSOLE, byte), Effect::None);
            assert_eq!(console.write(CONSOLE_STATUS, b'!'), Effect::None);
        }
        assert_eq!(*output.lock().unwrap(), b"xy");
    }
}
