//! The payloads of vCPU, interrupt chip and clock, held fast by bytes that earlier builds wrote.
//!
//! Every field has a value of its own here, so a changed number, order or meaning of a field shows.
//! See 'Changing the format' in doc/design/snapshot.md before a golden is made anew.

#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

use std::fmt::Write as _;
use std::path::PathBuf;

use nvx_hypervisor::{
    ClockState, CpuidEntry, DebugRegisters, ExtendedControlRegister, IrqChipState, Msr,
    PendingEvents, Registers, RunState, SavedState, Segment, SystemRegisters, TableRegister,
    VcpuState,
};

/// Gives each field its own value.
struct Numbers(u64);

impl Numbers {
    fn value(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn next_u32(&mut self) -> u32 {
        u32::try_from(self.value()).unwrap()
    }

    fn segment(&mut self) -> Segment {
        Segment {
            base: self.value(),
            limit: self.next_u32(),
            selector: self.next_u32(),
            access: self.next_u32(),
        }
    }

    fn table(&mut self) -> TableRegister {
        TableRegister {
            base: self.value(),
            limit: self.next_u32(),
        }
    }
}

fn registers(n: &mut Numbers) -> Registers {
    Registers {
        rax: n.value(),
        rbx: n.value(),
        rcx: n.value(),
        rdx: n.value(),
        rsi: n.value(),
        rdi: n.value(),
        rsp: n.value(),
        rbp: n.value(),
        r8: n.value(),
        r9: n.value(),
        r10: n.value(),
        r11: n.value(),
        r12: n.value(),
        r13: n.value(),
        r14: n.value(),
        r15: n.value(),
        rip: n.value(),
        rflags: n.value(),
    }
}

fn system_registers(n: &mut Numbers) -> SystemRegisters {
    SystemRegisters {
        cs: n.segment(),
        ds: n.segment(),
        es: n.segment(),
        fs: n.segment(),
        gs: n.segment(),
        ss: n.segment(),
        tr: n.segment(),
        ldt: n.segment(),
        gdt: n.table(),
        idt: n.table(),
        cr0: n.value(),
        cr2: n.value(),
        cr3: n.value(),
        cr4: n.value(),
        cr8: n.value(),
        efer: n.value(),
        apic_base: n.value(),
        interrupt_bitmap: (0..4).map(|_| n.value()).collect(),
    }
}

fn events(n: &mut Numbers) -> PendingEvents {
    PendingEvents {
        exception_injected: true,
        exception_pending: true,
        exception_vector: n.next_u32(),
        exception_error_code: Some(n.next_u32()),
        exception_payload: Some(n.value()),
        interrupt_injected: true,
        interrupt_vector: n.next_u32(),
        interrupt_soft: true,
        interrupt_shadow: n.next_u32(),
        nmi_injected: true,
        nmi_pending: n.next_u32(),
        nmi_masked: true,
        sipi_vector: n.next_u32(),
        in_smm: true,
        smi_pending: true,
        smm_inside_nmi: true,
        latched_init: n.next_u32(),
        triple_fault_pending: true,
    }
}

fn vcpu() -> VcpuState {
    let n = &mut Numbers(0x1000);
    VcpuState {
        cpuid: vec![CpuidEntry {
            leaf: n.next_u32(),
            subleaf: n.next_u32(),
            has_subleaf: true,
            eax: n.next_u32(),
            ebx: n.next_u32(),
            ecx: n.next_u32(),
            edx: n.next_u32(),
        }],
        registers: Some(registers(n)),
        system_registers: Some(system_registers(n)),
        extended_control_registers: vec![ExtendedControlRegister {
            index: n.next_u32(),
            value: n.value(),
        }],
        xsave: vec![1, 2, 3],
        debug_registers: Some(DebugRegisters {
            addresses: (0..4).map(|_| n.value()).collect(),
            dr6: n.value(),
            dr7: n.value(),
        }),
        run_state: RunState::SipiReceived as i32,
        lapic: vec![4, 5, 6],
        msrs: vec![Msr {
            index: n.next_u32(),
            value: n.value(),
        }],
        events: Some(events(n)),
        tsc_khz: n.next_u32(),
    }
}

fn irq_chip() -> IrqChipState {
    IrqChipState {
        layout: "kvm".to_owned(),
        pic_primary: vec![1],
        pic_secondary: vec![2],
        ioapic: vec![3],
        pit: vec![4],
    }
}

fn check<S: SavedState + PartialEq + std::fmt::Debug>(state: &S) {
    let hex = state
        .to_payload()
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
    let name = format!("{}-v{}.hex", S::KIND, S::VERSION);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/goldens")
        .join(name);
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        golden.trim(),
        hex,
        "{}: the format changed: see 'Changing the format' in doc/design/snapshot.md",
        path.display()
    );
    let read = S::from_payload(&state.to_payload()).unwrap();
    assert_eq!(&read, state);
}

#[test]
fn payloads_are_those_of_earlier_builds() {
    check(&vcpu());
    check(&irq_chip());
    check(&ClockState { guest_ns: 77 });
}
