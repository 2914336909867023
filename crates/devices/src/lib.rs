//! Device models and their saved state.
//!
//! A device is a struct with `read`, `write`, `save` and `restore` ([`PortDevice`]). Host I/O comes in from
//! outside: the console gets a [`ConsoleIo`], the clock a [`WallClock`]. A device never opens, waits or
//! spawns, so a test drives it without a machine.
//!
//! [`Ports`] owns the devices of a machine in the order of the inventory, which is also the order in which
//! their state is saved and restored. What a device saves is a message type of its own, apart from the
//! runtime type; `save` and `restore` take both apart field by field, so that neither can grow unnoticed.
//!
//! An access to a port that no device claims floats: reads give all ones, writes go nowhere. Every device here
//! is one byte wide; of a wider access it takes the first byte and the rest floats.
#![forbid(unsafe_code)]

mod console;
mod device;
#[cfg(test)]
mod goldens;
pub mod numbers;
mod ports;
mod rtc;
mod shutdown;
mod snapshot_port;

pub use console::{ConsoleIo, PortConsole};
pub use device::{Effect, PortDevice, RestoreError, SavedUnit};
pub use ports::Ports;
pub use rtc::{Rtc, SystemClock, WallClock};
pub use shutdown::Shutdown;
pub use snapshot_port::{Outcome, RestoreNotice, SnapshotPort};
