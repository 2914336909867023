//! The memory-mapped transport, version 2.

use std::sync::Arc;

use nvx_memory::GuestMemory;

use super::queue::{Queue, QueueError};
use super::state::TransportState;
use crate::device::{Device, MmioDevice, RestoreError, SavedUnit, UnitFormat};
use crate::interrupt::InterruptLine;

/// Size of a device's window in bytes.
pub const VIRTIO_MMIO_WINDOW_BYTES: u64 = 4096;

/// Bound of a saved state in bytes.
const MAX_STATE_BYTES: usize = 4096;

/// Registers (section 4.2.2), by their offsets into the window.
mod register {
    pub(super) const MAGIC: u64 = 0x000;
    pub(super) const VERSION: u64 = 0x004;
    pub(super) const DEVICE_ID: u64 = 0x008;
    pub(super) const VENDOR_ID: u64 = 0x00c;
    pub(super) const DEVICE_FEATURES: u64 = 0x010;
    pub(super) const DEVICE_FEATURES_WORD: u64 = 0x014;
    pub(super) const DRIVER_FEATURES: u64 = 0x020;
    pub(super) const DRIVER_FEATURES_WORD: u64 = 0x024;
    pub(super) const QUEUE_SELECT: u64 = 0x030;
    pub(super) const QUEUE_SIZE_MAX: u64 = 0x034;
    pub(super) const QUEUE_SIZE: u64 = 0x038;
    pub(super) const QUEUE_READY: u64 = 0x044;
    pub(super) const QUEUE_NOTIFY: u64 = 0x050;
    pub(super) const INTERRUPT_STATUS: u64 = 0x060;
    pub(super) const INTERRUPT_ACKNOWLEDGE: u64 = 0x064;
    pub(super) const STATUS: u64 = 0x070;
    pub(super) const QUEUE_DESCRIPTORS_LOW: u64 = 0x080;
    pub(super) const QUEUE_DESCRIPTORS_HIGH: u64 = 0x084;
    pub(super) const QUEUE_AVAILABLE_LOW: u64 = 0x090;
    pub(super) const QUEUE_AVAILABLE_HIGH: u64 = 0x094;
    pub(super) const QUEUE_USED_LOW: u64 = 0x0a0;
    pub(super) const QUEUE_USED_HIGH: u64 = 0x0a4;
    pub(super) const CONFIG_GENERATION: u64 = 0x0fc;
    pub(super) const CONFIG: u64 = 0x100;
}

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
/// "NVX" and a space.
const VENDOR: u32 = u32::from_le_bytes(*b"NVX ");
/// Feature: the device follows the specification from version 1.0 on.
const FEATURE_VERSION_1: u64 = 1 << 32;

const STATUS_FEATURES_OK: u32 = 8;
const STATUS_DRIVER_OK: u32 = 4;
const STATUS_NEEDS_RESET: u32 = 64;
/// Acknowledge, driver, driver ok, features ok, failed.
const STATUS_OF_DRIVER: u32 = 1 | 2 | STATUS_DRIVER_OK | STATUS_FEATURES_OK | 128;

const INTERRUPT_USED: u32 = 1;
const INTERRUPT_CONFIG: u32 = 2;

/// What a virtio device does behind the transport.
pub trait VirtioModel: Send {
    /// Its device ID (section 5).
    fn device_id(&self) -> u32;
    /// Kind of its saved state.
    fn kind(&self) -> &'static str;
    /// Features beside those of the transport.
    fn features(&self) -> u64 {
        0
    }
    /// The most entries of each queue, powers of two.
    fn queue_sizes(&self) -> &'static [u16];
    /// Serves queue `index` of which the driver has said that it has new chains. Returns whether chains were
    /// given back.
    ///
    /// # Errors
    /// The driver breaks the rules; the device then needs a reset.
    fn serve(
        &mut self,
        index: usize,
        queue: &mut Queue,
        memory: &GuestMemory,
    ) -> Result<bool, QueueError>;
}

/// A virtio device in a window of memory addresses.
pub struct VirtioMmio {
    format: UnitFormat,
    model: Box<dyn VirtioModel>,
    memory: Arc<GuestMemory>,
    line: Box<dyn InterruptLine>,
    status: u32,
    device_features_word: u32,
    driver_features_word: u32,
    driver_features: u64,
    selected_queue: u32,
    interrupt_status: u32,
    queues: Vec<Queue>,
}

impl VirtioMmio {
    /// `model` with `name` in the device inventory, as it is after power-on; its queues lie in `memory`.
    #[must_use]
    pub fn new(
        name: &'static str,
        model: Box<dyn VirtioModel>,
        memory: Arc<GuestMemory>,
        line: Box<dyn InterruptLine>,
    ) -> Self {
        let sizes = model.queue_sizes().iter();
        Self {
            format: UnitFormat {
                name,
                kind: model.kind(),
                version: 1,
                max_bytes: MAX_STATE_BYTES,
            },
            queues: sizes.map(|size| Queue::new(*size)).collect(),
            model,
            memory,
            line,
            status: 0,
            device_features_word: 0,
            driver_features_word: 0,
            driver_features: 0,
            selected_queue: 0,
            interrupt_status: 0,
        }
    }

    /// Sets the interrupt line's level again: a restored interrupt chip has forgotten it.
    pub fn assert_line_again(&mut self) {
        self.line.set(self.interrupt_status != 0);
    }

    fn features(&self) -> u64 {
        self.model.features() | FEATURE_VERSION_1
    }

    fn interrupt(&mut self, reason: u32) {
        self.interrupt_status |= reason;
        self.line.set(true);
    }

    fn reset(&mut self) {
        self.status = 0;
        self.device_features_word = 0;
        self.driver_features_word = 0;
        self.driver_features = 0;
        self.selected_queue = 0;
        self.interrupt_status = 0;
        for queue in &mut self.queues {
            *queue = Queue::new(queue.max_size);
        }
        self.line.set(false);
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        let mut status = value & STATUS_OF_DRIVER | self.status & STATUS_NEEDS_RESET;
        let unknown = self.driver_features & !self.features();
        if unknown != 0 || self.driver_features & FEATURE_VERSION_1 == 0 {
            // The driver reads this back and gives the device up.
            status &= !STATUS_FEATURES_OK;
        }
        self.status = status;
    }

    fn notify(&mut self, index: u32) {
        if self.status & (STATUS_DRIVER_OK | STATUS_NEEDS_RESET) != STATUS_DRIVER_OK {
            return;
        }
        let Ok(index) = usize::try_from(index) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(index) else {
            return;
        };
        let served = self.model.serve(index, queue, &self.memory);
        let wanted = match served {
            Ok(true) => queue.wants_interrupt(&self.memory),
            other => other,
        };
        match wanted {
            Ok(true) => self.interrupt(INTERRUPT_USED),
            Ok(false) => {}
            Err(_) => {
                self.status |= STATUS_NEEDS_RESET;
                self.interrupt(INTERRUPT_CONFIG);
            }
        }
    }

    fn queue(&self) -> Option<&Queue> {
        self.queues.get(usize::try_from(self.selected_queue).ok()?)
    }

    /// The queue that the registers show, while the driver may still change it.
    fn queue_to_set_up(&mut self) -> Option<&mut Queue> {
        let index = usize::try_from(self.selected_queue).ok()?;
        self.queues.get_mut(index).filter(|queue| !queue.ready)
    }

    fn set_queue_address(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queue_to_set_up() else {
            return;
        };
        let (address, high) = match offset {
            register::QUEUE_DESCRIPTORS_LOW => (&mut queue.descriptor_table, false),
            register::QUEUE_DESCRIPTORS_HIGH => (&mut queue.descriptor_table, true),
            register::QUEUE_AVAILABLE_LOW => (&mut queue.available_ring, false),
            register::QUEUE_AVAILABLE_HIGH => (&mut queue.available_ring, true),
            register::QUEUE_USED_LOW => (&mut queue.used_ring, false),
            _ => (&mut queue.used_ring, true),
        };
        *address = if high {
            *address & 0xffff_ffff | u64::from(value) << 32
        } else {
            *address & !0xffff_ffff | u64::from(value)
        };
    }

    fn read_register(&self, offset: u64) -> u32 {
        let word = |features: u64, index: u32| match index {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        match offset {
            register::MAGIC => MAGIC,
            register::VERSION => VERSION,
            register::DEVICE_ID => self.model.device_id(),
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => word(self.features(), self.device_features_word),
            register::QUEUE_SIZE_MAX => self.queue().map_or(0, |queue| u32::from(queue.max_size)),
            register::QUEUE_READY => self.queue().map_or(0, |queue| u32::from(queue.ready)),
            register::INTERRUPT_STATUS => self.interrupt_status,
            register::STATUS => self.status,
            // The configuration never changes.
            register::CONFIG_GENERATION => 0,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            register::DEVICE_FEATURES_WORD => self.device_features_word = value,
            register::DRIVER_FEATURES_WORD => self.driver_features_word = value,
            register::DRIVER_FEATURES if self.status & STATUS_FEATURES_OK == 0 => {
                self.driver_features = match self.driver_features_word {
                    0 => self.driver_features & !0xffff_ffff | u64::from(value),
                    1 => self.driver_features & 0xffff_ffff | u64::from(value) << 32,
                    _ => self.driver_features,
                };
            }
            register::QUEUE_SELECT => self.selected_queue = value,
            register::QUEUE_SIZE => {
                if let Some(queue) = self.queue_to_set_up()
                    && queue.allows_size(value)
                {
                    queue.size = value as u16;
                }
            }
            register::QUEUE_READY => {
                let index = usize::try_from(self.selected_queue).unwrap_or(usize::MAX);
                if let Some(queue) = self.queues.get_mut(index) {
                    queue.ready = value & 1 != 0;
                }
            }
            register::QUEUE_NOTIFY => self.notify(value),
            register::INTERRUPT_ACKNOWLEDGE => {
                self.interrupt_status &= !value;
                self.line.set(self.interrupt_status != 0);
            }
            register::STATUS => self.set_status(value),
            register::QUEUE_DESCRIPTORS_LOW
            | register::QUEUE_DESCRIPTORS_HIGH
            | register::QUEUE_AVAILABLE_LOW
            | register::QUEUE_AVAILABLE_HIGH
            | register::QUEUE_USED_LOW
            | register::QUEUE_USED_HIGH => self.set_queue_address(offset, value),
            _ => {}
        }
    }
}

impl Device for VirtioMmio {
    fn name(&self) -> &'static str {
        self.format.name
    }

    fn save(&self) -> SavedUnit {
        let Self {
            format,
            model: _,
            memory: _,
            line: _,
            status,
            device_features_word,
            driver_features_word,
            driver_features,
            selected_queue,
            interrupt_status,
            queues,
        } = self;
        format.encode(&TransportState {
            status: *status,
            device_features_word: *device_features_word,
            driver_features_word: *driver_features_word,
            driver_features: *driver_features,
            selected_queue: *selected_queue,
            interrupt_status: *interrupt_status,
            queues: queues.iter().map(Queue::save).collect(),
        })
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let format = &self.format;
        let TransportState {
            status,
            device_features_word,
            driver_features_word,
            driver_features,
            selected_queue,
            interrupt_status,
            queues,
        } = format.decode(kind, version, bytes)?;
        if status & !(STATUS_OF_DRIVER | STATUS_NEEDS_RESET) != 0 {
            return Err(format.impossible("status", u64::from(status)));
        }
        if interrupt_status & !(INTERRUPT_USED | INTERRUPT_CONFIG) != 0 {
            return Err(format.impossible("interrupt_status", u64::from(interrupt_status)));
        }
        if status & STATUS_FEATURES_OK != 0 && driver_features & !self.features() != 0 {
            return Err(format.impossible("driver_features", driver_features));
        }
        if queues.len() != self.queues.len() {
            return Err(format.impossible("queues", queues.len() as u64));
        }
        let queues = self
            .queues
            .iter()
            .zip(&queues)
            .map(|(here, saved)| Queue::restored(here.max_size, saved))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|(field, found)| format.impossible(field, found))?;
        self.status = status;
        self.device_features_word = device_features_word;
        self.driver_features_word = driver_features_word;
        self.driver_features = driver_features;
        self.selected_queue = selected_queue;
        self.interrupt_status = interrupt_status;
        self.queues = queues;
        Ok(())
    }
}

impl MmioDevice for VirtioMmio {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        // Registers are words; no device here has a configuration, which may be read in any width.
        if let (Ok(word), true) = (<&mut [u8; 4]>::try_from(data), offset < register::CONFIG) {
            *word = self.read_register(offset).to_le_bytes();
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let (Ok(word), true) = (<[u8; 4]>::try_from(data), offset < register::CONFIG) {
            self.write_register(offset, u32::from_le_bytes(word));
        }
    }
}

#[cfg(test)]
mod tests;
