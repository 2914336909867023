//! The capabilities of KVM that this crate uses, with what it uses each for.
//!
//! Names and meanings: Linux `Documentation/virt/kvm/api.rst`, KVM_CHECK_EXTENSION. What is not
//! listed there as a capability (the dirty log) is part of the API's version.

use kvm_ioctls::Cap;

use super::Kvm;
use crate::error::OpenError;
use crate::probe::Capability;

struct Row {
    cap: Cap,
    name: &'static str,
    purpose: &'static str,
    required: bool,
}

const fn required(cap: Cap, name: &'static str, purpose: &'static str) -> Row {
    Row {
        cap,
        name,
        purpose,
        required: true,
    }
}

const fn useful(cap: Cap, name: &'static str, purpose: &'static str) -> Row {
    Row {
        cap,
        name,
        purpose,
        required: false,
    }
}

const ROWS: [Row; 18] = [
    required(Cap::UserMemory, "KVM_CAP_USER_MEMORY", "guest RAM"),
    required(
        Cap::DestroyMemoryRegionWorks,
        "KVM_CAP_DESTROY_MEMORY_REGION_WORKS",
        "changing guest RAM",
    ),
    required(
        Cap::SetTssAddr,
        "KVM_CAP_SET_TSS_ADDR",
        "real mode on Intel",
    ),
    required(Cap::Irqchip, "KVM_CAP_IRQCHIP", "interrupt controllers"),
    required(Cap::Pit2, "KVM_CAP_PIT2", "the PIT"),
    required(Cap::PitState2, "KVM_CAP_PIT_STATE2", "saving the PIT"),
    required(Cap::ExtCpuid, "KVM_CAP_EXT_CPUID", "the guest's CPUID"),
    required(
        Cap::MpState,
        "KVM_CAP_MP_STATE",
        "saving whether a vCPU runs",
    ),
    required(
        Cap::VcpuEvents,
        "KVM_CAP_VCPU_EVENTS",
        "saving pending events",
    ),
    required(
        Cap::Debugregs,
        "KVM_CAP_DEBUGREGS",
        "saving debug registers",
    ),
    required(Cap::Xsave2, "KVM_CAP_XSAVE2", "saving extended registers"),
    required(
        Cap::AdjustClock,
        "KVM_CAP_ADJUST_CLOCK",
        "the guest's clock",
    ),
    required(
        Cap::ImmediateExit,
        "KVM_CAP_IMMEDIATE_EXIT",
        "stopping a vCPU without losing a wakeup",
    ),
    required(
        Cap::NrVcpus,
        "KVM_CAP_NR_VCPUS",
        "vCPUs (the number is what is advised)",
    ),
    useful(Cap::Xcrs, "KVM_CAP_XCRS", "saving XCR0"),
    useful(
        Cap::SignalMsi,
        "KVM_CAP_SIGNAL_MSI",
        "message-signalled interrupts",
    ),
    useful(
        Cap::TscDeadlineTimer,
        "KVM_CAP_TSC_DEADLINE_TIMER",
        "the local APIC's deadline timer, which Linux guests prefer",
    ),
    useful(
        Cap::MemoryFaultInfo,
        "KVM_CAP_MEMORY_FAULT_INFO",
        "naming the guest page that a RAM file could not hold",
    ),
];

/// What KVM answers for every capability that is used, in the table's order.
pub(crate) fn capabilities() -> Result<Vec<Capability>, OpenError> {
    let kvm = Kvm::open()?;
    Ok(ROWS
        .iter()
        .map(|row| Capability {
            name: row.name,
            purpose: row.purpose,
            required: row.required,
            value: kvm.shared.check_extension_int(row.cap),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capability_is_listed_once_by_its_own_name() {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        assert!(names.iter().all(|name| name.starts_with("KVM_CAP_")));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}
