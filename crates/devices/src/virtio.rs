//! Virtio devices on the memory-mapped transport (Virtual I/O Device specification 1.2, section 4.2).
//!
//! [`VirtioMmio`] is the transport and owns what all devices have in common: feature negotiation, queues,
//! the interrupt. What a device does with its queues is a [`VirtioModel`]; [`Entropy`] is the first.
//!
//! A driver is an adversary: every address and index that it gives is checked where it is used. A driver
//! that breaks the rules makes the device need a reset, and nothing else.

mod entropy;
mod mmio;
mod queue;
mod state;

pub use entropy::{Entropy, EntropySource};
pub use mmio::{VIRTIO_MMIO_WINDOW_BYTES, VirtioMmio, VirtioModel};
pub use queue::{Chain, Descriptor, Queue, QueueError};
