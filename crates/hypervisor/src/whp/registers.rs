//! Registers between the neutral form and WHP's names and values.

use windows_sys::Win32::System::Hypervisor::*;

use super::library::checked;
use super::partition::Machine;
use crate::error::SystemError;
use crate::registers::{Registers, Segment, SystemRegisters, TableRegister};

/// Segment attributes: the segment is present.
const ATTRIBUTE_PRESENT: u16 = 1 << 7;

const GENERAL: [WHV_REGISTER_NAME; 18] = [
    WHvX64RegisterRax,
    WHvX64RegisterRbx,
    WHvX64RegisterRcx,
    WHvX64RegisterRdx,
    WHvX64RegisterRsi,
    WHvX64RegisterRdi,
    WHvX64RegisterRsp,
    WHvX64RegisterRbp,
    WHvX64RegisterR8,
    WHvX64RegisterR9,
    WHvX64RegisterR10,
    WHvX64RegisterR11,
    WHvX64RegisterR12,
    WHvX64RegisterR13,
    WHvX64RegisterR14,
    WHvX64RegisterR15,
    WHvX64RegisterRip,
    WHvX64RegisterRflags,
];
const SEGMENTS: [WHV_REGISTER_NAME; 8] = [
    WHvX64RegisterCs,
    WHvX64RegisterDs,
    WHvX64RegisterEs,
    WHvX64RegisterFs,
    WHvX64RegisterGs,
    WHvX64RegisterSs,
    WHvX64RegisterTr,
    WHvX64RegisterLdtr,
];
const TABLES: [WHV_REGISTER_NAME; 2] = [WHvX64RegisterGdtr, WHvX64RegisterIdtr];
const CONTROL: [WHV_REGISTER_NAME; 7] = [
    WHvX64RegisterCr0,
    WHvX64RegisterCr2,
    WHvX64RegisterCr3,
    WHvX64RegisterCr4,
    WHvX64RegisterCr8,
    WHvX64RegisterEfer,
    WHvX64RegisterApicBase,
];

impl Machine {
    /// Reads registers of a vCPU.
    pub(super) fn get(
        &self,
        vcpu: u32,
        names: &[WHV_REGISTER_NAME],
    ) -> Result<Vec<WHV_REGISTER_VALUE>, SystemError> {
        let mut values = vec![WHV_REGISTER_VALUE::default(); names.len()];
        // SAFETY: both arrays have the length that is given, and live until the call returns.
        let result = unsafe {
            (self.library.get_registers)(
                self.handle,
                vcpu,
                names.as_ptr(),
                names.len() as u32,
                values.as_mut_ptr(),
            )
        };
        checked("WHvGetVirtualProcessorRegisters", result)?;
        Ok(values)
    }

    /// Writes registers of a vCPU.
    pub(super) fn set(
        &self,
        vcpu: u32,
        names: &[WHV_REGISTER_NAME],
        values: &[WHV_REGISTER_VALUE],
    ) -> Result<(), SystemError> {
        let count = names.len().min(values.len()) as u32;
        // SAFETY: both arrays have at least the length that is given, and live until the call returns.
        let result = unsafe {
            (self.library.set_registers)(self.handle, vcpu, names.as_ptr(), count, values.as_ptr())
        };
        checked("WHvSetVirtualProcessorRegisters", result)
    }

    /// Reads one register of 64 bits or fewer.
    pub(super) fn get_one(&self, vcpu: u32, name: WHV_REGISTER_NAME) -> Result<u64, SystemError> {
        Ok(self.get(vcpu, &[name])?.first().map_or(0, number))
    }

    /// Writes one register of 64 bits or fewer.
    pub(super) fn set_one(
        &self,
        vcpu: u32,
        name: WHV_REGISTER_NAME,
        value: u64,
    ) -> Result<(), SystemError> {
        self.set(vcpu, &[name], &[of_number(value)])
    }

    /// The lower half of what the monitor has given a vCPU to meet at its next run.
    pub(super) fn get_event(&self, vcpu: u32) -> Result<u64, SystemError> {
        let values = self.get(vcpu, &[WHvRegisterPendingEvent])?;
        // SAFETY: every bit pattern is a number.
        Ok(values.first().map_or(0, |value| unsafe { value.Reg64 }))
    }

    pub(super) fn get_registers(
        &self,
        vcpu: u32,
    ) -> Result<(Registers, SystemRegisters), SystemError> {
        let general: Vec<u64> = self.get(vcpu, &GENERAL)?.iter().map(number).collect();
        let segments: Vec<Segment> = self.get(vcpu, &SEGMENTS)?.iter().map(segment).collect();
        let tables: Vec<TableRegister> = self.get(vcpu, &TABLES)?.iter().map(table).collect();
        let control: Vec<u64> = self.get(vcpu, &CONTROL)?.iter().map(number).collect();
        let short = || SystemError {
            call: "WHvGetVirtualProcessorRegisters",
            source: std::io::ErrorKind::InvalidData.into(),
        };
        let &[
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags,
        ] = general.as_slice()
        else {
            return Err(short());
        };
        let &[cs, ds, es, fs, gs, ss, tr, ldt] = segments.as_slice() else {
            return Err(short());
        };
        let &[gdt, idt] = tables.as_slice() else {
            return Err(short());
        };
        let &[cr0, cr2, cr3, cr4, cr8, efer, apic_base] = control.as_slice() else {
            return Err(short());
        };
        Ok((
            Registers {
                rax,
                rbx,
                rcx,
                rdx,
                rsi,
                rdi,
                rsp,
                rbp,
                r8,
                r9,
                r10,
                r11,
                r12,
                r13,
                r14,
                r15,
                rip,
                rflags,
            },
            SystemRegisters {
                cs,
                ds,
                es,
                fs,
                gs,
                ss,
                tr,
                ldt,
                gdt,
                idt,
                cr0,
                cr2,
                cr3,
                cr4,
                cr8,
                efer,
                apic_base,
                interrupt_bitmap: Vec::new(),
            },
        ))
    }

    pub(super) fn set_all_registers(
        &self,
        vcpu: u32,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError> {
        let Registers {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags,
        } = *registers;
        let SystemRegisters {
            cs,
            ds,
            es,
            fs,
            gs,
            ss,
            tr,
            ldt,
            gdt,
            idt,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
            apic_base,
            interrupt_bitmap: _,
        } = system;
        // Control registers first: what a segment may be depends on the mode.
        let control = [*cr0, *cr2, *cr3, *cr4, *cr8, *efer, *apic_base];
        self.set(vcpu, &CONTROL, &control.map(of_number))?;
        let segments = [cs, ds, es, fs, gs, ss, tr, ldt].map(of_segment);
        self.set(vcpu, &SEGMENTS, &segments)?;
        self.set(vcpu, &TABLES, &[of_table(gdt), of_table(idt)])?;
        let general = [
            rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip,
            rflags,
        ];
        self.set(vcpu, &GENERAL, &general.map(of_number))
    }
}

/// The value of a register of 64 bits or fewer.
pub(super) fn number(value: &WHV_REGISTER_VALUE) -> u64 {
    // SAFETY: every bit pattern is a number.
    unsafe { value.Reg64 }
}

pub(super) fn of_number(value: u64) -> WHV_REGISTER_VALUE {
    WHV_REGISTER_VALUE { Reg64: value }
}

fn segment(value: &WHV_REGISTER_VALUE) -> Segment {
    // SAFETY: every bit pattern is a segment register.
    let (found, attributes) = unsafe { (value.Segment, value.Segment.Anonymous.Attributes) };
    let unusable = match attributes & ATTRIBUTE_PRESENT {
        0 => Segment::UNUSABLE,
        _ => 0,
    };
    Segment {
        base: found.Base,
        limit: found.Limit,
        selector: u32::from(found.Selector),
        access: u32::from(attributes) | unusable,
    }
}

fn of_segment(segment: &Segment) -> WHV_REGISTER_VALUE {
    let attributes = match segment.access & Segment::UNUSABLE {
        0 => segment.access as u16,
        _ => segment.access as u16 & !ATTRIBUTE_PRESENT,
    };
    WHV_REGISTER_VALUE {
        Segment: WHV_X64_SEGMENT_REGISTER {
            Base: segment.base,
            Limit: segment.limit,
            Selector: segment.selector as u16,
            Anonymous: WHV_X64_SEGMENT_REGISTER_0 {
                Attributes: attributes,
            },
        },
    }
}

fn table(value: &WHV_REGISTER_VALUE) -> TableRegister {
    // SAFETY: every bit pattern is a table register.
    let found = unsafe { value.Table };
    TableRegister {
        base: found.Base,
        limit: u32::from(found.Limit),
    }
}

fn of_table(table: &TableRegister) -> WHV_REGISTER_VALUE {
    WHV_REGISTER_VALUE {
        Table: WHV_X64_TABLE_REGISTER {
            Pad: [0; 3],
            Limit: table.limit as u16,
            Base: table.base,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_tables_come_back_as_they_went() {
        let code = Segment::flat_code_32(0x10);
        assert_eq!(segment(&of_segment(&code)), code);
        let unusable = Segment {
            access: Segment::UNUSABLE,
            ..Default::default()
        };
        assert_eq!(segment(&of_segment(&unusable)), unusable);
        let gdt = TableRegister {
            base: 0x1234,
            limit: 0x17,
        };
        assert_eq!(table(&of_table(&gdt)), gdt);
        assert_eq!(number(&of_number(u64::MAX)), u64::MAX);
    }

    #[test]
    fn the_structures_are_those_of_the_documentation() {
        assert_eq!(size_of::<WHV_REGISTER_VALUE>(), 16);
        assert_eq!(size_of::<WHV_RUN_VP_EXIT_CONTEXT>(), 224);
        assert_eq!(size_of::<WHV_VP_EXIT_CONTEXT>(), 40);
        assert_eq!(size_of::<WHV_X64_IO_PORT_ACCESS_CONTEXT>(), 96);
        assert_eq!(size_of::<WHV_MEMORY_ACCESS_CONTEXT>(), 40);
        assert_eq!(size_of::<WHV_X64_MSR_ACCESS_CONTEXT>(), 24);
    }
}
