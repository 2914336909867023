//! Back end `soft` against KVM: every instruction that it implements, with random operands and
//! flags, must leave the same registers, flags and memory. Flags that the processor manual leaves
//! undefined (Intel SDM volume 2, "Flags Affected") are not compared.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "only the machine is needed here, not the suite"
)]
mod conformance;

use conformance::backends;
use conformance::machine::{
    CODE, DATA, Event, Machine, STACK_END, assemble, entry_registers, finish, run, time_limit,
};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, ah, al, ax, bl, bx, byte_ptr, ch, cl, dh, dl, dword_ptr, eax, ebp, ebx, ecx,
    edi, edx, esi, word_ptr,
};
use nvx_hypervisor::soft::Soft;
use nvx_hypervisor::{Hypervisor, Registers, Vcpu};

/// Random inputs for each instruction.
const ROUNDS: u32 = 40;

const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// Which flags an instruction leaves undefined.
#[derive(Clone, Copy)]
enum Undefined {
    Nothing,
    Flags(u64),
    /// Those of SHL and SHR of that many bits, by a constant or by CL.
    Shift(u32, Option<u32>),
    /// Those of ROL.
    Rotate(Option<u32>),
}

impl Undefined {
    fn flags(self, before: &Registers) -> u64 {
        let counted = |count: Option<u32>| count.unwrap_or(before.rcx as u32) & 31;
        let overflow = |count| if count == 1 || count == 0 { 0 } else { OF };
        match self {
            Self::Nothing => 0,
            Self::Flags(flags) => flags,
            Self::Rotate(count) => overflow(counted(count)),
            Self::Shift(bits, count) => {
                let count = counted(count);
                let carry = if count >= bits { CF } else { 0 };
                let auxiliary = if count == 0 { 0 } else { AF };
                overflow(count) | carry | auxiliary
            }
        }
    }
}

/// A few instructions that end with a port write.
struct Case {
    code: Vec<u8>,
    undefined: Undefined,
    /// Division must not raise an exception, which one of the back ends does not have.
    divides: bool,
}

type Assembled = Result<(), IcedError>;

fn case(undefined: Undefined, emit: impl FnOnce(&mut CodeAssembler) -> Assembled) -> Case {
    let code = assemble(32, |a| {
        emit(a)?;
        a.out(0x80, al)
    });
    Case {
        code,
        undefined,
        divides: false,
    }
}

/// All forms of an instruction with two operands that may be memory. EDI points to data.
macro_rules! two_operands {
    ($cases:ident, $undefined:expr, $name:ident) => {
        $cases.push(case($undefined, |a| a.$name(eax, ebx)));
        $cases.push(case($undefined, |a| a.$name(ebp, ebp)));
        $cases.push(case($undefined, |a| a.$name(al, bl)));
        $cases.push(case($undefined, |a| a.$name(ah, dl)));
        $cases.push(case($undefined, |a| a.$name(cl, dh)));
        $cases.push(case($undefined, |a| a.$name(ax, bx)));
        $cases.push(case($undefined, |a| a.$name(eax, 0x8000_0001u32)));
        $cases.push(case($undefined, |a| a.$name(ecx, -2)));
        $cases.push(case($undefined, |a| a.$name(ch, 0x81)));
        $cases.push(case($undefined, |a| a.$name(bx, 0x8001)));
        $cases.push(case($undefined, |a| a.$name(dword_ptr(edi), esi)));
        $cases.push(case($undefined, |a| a.$name(byte_ptr(edi + 1), dh)));
        $cases.push(case($undefined, |a| a.$name(word_ptr(edi + 1), bx)));
        $cases.push(case($undefined, |a| a.$name(dword_ptr(DATA + 3), 0x7fu32)));
        $cases.push(case($undefined, |a| a.$name(byte_ptr(DATA), 0x7fu32)));
    };
}

/// Those of them that load from memory.
macro_rules! loads {
    ($cases:ident, $($name:ident)*) => {$(
        $cases.push(case(Undefined::Nothing, |a| a.$name(esi, dword_ptr(edi))));
        $cases.push(case(Undefined::Nothing, |a| a.$name(ah, byte_ptr(edi))));
        $cases.push(case(Undefined::Nothing, |a| a.$name(ax, word_ptr(edi))));
    )*};
}

macro_rules! one_operand {
    ($cases:ident, $($name:ident)*) => {$(
        $cases.push(case(Undefined::Nothing, |a| a.$name(ebx)));
        $cases.push(case(Undefined::Nothing, |a| a.$name(bx)));
        $cases.push(case(Undefined::Nothing, |a| a.$name(dh)));
        $cases.push(case(Undefined::Nothing, |a| a.$name(dword_ptr(edi))));
        $cases.push(case(Undefined::Nothing, |a| a.$name(byte_ptr(edi + 3))));
    )*};
}

macro_rules! shifts {
    ($cases:ident, $name:ident, $undefined:expr) => {
        for count in [0, 1, 4, 7, 8, 9, 16, 17, 31] {
            let count = Some(count);
            let by = count.unwrap_or_default();
            $cases.push(case($undefined(32, count), |a| a.$name(eax, by)));
            $cases.push(case($undefined(8, count), |a| a.$name(bl, by)));
            $cases.push(case($undefined(16, count), |a| a.$name(bx, by)));
            $cases.push(case($undefined(32, count), |a| a.$name(dword_ptr(edi), by)));
        }
        $cases.push(case($undefined(32, None), |a| a.$name(eax, cl)));
        $cases.push(case($undefined(8, None), |a| a.$name(ah, cl)));
        $cases.push(case($undefined(16, None), |a| a.$name(ax, cl)));
        $cases.push(case($undefined(8, None), |a| a.$name(byte_ptr(edi), cl)));
    };
}

macro_rules! jumps {
    ($cases:ident, $($name:ident)*) => {$(
        $cases.push(case(Undefined::Nothing, |a| {
            let mut over = a.create_label();
            a.$name(over)?;
            a.mov(ebx, 1)?;
            a.set_label(&mut over)
        }));
    )*};
}

fn arithmetic() -> Vec<Case> {
    let mut cases = Vec::new();
    let nothing = Undefined::Nothing;
    two_operands!(cases, nothing, adc);
    two_operands!(cases, nothing, add);
    two_operands!(cases, Undefined::Flags(AF), and);
    two_operands!(cases, nothing, cmp);
    two_operands!(cases, nothing, mov);
    two_operands!(cases, nothing, sub);
    two_operands!(cases, Undefined::Flags(AF), test);
    two_operands!(cases, Undefined::Flags(AF), xor);
    loads!(cases, adc add cmp mov sub);
    one_operand!(cases, inc dec);
    cases
}

fn shifts_and_products() -> Vec<Case> {
    let mut cases = Vec::new();
    shifts!(cases, shl, Undefined::Shift);
    shifts!(cases, shr, Undefined::Shift);
    shifts!(cases, rol, |_: u32, count| Undefined::Rotate(count));
    let product = Undefined::Flags(SF | ZF | AF | PF);
    cases.push(case(product, |a| a.imul_2(eax, ebx)));
    cases.push(case(product, |a| a.imul_2(edx, dword_ptr(edi))));
    cases.push(case(product, |a| a.imul_3(eax, ebx, 10)));
    cases.push(case(product, |a| a.imul_3(esi, esi, 0x9e37_79b1u32 as i32)));
    cases.push(case(product, |a| a.imul_3(eax, dword_ptr(edi), -3)));
    cases.push(Case {
        divides: true,
        ..case(Undefined::Flags(STATUS), |a| a.div(ecx))
    });
    cases
}

fn moves_and_jumps() -> Vec<Case> {
    let nothing = Undefined::Nothing;
    let mut cases = vec![
        case(nothing, |a| a.movzx(eax, byte_ptr(edi + 2))),
        case(nothing, |a| a.movzx(ebp, dh)),
        case(nothing, |a| {
            a.and(ecx, 3)?;
            a.mov(eax, dword_ptr(edi + ecx * 4 + 1))?;
            a.mov(dl, byte_ptr(ecx + DATA))
        }),
        case(nothing, |a| a.mov(eax, dword_ptr(DATA + 4))),
        case(nothing, |a| a.mov(dword_ptr(DATA + 4), eax)),
        case(nothing, |a| {
            let mut routine = a.create_label();
            let mut over = a.create_label();
            a.call(routine)?;
            a.jmp(over)?;
            a.set_label(&mut routine)?;
            a.inc(ebx)?;
            a.ret()?;
            a.set_label(&mut over)
        }),
    ];
    jumps!(cases, ja jae jb jbe je jmp jne);
    cases
}

/// Repeatable pseudo-random numbers (xorshift), edge values among them.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn operand(&mut self) -> u64 {
        const EDGES: [u64; 8] = [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
        ];
        let number = self.next();
        match number >> 60 {
            0..=5 => EDGES[(number & 7) as usize],
            _ => number & 0xffff_ffff,
        }
    }

    fn registers(&mut self) -> Registers {
        Registers {
            rax: self.operand(),
            rbx: self.operand(),
            rcx: self.operand(),
            rdx: self.operand(),
            rsi: self.operand(),
            rdi: u64::from(DATA),
            rbp: self.operand(),
            rsp: u64::from(STACK_END),
            rflags: 2 | self.next() & STATUS,
            ..entry_registers()
        }
    }
}

/// A back end's machine, on which case after case is run.
struct Side {
    machine: Machine,
    vcpu: Box<dyn Vcpu>,
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    event: Event,
    registers: Registers,
    data: [u32; 5],
    stack: u32,
}

impl Side {
    fn new(backend: &dyn Hypervisor) -> Self {
        let machine = Machine::new(backend);
        let vcpu = machine.enter32(backend, &[]);
        Self { machine, vcpu }
    }

    fn run(&mut self, code: &[u8], before: &Registers, data: [u32; 5]) -> Outcome {
        self.machine.store(CODE, code);
        for (index, word) in (0..).zip(data) {
            self.machine.store(DATA + index * 4, &word.to_le_bytes());
        }
        self.machine.store(STACK_END - 4, &[0; 4]);
        let (_, system) = self.vcpu.registers().unwrap();
        self.vcpu.set_registers(before, &system).unwrap();
        let event = run(&mut *self.vcpu);
        finish(&mut *self.vcpu);
        self.vcpu.clear_stop();
        Outcome {
            event,
            registers: self.vcpu.registers().unwrap().0,
            data: [0, 1, 2, 3, 4].map(|index| self.machine.u32_at(DATA + index * 4)),
            stack: self.machine.u32_at(STACK_END - 4),
        }
    }
}

fn compare(name: &'static str, cases: Vec<Case>) {
    let _limit = time_limit(name);
    let Some(kvm) = backends::kvm(name) else {
        return;
    };
    let (mut soft, mut kvm) = (Side::new(&Soft::new()), Side::new(&*kvm));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for case in cases {
        for _ in 0..ROUNDS {
            let mut before = random.registers();
            if case.divides {
                before.rcx |= 1;
                before.rdx %= before.rcx;
            }
            let data = [(); 5].map(|()| random.operand() as u32);
            let mut outcomes =
                [&mut kvm, &mut soft].map(|side| side.run(&case.code, &before, data));
            let undefined = case.undefined.flags(&before);
            for outcome in &mut outcomes {
                outcome.registers.rflags &= !undefined;
            }
            let [expected, found] = outcomes;
            assert_eq!(
                found, expected,
                "code {:02x?} with {before:x?} and data {data:x?}",
                case.code
            );
            assert!(matches!(found.event, Event::PortWrite(0x80, 1, _)));
        }
    }
}

#[test]
fn arithmetic_agrees() {
    compare("arithmetic_agrees", arithmetic());
}

#[test]
fn shifts_and_products_agree() {
    compare("shifts_and_products_agree", shifts_and_products());
}

#[test]
fn moves_and_jumps_agree() {
    compare("moves_and_jumps_agree", moves_and_jumps());
}
