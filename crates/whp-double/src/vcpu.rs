//! A virtual processor: a register file, and the software CPU that works on it.
//!
//! A run alternates between the software CPU, which ends at what it cannot do and whenever an interrupt
//! is asked for, and what a hypervisor does between two instructions of a guest: the local APIC, events,
//! interrupts ([`State::meet_events`]), and the instructions of [`crate::instructions`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvx_hypervisor::{RunState, StopHandle, Vcpu, VcpuExit, VcpuState};
use nvx_memory::{GuestAddress, GuestMemory};
use windows_sys::Win32::System::Hypervisor::*;

use crate::apic::{self, Apic, Stored};
use crate::exit::Met;
use crate::instructions::{self, Done, INTERRUPT_FLAG};
use crate::refuse;
use crate::registers::RegisterFile;

const RUN: &str = "WHvRunVirtualProcessor";
/// Length of an XSAVE area in the standard form with nothing but x87 and SSE state.
const XSAVE_BYTES: usize = 576;
/// `WHV_INTERNAL_ACTIVITY_REGISTER`; bit 0: waits for INIT.
const IS_HALTED: u64 = 1 << 1;
/// `WHV_X64_PENDING_INTERRUPTION_REGISTER` and `WHV_X64_PENDING_EVENT`.
const IS_PENDING: u64 = 1;
const INTERRUPTION_HAS_ERROR_CODE: u64 = 1 << 4;
const EVENT_HAS_ERROR_CODE: u64 = 1 << 8;
/// `WHV_X64_DELIVERABILITY_NOTIFICATIONS_REGISTER`.
const NOTIFY_INTERRUPT: u64 = 1 << 1;
/// Names of the local APIC's registers.
const APIC_NAMES: std::ops::Range<i32> = 0x3002..0x3040;

/// A virtual processor.
pub struct VirtualProcessor {
    state: Mutex<State>,
    stop: Arc<dyn StopHandle>,
    /// A cancel ends the run on the way, or else the next one.
    canceled: AtomicBool,
    /// Vectors that the monitor has asked for, with whether they are level-triggered.
    requests: Mutex<Vec<(u8, bool)>>,
    /// Something of these has changed.
    changed: Condvar,
}

pub struct State {
    cpu: Box<dyn Vcpu>,
    pub memory: Arc<GuestMemory>,
    pub registers: RegisterFile,
    xsave: Vec<u8>,
    apic: Apic,
}

impl VirtualProcessor {
    pub fn new(index: u32, cpu: Box<dyn Vcpu>, memory: Arc<GuestMemory>) -> Self {
        let (general, system) = match cpu.registers() {
            Ok(registers) => registers,
            Err(error) => refuse("WHvCreateVirtualProcessor", &error.to_string()),
        };
        Self {
            stop: cpu.stop_handle(),
            state: Mutex::new(State {
                cpu,
                memory,
                registers: RegisterFile::new(index, general, system),
                xsave: vec![0; XSAVE_BYTES],
                apic: Apic::new(index),
            }),
            canceled: AtomicBool::new(false),
            requests: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The state, which nobody may use while the vCPU runs.
    fn state(&self, call: &str) -> MutexGuard<'_, State> {
        let Ok(mut state) = self.state.try_lock() else {
            refuse(call, "the vCPU runs");
        };
        for (vector, is_level) in std::mem::take(&mut *self.requests()) {
            state.apic.request(vector, is_level);
        }
        // An end that no run has seen belongs to what is saved.
        state.apic.look_at_timer();
        state
    }

    fn requests(&self) -> MutexGuard<'_, Vec<(u8, bool)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cancel(&self) {
        let _requests = self.requests();
        self.canceled.store(true, Ordering::SeqCst);
        self.stop.request_stop();
        self.changed.notify_all();
    }

    pub fn request_interrupt(&self, vector: u8, is_level: bool) {
        let mut requests = self.requests();
        requests.push((vector, is_level));
        self.stop.request_stop();
        self.changed.notify_all();
    }

    pub fn get(&self, name: WHV_REGISTER_NAME) -> WHV_REGISTER_VALUE {
        let mut state = self.state("WHvGetVirtualProcessorRegisters");
        let number = match name {
            WHvX64RegisterTsc => state.soft_state().msrs.first().map_or(0, |msr| msr.value),
            _ if APIC_NAMES.contains(&name) => state.apic.named((name - 0x3000).cast_unsigned()),
            _ => return state.registers.get(name),
        };
        WHV_REGISTER_VALUE { Reg64: number }
    }

    pub fn set(&self, name: WHV_REGISTER_NAME, value: &WHV_REGISTER_VALUE) {
        let mut state = self.state("WHvSetVirtualProcessorRegisters");
        if name != WHvX64RegisterTsc {
            return state.registers.set(name, value);
        }
        let mut soft = state.soft_state();
        for msr in &mut soft.msrs {
            // SAFETY: every bit pattern is a number.
            msr.value = unsafe { value.Reg64 };
        }
        state.restore(&soft);
    }

    pub fn xsave(&self) -> Vec<u8> {
        self.state("WHvGetVirtualProcessorXsaveState").xsave.clone()
    }

    pub fn set_xsave(&self, bytes: &[u8]) {
        const CALL: &str = "WHvSetVirtualProcessorXsaveState";
        let mut state = self.state(CALL);
        if bytes.len() != XSAVE_BYTES {
            refuse(CALL, &format!("{} bytes of XSAVE area", bytes.len()));
        }
        state.xsave.copy_from_slice(bytes);
    }

    pub fn apic(&self) -> Vec<u8> {
        self.state("WHvGetVirtualProcessorInterruptControllerState2")
            .apic
            .save()
    }

    pub fn set_apic(&self, bytes: &[u8]) {
        const CALL: &str = "WHvSetVirtualProcessorInterruptControllerState2";
        self.state(CALL).apic.restore(CALL, bytes);
    }

    pub fn run(&self) -> WHV_RUN_VP_EXIT_CONTEXT {
        let mut state = self.state(RUN);
        let met = loop {
            // A stop that comes from here on is seen by the next look at what it is for.
            state.cpu.clear_stop();
            if self.canceled.swap(false, Ordering::SeqCst) {
                break Met::Cancel;
            }
            for (vector, is_level) in std::mem::take(&mut *self.requests()) {
                state.apic.request(vector, is_level);
            }
            state.apic.look_at_timer();
            if let Some(met) = state.meet_events() {
                break met;
            }
            if *state.activity() != 0 {
                self.wait(state.apic.timer_end());
                continue;
            }
            if let Some(met) = self.execute(&mut state) {
                break met;
            }
        };
        state.context(met)
    }

    /// Waits for a cancel, an interrupt or the timer's end.
    fn wait(&self, until: Option<Instant>) {
        let mut requests = self.requests();
        while requests.is_empty() && !self.canceled.load(Ordering::SeqCst) {
            let left = until.map_or(Duration::from_secs(3600), |end| {
                end.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return;
            }
            requests = self
                .changed
                .wait_timeout(requests, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Has the software CPU work until it meets something, or an interrupt is to be looked for.
    fn execute(&self, state: &mut State) -> Option<Met> {
        let Some(end) = state.apic.timer_end() else {
            return state.execute();
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut requests = self.requests();
                while !is_over.load(Ordering::SeqCst) {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        self.stop.request_stop();
                        return;
                    }
                    requests = self
                        .changed
                        .wait_timeout(requests, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            });
            let met = state.execute();
            let _requests = self.requests();
            is_over.store(true, Ordering::SeqCst);
            self.changed.notify_all();
            met
        })
    }
}

impl State {
    fn activity(&mut self) -> &mut u64 {
        self.registers.kept(WHvRegisterInternalActivityState)
    }

    /// Gives the software CPU the registers; what it has not finished is the back end's business.
    fn load(&mut self) {
        let RegisterFile {
            general, system, ..
        } = &self.registers;
        if let Err(error) = self.cpu.set_registers(general, system) {
            refuse(RUN, &error.to_string());
        }
    }

    fn store(&mut self) {
        match self.cpu.registers() {
            Ok((general, system)) => {
                self.registers.general = general;
                self.registers.system = system;
            }
            Err(error) => refuse(RUN, &error.to_string()),
        }
    }

    fn soft_state(&mut self) -> VcpuState {
        self.load();
        match self.cpu.save() {
            Ok(state) => state,
            Err(error) => refuse("WHvGetVirtualProcessorRegisters", &error.to_string()),
        }
    }

    fn restore(&mut self, soft: &VcpuState) {
        if let Err(error) = self.cpu.restore(soft) {
            refuse("WHvSetVirtualProcessorRegisters", &error.to_string());
        }
    }

    /// Lets the guest meet what waits for it, as far as it can now; what the monitor is to be told.
    fn meet_events(&mut self) -> Option<Met> {
        let interruption = std::mem::take(self.registers.kept(WHvRegisterPendingInterruption));
        if interruption & IS_PENDING != 0 {
            // Type 2 is an NMI, with vector 2; of the others the vector is given.
            let error_code = (interruption & INTERRUPTION_HAS_ERROR_CODE != 0)
                .then_some((interruption >> 32) as u32);
            return self.enter_handler((interruption >> 16) as u8, error_code);
        }
        let takes_interrupts = self.registers.general.rflags & INTERRUPT_FLAG != 0;
        let event = *self.registers.kept(WHvRegisterPendingEvent);
        let kind = (event >> 1 & 7) as i32;
        if event & IS_PENDING != 0 && kind == WHvX64PendingEventException {
            *self.registers.kept(WHvRegisterPendingEvent) = 0;
            let error_code = (event & EVENT_HAS_ERROR_CODE != 0).then_some(0);
            return self.enter_handler((event >> 16) as u8, error_code);
        }
        if event & IS_PENDING != 0 && kind != WHvX64PendingEventExtInt {
            refuse(RUN, &format!("pending event {event:#x}"));
        }
        if !takes_interrupts {
            return None;
        }
        if event & IS_PENDING != 0 {
            *self.registers.kept(WHvRegisterPendingEvent) = 0;
            return self.enter_handler((event >> 8) as u8, None);
        }
        let notifications = self
            .registers
            .kept(WHvX64RegisterDeliverabilityNotifications);
        if *notifications & NOTIFY_INTERRUPT != 0 {
            *notifications &= !NOTIFY_INTERRUPT;
            return Some(Met::InterruptWindow);
        }
        let vector = self.apic.deliverable()?;
        self.apic.accept(vector);
        self.enter_handler(vector, None)
    }

    fn enter_handler(&mut self, vector: u8, error_code: Option<u32>) -> Option<Met> {
        *self.activity() &= !IS_HALTED;
        let RegisterFile {
            general, system, ..
        } = &mut self.registers;
        let entered =
            instructions::enter_handler(&self.memory, general, system, vector, error_code);
        // As a triple fault.
        entered.err().map(Met::Refused)
    }

    /// Has the software CPU work until it meets something; `None` if an interrupt is to be looked for.
    fn execute(&mut self) -> Option<Met> {
        self.load();
        let met = self.work();
        self.store();
        match met {
            Some(Met::Refused(reason)) => self.execute_other(reason),
            Some(Met::Halt) => {
                *self.activity() |= IS_HALTED;
                // The software CPU would stay halted for good.
                let mut soft = self.soft_state();
                soft.run_state = RunState::Runnable.into();
                self.restore(&soft);
                None
            }
            Some(Met::Store { address, width, .. }) => {
                let general = &mut self.registers.general;
                let start = instructions::start_of_store(&self.memory, general, address, width);
                let Some(start) = start else {
                    refuse(RUN, &format!("a store to {address:#x} by no MOV"));
                };
                // The hypervisor leaves the instruction to the monitor.
                general.rip = start;
                Some(Met::Store { address, width })
            }
            other => other,
        }
    }

    fn work(&mut self) -> Option<Met> {
        loop {
            let exit = match self.cpu.run() {
                Ok(exit) => exit,
                Err(error) => refuse(RUN, &error.to_string()),
            };
            let apic_offset = |address: GuestAddress| {
                let offset = address.0.checked_sub(apic::ADDRESS)?;
                (offset < apic::PAGE_BYTES as u64).then_some(offset as usize)
            };
            return Some(match exit {
                VcpuExit::PortRead { port, width, .. } => Met::Port {
                    port,
                    width,
                    is_write: false,
                },
                VcpuExit::PortWrite { port, width, .. } => Met::Port {
                    port,
                    width,
                    is_write: true,
                },
                VcpuExit::MmioRead { address, data } => match apic_offset(address) {
                    None => Met::Load(address.0),
                    Some(offset) => {
                        let value = self.apic.load(offset).to_le_bytes();
                        let Some(value) = value.get(..data.len()) else {
                            refuse(RUN, "a wide load from the local APIC");
                        };
                        data.copy_from_slice(value);
                        continue;
                    }
                },
                VcpuExit::MmioWrite { address, data } => match apic_offset(address) {
                    None => Met::Store {
                        address: address.0,
                        width: data.len(),
                    },
                    Some(offset) => {
                        let Ok(value) = data.try_into().map(u32::from_le_bytes) else {
                            refuse(RUN, "a store of other than 32 bits to the local APIC");
                        };
                        match self.apic.store(offset, value) {
                            Stored::LevelEnded(vector) => Met::EndOfInterrupt(vector),
                            // Another interrupt may come now.
                            Stored::Nothing => return None,
                        }
                    }
                },
                VcpuExit::Halted => Met::Halt,
                VcpuExit::Canceled => return None,
                VcpuExit::Unsupported(reason) => Met::Refused(reason),
                other => refuse(RUN, &format!("{other:?} in a guest")),
            });
        }
    }

    /// An instruction that the software CPU refuses for `reason`.
    fn execute_other(&mut self, reason: String) -> Option<Met> {
        match instructions::execute(&self.memory, &mut self.registers.general) {
            Done::Yes => None,
            Done::Halted => {
                *self.activity() |= IS_HALTED;
                None
            }
            Done::Cpuid => Some(Met::Cpuid),
            Done::ReadMsr => match self.known_msr() {
                Some(value) => {
                    let value = *value;
                    self.registers.general.rax = value & 0xffff_ffff;
                    self.registers.general.rdx = value >> 32;
                    self.pass_msr()
                }
                None => Some(Met::Msr { is_write: false }),
            },
            Done::WriteMsr => {
                let general = &self.registers.general;
                let written = general.rdx << 32 | general.rax & 0xffff_ffff;
                match self.known_msr() {
                    Some(value) => {
                        *value = written;
                        self.pass_msr()
                    }
                    None => Some(Met::Msr { is_write: true }),
                }
            }
            Done::StringPort(access) => Some(Met::StringPort(access)),
            Done::Unknown => Some(Met::Refused(reason)),
        }
    }

    fn known_msr(&mut self) -> Option<&mut u64> {
        let index = self.registers.general.rcx as u32;
        self.registers.msr(index)
    }

    fn pass_msr(&mut self) -> Option<Met> {
        const BYTES: u64 = 2;
        self.registers.general.rip += BYTES;
        None
    }
}
