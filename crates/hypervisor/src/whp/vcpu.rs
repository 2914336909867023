//! A vCPU: running it, and finishing what it left to the monitor.

use std::sync::Arc;

use nvx_devices::InterruptChip;
use nvx_memory::GuestAddress;
use windows_sys::Win32::System::Hypervisor::*;

use super::emulate::{Access, decode};
use super::irq_chip::WhpIrqChip;
use super::library::checked;
use super::partition::Machine;
use super::save_restore;
use super::stop::WhpStop;
use super::string_io::{self, Element};
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
/// `WHV_X64_PENDING_EXT_INT_EVENT`: an interrupt that comes past the local APIC; its type; its vector.
const EVENT_TYPE_SHIFT: u32 = 1;
const EXTERNAL_VECTOR_SHIFT: u32 = 8;
/// `WHV_X64_DELIVERABILITY_NOTIFICATIONS_REGISTER`: leave the guest when it can take an interrupt.
const NOTIFY_INTERRUPT: u64 = 1 << 1;
/// Local APIC (Intel SDM volume 3, figures 12-8 and 12-23): it is switched on; an entry of the local
/// vector table is masked; its delivery mode, and the one that takes the PICs' interrupts.
const SPURIOUS_ENABLED: u64 = 1 << 8;
const LVT_MASKED: u64 = 1 << 16;
const LVT_DELIVERY_MASK: u64 = 7 << 8;
const LVT_DELIVERY_EXTERNAL: u64 = 7 << 8;
/// CPUID: what the processor's state decides. Leaf 1 ECX: OSXSAVE, and that there is a hypervisor; leaf
/// 7 ECX: OSPKE; leaf 0xd EBX: bytes of the XSAVE area with what is switched on.
const LEAF_1_ECX_LIVE: u64 = 1 << 27 | 1 << 31;
const LEAF_7_ECX_LIVE: u64 = 1 << 4;
/// Leaves of the processor itself are below; above are the hypervisor's, then the extended ones.
const LEAF_HYPERVISOR: u32 = 0x4000_0000;
const LEAF_EXTENDED: u32 = 0x8000_0000;
/// The exception that an unknown MSR raises (Intel SDM volume 2, RDMSR).
const GENERAL_PROTECTION: u32 = 13;

/// What a read gives that nothing drives.
const FLOATING: u8 = 0xff;

/// What the last exit still needs when the vCPU runs next.
enum Unfinished {
    /// The value of an IN of this many bytes, for the low part of RAX.
    PortRead { width: usize, rax: u64 },
    /// The value of a load from a device.
    Load(Access),
    /// The value of an INS, and where its bytes go.
    StringRead {
        element: Element,
        places: Vec<GuestAddress>,
    },
}

/// A vCPU of [`super::Whp`]; deleted on drop.
pub(super) struct WhpVcpu {
    machine: Arc<Machine>,
    irq_chip: Arc<WhpIrqChip>,
    index: u8,
    stop: Arc<WhpStop>,
    /// The hypervisor has said that the guest can take an interrupt.
    can_take_interrupt: bool,
    pub(super) cpuid: Vec<CpuidEntry>,
    unfinished: Option<Unfinished>,
    /// What an exit exchanges with its reader.
    data: [u8; 8],
}

impl WhpVcpu {
    pub(super) fn create(
        machine: Arc<Machine>,
        irq_chip: Arc<WhpIrqChip>,
        index: u8,
    ) -> Result<Self, CreateError> {
        // SAFETY: the partition lives; the call takes numbers.
        let result = unsafe { (machine.library.create_vcpu)(machine.handle, u32::from(index), 0) };
        checked("WHvCreateVirtualProcessor", result)?;
        irq_chip.set_present(u32::from(index), true);
        Ok(Self {
            irq_chip,
            can_take_interrupt: false,
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
            Some(Unfinished::StringRead { element, places }) => {
                for (place, byte) in places.into_iter().zip(value.to_le_bytes()) {
                    // What is not RAM swallows it.
                    let _ = self.machine.memory.write(place, &[byte]);
                }
                self.machine.pass(self.number(), &element)
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
        if !matches!(width, 1 | 2 | 4) {
            return Err(self.malformed("size of a port access"));
        }
        if info & PORT_IS_STRING != 0 {
            return self.string_access(access, width);
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

    /// One element of INS or OUTS.
    fn string_access(
        &mut self,
        access: &WHV_X64_IO_PORT_ACCESS_CONTEXT,
        width: usize,
    ) -> Result<VcpuExit<'_>, RunError> {
        let length = usize::from(access.InstructionByteCount).min(access.InstructionBytes.len());
        let bytes = access.InstructionBytes.get(..length).unwrap_or_default();
        let (registers, system) = self
            .machine
            .get_registers(self.number())
            .map_err(|source| self.refused(source))?;
        let element = match string_io::decode(bytes, width, &registers, &system) {
            Ok(element) => element,
            Err(what) => return Ok(VcpuExit::Unsupported(what)),
        };
        let places = match self.machine.physical(self.number(), &element) {
            Ok(Ok(places)) => places,
            Ok(Err(what)) => return Ok(VcpuExit::Unsupported(what)),
            Err(source) => return Err(self.refused(source)),
        };
        let (port, bytes) = (access.PortNumber, width as u8);
        self.data = [0; 8];
        if !element.is_output() {
            self.unfinished = Some(Unfinished::StringRead { element, places });
            return Ok(VcpuExit::PortRead {
                port,
                width: bytes,
                data: &mut self.data[..width],
            });
        }
        for (place, byte) in places.into_iter().zip(&mut self.data) {
            if self
                .machine
                .memory
                .read(place, std::slice::from_mut(byte))
                .is_err()
            {
                // Nothing drives what is not RAM.
                *byte = FLOATING;
            }
        }
        self.machine
            .pass(self.number(), &element)
            .map_err(|source| self.refused(source))?;
        Ok(VcpuExit::PortWrite {
            port,
            width: bytes,
            data: &self.data[..width],
        })
    }

    /// Serves an access to a port of the interrupt chip; `false` if it is none.
    fn chip_port_access(
        &self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_X64_IO_PORT_ACCESS_CONTEXT,
    ) -> Result<bool, SystemError> {
        // SAFETY: every bit pattern is a number.
        let info = unsafe { access.AccessInfo.AsUINT32 };
        let length = u64::from(context._bitfield & INSTRUCTION_LENGTH_MASK);
        let (port, width) = (access.PortNumber, info >> PORT_SIZE_SHIFT & PORT_SIZE_MASK);
        if !InterruptChip::owns_port(port)
            || info & PORT_IS_STRING != 0
            || length == 0
            || !matches!(width, 1 | 2 | 4)
        {
            return Ok(false);
        }
        self.step_over(context, length)?;
        // Each port is one byte wide; the rest of a wider access floats.
        if info & PORT_IS_WRITE != 0 {
            self.irq_chip.write_port(port, access.Rax as u8)?;
            return Ok(true);
        }
        let value = self.irq_chip.read_port(port)?;
        let rax = match width {
            1 => access.Rax & !0xff | u64::from(value),
            2 => access.Rax & !0xffff | 0xff00 | u64::from(value),
            _ => 0xffff_ff00 | u64::from(value),
        };
        self.machine
            .set_one(self.number(), WHvX64RegisterRax, rax)?;
        Ok(true)
    }

    /// Serves an access to the IOAPIC's registers; `false` if it is none, or not by an instruction that
    /// is known.
    fn chip_memory_access(
        &self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_MEMORY_ACCESS_CONTEXT,
    ) -> Result<bool, SystemError> {
        let Some(offset) = InterruptChip::ioapic_offset(access.Gpa) else {
            return Ok(false);
        };
        let length = usize::from(access.InstructionByteCount).min(access.InstructionBytes.len());
        let bytes = access.InstructionBytes.get(..length).unwrap_or_default();
        let (registers, system) = self.machine.get_registers(self.number())?;
        let Ok(decoded) = decode(bytes, context.Rip, &registers, &system) else {
            return Ok(false);
        };
        self.step_over(context, decoded.length)?;
        if let Some(stored) = decoded.stored {
            self.irq_chip.write_ioapic(offset, stored as u32)?;
        } else if let Some(target) = decoded.target {
            let value = self.irq_chip.read_ioapic(offset)?;
            let old = self.machine.get_one(self.number(), target)?;
            let new = decoded.loaded(old, u64::from(value));
            self.machine.set_one(self.number(), target, new)?;
        }
        Ok(true)
    }

    /// Gives the guest the PICs' interrupt when it can take it, and before that asks to be told.
    fn offer_pic_interrupt(&mut self) -> Result<(), SystemError> {
        let number = self.number();
        if !self.irq_chip.pic_output(number) || !self.listens_to_pics()? {
            return Ok(());
        }
        if !std::mem::take(&mut self.can_take_interrupt) {
            return self.machine.set_one(
                number,
                WHvX64RegisterDeliverabilityNotifications,
                NOTIFY_INTERRUPT,
            );
        }
        let Some(vector) = self.irq_chip.acknowledge()? else {
            return Ok(());
        };
        let event = EVENT_PENDING
            | WHvX64PendingEventExtInt.cast_unsigned() << EVENT_TYPE_SHIFT
            | u32::from(vector) << EXTERNAL_VECTOR_SHIFT;
        self.set_event(event)
    }

    /// Whether the PICs' interrupts go past the local APIC: it is switched off, as after power-on, or
    /// lets them through at its input LINT0.
    fn listens_to_pics(&self) -> Result<bool, SystemError> {
        let number = self.number();
        let spurious = self.machine.get_one(number, WHvX64RegisterApicSpurious)?;
        if spurious & SPURIOUS_ENABLED == 0 {
            return Ok(true);
        }
        let entry = self.machine.get_one(number, WHvX64RegisterApicLvtLint0)?;
        Ok(entry & (LVT_MASKED | LVT_DELIVERY_MASK) == LVT_DELIVERY_EXTERNAL)
    }

    /// Has the guest meet an event when it runs next.
    fn set_event(&self, event: u32) -> Result<(), SystemError> {
        let event = WHV_UINT128 {
            Dword: [event, 0, 0, 0],
        };
        self.machine.set(
            self.number(),
            &[WHvRegisterPendingEvent],
            &[WHV_REGISTER_VALUE { Reg128: event }],
        )
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
        self.set_event(
            EVENT_PENDING | EVENT_HAS_ERROR_CODE | GENERAL_PROTECTION << EVENT_VECTOR_SHIFT,
        )
    }

    /// CPUID: the model's answer, but for what the processor's state decides and for the leaves of the
    /// hypervisor, which are the hypervisor's.
    fn cpuid_access(
        &self,
        context: &WHV_VP_EXIT_CONTEXT,
        access: &WHV_X64_CPUID_ACCESS_CONTEXT,
    ) -> Result<(), SystemError> {
        const CPUID_BYTES: u64 = 2;
        let answer = self.cpuid_answer(access);
        let names = [
            WHvX64RegisterRax,
            WHvX64RegisterRbx,
            WHvX64RegisterRcx,
            WHvX64RegisterRdx,
        ];
        for (name, value) in names.into_iter().zip(answer) {
            self.machine.set_one(self.number(), name, value)?;
        }
        self.step_over(context, CPUID_BYTES)
    }

    fn cpuid_answer(&self, access: &WHV_X64_CPUID_ACCESS_CONTEXT) -> [u64; 4] {
        let live = [
            access.DefaultResultRax,
            access.DefaultResultRbx,
            access.DefaultResultRcx,
            access.DefaultResultRdx,
        ];
        let (leaf, subleaf) = (access.Rax as u32, access.Rcx as u32);
        if self.cpuid.is_empty() || (LEAF_HYPERVISOR..LEAF_EXTENDED).contains(&leaf) {
            return live;
        }
        let entry = self
            .cpuid
            .iter()
            .find(|entry| entry.leaf == leaf && (!entry.has_subleaf || entry.subleaf == subleaf));
        let Some(entry) = entry else {
            return [0; 4];
        };
        let [_, live_ebx, live_ecx, _] = live;
        let (mut ebx, mut ecx) = (u64::from(entry.ebx), u64::from(entry.ecx));
        match leaf {
            1 => ecx = ecx & !LEAF_1_ECX_LIVE | live_ecx & LEAF_1_ECX_LIVE,
            7 => ecx = ecx & !LEAF_7_ECX_LIVE | live_ecx & LEAF_7_ECX_LIVE,
            0xd => ebx = live_ebx,
            _ => {}
        }
        [entry.eax.into(), ebx, ecx, entry.edx.into()]
    }
}

impl Vcpu for WhpVcpu {
    fn index(&self) -> u8 {
        self.index
    }

    /// Answered from when the guest executes CPUID.
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
            self.offer_pic_interrupt()
                .map_err(|source| self.refused(source))?;
            let exit = self.enter().map_err(|source| self.refused(source))?;
            let context = exit.VpContext;
            // SAFETY: the reason says which member of the union the hypervisor has filled.
            unsafe {
                match exit.ExitReason {
                    WHvRunVpExitReasonX64IoPortAccess => {
                        let access = exit.Anonymous.IoPortAccess;
                        if !self
                            .chip_port_access(&context, &access)
                            .map_err(|source| self.refused(source))?
                        {
                            return self.port_access(&context, &access);
                        }
                    }
                    WHvRunVpExitReasonMemoryAccess => {
                        let access = exit.Anonymous.MemoryAccess;
                        if !self
                            .chip_memory_access(&context, &access)
                            .map_err(|source| self.refused(source))?
                        {
                            return self.memory_access(&context, &access);
                        }
                    }
                    WHvRunVpExitReasonX64ApicEoi => {
                        let vector = exit.Anonymous.ApicEoi.InterruptVector as u8;
                        self.irq_chip
                            .end_of_interrupt(vector)
                            .map_err(|source| self.refused(source))?;
                    }
                    WHvRunVpExitReasonX64InterruptWindow => self.can_take_interrupt = true,
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
        self.irq_chip.set_present(self.number(), false);
        // SAFETY: the partition lives, and nobody runs the vCPU: this is its only owner.
        unsafe { (self.machine.library.delete_vcpu)(self.machine.handle, self.number()) };
    }
}
