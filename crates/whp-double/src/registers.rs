//! The registers of one vCPU by their WHP names.

use std::collections::BTreeMap;

use nvx_hypervisor::{Registers, Segment, SystemRegisters, TableRegister};
use windows_sys::Win32::System::Hypervisor::*;

use crate::{exit, refuse};

/// Registers that the software CPU does not have: they keep what was written to them.
const KEPT: [WHV_REGISTER_NAME; 24] = [
    WHvX64RegisterXCr0,
    WHvX64RegisterDr0,
    WHvX64RegisterDr1,
    WHvX64RegisterDr2,
    WHvX64RegisterDr3,
    WHvX64RegisterDr6,
    WHvX64RegisterDr7,
    WHvX64RegisterSysenterCs,
    WHvX64RegisterSysenterEsp,
    WHvX64RegisterSysenterEip,
    WHvX64RegisterPat,
    WHvX64RegisterMsrMtrrDefType,
    WHvX64RegisterStar,
    WHvX64RegisterLstar,
    WHvX64RegisterCstar,
    WHvX64RegisterSfmask,
    WHvX64RegisterKernelGsBase,
    WHvX64RegisterTscAux,
    WHvRegisterPendingInterruption,
    WHvRegisterInterruptState,
    WHvRegisterInternalActivityState,
    WHvX64RegisterApicBase,
    WHvRegisterPendingEvent,
    WHvX64RegisterDeliverabilityNotifications,
];

/// MSRs that the hypervisor keeps by itself.
const MSRS: [(u32, WHV_REGISTER_NAME); 10] = [
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
];

/// All registers but the time-stamp counter.
pub struct RegisterFile {
    pub general: Registers,
    pub system: SystemRegisters,
    kept: BTreeMap<WHV_REGISTER_NAME, u64>,
}

impl RegisterFile {
    pub fn new(index: u32, general: Registers, system: SystemRegisters) -> Self {
        let mut kept: BTreeMap<_, _> = KEPT.iter().map(|name| (*name, 0)).collect();
        // All but the first wait for INIT; the first one is the one that boots (APIC base, bit 8).
        kept.insert(WHvRegisterInternalActivityState, u64::from(index != 0));
        kept.insert(
            WHvX64RegisterApicBase,
            0xfee0_0800 | u64::from(index == 0) << 8,
        );
        kept.insert(WHvX64RegisterXCr0, 1);
        Self {
            general,
            system,
            kept,
        }
    }

    /// A register that only keeps what is written to it.
    pub fn kept(&mut self, name: WHV_REGISTER_NAME) -> &mut u64 {
        self.kept.entry(name).or_default()
    }

    /// An MSR that the hypervisor keeps by itself.
    pub fn msr(&mut self, index: u32) -> Option<&mut u64> {
        let (_, name) = MSRS.iter().find(|(known, _)| *known == index)?;
        self.kept.get_mut(name)
    }

    pub fn get(&mut self, name: WHV_REGISTER_NAME) -> WHV_REGISTER_VALUE {
        if let Some(segment) = self.segment(name) {
            return of_segment(segment);
        }
        if let Some(table) = self.table(name) {
            return WHV_REGISTER_VALUE {
                Table: WHV_X64_TABLE_REGISTER {
                    Pad: [0; 3],
                    Limit: table.limit as u16,
                    Base: table.base,
                },
            };
        }
        match self.number(name) {
            Some(number) => WHV_REGISTER_VALUE { Reg64: *number },
            None => refuse(
                "WHvGetVirtualProcessorRegisters",
                &format!("register {name:#x}"),
            ),
        }
    }

    pub fn set(&mut self, name: WHV_REGISTER_NAME, value: &WHV_REGISTER_VALUE) {
        if let Some(segment) = self.segment(name) {
            // SAFETY: every bit pattern is a segment register.
            let (found, attributes) =
                unsafe { (value.Segment, value.Segment.Anonymous.Attributes) };
            *segment = Segment {
                base: found.Base,
                limit: found.Limit,
                selector: u32::from(found.Selector),
                access: u32::from(attributes),
            };
            return;
        }
        if let Some(table) = self.table(name) {
            // SAFETY: every bit pattern is a table register.
            let found = unsafe { value.Table };
            *table = TableRegister {
                base: found.Base,
                limit: u32::from(found.Limit),
            };
            return;
        }
        match self.number(name) {
            // SAFETY: every bit pattern is a number.
            Some(number) => *number = unsafe { value.Reg64 },
            None => refuse(
                "WHvSetVirtualProcessorRegisters",
                &format!("register {name:#x}"),
            ),
        }
    }

    fn segment(&mut self, name: WHV_REGISTER_NAME) -> Option<&mut Segment> {
        let system = &mut self.system;
        Some(match name {
            WHvX64RegisterCs => &mut system.cs,
            WHvX64RegisterDs => &mut system.ds,
            WHvX64RegisterEs => &mut system.es,
            WHvX64RegisterFs => &mut system.fs,
            WHvX64RegisterGs => &mut system.gs,
            WHvX64RegisterSs => &mut system.ss,
            WHvX64RegisterTr => &mut system.tr,
            WHvX64RegisterLdtr => &mut system.ldt,
            _ => return None,
        })
    }

    fn table(&mut self, name: WHV_REGISTER_NAME) -> Option<&mut TableRegister> {
        match name {
            WHvX64RegisterGdtr => Some(&mut self.system.gdt),
            WHvX64RegisterIdtr => Some(&mut self.system.idt),
            _ => None,
        }
    }

    fn number(&mut self, name: WHV_REGISTER_NAME) -> Option<&mut u64> {
        let (general, system) = (&mut self.general, &mut self.system);
        Some(match name {
            WHvX64RegisterRax => &mut general.rax,
            WHvX64RegisterRbx => &mut general.rbx,
            WHvX64RegisterRcx => &mut general.rcx,
            WHvX64RegisterRdx => &mut general.rdx,
            WHvX64RegisterRsi => &mut general.rsi,
            WHvX64RegisterRdi => &mut general.rdi,
            WHvX64RegisterRsp => &mut general.rsp,
            WHvX64RegisterRbp => &mut general.rbp,
            WHvX64RegisterR8 => &mut general.r8,
            WHvX64RegisterR9 => &mut general.r9,
            WHvX64RegisterR10 => &mut general.r10,
            WHvX64RegisterR11 => &mut general.r11,
            WHvX64RegisterR12 => &mut general.r12,
            WHvX64RegisterR13 => &mut general.r13,
            WHvX64RegisterR14 => &mut general.r14,
            WHvX64RegisterR15 => &mut general.r15,
            WHvX64RegisterRip => &mut general.rip,
            WHvX64RegisterRflags => &mut general.rflags,
            WHvX64RegisterCr0 => &mut system.cr0,
            WHvX64RegisterCr2 => &mut system.cr2,
            WHvX64RegisterCr3 => &mut system.cr3,
            WHvX64RegisterCr4 => &mut system.cr4,
            WHvX64RegisterCr8 => &mut system.cr8,
            WHvX64RegisterEfer => &mut system.efer,
            _ => return self.kept.get_mut(&name),
        })
    }
}

fn of_segment(segment: &Segment) -> WHV_REGISTER_VALUE {
    WHV_REGISTER_VALUE {
        Segment: exit::of_segment(segment),
    }
}
