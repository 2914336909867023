//! The state of a KVM vCPU: one table that says what is kept, in which order, and why.
//!
//! Rows stand in *restore* order. Saving has two constraints of its own, which `save_rank`
//! expresses: reading the MP state lets the kernel act on a pending INIT or SIPI, which changes
//! registers, so it is read first; pending events are read last, since every other read may move
//! an event along (Linux `arch/x86/kvm/x86.c`, `kvm_arch_vcpu_ioctl_get_mpstate` and
//! `kvm_vcpu_ioctl_x86_get_vcpu_events`). General and system registers are read with them, since one
//! call gives all three.

use super::msrs;
use super::save_restore as element;
use super::vcpu::KvmVcpu;
use crate::error::StateError;
use crate::state::{RunState, VcpuState};

type Save = fn(&mut KvmVcpu, &mut VcpuState) -> Result<(), StateError>;
type Restore = fn(&mut KvmVcpu, &VcpuState) -> Result<(), StateError>;
type Same = fn(&VcpuState, &VcpuState) -> bool;

/// One element of a vCPU's state.
pub struct StateElement {
    /// Its name, as errors give it.
    pub name: &'static str,
    /// Why it stands at this place of the restore order.
    pub why: &'static str,
    /// Its place in the save order.
    pub save_rank: usize,
    save: Save,
    restore: Restore,
    /// Compares the element in two states; `None` where time or the host may change it between a
    /// restore and the next save.
    same: Option<Same>,
}

const fn row(
    name: &'static str,
    save_rank: usize,
    (save, restore): (Save, Restore),
    same: Option<Same>,
    why: &'static str,
) -> StateElement {
    StateElement {
        name,
        why,
        save_rank,
        save,
        restore,
        same,
    }
}

/// Every element of a vCPU's state, in restore order.
#[rustfmt::skip]
pub static STATE_TABLE: [StateElement; 11] = [
    row("CPUID", 1, element::CPUID,
        Some(|a, b| a.cpuid == b.cpuid),
        "decides which registers and MSRs exist; may not change after the first run"),
    row("TSC rate", 2, element::TSC_RATE,
        None,
        "scales every later use of the time-stamp counter"),
    row("system registers", 8, element::SYSTEM_REGISTERS,
        Some(|a, b| a.system_registers == b.system_registers),
        "the mode and APIC base that the rest is interpreted under"),
    row("extended control registers", 3, element::EXTENDED_CONTROL_REGISTERS,
        Some(|a, b| a.extended_control_registers == b.extended_control_registers),
        "XCR0 says which parts of the XSAVE area are live"),
    row("XSAVE area", 4, element::XSAVE,
        None,
        "needs XCR0"),
    row("debug registers", 5, element::DEBUG_REGISTERS,
        Some(|a, b| a.debug_registers == b.debug_registers),
        "before the general registers, whose RFLAGS may arm single stepping"),
    row("general registers", 9, element::GENERAL_REGISTERS,
        Some(|a, b| a.registers == b.registers),
        "after the system registers, which decide how RIP is read"),
    row("MP state", 0, element::MP_STATE,
        Some(|a, b| a.run_state == b.run_state),
        "before the LAPIC, so that an INIT latched there finds the right state"),
    row("local APIC", 6, element::LOCAL_APIC,
        None,
        "needs the APIC base; before the deadline MSR, which a LAPIC in another timer mode drops"),
    row("MSRs", 7, msrs::MSRS,
        None,
        "TSC first, since the deadline is compared with it; TSC_DEADLINE last, since it arms"),
    row("pending events", 10, element::PENDING_EVENTS,
        Some(|a, b| a.events == b.events),
        "last: every earlier row may clear or re-evaluate what is pending"),
];

pub(super) fn save(vcpu: &mut KvmVcpu) -> Result<VcpuState, StateError> {
    let mut state = VcpuState::default();
    vcpu.forget_synced_registers();
    for rank in 0..STATE_TABLE.len() {
        for element in STATE_TABLE.iter().filter(|row| row.save_rank == rank) {
            (element.save)(vcpu, &mut state)?;
        }
    }
    Ok(state)
}

pub(super) fn restore(vcpu: &mut KvmVcpu, state: &VcpuState) -> Result<(), StateError> {
    STATE_TABLE
        .iter()
        .try_for_each(|element| (element.restore)(vcpu, state))?;
    // Reading a vCPU that has INIT or SIPI to act on would make it act.
    let may_be_read = [
        RunState::Runnable,
        RunState::Halted,
        RunState::Uninitialized,
    ]
    .contains(&state.run_state());
    if cfg!(debug_assertions) && may_be_read {
        read_back(vcpu, state)?;
    }
    Ok(())
}

/// Reads everything again and compares it with what was written: an element that a later row of
/// the table spoils is found by the first test that restores it.
fn read_back(vcpu: &mut KvmVcpu, written: &VcpuState) -> Result<(), StateError> {
    let read = save(vcpu)?;
    for element in &STATE_TABLE {
        if element.same.is_some_and(|same| !same(written, &read)) {
            return Err(StateError::Incompatible {
                element: element.name,
                what: "reads back otherwise than it was restored".to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod timing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_saved_exactly_once() {
        let mut ranks: Vec<usize> = STATE_TABLE.iter().map(|row| row.save_rank).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..STATE_TABLE.len()));
    }

    #[test]
    fn restore_order_keeps_the_dependencies() {
        let at = |name: &str| {
            STATE_TABLE
                .iter()
                .position(|row| row.name == name)
                .expect("a row of that name")
        };
        for (earlier, later) in [
            ("CPUID", "system registers"),
            ("TSC rate", "MSRs"),
            ("system registers", "general registers"),
            ("extended control registers", "XSAVE area"),
            ("MP state", "local APIC"),
            ("local APIC", "MSRs"),
            ("MSRs", "pending events"),
        ] {
            assert!(at(earlier) < at(later), "{earlier} before {later}");
        }
        assert_eq!(at("pending events"), STATE_TABLE.len() - 1);
    }
}
