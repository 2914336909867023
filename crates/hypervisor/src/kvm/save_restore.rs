//! How each element of the state table is read from and written to KVM.

use std::os::fd::{AsRawFd, BorrowedFd};

use kvm_bindings::{
    KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE,
    KVM_MP_STATE_SIPI_RECEIVED, KVM_MP_STATE_UNINITIALIZED, Xsave, kvm_debugregs, kvm_lapic_state,
    kvm_mp_state, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Cap, VcpuFd};

use super::events;
use super::failed;
use super::vcpu::KvmVcpu;
use crate::error::StateError;
use crate::state::{DebugRegisters, ExtendedControlRegister, RunState, VcpuState};

pub(super) type Save = fn(&mut KvmVcpu, &mut VcpuState) -> Result<(), StateError>;
pub(super) type Restore = fn(&mut KvmVcpu, &VcpuState) -> Result<(), StateError>;

/// A guest TSC within this many parts per million of the saved rate is taken as the same: the
/// host measures its own rate anew at each boot, and Linux corrects this much by itself
/// (`tsc_tolerance_ppm` of the kvm module).
const TSC_RATE_TOLERANCE_PPM: u64 = 250;

/// Words of the bitmap of external interrupts: 256 vectors.
const INTERRUPT_BITMAP_WORDS: usize = 4;

pub(super) fn borrow_vcpu(fd: &VcpuFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor belongs to `fd`, which the result borrows.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}

/// Makes the error for element `element` of which `call` failed.
pub(super) fn refused(
    operation: &'static str,
    element: &'static str,
    call: &'static str,
) -> impl Fn(kvm_ioctls::Error) -> StateError {
    move |errno| StateError::Element {
        operation,
        element,
        source: failed(call)(errno),
    }
}

pub(super) fn incompatible(element: &'static str, what: impl Into<String>) -> StateError {
    StateError::Incompatible {
        element,
        what: what.into(),
    }
}

pub(super) const CPUID: (Save, Restore) = (
    |vcpu, state| {
        // What the guest was given, not what KVM_GET_CPUID2 gives back: some kernels add bits of
        // the host's there, which no other host could then offer.
        state.cpuid.clone_from(&vcpu.cpuid);
        Ok(())
    },
    |vcpu, state| {
        vcpu.give_cpuid(&state.cpuid)
            .map_err(|source| StateError::Element {
                operation: "restore",
                element: "CPUID",
                source,
            })
    },
);

pub(super) const TSC_RATE: (Save, Restore) = (
    |vcpu, state| {
        state.tsc_khz = tsc_khz(vcpu);
        Ok(())
    },
    |vcpu, state| {
        let saved = state.tsc_khz;
        let here = tsc_khz(vcpu);
        if saved == 0 || same_rate(saved, here) {
            return Ok(());
        }
        vcpu.fd.set_tsc_khz(saved).map_err(|_| {
            incompatible(
                "TSC rate",
                format!("the guest's is {saved} kHz; this host has {here} kHz and cannot scale it"),
            )
        })?;
        vcpu.tsc_khz.set(Some(saved));
        Ok(())
    },
);

/// The rate that the guest sees. Nothing but a restore changes it, and asking takes 10 us of a capture's standstill, as
/// every call does that loads the vCPU, so it is asked once.
fn tsc_khz(vcpu: &KvmVcpu) -> u32 {
    vcpu.tsc_khz.get().unwrap_or_else(|| {
        // A kernel that does not tell (EIO on an unstable TSC) has nothing to scale either.
        let rate = vcpu.fd.get_tsc_khz().unwrap_or(0);
        vcpu.tsc_khz.set(Some(rate));
        rate
    })
}

fn same_rate(saved_khz: u32, here_khz: u32) -> bool {
    let difference = u64::from(saved_khz.abs_diff(here_khz));
    difference * 1_000_000 <= u64::from(saved_khz) * TSC_RATE_TOLERANCE_PPM
}

pub(super) const SYSTEM_REGISTERS: (Save, Restore) = (
    |vcpu, state| {
        let sregs = match vcpu.synced_registers() {
            Some(synced) => synced.sregs,
            None => {
                vcpu.fd
                    .get_sregs()
                    .map_err(refused("save", "system registers", "KVM_GET_SREGS"))?
            }
        };
        state.system_registers = Some((&sregs).into());
        Ok(())
    },
    |vcpu, state| {
        let system = present(&state.system_registers, "system registers")?;
        if system.interrupt_bitmap.len() != INTERRUPT_BITMAP_WORDS {
            return Err(incompatible(
                "system registers",
                format!(
                    "{} words of interrupts instead of 4",
                    system.interrupt_bitmap.len()
                ),
            ));
        }
        vcpu.fd.set_sregs(&system.into()).map_err(refused(
            "restore",
            "system registers",
            "KVM_SET_SREGS",
        ))
    },
);

pub(super) const EXTENDED_CONTROL_REGISTERS: (Save, Restore) = (
    |vcpu, state| {
        if !vcpu.vm.check_extension(Cap::Xcrs) {
            return Ok(());
        }
        let xcrs = vcpu.fd.get_xcrs().map_err(refused(
            "save",
            "extended control registers",
            "KVM_GET_XCRS",
        ))?;
        state.extended_control_registers = xcrs
            .xcrs
            .iter()
            .take(xcrs.nr_xcrs as usize)
            .map(|xcr| ExtendedControlRegister {
                index: xcr.xcr,
                value: xcr.value,
            })
            .collect();
        Ok(())
    },
    |vcpu, state| {
        let saved = &state.extended_control_registers;
        if saved.is_empty() {
            return Ok(());
        }
        let mut xcrs = kvm_xcrs::default();
        if saved.len() > xcrs.xcrs.len() {
            return Err(incompatible(
                "extended control registers",
                format!("{} are too many", saved.len()),
            ));
        }
        xcrs.nr_xcrs = saved.len() as u32;
        for (slot, register) in xcrs.xcrs.iter_mut().zip(saved) {
            slot.xcr = register.index;
            slot.value = register.value;
        }
        vcpu.fd.set_xcrs(&xcrs).map_err(refused(
            "restore",
            "extended control registers",
            "KVM_SET_XCRS",
        ))
    },
);

/// Size of this VM's XSAVE area; more than `kvm_xsave` where the guest may use AMX.
fn xsave_size_bytes(vcpu: &KvmVcpu) -> usize {
    usize::try_from(vcpu.vm.check_extension_int(Cap::Xsave2))
        .unwrap_or(0)
        .max(size_of::<kvm_xsave>())
}

fn new_xsave(size_bytes: usize) -> Result<Xsave, StateError> {
    let extra_words = (size_bytes - size_of::<kvm_xsave>()).div_ceil(size_of::<u32>());
    Xsave::new(extra_words)
        .map_err(|_| incompatible("XSAVE area", format!("{size_bytes} bytes are too many")))
}

pub(super) const XSAVE: (Save, Restore) = (
    |vcpu, state| {
        let size_bytes = xsave_size_bytes(vcpu);
        let mut area = new_xsave(size_bytes)?;
        // SAFETY: the buffer has the size that the kernel asks for by KVM_CAP_XSAVE2.
        unsafe { vcpu.fd.get_xsave2(&mut area) }.map_err(refused(
            "save",
            "XSAVE area",
            "KVM_GET_XSAVE2",
        ))?;
        let fixed = area.as_fam_struct_ref().xsave.region;
        let mut bytes = Vec::with_capacity(size_bytes.next_multiple_of(size_of::<u32>()));
        for word in fixed.iter().chain(area.as_slice()) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(size_bytes);
        state.xsave = bytes;
        Ok(())
    },
    |vcpu, state| {
        let size_bytes = xsave_size_bytes(vcpu);
        let saved = &state.xsave;
        if saved.len() < size_of::<kvm_xsave>() {
            return Err(incompatible(
                "XSAVE area",
                format!("{} bytes are too few", saved.len()),
            ));
        }
        if saved.len() > size_bytes && saved[size_bytes..].iter().any(|byte| *byte != 0) {
            return Err(incompatible(
                "XSAVE area",
                format!("{} bytes in use, this host has {size_bytes}", saved.len()),
            ));
        }
        let mut words = saved[..saved.len().min(size_bytes)]
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let mut area = new_xsave(size_bytes)?;
        let mut fixed = [0u32; size_of::<kvm_xsave>() / 4];
        fixed
            .iter_mut()
            .zip(&mut words)
            .for_each(|(to, from)| *to = from);
        for (to, from) in area.as_mut_slice().iter_mut().zip(words) {
            *to = from;
        }
        // SAFETY: only the fixed part is written; the length field keeps its value.
        unsafe { area.as_mut_fam_struct() }.xsave.region = fixed;
        // SAFETY: the buffer has the size that the kernel reads, as KVM_CAP_XSAVE2 tells.
        unsafe { vcpu.fd.set_xsave2(&area) }.map_err(refused(
            "restore",
            "XSAVE area",
            "KVM_SET_XSAVE",
        ))
    },
);

pub(super) const DEBUG_REGISTERS: (Save, Restore) = (
    |vcpu, state| {
        let debug = vcpu.fd.get_debug_regs().map_err(refused(
            "save",
            "debug registers",
            "KVM_GET_DEBUGREGS",
        ))?;
        state.debug_registers = Some(DebugRegisters {
            addresses: debug.db.to_vec(),
            dr6: debug.dr6,
            dr7: debug.dr7,
        });
        Ok(())
    },
    |vcpu, state| {
        let DebugRegisters {
            addresses,
            dr6,
            dr7,
        } = present(&state.debug_registers, "debug registers")?;
        let mut debug = kvm_debugregs {
            dr6: *dr6,
            dr7: *dr7,
            ..Default::default()
        };
        if addresses.len() != debug.db.len() {
            return Err(incompatible(
                "debug registers",
                format!("{} address registers instead of 4", addresses.len()),
            ));
        }
        debug.db.copy_from_slice(addresses);
        vcpu.fd.set_debug_regs(&debug).map_err(refused(
            "restore",
            "debug registers",
            "KVM_SET_DEBUGREGS",
        ))
    },
);

pub(super) const GENERAL_REGISTERS: (Save, Restore) = (
    |vcpu, state| {
        let regs = match vcpu.synced_registers() {
            Some(synced) => synced.regs,
            None => {
                vcpu.fd
                    .get_regs()
                    .map_err(refused("save", "general registers", "KVM_GET_REGS"))?
            }
        };
        state.registers = Some((&regs).into());
        Ok(())
    },
    |vcpu, state| {
        let registers = present(&state.registers, "general registers")?;
        vcpu.fd.set_regs(&registers.into()).map_err(refused(
            "restore",
            "general registers",
            "KVM_SET_REGS",
        ))
    },
);

/// KVM's number of each run state.
const RUN_STATES: [(RunState, u32); 5] = [
    (RunState::Runnable, KVM_MP_STATE_RUNNABLE),
    (RunState::Uninitialized, KVM_MP_STATE_UNINITIALIZED),
    (RunState::InitReceived, KVM_MP_STATE_INIT_RECEIVED),
    (RunState::Halted, KVM_MP_STATE_HALTED),
    (RunState::SipiReceived, KVM_MP_STATE_SIPI_RECEIVED),
];

pub(super) const MP_STATE: (Save, Restore) = (
    |vcpu, state| {
        let found = vcpu
            .fd
            .get_mp_state()
            .map_err(refused("save", "MP state", "KVM_GET_MP_STATE"))?
            .mp_state;
        let (run_state, _) = RUN_STATES
            .iter()
            .find(|(_, number)| *number == found)
            .ok_or_else(|| incompatible("MP state", format!("unknown value {found}")))?;
        state.run_state = *run_state as i32;
        Ok(())
    },
    |vcpu, state| {
        let saved = state.run_state;
        let (_, mp_state) = RUN_STATES
            .iter()
            .find(|(run_state, _)| *run_state as i32 == saved)
            .ok_or_else(|| incompatible("MP state", format!("unknown value {saved}")))?;
        vcpu.fd
            .set_mp_state(kvm_mp_state {
                mp_state: *mp_state,
            })
            .map_err(refused("restore", "MP state", "KVM_SET_MP_STATE"))
    },
);

pub(super) const LOCAL_APIC: (Save, Restore) = (
    |vcpu, state| {
        let lapic = vcpu
            .fd
            .get_lapic()
            .map_err(refused("save", "local APIC", "KVM_GET_LAPIC"))?;
        state.lapic = lapic.regs.iter().map(|byte| *byte as u8).collect();
        Ok(())
    },
    |vcpu, state| {
        let mut lapic = kvm_lapic_state::default();
        if state.lapic.len() != lapic.regs.len() {
            return Err(incompatible(
                "local APIC",
                format!(
                    "{} bytes instead of {}",
                    state.lapic.len(),
                    lapic.regs.len()
                ),
            ));
        }
        for (to, from) in lapic.regs.iter_mut().zip(&state.lapic) {
            *to = *from as _;
        }
        vcpu.fd
            .set_lapic(&lapic)
            .map_err(refused("restore", "local APIC", "KVM_SET_LAPIC"))
    },
);

pub(super) const PENDING_EVENTS: (Save, Restore) = (
    |vcpu, state| {
        let found = match vcpu.synced_registers() {
            Some(synced) => synced.events,
            None => vcpu.fd.get_vcpu_events().map_err(refused(
                "save",
                "pending events",
                "KVM_GET_VCPU_EVENTS",
            ))?,
        };
        state.events = Some(events::from_kvm(&found));
        Ok(())
    },
    |vcpu, state| {
        let saved = present(&state.events, "pending events")?;
        for vector in [saved.exception_vector, saved.interrupt_vector] {
            if vector > 0xff {
                return Err(incompatible(
                    "pending events",
                    format!("{vector} is no interrupt vector"),
                ));
            }
        }
        vcpu.fd
            .set_vcpu_events(&events::to_kvm(saved))
            .map_err(refused("restore", "pending events", "KVM_SET_VCPU_EVENTS"))
    },
);

fn present<'a, T>(value: &'a Option<T>, element: &'static str) -> Result<&'a T, StateError> {
    value.as_ref().ok_or(StateError::Missing { element })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_within_the_tolerance_are_the_same() {
        assert!(same_rate(2_600_000, 2_600_650));
        assert!(!same_rate(2_600_000, 2_600_651));
        assert!(!same_rate(2_600_000, 0));
    }
}
