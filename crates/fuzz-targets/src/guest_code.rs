//! Processor state out of a snapshot, and guest code on the software CPU.

use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use nvx_hypervisor::soft::Soft;
use nvx_hypervisor::{
    ClockState, Hypervisor, IrqChipState, Partition, PartitionOptions, Registers, RunError,
    SavedState, StopHandle, SystemRegisters, Vcpu, VcpuExit, VcpuState,
};
use nvx_memory::GuestAddress;

use crate::devices::small_memory;
use crate::lines::Words;

/// Where guest code lies.
const CODE: u64 = 0x1000;
/// Exits that one run may take.
const EXITS_MAX: u32 = 256;
/// How long a guest that makes no exit may run.
const RUN_MAX: Duration = Duration::from_millis(2);

fn vcpu() -> (Box<dyn Partition>, Box<dyn Vcpu>) {
    let partition = Soft::new()
        .create_partition(&small_memory(), PartitionOptions::default())
        .expect("a software partition");
    let vcpu = partition.create_vcpu(0).expect("its first vCPU");
    (partition, vcpu)
}

/// Stops a guest that makes no exit. One thread for all runs, since starting one takes longer than most of
/// them.
fn stop_soon(handle: Arc<dyn StopHandle>) {
    static NEXT: Mutex<Option<Arc<dyn StopHandle>>> = Mutex::new(None);
    static WATCHER: Once = Once::new();
    WATCHER.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(RUN_MAX);
                if let Some(handle) = &*NEXT.lock().expect("nobody panicked") {
                    handle.request_stop();
                }
            }
        });
    });
    *NEXT.lock().expect("nobody panicked") = Some(handle);
}

/// Runs until something ends it; nothing may panic, whatever the guest does.
fn run(vcpu: &mut dyn Vcpu) {
    vcpu.bind_to_this_thread();
    stop_soon(vcpu.stop_handle());
    for _ in 0..EXITS_MAX {
        match vcpu.run() {
            Ok(VcpuExit::PortRead { port, data, .. }) => data.fill(port as u8),
            Ok(VcpuExit::MmioRead { address, data }) => data.fill(address.0 as u8),
            Ok(VcpuExit::PortWrite { .. } | VcpuExit::MmioWrite { .. } | VcpuExit::Halted) => {}
            Ok(VcpuExit::Canceled) => {
                let saved = vcpu.save().expect("a stopped vCPU has a state");
                let payload = saved.to_payload();
                let read = VcpuState::from_payload(&payload).expect("its own payload");
                assert_eq!(read, saved);
                let (_partition, mut copy) = self::vcpu();
                copy.restore(&read).expect("its own state");
                return;
            }
            Ok(VcpuExit::Shutdown | VcpuExit::MemoryFault { .. } | VcpuExit::Unsupported(_)) => {
                return;
            }
            Err(error) => {
                let _: RunError = error;
                return;
            }
        }
    }
}

/// The first byte chooses the message; a vCPU that takes its state also runs.
pub(crate) fn vcpu_state(bytes: &[u8]) {
    let Some((choice, payload)) = bytes.split_first() else {
        return;
    };
    match choice % 4 {
        0 => check_message::<IrqChipState>(payload),
        1 => check_message::<ClockState>(payload),
        _ => {
            check_message::<VcpuState>(payload);
            let Ok(state) = VcpuState::from_payload(payload) else {
                return;
            };
            let (_partition, mut vcpu) = vcpu();
            if vcpu.restore(&state).is_ok() {
                vcpu.hold();
                vcpu.bind_to_this_thread();
                assert!(matches!(vcpu.run(), Ok(VcpuExit::Canceled)));
                let saved = vcpu.save().expect("a stopped vCPU has a state");
                let (_partition, mut copy) = self::vcpu();
                copy.restore(&saved).expect("its own state");
                vcpu.clear_stop();
                run(&mut *vcpu);
            }
        }
    }
}

fn check_message<S: SavedState + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    if let Ok(message) = S::from_payload(payload) {
        let again = S::from_payload(&message.to_payload()).expect("its own payload");
        assert_eq!(again, message);
    }
}

/// Six registers of four bytes, then code.
pub(crate) fn soft_cpu(bytes: &[u8]) {
    let (_partition, mut vcpu) = vcpu();
    let mut words = Words::of(bytes);
    let mut register = || {
        let word = words.array::<4>().unwrap_or_default();
        u64::from(u32::from_le_bytes(word))
    };
    let registers = Registers {
        rax: register(),
        rbx: register(),
        rcx: register(),
        rdx: register(),
        rsi: register(),
        rdi: register(),
        rsp: 0x8000,
        rip: CODE,
        rflags: 2,
        ..Default::default()
    };
    let model = Soft::new().cpu_model().expect("a model");
    vcpu.set_cpu_model(&model).expect("its own model");
    let (_, reset) = vcpu.registers().expect("registers");
    let system = SystemRegisters::protected_mode_entry(&reset);
    vcpu.set_registers(&registers, &system)
        .expect("registers of a boot");
    let memory = small_memory();
    memory
        .write(GuestAddress(CODE), words.rest())
        .expect("code fits into RAM");
    run(&mut *vcpu);
}
