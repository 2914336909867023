//! What a stock kernel needs of a machine: serial ports, power control, generation ID, entropy.

use std::sync::Arc;

use nvx_memory::{GuestAddress, GuestMemory};

use crate::device::{Device, MmioDevice, PortDevice};
use crate::generation_id::GenerationId;
use crate::interrupt::InterruptLine;
use crate::numbers::{self, SERIAL_PORTS};
use crate::power::PowerControl;
use crate::uart::{SerialIo, Uart};
use crate::virtio::{Entropy, EntropySource, VIRTIO_MMIO_WINDOW_BYTES, VirtioMmio};

/// Name of the serial port that is the console.
const SERIAL_CONSOLE: &str = "serial-console";
/// Name of the serial port that is the control line.
const SERIAL_CONTROL_LINE: &str = "serial-control-line";
/// Name of the entropy device.
const ENTROPY: &str = "virtio-rng";

/// What the platform's devices are connected to.
pub struct PlatformWiring {
    /// The other end of the console.
    pub console: Box<dyn SerialIo>,
    /// The console's interrupt, edge-triggered.
    pub console_interrupt: Box<dyn InterruptLine>,
    /// The other end of the control line.
    pub control_line: Box<dyn SerialIo>,
    /// The control line's interrupt, edge-triggered.
    pub control_line_interrupt: Box<dyn InterruptLine>,
    /// The generation ID's event, edge-triggered.
    pub generation_id_event: Box<dyn InterruptLine>,
    /// Where random bytes come from.
    pub entropy: Box<dyn EntropySource>,
    /// The entropy device's interrupt, level-triggered.
    pub entropy_interrupt: Box<dyn InterruptLine>,
    /// Start of the entropy device's window.
    pub entropy_window: GuestAddress,
    /// Guest RAM, where queues lie.
    pub memory: Arc<GuestMemory>,
}

/// The devices, in the order of the inventory.
pub struct Platform {
    console: Uart,
    control_line: Uart,
    power: PowerControl,
    generation_id: GenerationId,
    entropy: VirtioMmio,
    entropy_window: GuestAddress,
}

impl Platform {
    /// Names of the devices in the order of the inventory.
    pub const NAMES: [&'static str; 5] = [
        SERIAL_CONSOLE,
        SERIAL_CONTROL_LINE,
        PowerControl::NAME,
        GenerationId::NAME,
        ENTROPY,
    ];

    /// The devices as they are after power-on.
    #[must_use]
    pub fn new(wiring: PlatformWiring) -> Self {
        let PlatformWiring {
            console,
            console_interrupt,
            control_line,
            control_line_interrupt,
            generation_id_event,
            entropy,
            entropy_interrupt,
            entropy_window,
            memory,
        } = wiring;
        Self {
            console: Uart::new(
                SERIAL_CONSOLE,
                numbers::SERIAL_CONSOLE,
                console,
                console_interrupt,
            ),
            control_line: Uart::new(
                SERIAL_CONTROL_LINE,
                numbers::SERIAL_CONTROL_LINE,
                control_line,
                control_line_interrupt,
            ),
            power: PowerControl::default(),
            generation_id: GenerationId::new(generation_id_event),
            entropy: VirtioMmio::new(
                ENTROPY,
                Box::new(Entropy::new(entropy)),
                memory,
                entropy_interrupt,
            ),
            entropy_window,
        }
    }

    /// The generation ID device.
    pub fn generation_id(&mut self) -> &mut GenerationId {
        &mut self.generation_id
    }

    /// Bytes of input that the guest has read from the console since power-on, captures and restores
    /// included.
    #[must_use]
    pub fn console_received_bytes(&self) -> u64 {
        self.console.received_bytes()
    }

    /// Tells the guest about input at a serial port, if there is some.
    pub fn input_arrived(&mut self) {
        self.console.input_arrived();
        self.control_line.input_arrived();
    }

    /// Sets the level of every interrupt line again. After the interrupt chip and the devices have their
    /// state, since a restored chip has forgotten the levels.
    pub fn assert_lines_again(&mut self) {
        self.console.assert_line_again();
        self.control_line.assert_line_again();
        self.entropy.assert_line_again();
    }

    pub(crate) fn inventory(&self) -> [&dyn Device; 5] {
        let Self {
            console,
            control_line,
            power,
            generation_id,
            entropy,
            entropy_window: _,
        } = self;
        [console, control_line, power, generation_id, entropy]
    }

    pub(crate) fn device_named(&mut self, name: &str) -> Option<&mut dyn Device> {
        match name {
            SERIAL_CONSOLE => Some(&mut self.console),
            SERIAL_CONTROL_LINE => Some(&mut self.control_line),
            PowerControl::NAME => Some(&mut self.power),
            GenerationId::NAME => Some(&mut self.generation_id),
            ENTROPY => Some(&mut self.entropy),
            _ => None,
        }
    }

    pub(crate) fn device_at(&mut self, port: u16) -> Option<&mut dyn PortDevice> {
        const CONSOLE_END: u16 = numbers::SERIAL_CONSOLE + SERIAL_PORTS - 1;
        const CONTROL_LINE_END: u16 = numbers::SERIAL_CONTROL_LINE + SERIAL_PORTS - 1;
        match port {
            numbers::SERIAL_CONSOLE..=CONSOLE_END => Some(&mut self.console),
            numbers::SERIAL_CONTROL_LINE..=CONTROL_LINE_END => Some(&mut self.control_line),
            numbers::SLEEP_CONTROL
            | numbers::SLEEP_STATUS
            | numbers::RESET_CONTROL
            | numbers::KEYBOARD_COMMAND => Some(&mut self.power),
            _ => None,
        }
    }

    pub(crate) fn mmio_device_at(
        &mut self,
        address: u64,
        size_bytes: usize,
    ) -> Option<(&mut dyn MmioDevice, u64)> {
        let offset = address.checked_sub(self.entropy_window.0)?;
        let end = offset.checked_add(size_bytes as u64)?;
        (end <= VIRTIO_MMIO_WINDOW_BYTES).then_some((&mut self.entropy, offset))
    }
}
