//! Interrupts that are on their way, or will be, when a guest is captured.
//!
//! Every body has the same shape. The guest (32-bit protected mode, with a descriptor for its code and a
//! gate for each vector) sets the chip up and reports ready, with interrupts off. The host makes an interrupt
//! pending, captures, and restores into a new machine, in which the guest turns interrupts on.
//! The handler counts, reports, and ends the interrupt; when it has run, the guest goes on for a
//! while and reports how often it did.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, al, byte_ptr, dword_ptr, dx, eax, ebx, ecx, edx, esi, esp,
};
use nvx_hypervisor::{IrqChip, SystemRegisters, TableRegister, Vcpu};

use super::Case;
use super::machine::{Captured, DATA, Event, Machine, assemble, finish, run};

const READY_PORT: u16 = 0x520;
const HANDLER_PORT: u16 = 0x521;
const SETTLED_PORT: u16 = 0x522;

/// Where the handler stands.
const HANDLER: u32 = 0x2000;
/// Its descriptors, and its vectors.
const GDT: u32 = 0x9000;
const IDT: u32 = 0xa000;
/// How many interrupts the guest waits for; one byte, behind the one that counts them.
const WAIT_FOR: u32 = DATA + 1;
/// Rounds that the guest goes on for after these interrupts, so that one too many would show.
const SETTLE_COUNT: u32 = 3000;

/// Vectors of the first PIC's line 0, and of what comes through the local APIC.
const PIC_BASE: u8 = 0x20;
const APIC_VECTOR: u8 = 0x50;

/// The line that the bodies use: both a PIC and an IOAPIC have it, and nothing else does.
const LINE: u8 = 5;

/// Local APIC and IOAPIC registers (Intel SDM volume 3, table 12-1; 82093AA data sheet).
const APIC_EOI: u32 = 0xfee0_00b0;
const APIC_SPURIOUS: u32 = 0xfee0_00f0;
const APIC_LVT_TIMER: u32 = 0xfee0_0320;
const APIC_TIMER_INITIAL: u32 = 0xfee0_0380;
const APIC_TIMER_DIVIDE: u32 = 0xfee0_03e0;
const IOAPIC_SELECT: u32 = 0xfec0_0000;
const IOAPIC_WINDOW: u32 = 0xfec0_0010;
const LEVEL_TRIGGERED: u32 = 1 << 15;
const LVT_DEADLINE_MODE: u32 = 0b10 << 17;
/// Intel SDM volume 4, table 2-2.
const MSR_TSC: u32 = 0x10;
const MSR_TSC_DEADLINE: u32 = 0x6e0;

type Assembled = Result<(), IcedError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Controller {
    Pic,
    Apic,
}

fn store(a: &mut CodeAssembler, address: u32, value: u32) -> Assembled {
    a.mov(ebx, address)?;
    a.mov(eax, value)?;
    a.mov(dword_ptr(ebx), eax)
}

fn output(a: &mut CodeAssembler, port: u16, value: u8) -> Assembled {
    a.mov(dx, u32::from(port))?;
    a.mov(al, u32::from(value))?;
    a.out(dx, al)
}

/// Both PICs with all lines masked but those of `unmasked` on the first (Intel 8259A data sheet:
/// ICW1 to ICW4, OCW1).
fn set_up_pics(a: &mut CodeAssembler, unmasked: u8) -> Assembled {
    for (port, value) in [
        (0x20, 0x11),
        (0x21, PIC_BASE),
        (0x21, 4),
        (0x21, 1),
        (0xa0, 0x11),
        (0xa1, PIC_BASE + 8),
        (0xa1, 2),
        (0xa1, 1),
        (0x21, !unmasked),
        (0xa1, 0xff),
    ] {
        output(a, port, value)?;
    }
    Ok(())
}

fn set_up_ioapic(a: &mut CodeAssembler, trigger: u32) -> Assembled {
    store(a, APIC_SPURIOUS, 0x1ff)?;
    store(a, IOAPIC_SELECT, 0x11 + 2 * u32::from(LINE))?;
    store(a, IOAPIC_WINDOW, 0)?;
    store(a, IOAPIC_SELECT, 0x10 + 2 * u32::from(LINE))?;
    store(a, IOAPIC_WINDOW, u32::from(APIC_VECTOR) | trigger)
}

/// The guest: `set_up`, ready, interrupts on, wait for them, go on for a while.
fn guest(set_up: impl FnOnce(&mut CodeAssembler) -> Assembled) -> Vec<u8> {
    assemble(32, |a| {
        a.cli()?;
        set_up_pics(a, 0)?;
        set_up(a)?;
        output(a, READY_PORT, 0)?;
        a.sti()?;
        let mut wait = a.create_label();
        a.set_label(&mut wait)?;
        a.mov(al, byte_ptr(WAIT_FOR))?;
        a.cmp(byte_ptr(DATA), al)?;
        a.jb(wait)?;
        let mut settle = a.create_label();
        a.mov(ecx, SETTLE_COUNT)?;
        a.set_label(&mut settle)?;
        a.dec(ecx)?;
        a.jne(settle)?;
        a.cli()?;
        a.mov(al, byte_ptr(DATA))?;
        a.mov(dx, u32::from(SETTLED_PORT))?;
        a.out(dx, al)
    })
}

/// What IRET does where the code segment stays the same: an emulated KVM has been seen without it. The
/// stack has EIP, CS and EFLAGS; they become EFLAGS and EIP. An interrupt between the two last
/// instructions finds a stack as any other.
fn return_from_interrupt(a: &mut CodeAssembler) -> Assembled {
    a.push(eax)?;
    a.push(ecx)?;
    a.mov(eax, dword_ptr(esp + 8))?;
    a.mov(ecx, dword_ptr(esp + 16))?;
    a.mov(dword_ptr(esp + 12), ecx)?;
    a.mov(dword_ptr(esp + 16), eax)?;
    a.pop(ecx)?;
    a.pop(eax)?;
    a.add(esp, 4)?;
    a.popfd()?;
    a.ret()
}

fn handler(controller: Controller) -> Vec<u8> {
    assemble(32, |a| {
        a.push(eax)?;
        a.push(ebx)?;
        a.push(edx)?;
        a.inc(byte_ptr(DATA))?;
        output(a, HANDLER_PORT, 0)?;
        match controller {
            Controller::Pic => output(a, 0x20, 0x20)?,
            Controller::Apic => store(a, APIC_EOI, 0)?,
        }
        a.pop(edx)?;
        a.pop(ebx)?;
        a.pop(eax)?;
        return_from_interrupt(a)
    })
}

/// Descriptor and vector tables in which every vector leads to the handler (Intel SDM volume 3, 3.4.5
/// and 6.11).
fn store_tables(machine: &Machine, system: &mut SystemRegisters) {
    const FLAT_CODE: u64 = 0x00cf_9b00_0000_ffff;
    const FLAT_DATA: u64 = 0x00cf_9300_0000_ffff;
    const INTERRUPT_GATE: u64 = 0x8e00 << 32;
    let selector = u64::from(system.cs.selector);
    machine.store(GDT + system.cs.selector, &FLAT_CODE.to_le_bytes());
    machine.store(GDT + system.ss.selector, &FLAT_DATA.to_le_bytes());
    let gate = u64::from(HANDLER) | selector << 16 | INTERRUPT_GATE;
    for vector in 0..=255 {
        machine.store(IDT + 8 * vector, &gate.to_le_bytes());
    }
    system.gdt = TableRegister {
        base: GDT.into(),
        limit: 0xff,
    };
    system.idt = TableRegister {
        base: IDT.into(),
        limit: 256 * 8 - 1,
    };
}

/// A guest that is ready, stopped.
struct Prepared {
    machine: Machine,
    vcpus: [Box<dyn Vcpu>; 1],
}

impl Prepared {
    /// `None` (and the reason is printed) where this cannot be shown.
    fn new(
        case: &Case,
        controller: Controller,
        esi_value: u32,
        set_up: impl FnOnce(&mut CodeAssembler) -> Assembled,
    ) -> Option<Self> {
        let machine = Machine::new(&*case.backend);
        if machine.partition.irq_chip().is_none() {
            case.skip("this back end has no interrupt chip");
            return None;
        }
        machine.store(HANDLER, &handler(controller));
        machine.store(WAIT_FOR, &[1]);
        let mut vcpu = machine.enter32(&*case.backend, &guest(set_up));
        let (mut registers, mut system) = vcpu.registers().unwrap();
        registers.rsi = u64::from(esi_value);
        store_tables(&machine, &mut system);
        vcpu.set_registers(&registers, &system).unwrap();
        let event = run(&mut *vcpu);
        assert_eq!(event, Event::PortWrite(READY_PORT, 1, vec![0]));
        finish(&mut *vcpu);
        Some(Self {
            machine,
            vcpus: [vcpu],
        })
    }

    fn chip(&self) -> &dyn IrqChip {
        self.machine.partition.irq_chip().unwrap()
    }

    fn capture(mut self) -> Captured {
        Captured::of(&self.machine, &mut self.vcpus)
    }
}

/// Runs the guest until it has settled; at the `lower_at`-th interrupt the line is lowered.
/// Gives back how often the handler ran.
fn deliver(machine: &Machine, vcpu: &mut dyn Vcpu, lower_at: Option<u8>) -> u8 {
    let mut delivered = 0;
    loop {
        match run(vcpu) {
            Event::PortWrite(HANDLER_PORT, ..) => {
                delivered += 1;
                if lower_at == Some(delivered) {
                    let chip = machine.partition.irq_chip().unwrap();
                    chip.set_line(u32::from(LINE), false).unwrap();
                }
            }
            Event::PortWrite(SETTLED_PORT, 1, counted) => {
                assert_eq!(counted, [delivered]);
                return delivered;
            }
            other => panic!("{other:?} at {:x?}", vcpu.registers().unwrap()),
        }
    }
}

fn edge_is_delivered_once(
    case: &Case,
    controller: Controller,
    set_up: impl FnOnce(&mut CodeAssembler) -> Assembled,
) {
    let Some(prepared) = Prepared::new(case, controller, 0, set_up) else {
        return;
    };
    for level in [true, false] {
        prepared.chip().set_line(u32::from(LINE), level).unwrap();
    }
    let captured = prepared.capture();
    let (machine, mut vcpus) = captured.restore(&*case.backend, &[]);
    assert_eq!(deliver(&machine, &mut *vcpus[0], None), 1);
}

fn level_is_delivered_while_asserted(
    case: &Case,
    controller: Controller,
    set_up: fn(&mut CodeAssembler) -> Assembled,
) {
    for lower_at in [1, 3] {
        let Some(source) = Prepared::new(case, controller, 0, set_up) else {
            return;
        };
        source.chip().set_line(u32::from(LINE), true).unwrap();
        let Prepared { machine, mut vcpus } = source;
        let captured = Captured::of(&machine, &mut vcpus);
        let (restored, mut restored_vcpus) = captured.restore(&*case.backend, &[u32::from(LINE)]);
        let delivered = deliver(&restored, &mut *restored_vcpus[0], Some(lower_at));

        vcpus[0].clear_stop();
        assert_eq!(
            delivered,
            deliver(&machine, &mut *vcpus[0], Some(lower_at)),
            "the source and its copy differ"
        );
        // An emulated KVM has been seen to end an interrupt by itself as it is injected; the line
        // is still up then, so one more follows.
        assert!(
            (lower_at..=lower_at + 1).contains(&delivered),
            "{delivered} instead of {lower_at}"
        );
    }
}

pub fn pic_edge_is_delivered_once(case: &Case) {
    edge_is_delivered_once(case, Controller::Pic, |a| set_up_pics(a, 1 << LINE));
}

pub fn pic_level_is_delivered_while_asserted(case: &Case) {
    level_is_delivered_while_asserted(case, Controller::Pic, |a| {
        set_up_pics(a, 1 << LINE)?;
        // Edge/level control of lines 0 to 7 (Intel 82371AB data sheet, ELCR1).
        output(a, 0x4d0, 1 << LINE)
    });
}

pub fn ioapic_edge_is_delivered_once(case: &Case) {
    edge_is_delivered_once(case, Controller::Apic, |a| set_up_ioapic(a, 0));
}

pub fn ioapic_level_is_delivered_while_asserted(case: &Case) {
    level_is_delivered_while_asserted(case, Controller::Apic, |a| {
        set_up_ioapic(a, LEVEL_TRIGGERED)
    });
}

pub fn message_is_delivered_once(case: &Case) {
    let set_up = |a: &mut CodeAssembler| store(a, APIC_SPURIOUS, 0x1ff);
    let Some(prepared) = Prepared::new(case, Controller::Apic, 0, set_up) else {
        return;
    };
    // To the processor with APIC id 0, fixed delivery (Intel SDM volume 3, 12.11).
    prepared
        .chip()
        .msi(0xfee0_0000, u32::from(APIC_VECTOR))
        .unwrap();
    let (machine, mut vcpus) = prepared.capture().restore(&*case.backend, &[]);
    assert_eq!(deliver(&machine, &mut *vcpus[0], None), 1);
}

pub fn pit_goes_on(case: &Case) {
    let set_up = |a: &mut CodeAssembler| {
        set_up_pics(a, 1)?;
        // Counter 0, low and high byte, mode 2: a pulse each time it has counted down from 65536
        // at 1.193182 MHz, which is each 55 ms (Intel 8254 data sheet).
        output(a, 0x43, 0x34)?;
        output(a, 0x40, 0)?;
        output(a, 0x40, 0)
    };
    let Some(prepared) = Prepared::new(case, Controller::Pic, 0, set_up) else {
        return;
    };
    // More than one, as a timer that had forgotten its mode would still end its first count.
    prepared.machine.store(WAIT_FOR, &[3]);
    let (machine, mut vcpus) = prepared.capture().restore(&*case.backend, &[]);
    assert!(deliver(&machine, &mut *vcpus[0], None) >= 3);
}

pub fn lapic_timer_goes_on(case: &Case) {
    let set_up = |a: &mut CodeAssembler| {
        store(a, APIC_SPURIOUS, 0x1ff)?;
        // Divide by 1, one shot.
        store(a, APIC_TIMER_DIVIDE, 0b1011)?;
        store(a, APIC_LVT_TIMER, u32::from(APIC_VECTOR))?;
        store(a, APIC_TIMER_INITIAL, 100_000_000)
    };
    let Some(prepared) = Prepared::new(case, Controller::Apic, 0, set_up) else {
        return;
    };
    let captured = prepared.capture();
    let (machine, mut vcpus) = captured.restore(&*case.backend, &[]);
    assert_eq!(deliver(&machine, &mut *vcpus[0], None), 1);
}

/// Arms a deadline `esi` cycles from now.
fn arm_deadline(a: &mut CodeAssembler) -> Assembled {
    store(a, APIC_SPURIOUS, 0x1ff)?;
    store(
        a,
        APIC_LVT_TIMER,
        u32::from(APIC_VECTOR) | LVT_DEADLINE_MODE,
    )?;
    a.rdtsc()?;
    a.add(eax, esi)?;
    a.adc(edx, 0)?;
    a.mov(ecx, MSR_TSC_DEADLINE)?;
    a.wrmsr()
}

/// Whether a guest is offered the deadline mode (CPUID leaf 1 ECX bit 24).
fn has_deadline(case: &Case) -> bool {
    let model = case.backend.cpu_model().unwrap();
    let offered = model
        .entry(1, 0)
        .is_some_and(|entry| entry.ecx & (1 << 24) != 0);
    if !offered {
        case.skip("no TSC deadline timer is offered");
    }
    offered
}

/// The deadline and the time-stamp counter of a captured guest.
fn deadline_and_now(captured: &Captured) -> (u64, u64) {
    let msrs = &captured.vcpus[0].msrs;
    let value = |index| msrs.iter().find(|msr| msr.index == index).unwrap().value;
    (value(MSR_TSC_DEADLINE), value(MSR_TSC))
}

pub fn tsc_deadline_goes_on(case: &Case) {
    if !has_deadline(case) {
        return;
    }
    // Further and further ahead, until the capture comes before the deadline also on a busy
    // machine.
    for cycles in [1 << 28, 1 << 30, u32::MAX] {
        let Some(prepared) = Prepared::new(case, Controller::Apic, cycles, arm_deadline) else {
            return;
        };
        let mut captured = prepared.capture();
        let (deadline, now) = deadline_and_now(&captured);
        if deadline > now {
            // As of a guest that has been up for long: a new vCPU's counter is far behind, so a
            // deadline that is not compared with the restored one would not come for hours.
            for msr in &mut captured.vcpus[0].msrs {
                if matches!(msr.index, MSR_TSC | MSR_TSC_DEADLINE) {
                    msr.value += 1 << 45;
                }
            }
            let (machine, mut vcpus) = captured.restore(&*case.backend, &[]);
            assert_eq!(deliver(&machine, &mut *vcpus[0], None), 1);
            return;
        }
    }
    panic!("no capture came before its deadline");
}

pub fn expired_tsc_deadline_is_delivered_once(case: &Case) {
    if !has_deadline(case) {
        return;
    }
    let Some(prepared) = Prepared::new(case, Controller::Apic, 1, arm_deadline) else {
        return;
    };
    let captured = prepared.capture();
    let (deadline, now) = deadline_and_now(&captured);
    assert!(deadline <= now, "{deadline:#x} at {now:#x}");
    let (machine, mut vcpus) = captured.restore(&*case.backend, &[]);
    assert_eq!(deliver(&machine, &mut *vcpus[0], None), 1);
}
