//! Registers are set and read back.

use nvx_hypervisor::{Registers, Segment, SystemRegisters, TableRegister};

use super::Case;
use super::machine::Machine;

pub fn general_registers_read_back(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.vcpu(&*case.backend, 0);
    let (_, system) = vcpu.registers().unwrap();
    let nth = |n: u64| n << 56 | 0x00aa_bb00_1122_3300 | n;
    let registers = Registers {
        rax: nth(1),
        rbx: nth(2),
        rcx: nth(3),
        rdx: nth(4),
        rsi: nth(5),
        rdi: nth(6),
        rsp: nth(7),
        rbp: nth(8),
        r8: nth(9),
        r9: nth(10),
        r10: nth(11),
        r11: nth(12),
        r12: nth(13),
        r13: nth(14),
        r14: nth(15),
        r15: nth(16),
        rip: 0x1234_5678,
        // Carry, direction and the bit that is always set.
        rflags: 0x403,
    };
    vcpu.set_registers(&registers, &system).unwrap();
    assert_eq!(vcpu.registers().unwrap(), (registers, system));
}

pub fn system_registers_read_back(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.vcpu(&*case.backend, 0);
    let (registers, reset) = vcpu.registers().unwrap();
    let data = |selector, base| Segment {
        base,
        ..Segment::flat_data_32(selector)
    };
    let system = SystemRegisters {
        ds: data(0x18, 0x1000),
        es: data(0x20, 0x2000),
        fs: data(0x28, 0x1234_5678),
        gs: data(0x30, 0xfedc_b000),
        ldt: Segment {
            base: 0x7000,
            limit: 0x3f,
            selector: 0x38,
            access: 0x82,
        },
        gdt: TableRegister {
            base: 0x5000,
            limit: 0x7f,
        },
        idt: TableRegister {
            base: 0x6000,
            limit: 0x7ff,
        },
        // NE, ET, MP, PE without paging.
        cr0: 0x33,
        cr2: 0xdead_b000,
        cr3: 0x9000,
        // OSXMMEXCPT, OSFXSR, PGE.
        cr4: 0x680,
        cr8: 5,
        ..SystemRegisters::protected_mode_entry(&reset)
    };
    vcpu.set_registers(&registers, &system).unwrap();
    assert_eq!(vcpu.registers().unwrap(), (registers, system));
}
