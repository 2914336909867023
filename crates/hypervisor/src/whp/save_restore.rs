//! A vCPU's state, to and from the neutral form.
//!
//! One table in the order of a restore: registers, XCR0 before the XSAVE area that it rules, debug
//! registers, the local APIC, MSRs with the time-stamp counter first, and last what was about to happen.

use std::ffi::c_void;

use windows_sys::Win32::System::Hypervisor::*;
use windows_sys::core::HRESULT;

use super::library::{INSUFFICIENT_BUFFER, checked};
use super::vcpu::WhpVcpu;
use crate::error::{StateError, SystemError};
use crate::state::{
    DebugRegisters, ExtendedControlRegister, Msr, PendingEvents, RunState, VcpuState,
};

/// MSRs that WHP has as registers, with their numbers (Intel SDM volume 4; AMD APM volume 2). The
/// time-stamp counter comes first: a deadline of the local APIC is relative to it.
const MSRS: [(u32, WHV_REGISTER_NAME); 12] = [
    (0x10, WHvX64RegisterTsc),
    (0x174, WHvX64RegisterSysenterCs),
    (0x175, WHvX64RegisterSysenterEsp),
    (0x176, WHvX64RegisterSysenterEip),
    (0x277, WHvX64RegisterPat),
    (0x2ff, WHvX64RegisterMsrMtrrDefType),
    (0xc000_0081, WHvX64RegisterStar),
    (0xc000_0082, WHvX64RegisterLstar),
    (0xc000_0083, WHvX64RegisterCstar),
    (0xc000_0084, WHvX64RegisterSfmask),
    (0xc000_0102, WHvX64RegisterKernelGsBase),
    (0xc000_0103, WHvX64RegisterTscAux),
];
const DEBUG_ADDRESSES: [WHV_REGISTER_NAME; 4] = [
    WHvX64RegisterDr0,
    WHvX64RegisterDr1,
    WHvX64RegisterDr2,
    WHvX64RegisterDr3,
];

/// `WHV_INTERNAL_ACTIVITY_REGISTER`: waits for INIT; halted.
const ACTIVITY_STARTUP: u64 = 1;
const ACTIVITY_HALT: u64 = 1 << 1;
/// `WHV_X64_PENDING_INTERRUPTION_REGISTER`: one is pending; its type; an error code; its vector.
const INTERRUPTION_PENDING: u64 = 1;
const INTERRUPTION_TYPE_SHIFT: u32 = 1;
const INTERRUPTION_TYPE_MASK: u64 = 7;
const INTERRUPTION_HAS_ERROR_CODE: u64 = 1 << 4;
const INTERRUPTION_VECTOR_SHIFT: u32 = 16;
const INTERRUPTION_ERROR_SHIFT: u32 = 32;
const TYPE_INTERRUPT: u64 = 0;
const TYPE_NMI: u64 = 2;
const TYPE_EXCEPTION: u64 = 3;
/// `WHV_X64_PENDING_EVENT_TYPE`.
const EVENT_EXCEPTION: u64 = 0;
const EVENT_EXTERNAL: u64 = 5;
/// `WHV_X64_INTERRUPT_STATE_REGISTER`: interrupts are held off for one instruction; NMIs are masked.
const STATE_SHADOW: u64 = 1;
/// WHP does not tell which instruction holds them off; [`PendingEvents`] does.
const SHADOW_OF_STI: u32 = 2;
const STATE_NMI_MASKED: u64 = 1 << 1;

/// Longest XSAVE area and local APIC that are asked for.
const MAX_AREA_BYTES: usize = 64 << 10;

fn failed(
    operation: &'static str,
    element: &'static str,
) -> impl Fn(SystemError) -> StateError + Copy {
    move |source| StateError::Element {
        operation,
        element,
        source,
    }
}

pub(super) fn save(vcpu: &WhpVcpu) -> Result<VcpuState, StateError> {
    if vcpu.has_unfinished_exit() {
        return Err(StateError::Incompatible {
            element: "run state",
            what: "the vCPU has an unfinished exit".to_owned(),
        });
    }
    let (machine, number) = (vcpu.machine(), vcpu.number());
    let one = |element, name| {
        machine
            .get_one(number, name)
            .map_err(failed("save", element))
    };
    let (registers, system) = machine
        .get_registers(number)
        .map_err(failed("save", "registers"))?;
    let activity = one("activity state", WHvRegisterInternalActivityState)?;
    let interruption = one("pending interruption", WHvRegisterPendingInterruption)?;
    let interrupt_state = one("interrupt state", WHvRegisterInterruptState)?;
    let event = machine
        .get_event(number)
        .map_err(failed("save", "pending event"))?;
    let mut msrs = Vec::with_capacity(MSRS.len());
    for (index, name) in MSRS {
        let value = one("MSRs", name)?;
        msrs.push(Msr { index, value });
    }
    let mut addresses = Vec::with_capacity(DEBUG_ADDRESSES.len());
    for name in DEBUG_ADDRESSES {
        addresses.push(one("debug registers", name)?);
    }
    Ok(VcpuState {
        cpuid: vcpu.cpuid.clone(),
        registers: Some(registers),
        system_registers: Some(system),
        extended_control_registers: vec![ExtendedControlRegister {
            index: 0,
            value: one("extended control registers", WHvX64RegisterXCr0)?,
        }],
        xsave: xsave_area(vcpu)?,
        debug_registers: Some(DebugRegisters {
            addresses,
            dr6: one("debug registers", WHvX64RegisterDr6)?,
            dr7: one("debug registers", WHvX64RegisterDr7)?,
        }),
        run_state: run_state(activity).into(),
        lapic: apic_page(vcpu)?,
        msrs,
        events: Some(pending(
            interruption_of(interruption, event)?,
            interrupt_state,
        )?),
        tsc_khz: tsc_khz(vcpu).map_err(failed("save", "TSC rate"))?,
    })
}

pub(super) fn restore(vcpu: &mut WhpVcpu, state: &VcpuState) -> Result<(), StateError> {
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
        tsc_khz: saved_rate_khz,
    } = state;
    let missing = |element| StateError::Missing { element };
    let own_rate_khz = tsc_khz(vcpu).map_err(failed("restore", "TSC rate"))?;
    if *saved_rate_khz != own_rate_khz {
        return Err(StateError::Incompatible {
            element: "TSC rate",
            what: format!("{saved_rate_khz} kHz, this host's is {own_rate_khz} kHz"),
        });
    }
    let register_count = extended_control_registers.len();
    if register_count > 1 {
        return Err(wrong_length(
            "extended control registers",
            register_count,
            1,
        ));
    }
    // One more, so that an unknown one is named.
    if msrs.len() > MSRS.len() + 1 {
        return Err(wrong_length("MSRs", msrs.len(), MSRS.len()));
    }
    vcpu.cpuid.clone_from(cpuid);
    let (machine, number) = (vcpu.machine(), vcpu.number());
    let set = |element, name, value| {
        machine
            .set_one(number, name, value)
            .map_err(failed("restore", element))
    };
    let registers = registers.as_ref().ok_or(missing("general registers"))?;
    let system = system_registers
        .as_ref()
        .ok_or(missing("system registers"))?;
    machine
        .set_all_registers(number, registers, system)
        .map_err(failed("restore", "registers"))?;
    for register in extended_control_registers {
        if register.index == 0 {
            set(
                "extended control registers",
                WHvX64RegisterXCr0,
                register.value,
            )?;
        }
    }
    let library = &machine.library;
    restore_area("XSAVE area", xsave, &xsave_area(vcpu)?, |buffer, size| {
        // SAFETY: the buffer has the size that is given, and lives until the call returns.
        unsafe { (library.set_xsave)(machine.handle, number, buffer, size) }
    })?;
    let debug = debug_registers.as_ref().ok_or(missing("debug registers"))?;
    if debug.addresses.len() != DEBUG_ADDRESSES.len() {
        let found = debug.addresses.len();
        return Err(wrong_length(
            "debug registers",
            found,
            DEBUG_ADDRESSES.len(),
        ));
    }
    for (name, value) in DEBUG_ADDRESSES.iter().zip(&debug.addresses) {
        set("debug registers", *name, *value)?;
    }
    set("debug registers", WHvX64RegisterDr6, debug.dr6)?;
    set("debug registers", WHvX64RegisterDr7, debug.dr7)?;
    restore_area("local APIC", lapic, &apic_page(vcpu)?, |buffer, size| {
        // SAFETY: as above.
        unsafe { (library.set_apic)(machine.handle, number, buffer, size) }
    })?;
    for msr in msrs {
        let known = MSRS.iter().find(|(index, _)| *index == msr.index);
        let (_, name) = known.ok_or(StateError::Msr {
            operation: "restore",
            index: msr.index,
            detail: ": it is not one that this back end saves".to_owned(),
        })?;
        set("MSRs", *name, msr.value)?;
    }
    let events = events.as_ref().ok_or(missing("pending events"))?;
    if events.nmi_pending != 0 {
        return Err(StateError::Incompatible {
            element: "pending events",
            what: "an NMI waits, which this back end cannot restore".to_owned(),
        });
    }
    let (interruption, interrupt_state) = registers_of(events);
    set(
        "interrupt state",
        WHvRegisterInterruptState,
        interrupt_state,
    )?;
    set(
        "pending interruption",
        WHvRegisterPendingInterruption,
        interruption,
    )?;
    set(
        "activity state",
        WHvRegisterInternalActivityState,
        activity_of(*run_state)?,
    )
}

/// The rate of the time-stamp counter, from the capability of the whole host.
fn tsc_khz(vcpu: &WhpVcpu) -> Result<u32, SystemError> {
    let rate_hz: u64 = vcpu
        .machine()
        .library
        .capability(WHvCapabilityCodeProcessorClockFrequency)?;
    Ok(u32::try_from(rate_hz / 1000).unwrap_or(u32::MAX))
}

fn run_state(activity: u64) -> RunState {
    if activity & ACTIVITY_STARTUP != 0 {
        RunState::Uninitialized
    } else if activity & ACTIVITY_HALT != 0 {
        RunState::Halted
    } else {
        RunState::Runnable
    }
}

fn activity_of(run_state: i32) -> Result<u64, StateError> {
    match RunState::try_from(run_state) {
        Ok(RunState::Runnable) => Ok(0),
        Ok(RunState::Halted) => Ok(ACTIVITY_HALT),
        Ok(RunState::Uninitialized) => Ok(ACTIVITY_STARTUP),
        _ => Err(StateError::Incompatible {
            element: "MP state",
            what: format!("{run_state} is no run state of this back end"),
        }),
    }
}

/// What was about to be delivered: an interruption on its way, else the event that the monitor has given
/// and that no run has met yet, which a restored vCPU meets as an interruption.
fn interruption_of(interruption: u64, event: u64) -> Result<u64, StateError> {
    if interruption & INTERRUPTION_PENDING != 0 || event & INTERRUPTION_PENDING == 0 {
        return Ok(interruption);
    }
    let vector = |shift: u32, mask: u64| (event >> shift & mask) << INTERRUPTION_VECTOR_SHIFT;
    match event >> INTERRUPTION_TYPE_SHIFT & INTERRUPTION_TYPE_MASK {
        EVENT_EXTERNAL => {
            Ok(INTERRUPTION_PENDING | TYPE_INTERRUPT << INTERRUPTION_TYPE_SHIFT | vector(8, 0xff))
        }
        EVENT_EXCEPTION => {
            // Bit 8 of an event is bit 4 of an interruption; all error codes that this back end gives
            // are 0.
            let has_error_code = event >> 8 & 1;
            Ok(INTERRUPTION_PENDING
                | TYPE_EXCEPTION << INTERRUPTION_TYPE_SHIFT
                | has_error_code * INTERRUPTION_HAS_ERROR_CODE
                | vector(16, 0xffff))
        }
        other => Err(StateError::Incompatible {
            element: "pending event",
            what: format!("type {other} has no neutral form"),
        }),
    }
}

/// What was about to be delivered, from the two registers that tell.
fn pending(interruption: u64, state: u64) -> Result<PendingEvents, StateError> {
    let mut events = PendingEvents {
        interrupt_shadow: if state & STATE_SHADOW != 0 {
            SHADOW_OF_STI
        } else {
            0
        },
        nmi_masked: state & STATE_NMI_MASKED != 0,
        ..Default::default()
    };
    if interruption & INTERRUPTION_PENDING == 0 {
        return Ok(events);
    }
    let vector = (interruption >> INTERRUPTION_VECTOR_SHIFT) as u32 & 0xffff;
    match interruption >> INTERRUPTION_TYPE_SHIFT & INTERRUPTION_TYPE_MASK {
        TYPE_INTERRUPT => {
            events.interrupt_injected = true;
            events.interrupt_vector = vector;
        }
        TYPE_NMI => events.nmi_injected = true,
        TYPE_EXCEPTION => {
            events.exception_injected = true;
            events.exception_vector = vector;
            events.exception_error_code = (interruption & INTERRUPTION_HAS_ERROR_CODE != 0)
                .then_some((interruption >> INTERRUPTION_ERROR_SHIFT) as u32);
        }
        other => {
            return Err(StateError::Incompatible {
                element: "pending interruption",
                what: format!("type {other} has no neutral form"),
            });
        }
    }
    Ok(events)
}

fn registers_of(events: &PendingEvents) -> (u64, u64) {
    let mut state = 0;
    if events.interrupt_shadow != 0 {
        state |= STATE_SHADOW;
    }
    if events.nmi_masked {
        state |= STATE_NMI_MASKED;
    }
    let pending = |kind: u64, vector: u32| {
        INTERRUPTION_PENDING
            | kind << INTERRUPTION_TYPE_SHIFT
            | u64::from(vector) << INTERRUPTION_VECTOR_SHIFT
    };
    let interruption = if events.interrupt_injected {
        pending(TYPE_INTERRUPT, events.interrupt_vector)
    } else if events.nmi_injected {
        pending(TYPE_NMI, 2)
    } else if events.exception_injected {
        let error = events.exception_error_code.map_or(0, |code| {
            INTERRUPTION_HAS_ERROR_CODE | u64::from(code) << INTERRUPTION_ERROR_SHIFT
        });
        pending(TYPE_EXCEPTION, events.exception_vector) | error
    } else {
        0
    };
    (interruption, state)
}

fn xsave_area(vcpu: &WhpVcpu) -> Result<Vec<u8>, StateError> {
    let machine = vcpu.machine();
    area("XSAVE area", |buffer, size, written| {
        let call = machine.library.get_xsave;
        // SAFETY: the buffer has the size that is given, and lives until the call returns.
        unsafe { call(machine.handle, vcpu.number(), buffer, size, written) }
    })
}

fn apic_page(vcpu: &WhpVcpu) -> Result<Vec<u8>, StateError> {
    let machine = vcpu.machine();
    area("local APIC", |buffer, size, written| {
        let call = machine.library.get_apic;
        // SAFETY: as above.
        unsafe { call(machine.handle, vcpu.number(), buffer, size, written) }
    })
}

/// Reads an area whose size the hypervisor knows.
fn area(
    element: &'static str,
    get: impl Fn(*mut c_void, u32, *mut u32) -> HRESULT,
) -> Result<Vec<u8>, StateError> {
    let mut bytes = vec![0_u8; 4096];
    loop {
        let mut written = 0;
        let result = get(
            bytes.as_mut_ptr().cast(),
            bytes.len() as u32,
            &raw mut written,
        );
        let needed = written as usize;
        if result == INSUFFICIENT_BUFFER && bytes.len() < needed && needed <= MAX_AREA_BYTES {
            bytes.resize(needed, 0);
            continue;
        }
        checked("reading an area of a vCPU", result).map_err(failed("save", element))?;
        bytes.truncate(needed);
        return Ok(bytes);
    }
}

/// Writes an area, which must be as long as the one that is there.
fn restore_area(
    element: &'static str,
    bytes: &[u8],
    present: &[u8],
    set: impl Fn(*const c_void, u32) -> HRESULT,
) -> Result<(), StateError> {
    if bytes.len() != present.len() {
        return Err(wrong_length(element, bytes.len(), present.len()));
    }
    let result = set(bytes.as_ptr().cast(), bytes.len() as u32);
    checked("writing an area of a vCPU", result).map_err(failed("restore", element))
}

fn wrong_length(element: &'static str, found: usize, expected: usize) -> StateError {
    StateError::Incompatible {
        element,
        what: format!("length {found}, this back end has {expected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_comes_back_as_it_went() {
        for (interruption, state) in [
            (0, 0),
            (0, STATE_SHADOW | STATE_NMI_MASKED),
            (0x0020_0001, STATE_SHADOW),
            (0x0002_0005, 0),
            (0x0000_0004_000e_0017, 0),
        ] {
            let events = pending(interruption, state).expect("known");
            assert_eq!(registers_of(&events), (interruption, state));
        }
        assert!(pending(0x0020_0009, 0).is_err());
    }

    #[test]
    fn an_event_that_no_run_has_met_is_kept() {
        let external = 1 | 5 << 1 | 0x25 << 8;
        assert_eq!(interruption_of(0, external).expect("known"), 0x0025_0001);
        let protection = 1 | 1 << 8 | 13 << 16;
        assert_eq!(interruption_of(0, protection).expect("known"), 0x000d_0017);
        assert_eq!(
            interruption_of(0x0020_0001, external).expect("known"),
            0x0020_0001
        );
        assert_eq!(interruption_of(0, 0).expect("known"), 0);
        assert!(interruption_of(0, 1 | 1 << 1).is_err());
    }

    #[test]
    fn activity_comes_back_as_it_went() {
        for activity in [0, ACTIVITY_HALT, ACTIVITY_STARTUP] {
            let state = run_state(activity);
            assert_eq!(activity_of(state.into()).expect("known"), activity);
        }
        assert!(activity_of(RunState::SipiReceived.into()).is_err());
    }
}
