//! Pending events, to and from KVM's structure.

use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SHADOW, KVM_VCPUEVENT_VALID_SIPI_VECTOR,
    KVM_VCPUEVENT_VALID_SMM, kvm_vcpu_events,
};

use crate::state::PendingEvents;

pub(super) fn from_kvm(events: &kvm_vcpu_events) -> PendingEvents {
    let kvm_vcpu_events {
        exception,
        interrupt,
        nmi,
        sipi_vector,
        flags: _,
        smi,
        triple_fault,
        reserved: _,
        exception_has_payload,
        exception_payload,
    } = *events;
    PendingEvents {
        exception_injected: exception.injected != 0,
        exception_pending: exception.pending != 0,
        exception_vector: u32::from(exception.nr),
        exception_error_code: (exception.has_error_code != 0).then_some(exception.error_code),
        exception_payload: (exception_has_payload != 0).then_some(exception_payload),
        interrupt_injected: interrupt.injected != 0,
        interrupt_vector: u32::from(interrupt.nr),
        interrupt_soft: interrupt.soft != 0,
        interrupt_shadow: u32::from(interrupt.shadow),
        nmi_injected: nmi.injected != 0,
        nmi_pending: u32::from(nmi.pending),
        nmi_masked: nmi.masked != 0,
        sipi_vector,
        in_smm: smi.smm != 0,
        smi_pending: smi.pending != 0,
        smm_inside_nmi: smi.smm_inside_nmi != 0,
        latched_init: u32::from(smi.latched_init),
        triple_fault_pending: triple_fault.pending != 0,
    }
}

pub(super) fn to_kvm(events: &PendingEvents) -> kvm_vcpu_events {
    let PendingEvents {
        exception_injected,
        exception_pending,
        exception_vector,
        exception_error_code,
        exception_payload,
        interrupt_injected,
        interrupt_vector,
        interrupt_soft,
        interrupt_shadow,
        nmi_injected,
        nmi_pending,
        nmi_masked,
        sipi_vector,
        in_smm,
        smi_pending,
        smm_inside_nmi,
        latched_init,
        triple_fault_pending,
    } = *events;
    let mut to = kvm_vcpu_events::default();
    to.exception.injected = u8::from(exception_injected);
    to.exception.nr = exception_vector as u8;
    to.exception.has_error_code = u8::from(exception_error_code.is_some());
    to.exception.error_code = exception_error_code.unwrap_or(0);
    // Exception payloads are behind a capability that NVX does not switch on: without it the kernel
    // reports a pending exception as injected, and ignores the three fields here.
    to.exception.pending = u8::from(exception_pending);
    to.exception_has_payload = u8::from(exception_payload.is_some());
    to.exception_payload = exception_payload.unwrap_or(0);
    to.triple_fault.pending = u8::from(triple_fault_pending);
    to.interrupt.injected = u8::from(interrupt_injected);
    to.interrupt.nr = interrupt_vector as u8;
    to.interrupt.soft = u8::from(interrupt_soft);
    to.interrupt.shadow = interrupt_shadow as u8;
    to.nmi.injected = u8::from(nmi_injected);
    to.nmi.pending = nmi_pending as u8;
    to.nmi.masked = u8::from(nmi_masked);
    to.sipi_vector = sipi_vector;
    to.smi.smm = u8::from(in_smm);
    to.smi.pending = u8::from(smi_pending);
    to.smi.smm_inside_nmi = u8::from(smm_inside_nmi);
    to.smi.latched_init = latched_init as u8;
    to.flags = KVM_VCPUEVENT_VALID_NMI_PENDING
        | KVM_VCPUEVENT_VALID_SHADOW
        | KVM_VCPUEVENT_VALID_SMM
        | if sipi_vector == 0 {
            0
        } else {
            KVM_VCPUEVENT_VALID_SIPI_VECTOR
        };
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_both_directions() {
        let events = PendingEvents {
            exception_injected: true,
            exception_vector: 14,
            exception_error_code: Some(2),
            interrupt_injected: true,
            interrupt_vector: 0x31,
            interrupt_shadow: 2,
            nmi_pending: 1,
            nmi_masked: true,
            sipi_vector: 9,
            smi_pending: true,
            latched_init: 1,
            ..Default::default()
        };
        assert_eq!(from_kvm(&to_kvm(&events)), events);
    }
}
