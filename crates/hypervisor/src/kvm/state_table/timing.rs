//! How long each element takes: `cargo test --release -p nvx-hypervisor --lib timing -- --ignored
//! --nocapture`. Saving is measured twice: the same element again and again, and as a capture
//! does it, once all elements after a guest has run in a thread of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};

use super::{STATE_TABLE, restore, save};
use crate::kvm::partition::KvmPartition;
use crate::kvm::vcpu::KvmVcpu;
use crate::traits::Vcpu;
use crate::{Hypervisor, Partition, PartitionOptions, SavedState, VcpuExit, VcpuState, kvm::Kvm};

const SAMPLES: usize = 200;
/// Where the guest's code is.
const CODE: u64 = 0x1000;

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn median_of(mut work: impl FnMut()) -> Duration {
    median((0..SAMPLES).map(|_| time(&mut work)).collect())
}

/// A machine whose guest spins.
fn machine(kvm: &Kvm) -> (KvmPartition, KvmVcpu) {
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: 1 << 20,
        file_offset_bytes: 0,
    }])
    .unwrap();
    let memory = Arc::new(GuestMemory::anonymous(layout).unwrap());
    // JMP to itself.
    memory.write(GuestAddress(CODE), &[0xeb, 0xfe]).unwrap();
    let options = PartitionOptions::default();
    let partition = KvmPartition::new(Arc::clone(&kvm.shared), memory, options).unwrap();
    let mut vcpu = partition.new_vcpu(0).unwrap();
    vcpu.set_cpu_model(&kvm.cpu_model().unwrap()).unwrap();
    let (mut registers, mut system) = vcpu.registers().unwrap();
    registers.rip = CODE;
    (system.cs.base, system.cs.selector) = (0, 0);
    vcpu.set_registers(&registers, &system).unwrap();
    (partition, vcpu)
}

/// Lets the guest run for a moment in a thread of its own.
fn run_a_moment(vcpu: &mut KvmVcpu) {
    // Before the thread starts, so that it cannot clear the stop that ends it.
    vcpu.clear_stop();
    let stop = vcpu.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            vcpu.bind_to_this_thread();
            assert!(matches!(vcpu.run(), Ok(VcpuExit::Canceled)));
        });
        std::thread::sleep(Duration::from_millis(2));
        stop.request_stop();
    });
}

/// Each element's times, by its place in the table, in saves that follow a run.
fn saves_after_runs(vcpu: &mut KvmVcpu) -> Vec<Vec<Duration>> {
    let mut times = vec![Vec::new(); STATE_TABLE.len()];
    for _ in 0..SAMPLES {
        run_a_moment(vcpu);
        let mut state = VcpuState::default();
        vcpu.forget_synced_registers();
        for rank in 0..STATE_TABLE.len() {
            for (place, element) in STATE_TABLE.iter().enumerate() {
                if element.save_rank == rank {
                    times[place].push(time(|| (element.save)(vcpu, &mut state).unwrap()));
                }
            }
        }
    }
    times
}

#[test]
#[ignore = "prints a measurement"]
fn timing() {
    let kvm = Kvm::open().unwrap();
    let (_ran, mut vcpu) = machine(&kvm);
    let after_runs = saves_after_runs(&mut vcpu);
    // Another one for the rest, as a vCPU that has run takes no CPUID any more.
    let (partition, mut vcpu) = machine(&kvm);
    let mut state = save(&mut vcpu).unwrap();
    println!(
        "{:30} {:>12} {:>14} {:>12}",
        "median", "save", "after a run", "restore"
    );
    for (element, after_run) in STATE_TABLE.iter().zip(&after_runs) {
        let mut scratch = VcpuState::default();
        let saving = median_of(|| (element.save)(&mut vcpu, &mut scratch).unwrap());
        let after_run = median(after_run.clone());
        let restoring = median_of(|| (element.restore)(&mut vcpu, &state).unwrap());
        println!(
            "{:30} {saving:>12.2?} {after_run:>14.2?} {restoring:>12.2?}",
            element.name
        );
    }
    let whole: Vec<Duration> = (0..SAMPLES)
        .map(|sample| after_runs.iter().map(|times| times[sample]).sum())
        .collect();
    let after_run = median(whole);
    let saving = median_of(|| state = save(&mut vcpu).unwrap());
    let restoring = median_of(|| restore(&mut vcpu, &state).unwrap());
    println!(
        "{:30} {saving:>12.2?} {after_run:>14.2?} {restoring:>12.2?}",
        "whole vCPU"
    );
    let bytes = state.to_payload();
    let encoding = median_of(|| drop(state.to_payload()));
    let decoding = median_of(|| drop(VcpuState::from_payload(&bytes).unwrap()));
    println!(
        "{:30} {encoding:>12.2?} {:14} {decoding:>12.2?}",
        format!("encoding, {} bytes", bytes.len()),
        ""
    );
    let chip = partition.irq_chip().unwrap();
    let mut chip_state = chip.save().unwrap();
    let saving = median_of(|| chip_state = chip.save().unwrap());
    let restoring = median_of(|| chip.restore(&chip_state).unwrap());
    println!(
        "{:30} {saving:>12.2?} {:14} {restoring:>12.2?}",
        "interrupt chip and PIT", ""
    );
    let clock = partition.clock().unwrap();
    let saving = median_of(|| assert!(clock.get().is_ok()));
    let restoring = median_of(|| clock.set(1).unwrap());
    println!(
        "{:30} {saving:>12.2?} {:14} {restoring:>12.2?}",
        "clock", ""
    );
}
