//! Conversions between the neutral registers and KVM's structures. Both directions name every
//! field, so that a new one cannot be forgotten.

use kvm_bindings::{
    KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs,
};

use crate::cpu::CpuidEntry;
use crate::registers::{Registers, Segment, SystemRegisters, TableRegister};

impl From<&kvm_regs> for Registers {
    fn from(regs: &kvm_regs) -> Self {
        let kvm_regs {
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
        } = *regs;
        Self {
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
        }
    }
}

impl From<&Registers> for kvm_regs {
    fn from(registers: &Registers) -> Self {
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
        Self {
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
        }
    }
}

impl From<&kvm_segment> for Segment {
    fn from(segment: &kvm_segment) -> Self {
        let kvm_segment {
            base,
            limit,
            selector,
            type_,
            present,
            dpl,
            db,
            s,
            l,
            g,
            avl,
            unusable,
            padding: _,
        } = *segment;
        let bit = |value: u8, at: u32| u32::from(value & 1) << at;
        Self {
            base,
            limit,
            selector: u32::from(selector),
            access: u32::from(type_ & 0xf)
                | bit(s, 4)
                | u32::from(dpl & 3) << 5
                | bit(present, 7)
                | bit(avl, 12)
                | bit(l, 13)
                | bit(db, 14)
                | bit(g, 15)
                | bit(unusable, 16),
        }
    }
}

impl From<&Segment> for kvm_segment {
    fn from(segment: &Segment) -> Self {
        let Segment {
            base,
            limit,
            selector,
            access,
        } = *segment;
        let bit = |at: u32| (access >> at & 1) as u8;
        Self {
            base,
            limit,
            selector: selector as u16,
            type_: (access & 0xf) as u8,
            present: bit(7),
            dpl: (access >> 5 & 3) as u8,
            db: bit(14),
            s: bit(4),
            l: bit(13),
            g: bit(15),
            avl: bit(12),
            unusable: bit(16),
            padding: 0,
        }
    }
}

impl From<&kvm_dtable> for TableRegister {
    fn from(table: &kvm_dtable) -> Self {
        let kvm_dtable {
            base,
            limit,
            padding: _,
        } = *table;
        Self {
            base,
            limit: u32::from(limit),
        }
    }
}

impl From<&TableRegister> for kvm_dtable {
    fn from(table: &TableRegister) -> Self {
        let TableRegister { base, limit } = *table;
        Self {
            base,
            limit: limit as u16,
            padding: [0; 3],
        }
    }
}

impl From<&kvm_sregs> for SystemRegisters {
    fn from(sregs: &kvm_sregs) -> Self {
        let kvm_sregs {
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
            interrupt_bitmap,
        } = *sregs;
        Self {
            cs: (&cs).into(),
            ds: (&ds).into(),
            es: (&es).into(),
            fs: (&fs).into(),
            gs: (&gs).into(),
            ss: (&ss).into(),
            tr: (&tr).into(),
            ldt: (&ldt).into(),
            gdt: (&gdt).into(),
            idt: (&idt).into(),
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
            apic_base,
            interrupt_bitmap: interrupt_bitmap.to_vec(),
        }
    }
}

impl From<&SystemRegisters> for kvm_sregs {
    fn from(system: &SystemRegisters) -> Self {
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
            interrupt_bitmap,
        } = system;
        let mut bitmap = [0; 4];
        for (word, value) in bitmap.iter_mut().zip(interrupt_bitmap) {
            *word = *value;
        }
        Self {
            cs: cs.into(),
            ds: ds.into(),
            es: es.into(),
            fs: fs.into(),
            gs: gs.into(),
            ss: ss.into(),
            tr: tr.into(),
            ldt: ldt.into(),
            gdt: gdt.into(),
            idt: idt.into(),
            cr0: *cr0,
            cr2: *cr2,
            cr3: *cr3,
            cr4: *cr4,
            cr8: *cr8,
            efer: *efer,
            apic_base: *apic_base,
            interrupt_bitmap: bitmap,
        }
    }
}

impl From<&kvm_cpuid_entry2> for CpuidEntry {
    fn from(entry: &kvm_cpuid_entry2) -> Self {
        let kvm_cpuid_entry2 {
            function,
            index,
            flags,
            eax,
            ebx,
            ecx,
            edx,
            padding: _,
        } = *entry;
        Self {
            leaf: function,
            subleaf: index,
            has_subleaf: flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0,
            eax,
            ebx,
            ecx,
            edx,
        }
    }
}

impl From<&CpuidEntry> for kvm_cpuid_entry2 {
    fn from(entry: &CpuidEntry) -> Self {
        let CpuidEntry {
            leaf,
            subleaf,
            has_subleaf,
            eax,
            ebx,
            ecx,
            edx,
        } = *entry;
        Self {
            function: leaf,
            index: subleaf,
            flags: if has_subleaf {
                KVM_CPUID_FLAG_SIGNIFCANT_INDEX
            } else {
                0
            },
            eax,
            ebx,
            ecx,
            edx,
            padding: [0; 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_survive_both_directions() {
        for access in [0xc09b, 0xc093, 0x8b, 0xa09b, 0x10000, 0x1000 | 0x60] {
            let segment = Segment {
                base: 0x1234_5678_9abc,
                limit: 0xffff_f000,
                selector: 0x33,
                access,
            };
            assert_eq!(Segment::from(&kvm_segment::from(&segment)), segment);
        }
    }
}
