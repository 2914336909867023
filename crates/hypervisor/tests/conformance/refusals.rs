//! State that does not fit is refused by name.

use nvx_hypervisor::{IrqChipState, Msr, StateError, VcpuState};

use super::Case;
use super::machine::Machine;

/// Saves a fresh vCPU, spoils the state and gives back how its restore was refused; `None` where
/// `spoil` says that this back end has no such element.
fn refusal(case: &Case, spoil: impl FnOnce(&mut VcpuState) -> bool) -> Option<StateError> {
    let machine = Machine::new(&*case.backend);
    let mut state = machine.vcpu(&*case.backend, 0).save().unwrap();
    if !spoil(&mut state) {
        return None;
    }
    let other = Machine::new(&*case.backend);
    let mut vcpu = other.partition.create_vcpu(0).unwrap();
    Some(vcpu.restore(&state).unwrap_err())
}

pub fn missing_elements_are_named(case: &Case) {
    type Take = fn(&mut VcpuState) -> bool;
    let rows: [(&str, Take); 4] = [
        ("general registers", |state| {
            state.registers.take().is_some()
        }),
        ("system registers", |state| {
            state.system_registers.take().is_some()
        }),
        ("debug registers", |state| {
            state.debug_registers.take().is_some()
        }),
        ("pending events", |state| state.events.take().is_some()),
    ];
    for (name, take) in rows {
        match refusal(case, take) {
            None => {}
            Some(StateError::Missing { element }) => assert_eq!(element, name),
            Some(other) => panic!("{name}: {other:?}"),
        }
    }
}

pub fn malformed_elements_are_named(case: &Case) {
    type Spoil = fn(&mut VcpuState) -> bool;
    let rows: [(&str, Spoil); 9] = [
        ("local APIC", |state| state.lapic.pop().is_some()),
        ("local APIC", |state| {
            state.lapic.push(0);
            state.lapic.len() > 1
        }),
        ("local APIC", |state| {
            let had = !state.lapic.is_empty();
            state.lapic.clear();
            had
        }),
        ("XSAVE area", |state| {
            let had = !state.xsave.is_empty();
            state.xsave.truncate(512);
            had
        }),
        ("XSAVE area", |state| {
            let had = !state.xsave.is_empty();
            state.xsave.resize(1 << 16, 0xff);
            had
        }),
        ("debug registers", |state| {
            let debug = state.debug_registers.as_mut();
            debug.is_some_and(|debug| debug.addresses.pop().is_some())
        }),
        ("extended control registers", |state| {
            let registers = &mut state.extended_control_registers;
            let Some(one) = registers.first().copied() else {
                return false;
            };
            registers.resize(1000, one);
            true
        }),
        ("MSRs", |state| {
            let Some(one) = state.msrs.first().copied() else {
                return false;
            };
            state.msrs.resize(100_000, one);
            true
        }),
        ("MP state", |state| {
            state.run_state = 99;
            true
        }),
    ];
    for (name, spoil) in rows {
        match refusal(case, spoil) {
            None => {}
            Some(StateError::Incompatible { element, what }) => {
                assert_eq!(element, name);
                assert!(!what.is_empty());
            }
            Some(other) => panic!("{name}: {other:?}"),
        }
    }
}

pub fn unknown_msr_is_named(case: &Case) {
    // No processor has it.
    const NO_MSR: u32 = 0x4242_4242;
    let refused = refusal(case, |state| {
        let had = !state.msrs.is_empty();
        state.msrs.insert(
            state.msrs.len() / 2,
            Msr {
                index: NO_MSR,
                value: 1,
            },
        );
        had
    });
    let Some(error) = refused else {
        case.skip("this back end saves no MSRs");
        return;
    };
    assert!(error.to_string().contains("MSR 0x42424242"), "{error}");
    assert!(matches!(error, StateError::Msr { index: NO_MSR, .. }));
}

/// As [`refusal`], for the interrupt chip.
fn chip_refusal(case: &Case, spoil: impl FnOnce(&mut IrqChipState)) -> Option<StateError> {
    let machine = Machine::new(&*case.backend);
    let _vcpu = machine.vcpu(&*case.backend, 0);
    let chip = machine.partition.irq_chip()?;
    let mut state = chip.save().unwrap();
    spoil(&mut state);
    Some(chip.restore(&state).unwrap_err())
}

pub fn foreign_irq_chip_layout_is_named(case: &Case) {
    for layout in ["of another back end", ""] {
        match chip_refusal(case, |state| state.layout = layout.to_owned()) {
            None => {
                case.skip("this back end has no interrupt chip");
                return;
            }
            Some(StateError::Incompatible { element, what }) => {
                assert_eq!(element, "interrupt chip");
                assert!(what.contains(&format!("'{layout}'")), "{what}");
            }
            Some(other) => panic!("{other:?}"),
        }
    }
}

pub fn malformed_irq_chip_parts_are_named(case: &Case) {
    type Part = fn(&mut IrqChipState) -> &mut Vec<u8>;
    let parts: [(&str, Part); 4] = [
        ("primary PIC", |state| &mut state.pic_primary),
        ("secondary PIC", |state| &mut state.pic_secondary),
        ("IOAPIC", |state| &mut state.ioapic),
        ("PIT", |state| &mut state.pit),
    ];
    for (name, part) in parts {
        for spoil in [Vec::clear as fn(&mut Vec<u8>), |bytes| bytes.push(0)] {
            match chip_refusal(case, |state| spoil(part(state))) {
                None => {
                    case.skip("this back end has no interrupt chip");
                    return;
                }
                Some(StateError::Incompatible { element, .. }) => assert_eq!(element, name),
                Some(other) => panic!("{name}: {other:?}"),
            }
        }
    }
}
