//! The state of a KVM vCPU: one table that says what is kept, in which order, and why.
//!
//! Rows stand in *restore* order. Saving has two constraints of its own, which `save_rank`
//! expresses: reading the MP state lets the kernel act on a pending INIT or SIPI, which changes
//! registers, so it is read first; pending events are read last, since every other read may move
//! an event along (Linux `arch/x86/kvm/x86.c`, `kvm_arch_vcpu_ioctl_get_mpstate` and
//! `kvm_vcpu_ioctl_x86_get_vcpu_events`).

use super::save_restore as element;
use super::vcpu::KvmVcpu;
use crate::error::StateError;
use crate::state::VcpuState;

type Save = fn(&KvmVcpu, &mut VcpuState) -> Result<(), StateError>;
type Restore = fn(&mut KvmVcpu, &VcpuState) -> Result<(), StateError>;

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
}

const fn row(
    name: &'static str,
    save_rank: usize,
    (save, restore): (Save, Restore),
    why: &'static str,
) -> StateElement {
    StateElement {
        name,
        why,
        save_rank,
        save,
        restore,
    }
}

/// Every element of a vCPU's state, in restore order.
#[rustfmt::skip]
pub static STATE_TABLE: [StateElement; 11] = [
    row("CPUID", 1, element::CPUID,
        "decides which registers and MSRs exist; may not change after the first run"),
    row("TSC rate", 2, element::TSC_RATE,
        "scales every later use of the time-stamp counter"),
    row("system registers", 3, element::SYSTEM_REGISTERS,
        "the mode and APIC base that the rest is interpreted under"),
    row("extended control registers", 4, element::EXTENDED_CONTROL_REGISTERS,
        "XCR0 says which parts of the XSAVE area are live"),
    row("XSAVE area", 5, element::XSAVE,
        "needs XCR0"),
    row("debug registers", 6, element::DEBUG_REGISTERS,
        "before the general registers, whose RFLAGS may arm single stepping"),
    row("general registers", 7, element::GENERAL_REGISTERS,
        "after the system registers, which decide how RIP is read"),
    row("MP state", 0, element::MP_STATE,
        "before the LAPIC, so that an INIT latched there finds the right state"),
    row("local APIC", 8, element::LOCAL_APIC,
        "needs the APIC base; before the deadline MSR, which a LAPIC in another timer mode drops"),
    row("MSRs", 9, element::MSRS,
        "TSC first, since the deadline is compared with it; TSC_DEADLINE last, since it arms"),
    row("pending events", 10, element::PENDING_EVENTS,
        "last: every earlier row may clear or re-evaluate what is pending"),
];

pub(super) fn save(vcpu: &KvmVcpu) -> Result<VcpuState, StateError> {
    let mut state = VcpuState::default();
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
        .try_for_each(|element| (element.restore)(vcpu, state))
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
