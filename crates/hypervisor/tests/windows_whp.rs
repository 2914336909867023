//! The conformance suite on back end `whp`, through the double of its library, which the lane puts where
//! Windows has the real one.
#![forbid(unsafe_code)]
#![cfg(windows)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

#[allow(
    dead_code,
    reason = "the suite has helpers and back ends that this one does not use"
)]
mod conformance;

use nvx_hypervisor::Hypervisor;
use nvx_hypervisor::whp::Whp;

const ONE_RUNNING_VCPU: &str = "the double's other vCPUs wait for good";

/// Behaviours that cannot be seen through the double, and why.
const ABSENT: [(&str, &str); 8] = [
    (
        "faults::an_instruction_that_cannot_be_executed_is_typed",
        "the double's CPU ends at it, as if it were a triple fault",
    ),
    (
        "memory::dirty_log_is_exact",
        "the double's log tells pages again that it has told before",
    ),
    (
        "memory::ram_above_the_gap_is_reached",
        "the double has no long mode",
    ),
    ("vcpus::all_counts_run_and_stop", ONE_RUNNING_VCPU),
    (
        "vcpus::a_restored_vcpu_is_started_by_the_first",
        ONE_RUNNING_VCPU,
    ),
    (
        "state::run_states_of_a_waiting_vcpu_survive",
        "WHP has no state between INIT and the start-up IPI",
    ),
    (
        "faults::triple_fault_is_a_shutdown",
        "the double has no exceptions of its own",
    ),
    (
        "memory::ram_that_cannot_be_backed_is_reported",
        "the double itself touches the page, so its loss ends the process (crate memory)",
    ),
];

fn whp(test: &str) -> Option<Box<dyn Hypervisor>> {
    match ABSENT.iter().find(|(absent, _)| *absent == test) {
        Some((_, reason)) => {
            conformance::backends::skip(test, reason);
            None
        }
        None => Some(Box::new(Whp::open().unwrap())),
    }
}

conformance::suite!(crate::whp);

/// What the hypervisor leaves to the back end beside the traits.
mod exits {
    use iced_x86::code_asm::{al, dword_ptr, dx, eax, ebx, ecx, edx};
    use nvx_hypervisor::whp::Whp;
    use nvx_hypervisor::{CpuidEntry, Hypervisor, TableRegister};

    use super::conformance::machine::{DATA, Event, Machine, PORT, assemble, run, time_limit};

    const HANDLER: u32 = 0x2000;
    const DESCRIPTORS: u32 = 0x9000;
    const VECTORS: u32 = 0xa000;

    /// Answers that the model gives: all of a leaf of the processor; none of one that it has not.
    #[test]
    fn cpuid_is_the_models() {
        let _limit = time_limit("exits::cpuid_is_the_models");
        let backend = Whp::open().unwrap();
        let code = assemble(32, |a| {
            for (place, leaf) in [(DATA, 0x8000_0002_u32), (DATA + 16, 0x1f00)] {
                a.mov(eax, leaf)?;
                a.mov(ecx, 0)?;
                a.cpuid()?;
                a.mov(dword_ptr(place), eax)?;
                a.mov(dword_ptr(place + 4), ebx)?;
                a.mov(dword_ptr(place + 8), ecx)?;
                a.mov(dword_ptr(place + 12), edx)?;
            }
            a.out(0x80, al)
        });
        let machine = Machine::new(&backend);
        let mut vcpu = machine.enter32(&backend, &code);
        let mut model = backend.cpu_model().unwrap();
        let mut entry = CpuidEntry {
            leaf: 0x8000_0002,
            eax: 0x2058_564e,
            ebx: 2,
            ecx: 3,
            edx: 4,
            ..Default::default()
        };
        model.entries.retain(|other| other.leaf != entry.leaf);
        model.entries.push(entry);
        vcpu.set_cpu_model(&model).unwrap();
        assert!(matches!(run(&mut *vcpu), Event::PortWrite(0x80, 1, _)));
        let answer = |place| [0, 4, 8, 12].map(|offset| machine.u32_at(place + offset));
        assert_eq!(answer(DATA), [entry.eax, 2, 3, 4]);
        assert_eq!(answer(DATA + 16), [0; 4]);

        // A restored guest is told the same.
        let state = vcpu.save();
        assert!(state.is_ok(), "{state:?}");
        entry.eax = 0;
        assert_ne!(state.unwrap().cpuid.last(), Some(&entry));
    }

    /// The first unknown MSR raises a general protection fault with error code 0; a known one keeps what
    /// is written.
    #[test]
    fn an_unknown_msr_raises_the_processors_exception() {
        let _limit = time_limit("exits::an_unknown_msr_raises_the_processors_exception");
        const GENERAL_PROTECTION: u32 = 13;
        const KERNEL_GS_BASE: u32 = 0xc000_0102;
        let backend = Whp::open().unwrap();
        let code = assemble(32, |a| {
            a.mov(ecx, KERNEL_GS_BASE)?;
            a.mov(eax, 0x1234_5000)?;
            a.mov(edx, 0)?;
            a.wrmsr()?;
            a.mov(eax, 0)?;
            a.rdmsr()?;
            a.mov(dword_ptr(DATA), eax)?;
            a.mov(ecx, 0x4242)?;
            a.rdmsr()?;
            a.out(0x80, al)
        });
        let handler = assemble(32, |a| {
            a.pop(eax)?;
            a.mov(edx, u32::from(PORT))?;
            a.out(dx, al)
        });
        let machine = Machine::new(&backend);
        let mut vcpu = machine.enter32(&backend, &code);
        machine.store(HANDLER, &handler);
        let (registers, mut system) = vcpu.registers().unwrap();
        let gate = u64::from(HANDLER) | u64::from(system.cs.selector) << 16 | 0x8e00 << 32;
        machine.store(VECTORS + 8 * GENERAL_PROTECTION, &gate.to_le_bytes());
        let flat_code = 0x00cf_9b00_0000_ffff_u64;
        machine.store(DESCRIPTORS + system.cs.selector, &flat_code.to_le_bytes());
        system.gdt = TableRegister {
            base: DESCRIPTORS.into(),
            limit: 0xff,
        };
        system.idt = TableRegister {
            base: VECTORS.into(),
            limit: 0x7ff,
        };
        vcpu.set_registers(&registers, &system).unwrap();
        assert_eq!(run(&mut *vcpu), Event::PortWrite(PORT, 1, vec![0]));
        assert_eq!(machine.u32_at(DATA), 0x1234_5000);
    }
}
