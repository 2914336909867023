//! A virtual processor: a register file, and the software CPU that works on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nvx_hypervisor::{StopHandle, Vcpu, VcpuExit, VcpuState};
use nvx_memory::{GuestAddress, GuestMemory};
use windows_sys::Win32::System::Hypervisor::*;

use crate::refuse;
use crate::registers::RegisterFile;

/// Length of an XSAVE area in the standard form with nothing but x87 and SSE state.
const XSAVE_BYTES: usize = 576;
/// Length of a local APIC's register page as WHP gives it.
const APIC_BYTES: usize = 4096;
/// `WHV_X64_IO_PORT_ACCESS_INFO`.
const PORT_IS_WRITE: u32 = 1;
const PORT_SIZE_SHIFT: u32 = 1;

/// A virtual processor.
pub struct VirtualProcessor {
    state: Mutex<State>,
    stop: Arc<dyn StopHandle>,
    /// A cancel ends the run on the way, or else the next one.
    canceled: AtomicBool,
    cancel: Condvar,
    cancel_lock: Mutex<()>,
}

struct State {
    cpu: Box<dyn Vcpu>,
    memory: Arc<GuestMemory>,
    registers: RegisterFile,
    xsave: Vec<u8>,
    apic: Vec<u8>,
}

/// What an exit is reported by, without the pieces that it borrows.
enum Met {
    Port {
        port: u16,
        width: u8,
        is_write: bool,
    },
    Load(GuestAddress),
    Halt,
    Cancel,
    Refused(String),
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
                apic: vec![0; APIC_BYTES],
            }),
            canceled: AtomicBool::new(false),
            cancel: Condvar::new(),
            cancel_lock: Mutex::new(()),
        }
    }

    /// The state, which nobody may use while the vCPU runs.
    fn state(&self, call: &str) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(_) => refuse(call, "the vCPU runs"),
        }
    }

    pub fn cancel(&self) {
        let _guard = self
            .cancel_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.canceled.store(true, Ordering::SeqCst);
        self.stop.request_stop();
        self.cancel.notify_all();
    }

    pub fn get(&self, name: WHV_REGISTER_NAME) -> WHV_REGISTER_VALUE {
        let mut state = self.state("WHvGetVirtualProcessorRegisters");
        match name {
            WHvX64RegisterTsc => WHV_REGISTER_VALUE {
                Reg64: state.soft_state().msrs.first().map_or(0, |msr| msr.value),
            },
            _ => state.registers.get(name),
        }
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
        if let Err(error) = state.cpu.restore(&soft) {
            refuse("WHvSetVirtualProcessorRegisters", &error.to_string());
        }
    }

    pub fn xsave(&self) -> Vec<u8> {
        self.state("WHvGetVirtualProcessorXsaveState").xsave.clone()
    }

    pub fn set_xsave(&self, bytes: &[u8]) {
        let call = "WHvSetVirtualProcessorXsaveState";
        set_area(call, &mut self.state(call).xsave, bytes);
    }

    pub fn apic(&self) -> Vec<u8> {
        let call = "WHvGetVirtualProcessorInterruptControllerState2";
        self.state(call).apic.clone()
    }

    pub fn set_apic(&self, bytes: &[u8]) {
        let call = "WHvSetVirtualProcessorInterruptControllerState2";
        set_area(call, &mut self.state(call).apic, bytes);
    }

    pub fn run(&self) -> WHV_RUN_VP_EXIT_CONTEXT {
        let mut state = self.state("WHvRunVirtualProcessor");
        state.load();
        let met = state.meet();
        if let Met::Halt = met {
            // With a local APIC the hypervisor keeps a halted vCPU; here nothing ever wakes it.
            self.wait_for_cancel();
        }
        if let Met::Halt | Met::Cancel = met {
            self.canceled.store(false, Ordering::SeqCst);
            state.cpu.clear_stop();
        }
        state.store();
        state.context(met)
    }

    fn wait_for_cancel(&self) {
        let mut guard = self
            .cancel_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while !self.canceled.load(Ordering::SeqCst) {
            guard = self
                .cancel
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn set_area(call: &str, area: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.len() != area.len() {
        refuse(
            call,
            &format!("{} bytes instead of {}", bytes.len(), area.len()),
        );
    }
    area.copy_from_slice(bytes);
}

impl State {
    /// Gives the software CPU the registers; what it has not finished is the back end's business.
    fn load(&mut self) {
        let RegisterFile {
            general, system, ..
        } = &self.registers;
        if let Err(error) = self.cpu.set_registers(general, system) {
            refuse("WHvRunVirtualProcessor", &error.to_string());
        }
    }

    fn store(&mut self) {
        match self.cpu.registers() {
            Ok((general, system)) => {
                self.registers.general = general;
                self.registers.system = system;
            }
            Err(error) => refuse("WHvRunVirtualProcessor", &error.to_string()),
        }
    }

    fn soft_state(&mut self) -> VcpuState {
        self.load();
        match self.cpu.save() {
            Ok(state) => state,
            Err(error) => refuse("WHvGetVirtualProcessorRegisters", &error.to_string()),
        }
    }

    fn meet(&mut self) -> Met {
        let exit = match self.cpu.run() {
            Ok(exit) => exit,
            Err(error) => refuse("WHvRunVirtualProcessor", &error.to_string()),
        };
        match exit {
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
            VcpuExit::MmioRead { address, .. } => Met::Load(address),
            VcpuExit::Halted => Met::Halt,
            VcpuExit::Canceled => Met::Cancel,
            VcpuExit::Unsupported(reason) => Met::Refused(reason),
            other => refuse("WHvRunVirtualProcessor", &format!("{other:?} in a guest")),
        }
    }

    /// The exit as the hypervisor reports it: at the instruction, not behind it.
    fn context(&mut self, met: Met) -> WHV_RUN_VP_EXIT_CONTEXT {
        let mut context = WHV_RUN_VP_EXIT_CONTEXT::default();
        match met {
            Met::Halt | Met::Cancel => context.ExitReason = WHvRunVpExitReasonCanceled,
            Met::Refused(reason) => {
                eprintln!("whp-double: {reason}");
                context.ExitReason = WHvRunVpExitReasonUnrecoverableException;
            }
            Met::Load(address) => {
                context.ExitReason = WHvRunVpExitReasonMemoryAccess;
                let mut bytes = [0; 15];
                let rip = GuestAddress(self.registers.general.rip);
                let length = match self.memory.read(rip, &mut bytes) {
                    Ok(()) => bytes.len(),
                    Err(_) => 0,
                };
                let mut access = WHV_MEMORY_ACCESS_CONTEXT {
                    InstructionByteCount: length as u8,
                    Gpa: address.0,
                    Gva: address.0,
                    ..Default::default()
                };
                access.InstructionBytes[..15].copy_from_slice(&bytes);
                context.Anonymous.MemoryAccess = access;
            }
            Met::Port {
                port,
                width,
                is_write,
            } => {
                let length = self.port_instruction_length(width);
                self.registers.general.rip -= length;
                context.ExitReason = WHvRunVpExitReasonX64IoPortAccess;
                context.VpContext._bitfield = length as u8;
                let mut access = WHV_X64_IO_PORT_ACCESS_CONTEXT {
                    PortNumber: port,
                    Rax: self.registers.general.rax,
                    ..Default::default()
                };
                access.AccessInfo.AsUINT32 =
                    u32::from(is_write) * PORT_IS_WRITE | u32::from(width) << PORT_SIZE_SHIFT;
                context.Anonymous.IoPortAccess = access;
            }
        }
        context.VpContext.Rip = self.registers.general.rip;
        context.VpContext.Rflags = self.registers.general.rflags;
        context
    }

    /// Length of the port instruction that ends at the instruction pointer: one byte with the port in
    /// DX (0xec to 0xef), else two with an immediate; one more with the prefix for 16 bits.
    fn port_instruction_length(&self, width: u8) -> u64 {
        let mut last = [0];
        let at = GuestAddress(self.registers.general.rip.wrapping_sub(1));
        if self.memory.read(at, &mut last).is_err() {
            refuse("WHvRunVirtualProcessor", "no code before a port access");
        }
        let plain = match last[0] {
            0xec..=0xef => 1,
            _ => 2,
        };
        plain + u64::from(width == 2)
    }
}
