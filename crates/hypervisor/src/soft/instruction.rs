//! The instructions that the software CPU executes, in the form in which it executes them.
//!
//! The set is that of the built-in guest: anything more would be code that nothing runs. Operands
//! have 8 or 32 bits, as there, or 16, as some device registers do. [`decode`] turns machine code
//! into it and refuses the rest.

use iced_x86::{
    Decoder, DecoderOptions, FastFormatter, Instruction as Iced, Mnemonic, OpKind,
    Register as IcedRegister,
};

use super::alu::{Binary, Shift, Step, Width};

/// The longest x86 instruction in bytes (Intel SDM volume 2, section 2.3.11).
pub(super) const LENGTH_MAX_BYTES: usize = 15;

/// One instruction, ready to be executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    /// Its length in bytes.
    pub(super) length: u8,
    /// What it does.
    pub(super) operation: Operation,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// ADC, ADD, AND, CMP, SUB, TEST, XOR.
    Binary(Binary, Width, Operand, Operand),
    /// INC, DEC.
    Step(Step, Width, Operand),
    /// ROL, SHL, SHR; the last operand is the count.
    Shift(Shift, Width, Operand, Operand),
    /// MOV.
    Move(Width, Operand, Operand),
    /// MOVZX from 8 to 32 bits.
    ZeroExtend(Register, Operand),
    /// IMUL with two or three operands: target and factors.
    Multiply(Register, Operand, Operand),
    /// DIV of EDX:EAX.
    Divide(Operand),
    /// A jump to a fixed place, if the condition holds.
    Jump(Condition, u32),
    /// CALL of a fixed place.
    Call(u32),
    /// RET.
    Return,
    /// IN to AL or EAX.
    PortIn(Width, Port),
    /// OUT from AL or EAX.
    PortOut(Width, Port),
    /// HLT.
    Halt,
    /// RDTSC.
    ReadTimeStampCounter,
}

/// A general register by its number in machine code: EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI, or
/// their lower halves; of 8-bit operands, AL, CL, DL, BL, AH, CH, DH, BH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(pub(super) u8);

/// Where a value comes from or goes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    /// A register.
    Register(Register),
    /// A constant, cut to the operand's width.
    Immediate(u32),
    /// Memory.
    Memory(Address),
}

/// An address: base + index * 2^scale + displacement, modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) base: Option<Register>,
    pub(super) index: Option<Register>,
    pub(super) scale_shift: u8,
    pub(super) displacement: u32,
}

/// The port of IN and OUT.
#[derive(Clone, Copy, Debug)]
pub(super) enum Port {
    /// The number that DX holds.
    Dx,
    /// A constant.
    Immediate(u8),
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    /// JA.
    Above,
    /// JAE.
    AboveOrEqual,
    /// JB.
    Below,
    /// JBE.
    BelowOrEqual,
    /// JE.
    Equal,
    /// JNE.
    NotEqual,
}

/// 8-bit registers by number.
const BYTE_REGISTERS: [IcedRegister; 8] = {
    use IcedRegister::{AH, AL, BH, BL, CH, CL, DH, DL};
    [AL, CL, DL, BL, AH, CH, DH, BH]
};

/// 16-bit registers by number.
const WORD_REGISTERS: [IcedRegister; 8] = {
    use IcedRegister::{AX, BP, BX, CX, DI, DX, SI, SP};
    [AX, CX, DX, BX, SP, BP, SI, DI]
};

/// 32-bit registers by number.
const DWORD_REGISTERS: [IcedRegister; 8] = {
    use IcedRegister::{EAX, EBP, EBX, ECX, EDI, EDX, ESI, ESP};
    [EAX, ECX, EDX, EBX, ESP, EBP, ESI, EDI]
};

/// Decodes the instruction at the start of `bytes`, which lies at `address`. `None`: it is none
/// that the software CPU executes.
pub(super) fn decode(address: u32, bytes: &[u8]) -> Option<Instruction> {
    let iced = decode_any(address, bytes);
    if iced.is_invalid() || has_prefix(&iced) {
        return None;
    }
    Some(Instruction {
        length: iced.len() as u8,
        operation: operation(&iced)?,
    })
}

/// The instruction at the start of `bytes` for a reader: its bytes and its disassembly.
pub(super) fn describe(address: u32, bytes: &[u8]) -> String {
    let iced = decode_any(address, bytes);
    let shown = if iced.is_invalid() {
        bytes
    } else {
        bytes.get(..iced.len()).unwrap_or(bytes)
    };
    let hex: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut text = format!("{} (", hex.join(" "));
    if iced.is_invalid() {
        text.push_str("no valid instruction");
    } else {
        FastFormatter::new().format(&iced, &mut text);
    }
    text.push(')');
    text
}

fn decode_any(address: u32, bytes: &[u8]) -> Iced {
    Decoder::with_ip(32, bytes, u64::from(address), DecoderOptions::NONE).decode()
}

/// Any prefix changes what an instruction does in a way that is not implemented.
fn has_prefix(iced: &Iced) -> bool {
    iced.has_lock_prefix()
        || iced.has_rep_prefix()
        || iced.has_repne_prefix()
        || iced.has_segment_prefix()
}

fn operation(iced: &Iced) -> Option<Operation> {
    use Mnemonic as M;
    match iced.mnemonic() {
        M::Adc => two(iced, Binary::Adc),
        M::Add => two(iced, Binary::Add),
        M::And => two(iced, Binary::And),
        M::Cmp => two(iced, Binary::Cmp),
        M::Sub => two(iced, Binary::Sub),
        M::Test => two(iced, Binary::Test),
        M::Xor => two(iced, Binary::Xor),
        M::Inc => one(iced, Step::Increment),
        M::Dec => one(iced, Step::Decrement),
        M::Rol => shift(iced, Shift::RotateLeft),
        M::Shl => shift(iced, Shift::Left),
        M::Shr => shift(iced, Shift::Right),
        M::Mov => {
            let width = width(iced, 0)?;
            Some(Operation::Move(
                width,
                operand(iced, 0, width)?,
                operand(iced, 1, width)?,
            ))
        }
        M::Movzx => Some(Operation::ZeroExtend(
            register(iced.op_register(0), Width::Dword)?,
            operand(iced, 1, Width::Byte)?,
        )),
        M::Imul => multiply(iced),
        M::Div => Some(Operation::Divide(operand(iced, 0, Width::Dword)?)),
        M::Jmp => jump(iced, Condition::Always),
        M::Ja => jump(iced, Condition::Above),
        M::Jae => jump(iced, Condition::AboveOrEqual),
        M::Jb => jump(iced, Condition::Below),
        M::Jbe => jump(iced, Condition::BelowOrEqual),
        M::Je => jump(iced, Condition::Equal),
        M::Jne => jump(iced, Condition::NotEqual),
        M::Call => Some(Operation::Call(near_branch(iced)?)),
        M::Ret => (iced.code() == iced_x86::Code::Retnd).then_some(Operation::Return),
        M::In => Some(Operation::PortIn(port_width(iced, 0)?, port(iced, 1)?)),
        M::Out => Some(Operation::PortOut(port_width(iced, 1)?, port(iced, 0)?)),
        M::Hlt => Some(Operation::Halt),
        M::Rdtsc => Some(Operation::ReadTimeStampCounter),
        _ => None,
    }
}

fn two(iced: &Iced, operation: Binary) -> Option<Operation> {
    let width = width(iced, 0)?;
    Some(Operation::Binary(
        operation,
        width,
        operand(iced, 0, width)?,
        operand(iced, 1, width)?,
    ))
}

fn one(iced: &Iced, step: Step) -> Option<Operation> {
    let width = width(iced, 0)?;
    Some(Operation::Step(step, width, operand(iced, 0, width)?))
}

fn shift(iced: &Iced, shift: Shift) -> Option<Operation> {
    let width = width(iced, 0)?;
    Some(Operation::Shift(
        shift,
        width,
        operand(iced, 0, width)?,
        operand(iced, 1, Width::Byte)?,
    ))
}

fn multiply(iced: &Iced) -> Option<Operation> {
    let factors = match iced.op_count() {
        2 => (0, 1),
        3 => (1, 2),
        _ => return None,
    };
    Some(Operation::Multiply(
        register(iced.op_register(0), Width::Dword)?,
        operand(iced, factors.0, Width::Dword)?,
        operand(iced, factors.1, Width::Dword)?,
    ))
}

fn jump(iced: &Iced, condition: Condition) -> Option<Operation> {
    Some(Operation::Jump(condition, near_branch(iced)?))
}

fn near_branch(iced: &Iced) -> Option<u32> {
    (iced.op0_kind() == OpKind::NearBranch32).then(|| iced.near_branch32())
}

fn port_width(iced: &Iced, index: u32) -> Option<Width> {
    match iced.op_register(index) {
        IcedRegister::AL => Some(Width::Byte),
        IcedRegister::AX => Some(Width::Word),
        IcedRegister::EAX => Some(Width::Dword),
        _ => None,
    }
}

fn port(iced: &Iced, index: u32) -> Option<Port> {
    match iced.op_kind(index) {
        OpKind::Register => Some(Port::Dx),
        OpKind::Immediate8 => Some(Port::Immediate(iced.immediate8())),
        _ => None,
    }
}

/// The width of an operand that is a register or memory.
fn width(iced: &Iced, index: u32) -> Option<Width> {
    [Width::Byte, Width::Word, Width::Dword]
        .into_iter()
        .find(|&width| match iced.op_kind(index) {
            OpKind::Register => register(iced.op_register(index), width).is_some(),
            OpKind::Memory => iced.memory_size().size() == width.bytes(),
            _ => false,
        })
}

fn operand(iced: &Iced, index: u32, width: Width) -> Option<Operand> {
    match iced.op_kind(index) {
        OpKind::Register => Some(Operand::Register(register(iced.op_register(index), width)?)),
        OpKind::Memory if iced.memory_size().size() == width.bytes() => {
            Some(Operand::Memory(address(iced)?))
        }
        OpKind::Immediate8 => Some(Operand::Immediate(u32::from(iced.immediate8()))),
        OpKind::Immediate16 => Some(Operand::Immediate(u32::from(iced.immediate16()))),
        OpKind::Immediate8to16 => Some(Operand::Immediate(u32::from(iced.immediate8to16() as u16))),
        OpKind::Immediate32 => Some(Operand::Immediate(iced.immediate32())),
        OpKind::Immediate8to32 => Some(Operand::Immediate(iced.immediate8to32() as u32)),
        _ => None,
    }
}

fn address(iced: &Iced) -> Option<Address> {
    let part = |register: IcedRegister| match register {
        IcedRegister::None => Some(None),
        other => self::register(other, Width::Dword).map(Some),
    };
    Some(Address {
        base: part(iced.memory_base())?,
        index: part(iced.memory_index())?,
        scale_shift: iced.memory_index_scale().trailing_zeros() as u8,
        displacement: iced.memory_displacement32(),
    })
}

/// A general register of exactly that width.
fn register(iced: IcedRegister, width: Width) -> Option<Register> {
    let numbered = match width {
        Width::Byte => BYTE_REGISTERS,
        Width::Word => WORD_REGISTERS,
        Width::Dword => DWORD_REGISTERS,
    };
    let number = numbered.iter().position(|&other| other == iced)?;
    Some(Register(number as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_instructions_and_operands_are_refused() {
        let refused: [(&str, &[u8]); 19] = [
            ("cpuid", &[0x0f, 0xa2]),
            ("mov cr0, eax", &[0x0f, 0x22, 0xc0]),
            ("mov ds, ax", &[0x8e, 0xd8]),
            ("mov ax, ds", &[0x66, 0x8c, 0xd8]),
            ("movzx eax, word [ebx]", &[0x0f, 0xb7, 0x03]),
            ("movzx ax, byte [ebx]", &[0x66, 0x0f, 0xb6, 0x03]),
            ("lock inc dword [eax]", &[0xf0, 0xff, 0x00]),
            ("rep outsb", &[0xf3, 0x6e]),
            ("mov eax, fs:[0]", &[0x64, 0xa1, 0, 0, 0, 0]),
            ("mov eax, [bx]", &[0x67, 0x8b, 0x07]),
            ("jmp eax", &[0xff, 0xe0]),
            ("call [eax]", &[0xff, 0x10]),
            ("ret 4", &[0xc2, 4, 0]),
            ("imul ebx", &[0xf7, 0xeb]),
            ("div bl", &[0xf6, 0xf3]),
            ("outsb", &[0x6e]),
            ("ret (16 bits)", &[0x66, 0xc3]),
            ("call (16 bits)", &[0x66, 0xe8, 0, 0]),
            ("cmove eax, ebx", &[0x0f, 0x44, 0xc3]),
        ];
        for (name, bytes) in refused {
            assert!(decode(0x1000, bytes).is_none(), "{name}");
        }
        // Not an instruction, and half of one.
        assert!(decode(0, &[0x0f, 0x0b, 0x0f, 0xff]).is_none());
        assert!(decode(0, &[0xb8, 1, 2]).is_none());
        assert!(decode(0, &[]).is_none());
    }

    #[test]
    fn a_description_has_bytes_and_disassembly() {
        assert_eq!(describe(0x1000, &[0x0f, 0xa2, 0x90]), "0f a2 (cpuid)");
        assert_eq!(describe(0x1000, &[0xeb, 0xfe]), "eb fe (jmp 1000h)");
        assert_eq!(
            describe(0x1000, &[0xff, 0xff, 0x01]),
            "ff ff 01 (no valid instruction)"
        );
    }

    #[test]
    fn an_instruction_stays_small_enough_to_be_copied() {
        assert!(
            size_of::<Instruction>() <= 40,
            "{}",
            size_of::<Instruction>()
        );
    }
}
