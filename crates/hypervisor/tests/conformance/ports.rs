//! Port access: widths, values, string instructions.

use iced_x86::code_asm::{al, ax, dword_ptr, dx, eax, ecx, edi, edx, esi};
use nvx_hypervisor::Vcpu;
use nvx_memory::GuestAddress;

use super::Case;
use super::machine::{DATA, Event, Machine, PORT, assemble, finish, run, run_answering};

/// A port that the guest writes when it has nothing more to do.
const DONE_PORT: u16 = PORT + 8;

pub fn writes_carry_their_width_and_value(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(eax, 0x4433_2211u32)?;
        a.out(dx, al)?;
        a.out(dx, ax)?;
        a.out(dx, eax)?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let value = [0x11, 0x22, 0x33, 0x44];
    for width in [1, 2, 4] {
        assert_eq!(
            run(&mut *vcpu),
            Event::PortWrite(PORT, width, value[..usize::from(width)].to_vec())
        );
    }
    assert_eq!(run(&mut *vcpu), Event::PortWrite(0x80, 1, vec![0x11]));
}

pub fn reads_reach_the_register_and_leave_its_upper_bits(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(eax, u32::MAX)?;
        a.in_(al, dx)?;
        a.mov(dword_ptr(DATA), eax)?;
        a.mov(eax, u32::MAX)?;
        a.in_(ax, dx)?;
        a.mov(dword_ptr(DATA + 4), eax)?;
        a.in_(eax, dx)?;
        a.mov(dword_ptr(DATA + 8), eax)?;
        a.in_(al, 0x80)?;
        a.out(dx, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let mut answer = vec![0x5a, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77];
    for width in [1, 2, 4] {
        assert_eq!(
            run_answering(&mut *vcpu, &mut answer),
            Event::PortRead(PORT, width, usize::from(width))
        );
    }
    assert_eq!(
        run_answering(&mut *vcpu, &mut answer),
        Event::PortRead(0x80, 1, 1)
    );
    assert_eq!(run(&mut *vcpu), Event::PortWrite(PORT, 1, vec![0x77]));
    assert_eq!(machine.u32_at(DATA), 0xffff_ff5a);
    assert_eq!(machine.u32_at(DATA + 4), 0xffff_2211);
    assert_eq!(machine.u32_at(DATA + 8), 0x6655_4433);
}

pub fn string_output_delivers_every_element(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        for (count, width) in [(5, 1), (3, 2), (4, 4)] {
            a.mov(esi, DATA)?;
            a.mov(ecx, count)?;
            match width {
                1 => a.rep().outsb()?,
                2 => a.rep().outsw()?,
                _ => a.rep().outsd()?,
            }
        }
        a.mov(edx, u32::from(DONE_PORT))?;
        a.out(dx, al)
    });
    let machine = Machine::new(&*case.backend);
    let bytes: Vec<u8> = (1..=16).collect();
    machine.store(DATA, &bytes);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    for (count, width) in [(5, 1), (3, 2), (4, 4)] {
        let size_bytes = count * usize::from(width);
        assert_eq!(
            collect_writes(&mut *vcpu, width, size_bytes),
            bytes[..size_bytes]
        );
    }
    assert!(matches!(run(&mut *vcpu), Event::PortWrite(DONE_PORT, 1, _)));
}

/// The bytes of a string output, in however many exits it comes.
fn collect_writes(vcpu: &mut dyn Vcpu, expected_width: u8, size_bytes: usize) -> Vec<u8> {
    let mut written = Vec::new();
    while written.len() < size_bytes {
        let Event::PortWrite(PORT, width, data) = run(vcpu) else {
            panic!("no write to the port after {written:?}");
        };
        assert_eq!(width, expected_width);
        assert!(!data.is_empty() && data.len().is_multiple_of(usize::from(width)));
        written.extend(data);
    }
    written
}

pub fn string_input_fills_memory(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(edi, DATA)?;
        a.mov(ecx, 6)?;
        a.rep().insb()?;
        a.mov(ecx, 3)?;
        a.rep().insd()?;
        a.mov(edx, u32::from(DONE_PORT))?;
        a.out(dx, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let input: Vec<u8> = (0x30..0x30 + 18).collect();
    let mut answer = input.clone();
    while !answer.is_empty() {
        let expected_width = if answer.len() > 12 { 1 } else { 4 };
        let Event::PortRead(PORT, width, wanted) = run_answering(&mut *vcpu, &mut answer) else {
            panic!("no read of the port, {} bytes are left", answer.len());
        };
        assert_eq!(width, expected_width);
        assert!(wanted.is_multiple_of(usize::from(width)));
    }
    assert!(matches!(run(&mut *vcpu), Event::PortWrite(DONE_PORT, 1, _)));
    let mut stored = vec![0; input.len() + 1];
    machine
        .memory
        .read(GuestAddress(u64::from(DATA)), &mut stored)
        .unwrap();
    assert_eq!(stored[..input.len()], input);
    assert_eq!(stored[input.len()], 0, "stored beyond the end");
    finish(&mut *vcpu);
    let (registers, _) = vcpu.registers().unwrap();
    assert_eq!(registers.rcx, 0);
    assert_eq!(registers.rdi, u64::from(DATA) + input.len() as u64);
}
