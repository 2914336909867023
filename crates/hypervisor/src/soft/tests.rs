//! What the conformance suite cannot show: the built-in guest's code as a whole, code that changes
//! while it runs, and the texts of refusals.

use iced_x86::code_asm::{CodeAssembler, al, byte_ptr, dword_ptr, eax, ebx, ecx, edx, esp};
use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};

use super::*;
use crate::error::StateError;
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::{Msr, RunState, VcpuState};

const RAM_BYTES: u64 = 1 << 20;
const CODE: u32 = 0x1000;
const DATA: u32 = 0x4000;

/// A machine with one vCPU about to execute `code`; its registers are as `set` leaves them.
fn machine(code: &[u8], set: impl FnOnce(&mut Registers)) -> (Arc<GuestMemory>, Box<dyn Vcpu>) {
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: RAM_BYTES,
        file_offset_bytes: 0,
    }])
    .expect("a layout");
    let memory = Arc::new(GuestMemory::anonymous(layout).expect("memory"));
    memory
        .write(GuestAddress(u64::from(CODE)), code)
        .expect("room for the code");
    let partition = Soft::new()
        .create_partition(&memory, PartitionOptions::default())
        .expect("a partition");
    let mut vcpu = partition.create_vcpu(0).expect("a vCPU");
    let (_, reset) = vcpu.registers().expect("registers");
    let mut registers = Registers {
        rip: u64::from(CODE),
        rsp: 0x8000,
        rflags: 2,
        ..Default::default()
    };
    set(&mut registers);
    let system = SystemRegisters::protected_mode_entry(&reset);
    vcpu.set_registers(&registers, &system).expect("registers");
    (memory, vcpu)
}

fn assemble(emit: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(32).expect("an assembler");
    emit(&mut assembler).expect("instructions");
    assembler.assemble(u64::from(CODE)).expect("code")
}

fn refusal(vcpu: &mut dyn Vcpu) -> String {
    match vcpu.run().expect("a run") {
        VcpuExit::Unsupported(text) => text,
        other => panic!("{other:?}"),
    }
}

/// Runs to a port write and returns what is written.
fn written(vcpu: &mut dyn Vcpu) -> Vec<u8> {
    match vcpu.run().expect("a run") {
        VcpuExit::PortWrite { data, .. } => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_whole_code_of_the_built_in_guest_is_executed() {
    let image = nvx_probe_guest::image().expect("the image");
    let layout = nvx_machine::ram_layout(4 << 20).expect("a layout");
    let memory = GuestMemory::anonymous(layout).expect("memory");
    let entry = nvx_machine::load_pvh(&memory, &image, "").expect("an entry");
    let mut loaded = vec![0; 4096];
    memory
        .read(GuestAddress(entry.rip), &mut loaded)
        .expect("code");
    let end = loaded.iter().rposition(|&byte| byte != 0).expect("code") + 1;
    let (mut at, mut decoded) = (0, 0);
    while at < end {
        let address = entry.rip as u32 + at as u32;
        let instruction = instruction::decode(address, &loaded[at..])
            .unwrap_or_else(|| panic!("{}", instruction::describe(address, &loaded[at..])));
        at += usize::from(instruction.length);
        decoded += 1;
    }
    assert!(decoded > 300, "only {decoded} instructions found");
}

#[test]
fn code_that_changes_itself_is_decoded_anew() {
    // The immediate of MOV EBX, which follows its opcode.
    let patched = CODE + 9;
    let code = assemble(|a| {
        let mut again = a.create_label();
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.inc(byte_ptr(patched))?;
        a.mov(ebx, 0x10)?;
        a.mov(al, byte_ptr(patched))?;
        a.mov(dword_ptr(DATA), ebx)?;
        a.cmp(ebx, 0x40)?;
        a.jne(again)?;
        a.mov(eax, ebx)?;
        a.out(0x80, eax)
    });
    let at = code
        .windows(5)
        .position(|window| window == [0xbb, 0x10, 0, 0, 0])
        .expect("MOV EBX");
    assert_eq!(CODE + at as u32 + 1, patched);
    let (_, mut vcpu) = machine(&code, |_| {});
    assert_eq!(written(&mut *vcpu), [0x40, 0, 0, 0]);
}

#[test]
fn code_that_the_monitor_changes_between_exits_is_decoded_anew() {
    let code = assemble(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.mov(al, 1)?;
        a.out(0x80, al)?;
        a.jmp(again)
    });
    let (memory, mut vcpu) = machine(&code, |_| {});
    assert_eq!(written(&mut *vcpu), [1]);
    memory
        .write(GuestAddress(u64::from(CODE) + 1), &[2])
        .expect("code");
    assert_eq!(written(&mut *vcpu), [2]);
}

#[test]
fn an_instruction_of_another_kind_is_named_with_place_bytes_and_text() {
    let code = assemble(|a| {
        a.mov(eax, 1)?;
        a.cpuid()?;
        a.out(0x80, al)
    });
    let (_, mut vcpu) = machine(&code, |_| {});
    let text = refusal(&mut *vcpu);
    assert!(
        text.contains("instruction at 0x1005") && text.contains("0f a2 (cpuid)"),
        "{text}"
    );
    assert!(text.contains(PURPOSE), "{text}");
    // It does not go on behind it, and nothing of it is done.
    assert_eq!(refusal(&mut *vcpu), text);
    assert_eq!(vcpu.registers().expect("registers").0.rip, 0x1005);
}

#[test]
fn other_faults_are_named() {
    let divide = assemble(|a| a.div(ecx));
    let (_, mut vcpu) = machine(&divide, |_| {});
    let text = refusal(&mut *vcpu);
    assert!(text.contains("divide error (#DE)"), "{text}");

    let straddling = assemble(|a| a.mov(eax, dword_ptr(RAM_BYTES as u32 - 2)));
    let (_, mut vcpu) = machine(&straddling, |_| {});
    let text = refusal(&mut *vcpu);
    assert!(text.contains("4 bytes at 0xffffe"), "{text}");

    let wrapping = assemble(|a| a.mov(dword_ptr(u32::MAX - 1), eax));
    let (_, mut vcpu) = machine(&wrapping, |_| {});
    let text = refusal(&mut *vcpu);
    assert!(text.contains("4 bytes at 0xfffffffe"), "{text}");

    let (_, mut vcpu) = machine(&[], |registers| registers.rip = 0xf000_0000);
    let text = refusal(&mut *vcpu);
    assert!(text.contains("0xf0000000, which is not RAM"), "{text}");
}

#[test]
fn code_at_the_end_of_ram_is_fetched_and_what_follows_is_not_ram() {
    let end = RAM_BYTES - 3;
    let (memory, mut vcpu) = machine(&[], |registers| registers.rip = end);
    // OUT 0x80, AL and half of another.
    memory
        .write(GuestAddress(end), &[0xe6, 0x80, 0xe6])
        .expect("code");
    assert_eq!(written(&mut *vcpu), [0]);
    let text = refusal(&mut *vcpu);
    assert!(text.contains("e6 (no valid instruction)"), "{text}");
}

#[test]
fn a_value_from_outside_ram_reaches_an_instruction_that_also_stores() {
    const DEVICE: u32 = 0xd000_0000;
    let code = assemble(|a| {
        a.add(dword_ptr(DEVICE), eax)?;
        a.out(0x80, eax)
    });
    let (_, mut vcpu) = machine(&code, |registers| registers.rax = 5);
    let VcpuExit::MmioRead { address, data } = vcpu.run().expect("a run") else {
        panic!("no load");
    };
    assert_eq!(address, GuestAddress(u64::from(DEVICE)));
    data.copy_from_slice(&7_u32.to_le_bytes());
    // Not even a stop keeps the instruction from being finished.
    vcpu.stop_handle().request_stop();
    assert!(vcpu.save().is_err(), "saved with an unfinished exit");
    match vcpu.run().expect("a run") {
        VcpuExit::MmioWrite { data, .. } => assert_eq!(data, 12_u32.to_le_bytes()),
        other => panic!("{other:?}"),
    }
    assert!(matches!(vcpu.run().expect("a run"), VcpuExit::Canceled));
    vcpu.clear_stop();
    assert_eq!(written(&mut *vcpu), [5, 0, 0, 0]);
}

#[test]
fn calls_return_through_a_stack_outside_ram() {
    let code = assemble(|a| {
        let mut routine = a.create_label();
        a.call(routine)?;
        a.out(0x80, al)?;
        a.set_label(&mut routine)?;
        a.mov(al, 9)?;
        a.ret()
    });
    let (_, mut vcpu) = machine(&code, |registers| registers.rsp = 0xd000_1000);
    let VcpuExit::MmioWrite { address, data } = vcpu.run().expect("a run") else {
        panic!("no push");
    };
    assert_eq!(address, GuestAddress(0xd000_0ffc));
    let back = data.to_vec();
    let VcpuExit::MmioRead { data, .. } = vcpu.run().expect("a run") else {
        panic!("no pop");
    };
    data.copy_from_slice(&back);
    assert_eq!(written(&mut *vcpu), [9]);
    assert_eq!(vcpu.registers().expect("registers").0.rsp, 0xd000_1000);
}

#[test]
fn a_halted_vcpu_stays_halted_also_when_restored() {
    let code = assemble(|a| {
        a.hlt()?;
        a.out(0x80, al)
    });
    let (memory, mut vcpu) = machine(&code, |_| {});
    for _ in 0..3 {
        assert!(matches!(vcpu.run().expect("a run"), VcpuExit::Halted));
    }
    let state = vcpu.save().expect("a state");
    assert_eq!(state.run_state, RunState::Halted as i32);
    let mut restored = vcpu::SoftVcpu::new(0, memory);
    restored.restore(&state).expect("a restore");
    assert!(matches!(restored.run().expect("a run"), VcpuExit::Halted));
}

#[test]
fn the_time_stamp_counter_goes_on_in_a_restored_vcpu() {
    let code = assemble(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.rdtsc()?;
        a.mov(ebx, eax)?;
        a.out(0x80, eax)?;
        a.mov(eax, edx)?;
        a.out(0x80, eax)?;
        a.jmp(again)
    });
    let (memory, mut vcpu) = machine(&code, |_| {});
    let read = |vcpu: &mut dyn Vcpu| {
        let [low, high] = [0, 1].map(|_| {
            let bytes = written(vcpu);
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        });
        u64::from(high) << 32 | u64::from(low)
    };
    let first = read(&mut *vcpu);
    assert!(read(&mut *vcpu) > first);
    let mut state = vcpu.save().expect("a state");
    // As if captured long before, or on a host whose clock is ahead.
    for saved in [1 << 40, u64::MAX / 2] {
        state.msrs[0].value = saved;
        let mut restored = vcpu::SoftVcpu::new(0, Arc::clone(&memory));
        restored.restore(&state).expect("a restore");
        let now = read(&mut restored);
        assert!(now >= saved && now - saved < 1 << 40, "{now} after {saved}");
    }
}

#[test]
fn states_of_other_shapes_are_refused_by_name() {
    type Spoil = fn(&mut VcpuState);
    let rows: [(&str, Spoil); 8] = [
        ("local APIC", |state| state.lapic = vec![0; 1024]),
        ("XSAVE area", |state| state.xsave = vec![0; 576]),
        ("debug registers", |state| {
            state.debug_registers = Some(Default::default());
        }),
        ("pending events", |state| {
            state.events = Some(Default::default());
        }),
        ("TSC rate", |state| state.tsc_khz = 2_000_000),
        ("MP state", |state| {
            state.run_state = RunState::SipiReceived.into();
        }),
        ("MSRs", |state| state.msrs.clear()),
        ("MSR 0x174", |state| {
            state.msrs.push(Msr {
                index: 0x174,
                value: 0,
            });
        }),
    ];
    let (memory, mut vcpu) = machine(&[], |_| {});
    let good = vcpu.save().expect("a state");
    for (name, spoil) in rows {
        let mut state = good.clone();
        spoil(&mut state);
        let mut restored = vcpu::SoftVcpu::new(0, Arc::clone(&memory));
        let error = restored.restore(&state).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
    // One that runs, for a vCPU that waits.
    let mut waiting = vcpu::SoftVcpu::new(1, memory);
    let error = waiting.restore(&good).expect_err("a running second vCPU");
    assert!(matches!(
        error,
        StateError::Incompatible {
            element: "MP state",
            ..
        }
    ));
}

#[test]
fn a_second_vcpu_waits_for_a_stop_and_survives_a_capture() {
    let (memory, _) = machine(&[], |_| {});
    let partition = Soft::new()
        .create_partition(&memory, PartitionOptions::default())
        .expect("a partition");
    let mut vcpu = partition.create_vcpu(1).expect("a vCPU");
    let handle = vcpu.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(move || handle.request_stop());
        assert!(matches!(vcpu.run().expect("a run"), VcpuExit::Canceled));
    });
    let state = vcpu.save().expect("a state");
    assert_eq!(state.run_state, RunState::Uninitialized as i32);
    let mut restored = vcpu::SoftVcpu::new(1, memory);
    restored.restore(&state).expect("a restore");
    restored.stop_handle().request_stop();
    assert!(matches!(restored.run().expect("a run"), VcpuExit::Canceled));
}

#[test]
fn guest_stores_are_the_dirty_set() {
    let code = assemble(|a| {
        a.mov(dword_ptr(DATA), eax)?;
        a.mov(esp, 0x9004)?;
        a.mov(eax, dword_ptr(0xa000))?;
        let mut next = a.create_label();
        a.call(next)?;
        a.set_label(&mut next)?;
        a.out(0x80, al)
    });
    let (memory, mut vcpu) = machine(&code, |_| {});
    let before = memory.dirty().pages();
    written(&mut *vcpu);
    let dirty = memory.dirty();
    assert_eq!(dirty.pages(), before + 2);
    assert!(dirty.contains(GuestAddress(u64::from(DATA))));
    assert!(dirty.contains(GuestAddress(0x9000)));
}

#[test]
fn the_cpu_model_is_the_same_on_every_host() {
    let model = Soft::new().cpu_model().expect("a model");
    assert_eq!(model.vendor(), "NVX-Software");
    let features = model.features();
    assert_eq!(
        crate::missing_features(&features, &[]),
        ["tsc"],
        "a feature that the software CPU does not have"
    );
}
