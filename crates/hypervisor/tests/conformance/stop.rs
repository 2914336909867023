//! Halting and stopping.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use iced_x86::code_asm::{al, dword_ptr, dx, eax, ecx, edi, edx};
use nvx_hypervisor::{RunState, Vcpu};
use nvx_memory::GuestAddress;

use super::Case;
use super::machine::{
    CODE, DATA, Event, Machine, OUTSIDE_RAM, PORT, STOP_LIMIT, assemble, finish, run,
    run_answering, wait_until,
};

fn rip(vcpu: &dyn Vcpu) -> u64 {
    vcpu.registers().unwrap().0.rip
}

/// Counts in memory for ever.
fn counting_guest() -> Vec<u8> {
    assemble(32, |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.inc(dword_ptr(DATA))?;
        a.jmp(again)
    })
}

pub fn halt_waits_and_ends_by_a_stop(case: &Case) {
    let code = assemble(32, |a| {
        a.hlt()?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    if machine.partition.irq_chip().is_none() {
        assert_eq!(run(&mut *vcpu), Event::Halted);
        assert_eq!(rip(&*vcpu), u64::from(CODE) + 1);
        return;
    }
    halt_by_stops(&mut *vcpu);
    // Interrupts are off: it stays halted.
    for _ in 0..3 {
        vcpu.clear_stop();
        assert_eq!(stop_soon(&mut *vcpu), Event::Canceled);
        assert_eq!(rip(&*vcpu), u64::from(CODE) + 1);
    }
}

/// Runs a guest whose first instruction is HLT until it has executed it. Only for back ends that
/// wait for interrupts inside `run`.
fn halt_by_stops(vcpu: &mut dyn Vcpu) {
    wait_until("HLT", || {
        vcpu.clear_stop();
        assert_eq!(stop_soon(vcpu), Event::Canceled);
        let state = vcpu.save().unwrap();
        state.run_state == RunState::Halted as i32
    });
    assert_eq!(rip(vcpu), u64::from(CODE) + 1);
}

/// Runs, and stops from another thread a moment later.
fn stop_soon(vcpu: &mut dyn Vcpu) -> Event {
    let handle = vcpu.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            handle.request_stop();
        });
        run(vcpu)
    })
}

pub fn a_spinning_guest_is_stopped(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &counting_guest());
    let stop = vcpu.stop_handle();
    let (go, going) = mpsc::channel::<()>();
    let (ended, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            vcpu.bind_to_this_thread();
            while going.recv().is_ok() {
                vcpu.clear_stop();
                ended.send(run(&mut *vcpu)).unwrap();
            }
        });
        for _ in 0..100 {
            let before = machine.u32_at(DATA);
            go.send(()).unwrap();
            wait_until("the guest counts", || machine.u32_at(DATA) != before);
            let asked = Instant::now();
            stop.request_stop();
            assert_eq!(ends.recv_timeout(STOP_LIMIT), Ok(Event::Canceled));
            assert!(asked.elapsed() < STOP_LIMIT);
            let stopped_at = machine.u32_at(DATA);
            std::thread::yield_now();
            assert_eq!(machine.u32_at(DATA), stopped_at);
        }
        drop(go);
    });
}

pub fn a_stop_before_the_run_holds_until_it_is_cleared(case: &Case) {
    let code = assemble(32, |a| {
        a.inc(dword_ptr(DATA))?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    vcpu.stop_handle().request_stop();
    for _ in 0..5 {
        assert_eq!(run(&mut *vcpu), Event::Canceled);
        assert_eq!(rip(&*vcpu), u64::from(CODE));
        assert_eq!(machine.u32_at(DATA), 0);
    }
    vcpu.clear_stop();
    // Nothing is left of the stops, however often they were asked for.
    assert!(matches!(run(&mut *vcpu), Event::PortWrite(0x80, ..)));
    assert_eq!(machine.u32_at(DATA), 1);
}

pub fn a_stop_before_a_thread_is_bound_holds(case: &Case) {
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &counting_guest());
    vcpu.stop_handle().request_stop();
    let event = std::thread::spawn(move || {
        vcpu.bind_to_this_thread();
        run(&mut *vcpu)
    })
    .join()
    .unwrap();
    assert_eq!(event, Event::Canceled);
    assert_eq!(machine.u32_at(DATA), 0);
}

pub fn a_stop_finishes_a_port_read_and_executes_nothing(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.in_(al, dx)?;
        a.mov(dword_ptr(DATA), eax)?;
        a.out(dx, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let event = run_answering(&mut *vcpu, &mut vec![0xa5]);
    assert_eq!(event, Event::PortRead(PORT, 1, 1));
    finish(&mut *vcpu);
    let (registers, _) = vcpu.registers().unwrap();
    // MOV takes five bytes, IN one.
    assert_eq!(registers.rip, u64::from(CODE) + 6);
    assert_eq!(registers.rax, 0xa5);
    assert_eq!(machine.u32_at(DATA), 0);
    vcpu.clear_stop();
    assert_eq!(run(&mut *vcpu), Event::PortWrite(PORT, 1, vec![0xa5]));
    assert_eq!(machine.u32_at(DATA), 0xa5);
}

pub fn a_stop_after_a_port_write_does_not_repeat_it(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(al, 1)?;
        a.out(dx, al)?;
        a.inc(al)?;
        a.out(dx, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    for value in [1, 2] {
        assert_eq!(run(&mut *vcpu), Event::PortWrite(PORT, 1, vec![value]));
        finish(&mut *vcpu);
        assert_eq!(vcpu.registers().unwrap().0.rax, u64::from(value));
        vcpu.clear_stop();
    }
}

pub fn a_stop_finishes_a_load_that_takes_two_exits(case: &Case) {
    let across_pages = OUTSIDE_RAM + 0xffe;
    let code = assemble(32, |a| {
        a.mov(eax, dword_ptr(across_pages))?;
        a.mov(dword_ptr(DATA), eax)?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let mut answer = vec![0x11, 0x22, 0x33, 0x44];
    let first = run_answering(&mut *vcpu, &mut answer);
    assert!(
        matches!(first, Event::MmioRead(at, _) if at == u64::from(across_pages)),
        "{first:?}"
    );
    vcpu.stop_handle().request_stop();
    let mut exits = 1;
    while run_answering(&mut *vcpu, &mut answer) != Event::Canceled {
        exits += 1;
        assert!(exits <= 4, "more exits than bytes");
    }
    assert_eq!(vcpu.registers().unwrap().0.rax, 0x4433_2211);
    assert_eq!(machine.u32_at(DATA), 0, "executed the next instruction");
    vcpu.clear_stop();
    assert_eq!(run(&mut *vcpu), Event::PortWrite(0x80, 1, vec![0x11]));
}

pub fn string_input_survives_a_stop_after_each_exit(case: &Case) {
    let code = assemble(32, |a| {
        a.mov(edx, u32::from(PORT))?;
        a.mov(edi, DATA)?;
        a.mov(ecx, 20)?;
        a.rep().insb()?;
        a.out(0x80, al)
    });
    let machine = Machine::new(&*case.backend);
    let mut vcpu = machine.enter32(&*case.backend, &code);
    let input: Vec<u8> = (0x40..0x40 + 20).collect();
    let mut answer = input.clone();
    loop {
        match run_answering(&mut *vcpu, &mut answer) {
            Event::PortRead(PORT, 1, _) => vcpu.stop_handle().request_stop(),
            Event::Canceled => vcpu.clear_stop(),
            Event::PortWrite(0x80, ..) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answer, [] as [u8; 0]);
    let mut stored = vec![0; input.len()];
    machine
        .memory
        .read(GuestAddress(u64::from(DATA)), &mut stored)
        .unwrap();
    assert_eq!(stored, input);
}
