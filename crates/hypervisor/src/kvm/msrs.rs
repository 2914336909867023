//! Model-specific registers: which are kept, and how a refusal is told.

use kvm_bindings::{Msrs, kvm_msr_entry};

use super::failed;
use super::save_restore::{Restore, Save, incompatible, refused};
use super::vcpu::KvmVcpu;
use crate::error::{StateError, SystemError};
use crate::state::{Msr, VcpuState};

/// Time-stamp counter (Intel SDM volume 4, table 2-2).
const MSR_TSC: u32 = 0x10;
/// Deadline of the local APIC's timer (the same table).
const MSR_TSC_DEADLINE: u32 = 0x6e0;
/// Byte offset of the timer's entry in the local vector table (Intel SDM volume 3, table 12-1).
const LAPIC_LVT_TIMER: usize = 0x320;
/// Bits of that entry: masked, and the timer mode with its value for TSC deadline.
const LVT_MASKED: u32 = 1 << 16;
const LVT_TIMER_MODE: u32 = 0b11 << 17;
const LVT_TIMER_MODE_DEADLINE: u32 = 0b10 << 17;
/// Memory type range registers (Intel SDM volume 4, table 2-2), which a guest sets like any other
/// register but which the kernel's own list leaves out.
const MTRRS: [u32; 28] = [
    0x200, 0x201, 0x202, 0x203, 0x204, 0x205, 0x206, 0x207, 0x208, 0x209, 0x20a, 0x20b, 0x20c,
    0x20d, 0x20e, 0x20f, 0x250, 0x258, 0x259, 0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e,
    0x26f, 0x2ff,
];

/// Default memory type (Intel SDM volume 3, section 13.11.2.1): MTRRs on, write-back.
const MSR_MTRR_DEFAULT_TYPE: u32 = 0x2ff;
const MTRR_ON_WRITE_BACK: u64 = 1 << 11 | 6;
/// Miscellaneous features (Intel SDM volume 4, table 2-2): fast string operations.
const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRINGS: u64 = 1;

/// Without these a kernel takes all memory for uncacheable and gives up page attributes and fast
/// string operations. A register that this CPU lacks is left out.
pub(super) fn set_firmware_msrs(vcpu: &KvmVcpu) -> Result<(), SystemError> {
    for (index, value) in [
        (MSR_MTRR_DEFAULT_TYPE, MTRR_ON_WRITE_BACK),
        (MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRINGS),
    ] {
        let batch = Msrs::from_entries(&[msr_entry(index, value)]).map_err(|_| SystemError {
            call: "KVM_SET_MSRS",
            source: std::io::ErrorKind::ArgumentListTooLong.into(),
        })?;
        vcpu.fd.set_msrs(&batch).map_err(failed("KVM_SET_MSRS"))?;
    }
    Ok(())
}

pub(super) const MSRS: (Save, Restore) = (save_msrs, restore_msrs);

fn save_msrs(vcpu: &mut KvmVcpu, state: &mut VcpuState) -> Result<(), StateError> {
    let list =
        vcpu.kvm
            .get_msr_index_list()
            .map_err(refused("save", "MSRs", "KVM_GET_MSR_INDEX_LIST"))?;
    let listed = list.as_slice();
    let unlisted = MTRRS.iter().filter(|index| !listed.contains(index));
    let indices: Vec<u32> = listed.iter().chain(unlisted).copied().collect();
    // All in one call, since each costs as much as reading one register.
    let mut found = read_until_refusal(vcpu, &indices)?;
    if let Some(index) = listed.get(found.len()) {
        return Err(StateError::Msr {
            operation: "save",
            index: *index,
            detail: String::new(),
        });
    }
    // The kernel has promised no MTRR: one that it refuses is one that the guest does not have.
    let mut done = found.len();
    while done < indices.len() {
        let further = read_until_refusal(vcpu, &indices[done + 1..])?;
        done += 1 + further.len();
        found.extend(further);
    }
    found.sort_by_key(|msr| restore_rank(msr.index));
    state.msrs = found;
    keep_expired_deadline(state);
    Ok(())
}

/// Reads registers in order up to the first that the kernel refuses.
fn read_until_refusal(vcpu: &KvmVcpu, indices: &[u32]) -> Result<Vec<Msr>, StateError> {
    let entries: Vec<_> = indices.iter().map(|index| msr_entry(*index, 0)).collect();
    let mut msrs = msr_batch(&entries)?;
    let taken = vcpu
        .fd
        .get_msrs(&mut msrs)
        .map_err(refused("save", "MSRs", "KVM_GET_MSRS"))?;
    let taken = msrs.as_slice().iter().take(taken);
    Ok(taken.map(from_entry).collect())
}

fn from_entry(entry: &kvm_msr_entry) -> Msr {
    Msr {
        index: entry.index,
        value: entry.data,
    }
}

/// TSC first, TSC_DEADLINE last, the rest as the kernel lists them.
fn restore_rank(index: u32) -> u8 {
    match index {
        MSR_TSC => 0,
        MSR_TSC_DEADLINE => 2,
        _ => 1,
    }
}

/// A deadline that has passed reads as 0, though its interrupt may not have been delivered: the
/// kernel keeps that in memory of its own. Writing a deadline in the past fires at once, so the
/// interrupt is not lost; a guest whose timer is masked or in another mode is left alone.
fn keep_expired_deadline(state: &mut VcpuState) {
    let lvt_timer = state
        .lapic
        .get(LAPIC_LVT_TIMER..LAPIC_LVT_TIMER + 4)
        .map_or(LVT_MASKED, |bytes| {
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        });
    if lvt_timer & LVT_MASKED != 0 || lvt_timer & LVT_TIMER_MODE != LVT_TIMER_MODE_DEADLINE {
        return;
    }
    let now = state.msrs.iter().find(|msr| msr.index == MSR_TSC);
    let Some(now) = now.map(|msr| msr.value) else {
        return;
    };
    for msr in &mut state.msrs {
        if msr.index == MSR_TSC_DEADLINE && msr.value == 0 {
            msr.value = now;
        }
    }
}

fn restore_msrs(vcpu: &mut KvmVcpu, state: &VcpuState) -> Result<(), StateError> {
    let mut entries: Vec<_> = state
        .msrs
        .iter()
        .map(|msr| msr_entry(msr.index, msr.value))
        .collect();
    while !entries.is_empty() {
        let taken = vcpu.fd.set_msrs(&msr_batch(&entries)?).map_err(refused(
            "restore",
            "MSRs",
            "KVM_SET_MSRS",
        ))?;
        let Some(refused_entry) = entries.get(taken).copied() else {
            break;
        };
        // A register that can only be read is no obstacle while it holds what is wanted.
        let here = read_msr(vcpu, refused_entry.index)?;
        if here != Some(refused_entry.data) {
            return Err(StateError::Msr {
                operation: "restore",
                index: refused_entry.index,
                detail: match here {
                    Some(value) => format!(
                        ": saved value {:#x}, this host has {value:#x}",
                        refused_entry.data
                    ),
                    None => format!(": saved value {:#x}", refused_entry.data),
                },
            });
        }
        entries.drain(..=taken);
    }
    Ok(())
}

fn read_msr(vcpu: &KvmVcpu, index: u32) -> Result<Option<u64>, StateError> {
    let mut msrs = msr_batch(&[msr_entry(index, 0)])?;
    let taken = vcpu
        .fd
        .get_msrs(&mut msrs)
        .map_err(refused("restore", "MSRs", "KVM_GET_MSRS"))?;
    Ok((taken == 1).then(|| msrs.as_slice()[0].data))
}

fn msr_entry(index: u32, data: u64) -> kvm_msr_entry {
    kvm_msr_entry {
        index,
        data,
        ..Default::default()
    }
}

fn msr_batch(entries: &[kvm_msr_entry]) -> Result<Msrs, StateError> {
    Msrs::from_entries(entries)
        .map_err(|_| incompatible("MSRs", format!("{} are too many", entries.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsc_comes_first_and_its_deadline_last() {
        let mut indices = [0x174, MSR_TSC_DEADLINE, 0x175, MSR_TSC, 0x176];
        indices.sort_by_key(|index| restore_rank(*index));
        assert_eq!(indices, [MSR_TSC, 0x174, 0x175, 0x176, MSR_TSC_DEADLINE]);
    }

    fn state_with_timer(lvt_timer: u32, deadline: u64) -> VcpuState {
        let mut state = VcpuState {
            lapic: vec![0; 1024],
            msrs: vec![
                Msr {
                    index: MSR_TSC,
                    value: 77,
                },
                Msr {
                    index: MSR_TSC_DEADLINE,
                    value: deadline,
                },
            ],
            ..Default::default()
        };
        state.lapic[LAPIC_LVT_TIMER..LAPIC_LVT_TIMER + 4].copy_from_slice(&lvt_timer.to_le_bytes());
        state
    }

    #[test]
    fn an_expired_deadline_is_armed_again_and_nothing_else_is() {
        for (lvt_timer, deadline, expected) in [
            (LVT_TIMER_MODE_DEADLINE | 0x40, 0, 77),
            (LVT_TIMER_MODE_DEADLINE | 0x40, 123, 123),
            (LVT_TIMER_MODE_DEADLINE | LVT_MASKED, 0, 0),
            (0x40, 0, 0),
        ] {
            let mut state = state_with_timer(lvt_timer, deadline);
            keep_expired_deadline(&mut state);
            assert_eq!(state.msrs[1].value, expected, "LVT {lvt_timer:#x}");
        }
    }
}
