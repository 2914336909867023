//! More than one vCPU.

use std::sync::mpsc;

use iced_x86::code_asm::{al, ax, dword_ptr, dx, eax, ebx};
use nvx_hypervisor::{CreateError, MAX_VCPUS, RunState, SystemRegisters, Vcpu};

use super::Case;
use super::machine::{
    CODE, Captured, DATA, Event, Machine, PORT, STOP_LIMIT, assemble, entry_registers, run,
    wait_until,
};

/// How many vCPUs a partition of this back end takes.
fn limit(case: &Case) -> u8 {
    let machine = Machine::new(&*case.backend);
    let mut vcpus = Vec::new();
    for index in 0..MAX_VCPUS {
        match machine.partition.create_vcpu(index) {
            Ok(vcpu) => vcpus.push(vcpu),
            Err(_) => return index,
        }
    }
    MAX_VCPUS
}

/// vCPU `index`, about to execute the code at [`CODE`] in flat protected mode with its index in
/// EBX, whatever it waits for after power-on.
fn runnable(case: &Case, machine: &Machine, index: u8) -> Box<dyn Vcpu> {
    let mut vcpu = machine.vcpu(&*case.backend, index);
    let mut state = vcpu.save().unwrap();
    let (_, reset) = vcpu.registers().unwrap();
    state.run_state = RunState::Runnable as i32;
    let mut registers = entry_registers();
    registers.rbx = u64::from(index);
    state.registers = Some(registers);
    state.system_registers = Some(SystemRegisters::protected_mode_entry(&reset));
    vcpu.restore(&state).unwrap();
    vcpu
}

pub fn all_counts_run_and_stop(case: &Case) {
    let code = assemble(32, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.lock().inc(dword_ptr(DATA + ebx * 4))?;
        a.jmp(again)
    });
    for count in 1..=limit(case) {
        let machine = Machine::new(&*case.backend);
        machine.store(CODE, &code);
        let vcpus: Vec<_> = (0..count)
            .map(|index| runnable(case, &machine, index))
            .collect();
        let handles: Vec<_> = vcpus.iter().map(|vcpu| vcpu.stop_handle()).collect();
        let (ended, ends) = mpsc::channel();
        std::thread::scope(|scope| {
            for mut vcpu in vcpus {
                let ended = ended.clone();
                scope.spawn(move || {
                    vcpu.bind_to_this_thread();
                    let event = run(&mut *vcpu);
                    ended.send((vcpu.index(), event)).unwrap();
                });
            }
            let counter = |index: u8| machine.u32_at(DATA + u32::from(index) * 4);
            wait_until("every vCPU counts", || {
                (0..count).all(|index| counter(index) > 0)
            });
            handles.iter().for_each(|handle| handle.request_stop());
            let mut stopped: Vec<_> = (0..count)
                .map(|_| ends.recv_timeout(STOP_LIMIT).unwrap())
                .collect();
            stopped.sort_by_key(|(index, _)| *index);
            let all: Vec<_> = (0..count).map(|index| (index, Event::Canceled)).collect();
            assert_eq!(stopped, all);
        });
    }
}

pub fn an_index_out_of_range_is_refused(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let expected_limit = limit(case);
    for refused in [expected_limit, MAX_VCPUS, u8::MAX] {
        match machine.partition.create_vcpu(refused) {
            Err(CreateError::TooManyVcpus { index, limit }) => {
                assert_eq!((index, limit), (refused, expected_limit));
            }
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("vCPU {refused} was made"),
        }
    }
}

pub fn an_index_is_given_once(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let vcpu = machine.partition.create_vcpu(0).unwrap();
    assert_eq!(vcpu.index(), 0);
    assert!(machine.partition.create_vcpu(0).is_err());
}

/// Where the started vCPU begins: page 9.
const START_PAGE: u8 = 9;

pub fn a_restored_vcpu_is_started_by_the_first(case: &Case) {
    if limit(case) < 2 {
        case.skip("this back end has one vCPU");
        return;
    }
    // INIT, then a start-up IPI, to the processor with APIC id 1 (Intel SDM volume 3, 12.6.1).
    let first = assemble(32, |a| {
        let mut forever = a.create_label();
        a.mov(dword_ptr(0xfee0_0310u32), 1 << 24)?;
        a.mov(dword_ptr(0xfee0_0300u32), 0x4500)?;
        a.mov(dword_ptr(0xfee0_0300u32), 0x4600 | i32::from(START_PAGE))?;
        a.set_label(&mut forever)?;
        a.jmp(forever)
    });
    let second = assemble(16, |a| {
        a.mov(eax, 0x600d)?;
        a.mov(dx, u32::from(PORT))?;
        a.out(dx, ax)?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    machine.store(u32::from(START_PAGE) << 12, &second);
    let mut vcpus = [
        machine.enter32(&*case.backend, &first),
        machine.vcpu(&*case.backend, 1),
    ];
    let captured = Captured::of(&machine, &mut vcpus);
    assert_eq!(captured.vcpus[1].run_state, RunState::Uninitialized as i32);

    let (_restored, vcpus) = captured.restore(&*case.backend, &[]);
    let handles: Vec<_> = vcpus.iter().map(|vcpu| vcpu.stop_handle()).collect();
    let (ended, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        for mut vcpu in vcpus {
            let ended = ended.clone();
            scope.spawn(move || {
                vcpu.bind_to_this_thread();
                let event = run(&mut *vcpu);
                ended.send((vcpu.index(), event)).unwrap();
            });
        }
        let started = ends.recv_timeout(STOP_LIMIT);
        handles.iter().for_each(|handle| handle.request_stop());
        assert_eq!(
            started,
            Ok((1, Event::PortWrite(PORT, 2, vec![0x0d, 0x60])))
        );
        assert_eq!(ends.recv_timeout(STOP_LIMIT), Ok((0, Event::Canceled)));
    });
}
