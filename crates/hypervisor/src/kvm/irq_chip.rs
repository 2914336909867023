//! The interrupt chip and timer that the kernel keeps.

use std::sync::Arc;

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_ioapic_state,
    kvm_irqchip, kvm_msi, kvm_pic_state, kvm_pit_state2,
};

use super::failed;
use super::machine::Machine;
use crate::error::{StateError, SystemError};
use crate::state::IrqChipState;
use crate::traits::IrqChip;

/// [`IrqChipState::layout`] of this back end.
const LAYOUT: &str = "kvm";

pub(super) struct KvmIrqChip {
    vm: Arc<Machine>,
}

/// The parts of the chip in restore order, with their names in errors.
const PICS: [(u32, &str); 2] = [
    (KVM_IRQCHIP_PIC_MASTER, "primary PIC"),
    (KVM_IRQCHIP_PIC_SLAVE, "secondary PIC"),
];

impl KvmIrqChip {
    pub(super) fn new(vm: Arc<Machine>) -> Self {
        Self { vm }
    }

    fn get(&self, chip_id: u32, element: &'static str) -> Result<kvm_irqchip, StateError> {
        let mut chip = kvm_irqchip {
            chip_id,
            ..Default::default()
        };
        self.vm
            .get_irqchip(&mut chip)
            .map_err(|errno| refused("save", element, "KVM_GET_IRQCHIP", errno))?;
        Ok(chip)
    }

    fn set(&self, chip: &kvm_irqchip, element: &'static str) -> Result<(), StateError> {
        self.vm
            .set_irqchip(chip)
            .map_err(|errno| refused("restore", element, "KVM_SET_IRQCHIP", errno))
    }

    fn save_pic(&self, which: usize) -> Result<Vec<u8>, StateError> {
        let (chip_id, element) = PICS[which];
        let chip = self.get(chip_id, element)?;
        // SAFETY: for the chip ids of the two PICs the kernel fills this member of the union.
        let pic = unsafe { chip.chip.pic };
        Ok(bytes_of(&pic))
    }

    fn restore_pic(&self, which: usize, bytes: &[u8]) -> Result<(), StateError> {
        let (chip_id, element) = PICS[which];
        let mut chip = kvm_irqchip {
            chip_id,
            ..Default::default()
        };
        chip.chip.pic = from_bytes::<kvm_pic_state>(bytes, element)?;
        self.set(&chip, element)
    }
}

impl IrqChip for KvmIrqChip {
    fn set_line(&self, gsi: u32, asserted: bool) -> Result<(), SystemError> {
        self.vm
            .set_irq_line(gsi, asserted)
            .map_err(failed("KVM_IRQ_LINE"))
    }

    fn msi(&self, address: u64, data: u32) -> Result<(), SystemError> {
        let message = kvm_msi {
            address_lo: address as u32,
            address_hi: (address >> 32) as u32,
            data,
            ..Default::default()
        };
        self.vm
            .signal_msi(message)
            .map(drop)
            .map_err(failed("KVM_SIGNAL_MSI"))
    }

    fn save(&self) -> Result<IrqChipState, StateError> {
        let ioapic = self.get(KVM_IRQCHIP_IOAPIC, "IOAPIC")?;
        // SAFETY: for the IOAPIC's chip id the kernel fills this member of the union.
        let ioapic = unsafe { ioapic.chip.ioapic };
        let pit = self
            .vm
            .get_pit2()
            .map_err(|errno| refused("save", "PIT", "KVM_GET_PIT2", errno))?;
        Ok(IrqChipState {
            layout: LAYOUT.to_owned(),
            pic_primary: self.save_pic(0)?,
            pic_secondary: self.save_pic(1)?,
            ioapic: bytes_of(&ioapic),
            pit: bytes_of(&pit),
        })
    }

    fn restore(&self, state: &IrqChipState) -> Result<(), StateError> {
        let IrqChipState {
            layout,
            pic_primary,
            pic_secondary,
            ioapic,
            pit,
        } = state;
        if layout != LAYOUT {
            return Err(StateError::Incompatible {
                element: "interrupt chip",
                what: format!("its layout is '{layout}', this back end reads '{LAYOUT}'"),
            });
        }
        self.restore_pic(0, pic_primary)?;
        self.restore_pic(1, pic_secondary)?;
        let mut chip = kvm_irqchip {
            chip_id: KVM_IRQCHIP_IOAPIC,
            ..Default::default()
        };
        chip.chip.ioapic = from_bytes::<kvm_ioapic_state>(ioapic, "IOAPIC")?;
        self.set(&chip, "IOAPIC")?;
        let pit = from_bytes::<kvm_pit_state2>(pit, "PIT")?;
        self.vm
            .set_pit2(&pit)
            .map_err(|errno| refused("restore", "PIT", "KVM_SET_PIT2", errno))
    }
}

fn refused(
    operation: &'static str,
    element: &'static str,
    call: &'static str,
    errno: kvm_ioctls::Error,
) -> StateError {
    StateError::Element {
        operation,
        element,
        source: failed(call)(errno),
    }
}

/// Kernel structures of the interrupt chip: plain integers at fixed places, every byte of which
/// the kernel fills, and for which every bit pattern is a value.
///
/// # Safety
/// An implementor is `repr(C)` and has no padding, pointer, reference or niche.
unsafe trait KernelLayout: Copy + Default {}

// SAFETY: sixteen u8 fields.
unsafe impl KernelLayout for kvm_pic_state {}
// SAFETY: two u64, three u32 (one of them named as padding) and 24 unions of u64.
unsafe impl KernelLayout for kvm_ioapic_state {}
// SAFETY: three channels of u32, u16, ten u8 and one s64 (no gap), then u32 fields.
unsafe impl KernelLayout for kvm_pit_state2 {}

fn bytes_of<T: KernelLayout>(value: &T) -> Vec<u8> {
    // SAFETY: the trait promises that all bytes of the value are initialized, and the slice does
    // not outlive the borrow.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
        .to_vec()
}

fn from_bytes<T: KernelLayout>(bytes: &[u8], element: &'static str) -> Result<T, StateError> {
    if bytes.len() != size_of::<T>() {
        return Err(StateError::Incompatible {
            element,
            what: format!(
                "{} bytes of state where {} are expected",
                bytes.len(),
                size_of::<T>()
            ),
        });
    }
    // SAFETY: the length was checked, an unaligned read is asked for, and the trait promises
    // that every bit pattern is a value.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}
