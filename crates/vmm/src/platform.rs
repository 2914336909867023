//! What a stock kernel's devices are connected to: interrupt lines, serial back ends, entropy.

use std::sync::Arc;

use nvx_devices::{EntropySource, InterruptLine, Platform, PlatformWiring, Ports};
use nvx_hypervisor::Partition;
use nvx_machine::layout;
use nvx_memory::GuestMemory;

use crate::console::{InputQueue, OutputQueue, SerialConsole};
use crate::control_line::{ControlLine, ControlLineEnd};
use crate::error::MachineError;

/// Which devices a machine has beside the paravirtual ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlatformKind {
    /// None: the guest needs no others, and its start does not wait for them.
    None,
    /// Those that a stock Linux kernel needs.
    Linux,
}

impl PlatformKind {
    pub(crate) const ALL: [Self; 2] = [Self::None, Self::Linux];

    /// Names of all devices of such a machine, in the order of the inventory.
    pub(crate) fn names(self) -> Vec<&'static str> {
        match self {
            Self::None => Ports::NAMES.to_vec(),
            Self::Linux => [&Ports::NAMES[..], &Platform::NAMES].concat(),
        }
    }

    /// The kind of machine that has exactly these devices.
    pub(crate) fn of_inventory(names: &[&str]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.names() == names)
    }
}

/// One input of the partition's interrupt chip.
struct ChipLine {
    partition: Arc<dyn Partition>,
    irq: u32,
}

impl InterruptLine for ChipLine {
    fn set(&self, asserted: bool) {
        if let Some(chip) = self.partition.irq_chip() {
            // Only a line that does not exist is refused, and the contract's lines do.
            let _ = chip.set_line(self.irq, asserted);
        }
    }
}

/// The host's random bytes.
struct HostEntropy;

impl EntropySource for HostEntropy {
    fn fill(&mut self, target: &mut [u8]) -> usize {
        match nvx_host::random_bytes(target) {
            Ok(()) => target.len(),
            Err(_) => 0,
        }
    }
}

pub(crate) fn random_bytes(target: &mut [u8]) -> Result<(), MachineError> {
    nvx_host::random_bytes(target).map_err(|source| MachineError::Host {
        what: "random number",
        source,
    })
}

/// Everything that the platform's devices are wired to.
pub(crate) struct Wiring<'a> {
    pub(crate) partition: &'a Arc<dyn Partition>,
    pub(crate) memory: &'a Arc<GuestMemory>,
    pub(crate) input: &'a Arc<InputQueue>,
    pub(crate) output: &'a Arc<OutputQueue>,
    pub(crate) control_line: &'a Arc<ControlLine>,
}

impl Wiring<'_> {
    fn line(&self, irq: u32) -> Box<dyn InterruptLine> {
        Box::new(ChipLine {
            partition: Arc::clone(self.partition),
            irq,
        })
    }

    /// The platform as it is after power-on.
    pub(crate) fn platform(&self) -> Platform {
        let console = SerialConsole::new(Arc::clone(self.input), Arc::clone(self.output));
        Platform::new(PlatformWiring {
            console: Box::new(console),
            console_interrupt: self.line(layout::SERIAL_CONSOLE_IRQ),
            control_line: Box::new(ControlLineEnd::new(Arc::clone(self.control_line))),
            control_line_interrupt: self.line(layout::SERIAL_CONTROL_LINE_IRQ),
            generation_id_event: self.line(layout::EVENT_IRQ),
            entropy: Box::new(HostEntropy),
            entropy_interrupt: self.line(layout::virtio_irq(layout::ENTROPY_SLOT)),
            entropy_window: layout::virtio_window(layout::ENTROPY_SLOT),
            memory: Arc::clone(self.memory),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_exactly_its_devices() {
        for kind in PlatformKind::ALL {
            assert_eq!(PlatformKind::of_inventory(&kind.names()), Some(kind));
        }
        let mut names = PlatformKind::Linux.names();
        names.pop();
        assert_eq!(PlatformKind::of_inventory(&names), None);
        names.reverse();
        assert_eq!(PlatformKind::of_inventory(&names), None);
        assert_eq!(PlatformKind::of_inventory(&[]), None);
    }
}
