//! Device models and their saved state.
//!
//! A device is a struct with `save` and `restore` ([`Device`]) and with `read` and `write` ([`PortDevice`],
//! [`MmioDevice`]). Host I/O comes in from outside: the console gets a [`ConsoleIo`], the clock a
//! [`WallClock`], a device that interrupts an [`InterruptLine`]. A device never opens, waits or spawns, so
//! a test drives it without a machine.
//!
//! [`Ports`] owns the devices of a machine in the order of the inventory, which is also the order in which
//! their state is saved and restored. [`Platform`] has those that a stock kernel needs. What a device saves is a message type of its own, apart from the
//! runtime type; `save` and `restore` take both apart field by field, so that neither can grow unnoticed.
//!
//! An access to a port that no device claims floats: reads give all ones, writes go nowhere. Every port here
//! is one byte wide; of a wider access it takes the first byte and the rest floats.
#![forbid(unsafe_code)]

mod console;
mod device;
mod generation_id;
#[cfg(test)]
mod goldens;
mod interrupt;
mod irq_chip;
pub mod numbers;
mod platform;
mod ports;
mod power;
mod rtc;
mod shutdown;
mod snapshot_port;
mod uart;
mod virtio;

pub use console::{ConsoleIo, PortConsole};
pub use device::{Device, Effect, MmioDevice, PortDevice, RestoreError, SavedUnit};
pub use generation_id::{GENERATION_ID_BYTES, GenerationId};
pub use interrupt::{InterruptLine, UnconnectedLine};
pub use irq_chip::{
    ApicMessage, DeliveryMode, IOAPIC_ADDRESS, IOAPIC_WINDOW_BYTES, IRQ_LINES, InterruptChip,
    InterruptChipState, Ioapic, Pics, Pit,
};
pub use platform::{Platform, PlatformWiring};
pub use ports::Ports;
pub use power::PowerControl;
pub use rtc::{Rtc, SystemClock, WallClock};
pub use shutdown::Shutdown;
pub use snapshot_port::{Outcome, RestoreNotice, SnapshotPort};
pub use uart::{SerialIo, Uart};
pub use virtio::{
    Chain, Descriptor, Entropy, EntropySource, Queue, QueueError, VIRTIO_MMIO_WINDOW_BYTES,
    VirtioMmio, VirtioModel,
};
