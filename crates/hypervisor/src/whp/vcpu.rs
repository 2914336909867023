//! A vCPU: running it, and finishing what it left to the monitor.

use std::sync::Arc;

use nvx_memory::GuestAddress;
use windows_sys::Win32::System::Hypervisor::*;

use super::emulate::{Access, decode};
use super::library::checked;
use super::partition::Machine;
use super::save_restore;
use super::stop::WhpStop;
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, RunError, StateError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::VcpuState;
use crate::traits::{StopHandle, Vcpu};

/// `WHV_X64_IO_PORT_ACCESS_INFO`: a write; the size in bytes; a string instruction.
const PORT_IS_WRITE: u32 = 1;
const PORT_SIZE_SHIFT: u32 = 1;
const PORT_SIZE_MASK: u32 = 7;
const PORT_IS_STRING: u32 = 1 << 4;
/// `WHV_VP_EXIT_CONTEXT`: the instruction's length is in the low bits of the byte behind its state.
const INSTRUCTION_LENGTH_MASK: u8 = 15;
/// `WHV_X64_PENDING_EXCEPTION_EVENT`: an exception is pending, and delivers an error code; its vector.
const EVENT_PENDING: u32 = 1;
const EVENT_HAS_ERROR_CODE: u32 = 1 << 8;
const EVENT_VECTOR_SHIFT: u32 = 16;
/// The exception that an unknown MSR raises (Intel SDM volume 2, RDMSR).
const GENERAL_PROTECTION: u32 = 13;

/// What the last exit still needs when the vCPU runs next.
enum Unfinished {
    /// The value of an IN of this many bytes, for the low part of RAX.
    PortRead { width: usize, rax: u64 },
    /// The value of a load from a device.
    Load(Access),
}

/// A vCPU of [`super::Whp`]; deleted on drop.
pub(super) struct WhpVcpu {
    machine: Arc<Machine>,
    index: u8,
    stop: Arc<WhpStop>,
    pub(super) cpuid: Vec<CpuidEntry>,
    unfinished: Option<Unfinished>,
    /// What an exit exchanges with its reader.
    data: [u8; 8],
}

impl WhpVcpu {
    pub(super) fn create(machine: Arc<Machine>, index: u8) -> Result<Self, CreateError> {
        // SAFETY: the partition lives; the call takes numbers.
        let result = unsafe { (machine.library.create_vcpu)(machine.handle, u32::from(index), 0) };
        checked("WHvCreateVirtualProcessor", result)?;
        Ok(Self {
            stop: Arc::new(WhpStop::new(Arc::clone(&machine), u32::from(index))),
            machine,
            index,
            cpuid: Vec::new(),
            unfinished: None,
            data: [0; 8],
        })
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn number(&self) -> u32 {
        u32::from(self.index)
    }

    pub(super) fn has_unfinished_exit(&self) -> bool {
        self.unfinished.is_some()
    }

    fn refused(&self, source: SystemError) -> RunError {
        RunError::System {
            vcpu: self.index,
            source,
        }
    }

    fn malformed(&self, what: &'static str) -> RunError {
        RunError::MalformedExit {
            vcpu: self.index,
            what,
        }
    }

    /// Gives the guest what the last exit has read.
    fn finish_exit(&mut self) -> Result<(), SystemError> {
        let value = u64::from_le_bytes(self.data);
        match self.unfinished.take() {
            None => Ok(()),
            Some(Unfinished::PortRead { width, rax }) => {
                let rax = match width {
                    // A write to EAX clears the upper half of RAX.
                    4 => value & 0xffff_ffff,
                    _ => {
                        let mask = (1 << (8 * width)) - 1;
                        rax & !mask | value & mask
                    }
                };
                self.machine.set_one(self.number(), WHvX64RegisterRax, rax)
            }
            Some(Unfinished::Load(access)) => {
                let Some(target) = access.target else {
                    return Ok(());
                };
                let old = self.machine.get_one(self.number(), target)?;
                let new = access.loaded(old, value);
                self.machine.set_one(self.number(), target, new)
            }
        }
    }

    /// Runs the guest until the hypervisor leaves something to the monitor.
    fn enter(&self) -> Result<WHV_RUN_VP_EXIT_CONTEXT, SystemError> {
        let mut exit = WHV_RUN_VP_EXIT_CONTEXT::default();
        // SAFETY: the structure has the size that is given, and lives until the call returns.
        let result = unsafe {
            (self.machine.library.run_vcpu)(
                self.machine.handle,
                self.number(),
                (&raw mut exit).cast(),
                size_of::<WHV_RUN_VP_EXIT_CONTEXT>() as u32,
            )
        };
        checked("WHvRunVirtualProcessor", result)?;
        Ok(exit)
    }

    /// Moves the instruction pointer behind the instruction that was left to the monitor.
    fn step_over(&self, context: &WHV_VP_EXIT_CONTEXT, length: u64) -> Result<(), SystemError> {
        let rip = context.Rip.wrapping_add(length);
        self.machine.set_one(self.number(), WHvX64RegisterRip, rip)
    }

    fn port_access(
        &mut self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_X64_IO_PORT_ACCESS_CONTEXT,
    ) -> Result<VcpuExit<'_>, RunError> {
        // SAFETY: every bit pattern is a number.
        let info = unsafe { access.AccessInfo.AsUINT32 };
        let width = (info >> PORT_SIZE_SHIFT & PORT_SIZE_MASK) as usize;
        if info & PORT_IS_STRING != 0 {
            return Ok(VcpuExit::Unsupported(format!(
                "string instruction at {:#x} accesses port {:#x}",
                context.Rip, access.PortNumber
            )));
        }
        if !matches!(width, 1 | 2 | 4) {
            return Err(self.malformed("size of a port access"));
        }
        let length = u64::from(context._bitfield & INSTRUCTION_LENGTH_MASK);
        if length == 0 {
            return Err(self.malformed("length of a port instruction"));
        }
        self.step_over(context, length)
            .map_err(|source| self.refused(source))?;
        self.data = access.Rax.to_le_bytes();
        let (port, bytes) = (access.PortNumber, width as u8);
        if info & PORT_IS_WRITE != 0 {
            return Ok(VcpuExit::PortWrite {
                port,
                width: bytes,
                data: &self.data[..width],
            });
        }
        self.data = [0; 8];
        self.unfinished = Some(Unfinished::PortRead {
            width,
            rax: access.Rax,
        });
        Ok(VcpuExit::PortRead {
            port,
            width: bytes,
            data: &mut self.data[..width],
        })
    }

    fn memory_access(
        &mut self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_MEMORY_ACCESS_CONTEXT,
    ) -> Result<VcpuExit<'_>, RunError> {
        let address = GuestAddress(access.Gpa);
        if self.machine.memory.layout().contains(address) {
            // RAM that the hypervisor could not have.
            return Ok(VcpuExit::MemoryFault {
                address: Some(address),
            });
        }
        let length = usize::from(access.InstructionByteCount).min(access.InstructionBytes.len());
        let bytes = access.InstructionBytes.get(..length).unwrap_or_default();
        let (registers, system) = self
            .machine
            .get_registers(self.number())
            .map_err(|source| self.refused(source))?;
        let decoded = match decode(bytes, context.Rip, &registers, &system) {
            Ok(decoded) => decoded,
            Err(what) => return Ok(VcpuExit::Unsupported(what)),
        };
        self.step_over(context, decoded.length)
            .map_err(|source| self.refused(source))?;
        let width = decoded.width;
        self.data = decoded.stored.unwrap_or(0).to_le_bytes();
        if decoded.stored.is_some() {
            return Ok(VcpuExit::MmioWrite {
                address,
                data: &self.data[..width],
            });
        }
        self.unfinished = Some(Unfinished::Load(decoded));
        Ok(VcpuExit::MmioRead {
            address,
            data: &mut self.data[..width],
        })
    }

    /// An MSR that the hypervisor does not know is none: the guest gets the processor's answer.
    fn msr_access(&self) -> Result<(), SystemError> {
        let event = WHV_UINT128 {
            Dword: [
                EVENT_PENDING | EVENT_HAS_ERROR_CODE | GENERAL_PROTECTION << EVENT_VECTOR_SHIFT,
                0,
                0,
                0,
            ],
        };
        self.machine.set(
            self.number(),
            &[WHvRegisterPendingEvent],
            &[WHV_REGISTER_VALUE { Reg128: event }],
        )
    }

    /// CPUID by the hypervisor's own answer.
    fn cpuid_access(
        &self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_X64_CPUID_ACCESS_CONTEXT,
    ) -> Result<(), SystemError> {
        const CPUID_BYTES: u64 = 2;
        let answers = [
            (WHvX64RegisterRax, access.DefaultResultRax),
            (WHvX64RegisterRbx, access.DefaultResultRbx),
            (WHvX64RegisterRcx, access.DefaultResultRcx),
            (WHvX64RegisterRdx, access.DefaultResultRdx),
        ];
        for (name, value) in answers {
            self.machine.set_one(self.number(), name, value)?;
        }
        self.step_over(context, CPUID_BYTES)
    }
}

impl Vcpu for WhpVcpu {
    fn index(&self) -> u8 {
        self.index
    }

    /// Kept for the saved state: WHP gives a guest the CPUID of its host.
    fn set_cpu_model(&mut self, model: &CpuModel) -> Result<(), SystemError> {
        self.cpuid.clone_from(&model.entries);
        Ok(())
    }

    fn registers(&self) -> Result<(Registers, SystemRegisters), SystemError> {
        self.machine.get_registers(self.number())
    }

    fn set_registers(
        &mut self,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError> {
        self.machine
            .set_all_registers(self.number(), registers, system)
    }

    fn bind_to_this_thread(&mut self) {
        // A stop names the vCPU, whichever thread runs it.
    }

    fn run(&mut self) -> Result<VcpuExit<'_>, RunError> {
        self.finish_exit().map_err(|source| self.refused(source))?;
        while !self.stop.is_requested() {
            let exit = self.enter().map_err(|source| self.refused(source))?;
            let context = exit.VpContext;
            // SAFETY: the reason says which member of the union the hypervisor has filled.
            unsafe {
                match exit.ExitReason {
                    WHvRunVpExitReasonX64IoPortAccess => {
                        return self.port_access(&context, &exit.Anonymous.IoPortAccess);
                    }
                    WHvRunVpExitReasonMemoryAccess => {
                        return self.memory_access(&context, &exit.Anonymous.MemoryAccess);
                    }
                    WHvRunVpExitReasonX64MsrAccess => {
                        self.msr_access().map_err(|source| self.refused(source))?;
                    }
                    WHvRunVpExitReasonX64Cpuid => {
                        self.cpuid_access(&context, &exit.Anonymous.CpuidAccess)
                            .map_err(|source| self.refused(source))?;
                    }
                    WHvRunVpExitReasonX64Halt => return Ok(VcpuExit::Halted),
                    // A cancel that is over already, or one that the loop's condition sees.
                    WHvRunVpExitReasonCanceled => {}
                    WHvRunVpExitReasonUnrecoverableException => return Ok(VcpuExit::Shutdown),
                    reason => {
                        return Ok(VcpuExit::Unsupported(format!(
                            "the hypervisor left the guest at {:#x} with reason {reason:#x}",
                            context.Rip
                        )));
                    }
                }
            }
        }
        Ok(VcpuExit::Canceled)
    }

    fn stop_handle(&self) -> Arc<dyn StopHandle> {
        Arc::clone(&self.stop) as Arc<dyn StopHandle>
    }

    fn hold(&mut self) {
        self.stop.hold();
    }

    fn clear_stop(&mut self) {
        self.stop.clear();
    }

    fn save(&mut self) -> Result<VcpuState, StateError> {
        save_restore::save(self)
    }

    fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        save_restore::restore(self, state)
    }
}

impl Drop for WhpVcpu {
    fn drop(&mut self) {
        // SAFETY: the partition lives, and nobody runs the vCPU: this is its only owner.
        unsafe { (self.machine.library.delete_vcpu)(self.machine.handle, self.number()) };
    }
}
