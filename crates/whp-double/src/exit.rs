//! What a run ends with, and the structure that tells the monitor of it.

use std::arch::x86_64::__cpuid_count;

use nvx_hypervisor::Segment;
use nvx_memory::GuestAddress;
use windows_sys::Win32::System::Hypervisor::*;

use crate::instructions::{self, StringPort};
use crate::refuse;
use crate::vcpu::State;

/// `WHV_X64_IO_PORT_ACCESS_INFO`.
const PORT_IS_WRITE: u32 = 1;
const PORT_SIZE_SHIFT: u32 = 1;
const PORT_IS_STRING: u32 = 1 << 4;
const PORT_REPEATS: u32 = 1 << 5;
/// `WHV_MEMORY_ACCESS_INFO`: the kind of access; the guest-physical address is not mapped.
const ACCESS_WRITE: u32 = 1;
const ACCESS_UNMAPPED: u32 = 1 << 2;
/// Bytes of CPUID, RDMSR and WRMSR.
const SHORT_INSTRUCTION: u8 = 2;

/// What an exit is reported by, without the pieces that it borrows.
pub enum Met {
    Port {
        port: u16,
        width: u8,
        is_write: bool,
    },
    StringPort(StringPort),
    Load(u64),
    Store {
        address: u64,
        width: usize,
    },
    Cpuid,
    Msr {
        is_write: bool,
    },
    EndOfInterrupt(u8),
    InterruptWindow,
    Halt,
    Cancel,
    Refused(String),
}

impl State {
    /// The exit as the hypervisor reports it: at the instruction, not behind it.
    pub fn context(&mut self, met: Met) -> WHV_RUN_VP_EXIT_CONTEXT {
        let mut context = WHV_RUN_VP_EXIT_CONTEXT::default();
        let rax = self.registers.general.rax;
        match met {
            Met::Halt | Met::Cancel => context.ExitReason = WHvRunVpExitReasonCanceled,
            Met::Refused(reason) => {
                eprintln!("whp-double: {reason}");
                context.ExitReason = WHvRunVpExitReasonUnrecoverableException;
            }
            Met::Load(address) => self.tell_memory(&mut context, address, 0),
            Met::Store { address, .. } => self.tell_memory(&mut context, address, ACCESS_WRITE),
            Met::Cpuid => {
                context.ExitReason = WHvRunVpExitReasonX64Cpuid;
                context.VpContext._bitfield = SHORT_INSTRUCTION;
                let (leaf, subleaf) = (rax as u32, self.registers.general.rcx as u32);
                let found = __cpuid_count(leaf, subleaf);
                context.Anonymous.CpuidAccess = WHV_X64_CPUID_ACCESS_CONTEXT {
                    Rax: rax,
                    Rcx: self.registers.general.rcx,
                    Rdx: self.registers.general.rdx,
                    Rbx: self.registers.general.rbx,
                    DefaultResultRax: found.eax.into(),
                    DefaultResultRcx: found.ecx.into(),
                    DefaultResultRdx: found.edx.into(),
                    DefaultResultRbx: found.ebx.into(),
                };
            }
            Met::Msr { is_write } => {
                context.ExitReason = WHvRunVpExitReasonX64MsrAccess;
                context.VpContext._bitfield = SHORT_INSTRUCTION;
                let mut access = WHV_X64_MSR_ACCESS_CONTEXT {
                    MsrNumber: self.registers.general.rcx as u32,
                    Rax: rax,
                    Rdx: self.registers.general.rdx,
                    ..Default::default()
                };
                access.AccessInfo.AsUINT32 = u32::from(is_write);
                context.Anonymous.MsrAccess = access;
            }
            Met::EndOfInterrupt(vector) => {
                context.ExitReason = WHvRunVpExitReasonX64ApicEoi;
                context.Anonymous.ApicEoi.InterruptVector = vector.into();
            }
            Met::InterruptWindow => {
                context.ExitReason = WHvRunVpExitReasonX64InterruptWindow;
                context.Anonymous.InterruptWindow.DeliverableType = WHvX64PendingInterrupt;
            }
            Met::StringPort(string) => self.tell_string(&mut context, &string),
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
                    Rax: rax,
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

    fn tell_memory(&self, context: &mut WHV_RUN_VP_EXIT_CONTEXT, address: u64, kind: u32) {
        context.ExitReason = WHvRunVpExitReasonMemoryAccess;
        let (bytes, length) = instructions::fetch(&self.memory, self.registers.general.rip);
        let mut access = WHV_MEMORY_ACCESS_CONTEXT {
            InstructionByteCount: length as u8,
            InstructionBytes: bytes,
            Gpa: address,
            Gva: address,
            ..Default::default()
        };
        access.AccessInfo.AsUINT32 = kind | ACCESS_UNMAPPED;
        context.Anonymous.MemoryAccess = access;
    }

    fn tell_string(&self, context: &mut WHV_RUN_VP_EXIT_CONTEXT, string: &StringPort) {
        context.ExitReason = WHvRunVpExitReasonX64IoPortAccess;
        let (general, system) = (&self.registers.general, &self.registers.system);
        let mut access = WHV_X64_IO_PORT_ACCESS_CONTEXT {
            InstructionByteCount: string.length,
            InstructionBytes: string.bytes,
            PortNumber: string.port,
            Rax: general.rax,
            Rcx: general.rcx,
            Rsi: general.rsi,
            Rdi: general.rdi,
            Ds: of_segment(&system.ds),
            Es: of_segment(&system.es),
            ..Default::default()
        };
        access.AccessInfo.AsUINT32 = u32::from(string.is_write) * PORT_IS_WRITE
            | u32::from(string.width) << PORT_SIZE_SHIFT
            | PORT_IS_STRING
            | u32::from(string.repeats) * PORT_REPEATS;
        context.Anonymous.IoPortAccess = access;
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

pub fn of_segment(segment: &Segment) -> WHV_X64_SEGMENT_REGISTER {
    WHV_X64_SEGMENT_REGISTER {
        Base: segment.base,
        Limit: segment.limit,
        Selector: segment.selector as u16,
        Anonymous: WHV_X64_SEGMENT_REGISTER_0 {
            Attributes: segment.access as u16,
        },
    }
}
