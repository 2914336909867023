//! The one processor mode that the software CPU has, and the state after reset.

use crate::registers::{Registers, Segment, SystemRegisters, TableRegister};

/// CR0: protection enabled, and ET, which always reads as 1 on real processors.
const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
/// RFLAGS: trap flag and virtual-8086 mode.
const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_VM: u64 = 1 << 17;
/// Access rights: 32-bit default size; segment present; not a system segment; code.
const ACCESS_32_BIT: u32 = 1 << 14;
const ACCESS_PRESENT: u32 = 1 << 7;
const ACCESS_NOT_SYSTEM: u32 = 1 << 4;
const ACCESS_CODE: u32 = 1 << 3;

/// Why code cannot run with these registers; `None` if it can: 32-bit protected mode, flat
/// segments, no paging.
pub(super) fn refusal(registers: &Registers, system: &SystemRegisters) -> Option<String> {
    if system.cr0 & !CR0_ET != CR0_PE {
        return Some(format!(
            "CR0 is {:#x}, and only protected mode without paging is executed",
            system.cr0
        ));
    }
    for (name, value) in [("CR4", system.cr4), ("EFER", system.efer)] {
        if value != 0 {
            return Some(format!("{name} is {value:#x}, and must be 0"));
        }
    }
    if registers.rflags & (RFLAGS_TF | RFLAGS_VM) != 0 {
        return Some(format!(
            "RFLAGS is {:#x}, and neither single stepping nor virtual-8086 mode is executed",
            registers.rflags
        ));
    }
    if registers.rip > u64::from(u32::MAX) {
        return Some(format!("RIP is {:#x}, beyond 4 GiB", registers.rip));
    }
    [
        ("CS", &system.cs, true),
        ("DS", &system.ds, false),
        ("ES", &system.es, false),
        ("SS", &system.ss, false),
    ]
    .into_iter()
    .find(|(_, segment, is_code)| !is_flat(segment, *is_code))
    .map(|(name, segment, _)| {
        format!(
            "{name} has base {:#x}, limit {:#x} and access rights {:#x}, and must be a flat \
             32-bit segment",
            segment.base, segment.limit, segment.access
        )
    })
}

fn is_flat(segment: &Segment, is_code: bool) -> bool {
    let needed = ACCESS_PRESENT | ACCESS_NOT_SYSTEM | ACCESS_32_BIT;
    segment.base == 0
        && segment.limit == u32::MAX
        && segment.access & needed == needed
        && (segment.access & ACCESS_CODE != 0) == is_code
        && segment.access & Segment::UNUSABLE == 0
}

/// Registers after reset (Intel SDM volume 3, table 10-1).
pub(super) fn after_reset() -> (Registers, SystemRegisters) {
    let registers = Registers {
        rip: 0xfff0,
        rflags: 2,
        ..Default::default()
    };
    let data = Segment {
        base: 0,
        limit: 0xffff,
        selector: 0,
        access: 0x93,
    };
    let table = TableRegister {
        base: 0,
        limit: 0xffff,
    };
    let system = SystemRegisters {
        cs: Segment {
            base: 0xffff_0000,
            selector: 0xf000,
            access: 0x9b,
            ..data
        },
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr: Segment {
            access: 0x8b,
            ..data
        },
        ldt: Segment {
            access: 0x82,
            ..data
        },
        gdt: table,
        idt: table,
        cr0: 0x6000_0010,
        cr2: 0,
        cr3: 0,
        cr4: 0,
        cr8: 0,
        efer: 0,
        apic_base: 0,
        interrupt_bitmap: Vec::new(),
    };
    (registers, system)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> (Registers, SystemRegisters) {
        let (registers, reset) = after_reset();
        (registers, SystemRegisters::protected_mode_entry(&reset))
    }

    #[test]
    fn the_pvh_entry_state_is_executed() {
        let (registers, mut system) = entry();
        assert_eq!(refusal(&registers, &system), None);
        system.cr0 |= CR0_ET;
        assert_eq!(refusal(&registers, &system), None);
    }

    #[test]
    fn every_other_mode_is_refused_by_name() {
        type Change = fn(&mut Registers, &mut SystemRegisters);
        let changes: [(&str, Change); 11] = [
            ("CR0", |_, system| *system = after_reset().1),
            ("CR0", |_, system| system.cr0 = 0x8000_0001),
            ("CR4", |_, system| system.cr4 = 0x20),
            ("EFER", |_, system| system.efer = 0x500),
            ("RFLAGS", |registers, _| registers.rflags = 0x102),
            ("RIP", |registers, _| registers.rip = 1 << 32),
            ("CS", |_, system| system.cs.base = 0x1000),
            ("CS", |_, system| system.cs.access = 0xc093),
            ("DS", |_, system| system.ds.limit = 0xffff),
            ("ES", |_, system| system.es.access |= Segment::UNUSABLE),
            ("SS", |_, system| system.ss.access = 0x8093),
        ];
        for (name, change) in changes {
            let (mut registers, mut system) = entry();
            change(&mut registers, &mut system);
            let text = refusal(&registers, &system).expect(name);
            assert!(text.starts_with(name), "{text}");
        }
    }
}
