//! State that is saved here and restored into another partition.

use iced_x86::code_asm::{dword_ptr, dx, eax, edx};
use nvx_hypervisor::{DebugRegisters, IrqChipState, PendingEvents, RunState, VcpuState};

use super::Case;
use super::machine::{CODE, Captured, DATA, Event, Machine, PORT, assemble, finish, run};

/// Time-stamp counter (Intel SDM volume 4, table 2-2); it goes on between save and restore.
const MSR_TSC: u32 = 0x10;

/// Counts in a register and in memory, and writes the register to the port.
fn counting_guest() -> Vec<u8> {
    assemble(32, |a| {
        let mut again = a.create_label();
        a.mov(edx, u32::from(PORT))?;
        a.set_label(&mut again)?;
        a.inc(eax)?;
        a.inc(dword_ptr(DATA))?;
        a.out(dx, eax)?;
        a.jmp(again)
    })
}

fn count(value: u32) -> Event {
    Event::PortWrite(PORT, 4, value.to_le_bytes().to_vec())
}

pub fn a_restored_guest_goes_on_where_it_stopped(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpus = [machine.enter32(&*case.backend, &counting_guest())];
    for value in 1..=5 {
        assert_eq!(run(&mut *vcpus[0]), count(value));
    }
    finish(&mut *vcpus[0]);
    let captured = Captured::of(&machine, &mut vcpus);

    // Two machines of one capture, and the source: none disturbs another.
    vcpus[0].clear_stop();
    for _ in 0..2 {
        let (restored, mut restored_vcpus) = captured.restore(&*case.backend, &[]);
        for value in 6..=9 {
            assert_eq!(run(&mut *restored_vcpus[0]), count(value));
            assert_eq!(restored.u32_at(DATA), value);
        }
    }
    assert_eq!(run(&mut *vcpus[0]), count(6));
    assert_eq!(machine.u32_at(DATA), 6);
}

/// Takes the time-stamp counter out of a state.
fn take_tsc(state: &mut VcpuState) -> Option<u64> {
    let at = state.msrs.iter().position(|msr| msr.index == MSR_TSC)?;
    Some(state.msrs.remove(at).value)
}

fn assert_same_bytes(name: &str, before: &[u8], after: &[u8]) {
    assert_eq!(before.len(), after.len(), "length of {name}");
    for (offset, (before, after)) in before.iter().zip(after).enumerate() {
        assert_eq!(before, after, "{name} at {offset:#x}");
    }
}

/// Asserts that two states differ in nothing but the time that passed.
fn assert_same(mut before: VcpuState, mut after: VcpuState) {
    let (earlier, later) = (take_tsc(&mut before), take_tsc(&mut after));
    assert!(earlier <= later, "TSC went from {earlier:x?} to {later:x?}");
    for (before, after) in before.msrs.iter().zip(&after.msrs) {
        assert_eq!(before, after, "MSR {:#x}", before.index);
    }
    assert_eq!(before.registers, after.registers);
    assert_eq!(before.system_registers, after.system_registers);
    assert_eq!(before.debug_registers, after.debug_registers);
    assert_eq!(before.events, after.events);
    assert_same_bytes("XSAVE area", &before.xsave, &after.xsave);
    assert_same_bytes("local APIC", &before.lapic, &after.lapic);
    assert!(before == after, "another element differs");
}

/// A back end may save a vCPU that is held in another way than one that is not.
pub fn a_held_vcpu_saves_the_same_state(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &counting_guest());
    for value in 1..=3 {
        assert_eq!(run(&mut *vcpu), count(value));
    }
    finish(&mut *vcpu);
    let held = vcpu.save().unwrap();
    vcpu.clear_stop();
    assert_same(held, vcpu.save().unwrap());
    assert_eq!(run(&mut *vcpu), count(4));
    // A later save is not the first one again.
    finish(&mut *vcpu);
    let later = vcpu.save().unwrap();
    assert_eq!(later.registers.map(|registers| registers.rax), Some(4));
}

pub fn a_restored_vcpu_saves_the_same_state(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpus = [machine.enter32(&*case.backend, &counting_guest())];
    assert_eq!(run(&mut *vcpus[0]), count(1));
    finish(&mut *vcpus[0]);
    let captured = Captured::of(&machine, &mut vcpus);
    assert_same(captured.vcpus[0].clone(), vcpus[0].save().unwrap());

    let (restored, mut restored_vcpus) = captured.restore(&*case.backend, &[]);
    let again = Captured::of(&restored, &mut restored_vcpus);
    assert_same(captured.vcpus[0].clone(), again.vcpus[0].clone());
    assert_eq!(
        captured.irq_chip.map(without_load_times),
        again.irq_chip.map(without_load_times)
    );
    if let (Some(before), Some(after)) = (captured.clock, again.clock) {
        assert!(before.guest_ns <= after.guest_ns);
    }
}

/// Clears what a KVM interrupt chip keeps in the host's own time: when each channel of the PIT
/// was loaded (`count_load_time` of `kvm_pit_channel_state`), which a restore sets anew.
fn without_load_times(mut chip: IrqChipState) -> IrqChipState {
    if chip.layout == "kvm" {
        for channel in chip.pit[..72].chunks_exact_mut(24) {
            channel[16..].fill(0);
        }
    }
    chip
}

/// Puts a little-endian word into a byte field.
fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn every_element_keeps_unusual_values(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut state = machine.vcpu(&*case.backend, 0).save().unwrap();
    make_unusual(case, &mut state);
    let other = Machine::new(&*case.backend);
    let mut vcpu = other.partition.create_vcpu(0).unwrap();
    vcpu.restore(&state).unwrap();
    assert_same(state, vcpu.save().unwrap());
}

/// Gives each element that `state` has a value that no reset leaves there.
fn make_unusual(case: &Case, state: &mut VcpuState) {
    if let Some(registers) = &mut state.registers {
        registers.rbx = 0x1122_3344_5566_7788;
        registers.r15 = 0x99aa_bbcc_ddee_ff00;
    }
    if let Some(system) = &mut state.system_registers {
        system.cr2 = 0x1234_5000;
    }
    if !state.xsave.is_empty() {
        // XMM1, and in XSTATE_BV that the SSE state is in use (Intel SDM volume 1, 13.4.1 and
        // 13.4.2).
        state.xsave[176..192].copy_from_slice(&[0xc3; 16]);
        state.xsave[512] |= 0b11;
    }
    if state.debug_registers.is_some() {
        state.debug_registers = Some(DebugRegisters {
            addresses: vec![0x1000, 0x2000, 0x3000, 0x4000],
            // Bits that always read as 1, and "breakpoint 2 was met".
            dr6: 0xffff_0ff4,
            // Breakpoint 0 for execution, local; bit 10 always reads as 1.
            dr7: 0x401,
        });
    }
    if !state.lapic.is_empty() {
        // Task priority, and the processor priority that follows from it; spurious vector with the APIC enabled; LINT1 with a vector of its own.
        put_u32(&mut state.lapic, 0x80, 0x20);
        put_u32(&mut state.lapic, 0xa0, 0x20);
        put_u32(&mut state.lapic, 0xf0, 0x1ef);
        put_u32(&mut state.lapic, 0x360, 0x1_0045);
        if let Some(system) = &mut state.system_registers {
            // CR8 is the upper half of the task priority.
            system.cr8 = 2;
        }
    }
    for msr in &mut state.msrs {
        match msr.index {
            // SYSENTER's CS, ESP, EIP; LSTAR; KERNEL_GS_BASE.
            0x174 => msr.value = 0x18,
            0x175 | 0x176 => msr.value = 0x7_7000 + u64::from(msr.index),
            0xc000_0082 | 0xc000_0102 => msr.value = 0xffff_8000_0000_0000 | u64::from(msr.index),
            _ => {}
        }
    }
    if let Some(events) = &mut state.events {
        *events = PendingEvents {
            // WHP does not tell whether an NMI waits.
            nmi_pending: u32::from(case.backend.name() != "whp"),
            nmi_masked: true,
            interrupt_shadow: 2,
            ..events.clone()
        };
    }
}

pub fn run_states_of_a_waiting_vcpu_survive(case: &Case) {
    const SIPI_VECTOR: u32 = 0x9;
    let machine = Machine::new(&*case.backend);
    if machine.partition.create_vcpu(0).is_err() || machine.partition.create_vcpu(1).is_err() {
        case.skip("this back end has one vCPU");
        return;
    }
    let machine = Machine::new(&*case.backend);
    let fresh = machine.vcpu(&*case.backend, 1).save().unwrap();
    assert_eq!(fresh.run_state, RunState::Uninitialized as i32);
    for run_state in [
        RunState::Uninitialized,
        RunState::InitReceived,
        RunState::SipiReceived,
        RunState::Halted,
        RunState::Runnable,
    ] {
        let mut state = fresh.clone();
        state.run_state = run_state as i32;
        if run_state == RunState::SipiReceived {
            state.events.get_or_insert_default().sipi_vector = SIPI_VECTOR;
        }
        let other = Machine::new(&*case.backend);
        let mut vcpu = other.partition.create_vcpu(1).unwrap();
        vcpu.restore(&state).unwrap();
        let saved = vcpu.save().unwrap();
        if run_state == RunState::SipiReceived && saved.run_state == RunState::Runnable as i32 {
            // Reading the state may let the vCPU act on the start-up IPI.
            let (registers, system) = vcpu.registers().unwrap();
            assert_eq!(system.cs.base, u64::from(SIPI_VECTOR) << 12);
            assert_eq!(registers.rip, 0);
        } else {
            assert_eq!(saved.run_state, run_state as i32, "{run_state:?}");
            assert_same(state, saved);
        }
    }
}

pub fn a_halted_vcpu_stays_halted(case: &Case) {
    let machine = Machine::new(&*case.backend);
    if machine.partition.irq_chip().is_none() {
        case.skip("without an interrupt chip a halt is an exit, not a state");
        return;
    }
    let mut vcpus = [machine.enter32(&*case.backend, &assemble(32, |a| a.hlt()))];
    let mut captured = Captured::of(&machine, &mut vcpus);
    captured.vcpus[0].run_state = RunState::Halted as i32;
    let (_restored, mut vcpus) = captured.restore(&*case.backend, &[]);
    let handle = vcpus[0].stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            handle.request_stop();
        });
        assert_eq!(run(&mut *vcpus[0]), Event::Canceled);
    });
    let state = vcpus[0].save().unwrap();
    assert_eq!(state.run_state, RunState::Halted as i32);
    assert_eq!(state.registers.unwrap().rip, u64::from(CODE));
}
