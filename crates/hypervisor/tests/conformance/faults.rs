//! Guests that cannot go on.

use iced_x86::code_asm::{al, dword_ptr};

use super::Case;
use super::machine::{Event, Machine, OUTSIDE_RAM, assemble, run};

pub fn triple_fault_is_a_shutdown(case: &Case) {
    // The interrupt table is empty, so the exception cannot be delivered, nor the double fault.
    let code = assemble(32, |a| {
        a.ud2()?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    assert_eq!(run(&mut *vcpu), Event::Shutdown);
}

pub fn an_instruction_that_cannot_be_executed_is_typed(case: &Case) {
    // A processor executes an x87 load by itself, but here the operand is not in memory: the
    // hypervisor would have to execute it.
    let code = assemble(32, |a| {
        a.fld(dword_ptr(OUTSIDE_RAM))?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let event = run(&mut *vcpu);
    assert!(
        matches!(&event, Event::Unsupported(what) if !what.is_empty()),
        "{event:?}"
    );
}
