//! Guest RAM and what lies outside it.

use std::path::Path;

use iced_x86::code_asm::{
    al, ax, byte_ptr, dword_ptr, dx, eax, edx, ptr, qword_ptr, rax, rdi, word_ptr,
};
use nvx_hypervisor::{PartitionOptions, Segment, SystemRegisters};
use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamLayout, RamRange};

use super::Case;
use super::machine::{
    CODE, DATA, Event, Machine, OUTSIDE_RAM, PORT, RAM_BYTES, assemble, entry_registers, low_ram,
    run, run_answering,
};

pub fn stores_outside_ram_are_exits(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(eax, 0x4433_2211u32)?;
        a.mov(byte_ptr(OUTSIDE_RAM + 1), al)?;
        a.mov(word_ptr(OUTSIDE_RAM + 2), ax)?;
        a.mov(dword_ptr(OUTSIDE_RAM + 4), eax)?;
        a.mov(dword_ptr(RAM_BYTES as u32), eax)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let value = [0x11, 0x22, 0x33, 0x44];
    for width in [1, 2, 4] {
        assert_eq!(
            run(&mut *vcpu),
            Event::MmioWrite(
                u64::from(OUTSIDE_RAM) + width as u64,
                value[..width].to_vec()
            )
        );
    }
    // The first byte behind RAM.
    assert_eq!(run(&mut *vcpu), Event::MmioWrite(RAM_BYTES, value.to_vec()));
}

pub fn loads_outside_ram_reach_the_register(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(eax, u32::MAX)?;
        a.mov(al, byte_ptr(OUTSIDE_RAM + 1))?;
        a.out(dx, eax)?;
        a.mov(eax, u32::MAX)?;
        a.mov(ax, word_ptr(OUTSIDE_RAM + 2))?;
        a.out(dx, eax)?;
        a.mov(eax, dword_ptr(OUTSIDE_RAM + 4))?;
        a.out(dx, eax)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let mut answer = vec![0x5a, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66];
    for (width, value) in [(1, 0xffff_ff5au32), (2, 0xffff_2211), (4, 0x6655_4433)] {
        assert_eq!(
            run_answering(&mut *vcpu, &mut answer),
            Event::MmioRead(u64::from(OUTSIDE_RAM) + width as u64, width)
        );
        assert_eq!(
            run(&mut *vcpu),
            Event::PortWrite(PORT, 4, value.to_le_bytes().to_vec())
        );
    }
}

pub fn guest_and_host_see_the_same_ram(case: &Case) {
    let code = assemble(32, |a| {
        let mut again = a.create_label();
        a.mov(edx, u32::from(PORT))?;
        a.set_label(&mut again)?;
        a.mov(eax, dword_ptr(DATA))?;
        a.inc(eax)?;
        a.mov(dword_ptr(RAM_BYTES as u32 - 4), eax)?;
        a.out(dx, al)?;
        a.jmp(again)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    for value in [7u32, 0xfedc_ba98] {
        machine.store(DATA, &value.to_le_bytes());
        assert!(matches!(run(&mut *vcpu), Event::PortWrite(PORT, 1, _)));
        assert_eq!(machine.u32_at(RAM_BYTES as u32 - 4), value + 1);
    }
}

/// 4 GiB, where RAM goes on behind the gap.
const ABOVE_GAP: u64 = 1 << 32;

pub fn ram_above_the_gap_is_reached(case: &Case) {
    if !has_long_mode(case) {
        case.skip("this back end has no long mode, so its guests address 4 GiB");
        return;
    }
    let code = assemble(64, |a| {
        a.mov(rdi, ABOVE_GAP + 0x3000)?;
        a.mov(rax, ptr(rdi))?;
        a.inc(rax)?;
        a.mov(qword_ptr(rdi + 8), rax)?;
        a.out(0x80, al)
    });
    let range = |start, file_offset_bytes| RamRange {
        start: GuestAddress(start),
        size_bytes: RAM_BYTES,
        file_offset_bytes,
    };
    let layout = RamLayout::new(vec![range(0, 0), range(ABOVE_GAP, RAM_BYTES)]).unwrap();
    let memory = GuestMemory::anonymous(layout).unwrap();
    let machine = Machine::with(&*case.backend, memory, PartitionOptions::default());
    machine.store(CODE, &code);
    let value = 0x0123_4567_89ab_cdefu64;
    let high = GuestAddress(ABOVE_GAP + 0x3000);
    machine.memory.write_u64(high, value).unwrap();

    let mut vcpu = machine.vcpu(&*case.backend, 0);
    let (_, reset) = vcpu.registers().unwrap();
    let system = long_mode(&machine, &reset);
    vcpu.set_registers(&entry_registers(), &system).unwrap();
    assert_eq!(run(&mut *vcpu), Event::PortWrite(0x80, 1, vec![0xf0]));
    let stored = GuestAddress(high.0 + 8);
    assert_eq!(machine.memory.read_u64(stored).unwrap(), value + 1);
}

/// CPUID leaf 0x8000_0001 EDX, bit 29 (AMD APM volume 3, appendix E).
fn has_long_mode(case: &Case) -> bool {
    let model = case.backend.cpu_model().unwrap();
    model
        .entry(0x8000_0001, 0)
        .is_some_and(|entry| entry.edx & (1 << 29) != 0)
}

/// Long mode in which the first 2 MiB and those from [`ABOVE_GAP`] are mapped to themselves.
fn long_mode(machine: &Machine, reset: &SystemRegisters) -> SystemRegisters {
    const PML4: u32 = 0x1_0000;
    const PDPT: u32 = PML4 + 0x1000;
    const LOW_DIRECTORY: u32 = PML4 + 0x2000;
    const HIGH_DIRECTORY: u32 = PML4 + 0x3000;
    const PRESENT_WRITABLE: u64 = 0b11;
    const PAGE_2_MIB: u64 = 1 << 7;
    for (entry, value) in [
        (PML4, u64::from(PDPT)),
        (PDPT, u64::from(LOW_DIRECTORY)),
        (PDPT + 4 * 8, u64::from(HIGH_DIRECTORY)),
        (LOW_DIRECTORY, PAGE_2_MIB),
        (HIGH_DIRECTORY, ABOVE_GAP | PAGE_2_MIB),
    ] {
        machine.store(entry, &(value | PRESENT_WRITABLE).to_le_bytes());
    }
    SystemRegisters {
        cs: Segment {
            // L instead of D.
            access: 0xa09b,
            ..Segment::flat_code_32(0x10)
        },
        // PG, ET, PE; PAE; LMA and LME.
        cr0: 0x8000_0011,
        cr3: u64::from(PML4),
        cr4: 1 << 5,
        efer: 1 << 10 | 1 << 8,
        ..SystemRegisters::protected_mode_entry(reset)
    }
}

pub fn dirty_log_is_exact(case: &Case) {
    let written = [DATA, DATA + 0x3000, RAM_BYTES as u32 - 4];
    let code = assemble(32, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(eax, dword_ptr(DATA + 0x1000))?;
        for address in written {
            a.mov(dword_ptr(address), eax)?;
        }
        a.out(0x80, al)?;
        a.out(0x80, al)?;
        a.jmp(again)
    });
    let options = PartitionOptions {
        log_dirty_pages: true,
    };
    let memory = GuestMemory::anonymous(low_ram()).unwrap();
    let machine = Machine::with(&*case.backend, memory, options);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let Some(log) = machine.partition.dirty_log() else {
        case.skip("this back end keeps no log of dirty pages");
        return;
    };
    let mut expected = vec![0u64; (RAM_BYTES / PAGE_SIZE_BYTES / 64) as usize];
    let nothing = expected.clone();
    for address in written {
        let page = address as usize / PAGE_SIZE_BYTES as usize;
        expected[page / 64] |= 1 << (page % 64);
    }
    assert_eq!(log.take(0).unwrap(), nothing);
    for _ in 0..2 {
        assert!(matches!(run(&mut *vcpu), Event::PortWrite(0x80, ..)));
        assert_eq!(log.take(0).unwrap(), expected);
        assert_eq!(log.take(0).unwrap(), nothing);
        assert!(matches!(run(&mut *vcpu), Event::PortWrite(0x80, ..)));
        assert_eq!(log.take(0).unwrap(), nothing);
    }
    assert!(
        Machine::new(&*case.backend).partition.dirty_log().is_none(),
        "a log that nobody asked for"
    );
}

pub fn ram_that_cannot_be_backed_is_reported(case: &Case) {
    let lost = RAM_BYTES as u32 / 2;
    for is_store in [false, true] {
        let code = assemble(32, |a| {
            if is_store {
                a.mov(dword_ptr(lost), eax)?;
            } else {
                a.mov(eax, dword_ptr(lost))?;
            }
            a.out(0x80, al)
        });
        let file = tempfile::tempfile().unwrap();
        file.set_len(RAM_BYTES).unwrap();
        let view = file.try_clone().unwrap();
        let memory = GuestMemory::private_file(low_ram(), view, Path::new("memory.bin")).unwrap();
        let machine = Machine::with(&*case.backend, memory, PartitionOptions::default());
        let mut vcpu = machine.enter32(&*case.backend, &code);
        file.set_len(u64::from(lost)).unwrap();
        let mut answer = vec![0; 4];
        let address = match run_answering(&mut *vcpu, &mut answer) {
            Event::MemoryFault(address) => address,
            Event::MmioRead(address, _) if !is_store => Some(address),
            Event::MmioWrite(address, _) if is_store => Some(address),
            other => panic!("{other:?}"),
        };
        if let Some(address) = address {
            let page = address & !(PAGE_SIZE_BYTES - 1);
            assert_eq!(page, u64::from(lost));
        }
    }
}
