//! A software vCPU's state, to and from the neutral form.
//!
//! Only what a software CPU has is there: CPUID, registers, run state and the time-stamp counter.
//! A state with more in it was made by another back end and is refused.

use super::time_stamp::{RATE_KHZ, TimeStampCounter};
use super::vcpu::{Activity, SoftVcpu};
use crate::error::StateError;
use crate::state::{Msr, RunState, VcpuState};

/// IA32_TIME_STAMP_COUNTER (Intel SDM volume 4, table 2-2).
const IA32_TSC: u32 = 0x10;

pub(super) fn save(vcpu: &SoftVcpu) -> Result<VcpuState, StateError> {
    if vcpu.has_unfinished_exit() {
        return Err(incompatible(
            "run state",
            "the vCPU has an unfinished exit".to_owned(),
        ));
    }
    let (registers, system) = vcpu.all_registers();
    Ok(VcpuState {
        cpuid: vcpu.cpuid.clone(),
        registers: Some(registers),
        system_registers: Some(system),
        run_state: match vcpu.activity {
            Activity::Executes => RunState::Runnable,
            Activity::Halted => RunState::Halted,
            Activity::WaitsForInit => RunState::Uninitialized,
        }
        .into(),
        msrs: vec![Msr {
            index: IA32_TSC,
            value: vcpu.time.now(),
        }],
        tsc_khz: RATE_KHZ,
        extended_control_registers: Vec::new(),
        xsave: Vec::new(),
        debug_registers: None,
        lapic: Vec::new(),
        events: None,
    })
}

pub(super) fn restore(vcpu: &mut SoftVcpu, state: &VcpuState) -> Result<(), StateError> {
    let VcpuState {
        cpuid,
        registers,
        system_registers,
        extended_control_registers,
        xsave,
        debug_registers,
        run_state,
        lapic,
        msrs,
        events,
        tsc_khz,
    } = state;
    for (element, present) in [
        (
            "extended control registers",
            !extended_control_registers.is_empty(),
        ),
        ("XSAVE area", !xsave.is_empty()),
        ("debug registers", debug_registers.is_some()),
        ("local APIC", !lapic.is_empty()),
        ("pending events", events.is_some()),
    ] {
        if present {
            return Err(incompatible(
                element,
                "the software CPU has none; the state is another back end's".to_owned(),
            ));
        }
    }
    if *tsc_khz != RATE_KHZ {
        return Err(incompatible(
            "TSC rate",
            format!("{tsc_khz} kHz, the software CPU's is {RATE_KHZ} kHz"),
        ));
    }
    let registers = registers.as_ref().ok_or(StateError::Missing {
        element: "general registers",
    })?;
    let system = system_registers.as_ref().ok_or(StateError::Missing {
        element: "system registers",
    })?;
    let time = time_stamp_counter(msrs)?;
    let activity = activity(*run_state, vcpu.boots())?;
    vcpu.cpuid.clone_from(cpuid);
    vcpu.load_registers(registers, system);
    vcpu.time = time;
    vcpu.activity = activity;
    Ok(())
}

fn time_stamp_counter(msrs: &[Msr]) -> Result<TimeStampCounter, StateError> {
    if let Some(other) = msrs.iter().find(|msr| msr.index != IA32_TSC) {
        return Err(StateError::Msr {
            operation: "restore",
            index: other.index,
            detail: ": the software CPU has only IA32_TSC".to_owned(),
        });
    }
    match msrs {
        [] => Err(StateError::Missing { element: "MSRs" }),
        [tsc] => Ok(TimeStampCounter::from_value(tsc.value)),
        _ => Err(incompatible(
            "MSRs",
            format!("IA32_TSC is there {} times", msrs.len()),
        )),
    }
}

fn activity(run_state: i32, boots: bool) -> Result<Activity, StateError> {
    match RunState::try_from(run_state) {
        Ok(RunState::Runnable) if boots => Ok(Activity::Executes),
        Ok(RunState::Halted) if boots => Ok(Activity::Halted),
        Ok(RunState::Uninitialized) => Ok(Activity::WaitsForInit),
        Ok(other) => Err(incompatible(
            "MP state",
            format!(
                "{other:?}: only the first vCPU of a software machine ever runs, and none is sent INIT"
            ),
        )),
        Err(_) => Err(incompatible(
            "MP state",
            format!("{run_state} is no run state"),
        )),
    }
}

fn incompatible(element: &'static str, what: String) -> StateError {
    StateError::Incompatible { element, what }
}
