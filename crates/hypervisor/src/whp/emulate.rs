//! The instructions by which a guest accesses a device's memory.
//!
//! The hypervisor says which physical address was accessed and gives the instruction's bytes; what the
//! instruction does with the data is decoded here. Kernels access devices by plain moves (Linux's
//! `readl` and `writel`), so these are what there is: moves between a register, or an immediate value,
//! and memory, also with zero or sign extension.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use windows_sys::Win32::System::Hypervisor::*;

use crate::registers::{Registers, SystemRegisters};

/// EFER.LMA: long mode is active.
const EFER_LMA: u64 = 1 << 10;
/// Segment access rights: 64-bit code, 32-bit default size.
const ACCESS_LONG: u32 = 1 << 13;
const ACCESS_32_BIT: u32 = 1 << 14;

/// What an instruction does with a device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Access {
    /// The instruction's length in bytes.
    pub(super) length: u64,
    /// Bytes accessed.
    pub(super) width: usize,
    /// What is stored; `None` for a load.
    pub(super) stored: Option<u64>,
    /// The register that a load changes.
    pub(super) target: Option<WHV_REGISTER_NAME>,
    /// Bytes of the register that a load changes, and where they begin in it (8 for AH and the like).
    target_width: usize,
    target_shift: u32,
    sign_extends: bool,
}

impl Access {
    /// The register's new content when `value` was loaded.
    pub(super) fn loaded(&self, old: u64, value: u64) -> u64 {
        let bits = 8 * self.width as u32;
        let value = value & mask(self.width);
        let extended = match self.sign_extends {
            true if bits < 64 => {
                ((value << (64 - bits)).cast_signed() >> (64 - bits)).cast_unsigned()
            }
            _ => value,
        };
        match self.target_width {
            // A write to the lower half of a register clears the upper one.
            4 => extended & mask(4),
            8 => extended,
            width => {
                let field = mask(width) << self.target_shift;
                old & !field | extended << self.target_shift & field
            }
        }
    }
}

fn mask(width: usize) -> u64 {
    match width {
        8.. => u64::MAX,
        _ => (1 << (8 * width)) - 1,
    }
}

/// 16, 32 or 64: how code is decoded.
pub(super) fn code_bits(system: &SystemRegisters) -> u32 {
    if system.efer & EFER_LMA != 0 && system.cs.access & ACCESS_LONG != 0 {
        64
    } else if system.cs.access & ACCESS_32_BIT != 0 {
        32
    } else {
        16
    }
}

/// What the instruction at `rip` does, or a text that says why it is not known.
pub(super) fn decode(
    bytes: &[u8],
    rip: u64,
    registers: &Registers,
    system: &SystemRegisters,
) -> Result<Access, String> {
    let bits = code_bits(system);
    if bytes.is_empty() {
        return Err(format!(
            "the hypervisor gives no bytes of the instruction at {rip:#x}"
        ));
    }
    let instruction = Decoder::with_ip(bits, bytes, rip, DecoderOptions::NONE).decode();
    let unknown = || {
        format!(
            "instruction at {rip:#x} ({bytes:02x?}) accesses a device's memory and is not one of \
             those implemented"
        )
    };
    if instruction.code() == Code::INVALID || instruction.op_count() != 2 {
        return Err(unknown());
    }
    let sign_extends = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx => false,
        Mnemonic::Movsx | Mnemonic::Movsxd => true,
        _ => return Err(unknown()),
    };
    let width = instruction.memory_size().size();
    if !matches!(width, 1 | 2 | 4 | 8) {
        return Err(unknown());
    }
    let length = instruction.len() as u64;
    if instruction.op0_kind() == OpKind::Memory {
        let stored = stored_value(&instruction, registers).ok_or_else(unknown)?;
        return Ok(Access {
            length,
            width,
            stored: Some(stored & mask(width)),
            target: None,
            target_width: 0,
            target_shift: 0,
            sign_extends: false,
        });
    }
    let target = instruction.op0_register();
    Ok(Access {
        length,
        width,
        stored: None,
        target: Some(name_of(target).ok_or_else(unknown)?),
        target_width: target.size(),
        target_shift: shift_of(target),
        sign_extends,
    })
}

/// The second operand of a store.
fn stored_value(instruction: &Instruction, registers: &Registers) -> Option<u64> {
    match instruction.op1_kind() {
        OpKind::Register => {
            let source = instruction.op1_register();
            Some(value_of(source, registers)? >> shift_of(source))
        }
        OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate32to64
        | OpKind::Immediate64 => Some(instruction.immediate(1)),
        _ => None,
    }
}

/// Where a register begins in the one that it is a part of, in bits.
fn shift_of(register: Register) -> u32 {
    match register {
        Register::AH | Register::BH | Register::CH | Register::DH => 8,
        _ => 0,
    }
}

fn value_of(register: Register, registers: &Registers) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RSP => registers.rsp,
        Register::RBP => registers.rbp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        _ => return None,
    })
}

fn name_of(register: Register) -> Option<WHV_REGISTER_NAME> {
    Some(match register.full_register() {
        Register::RAX => WHvX64RegisterRax,
        Register::RBX => WHvX64RegisterRbx,
        Register::RCX => WHvX64RegisterRcx,
        Register::RDX => WHvX64RegisterRdx,
        Register::RSI => WHvX64RegisterRsi,
        Register::RDI => WHvX64RegisterRdi,
        Register::RSP => WHvX64RegisterRsp,
        Register::RBP => WHvX64RegisterRbp,
        Register::R8 => WHvX64RegisterR8,
        Register::R9 => WHvX64RegisterR9,
        Register::R10 => WHvX64RegisterR10,
        Register::R11 => WHvX64RegisterR11,
        Register::R12 => WHvX64RegisterR12,
        Register::R13 => WHvX64RegisterR13,
        Register::R14 => WHvX64RegisterR14,
        Register::R15 => WHvX64RegisterR15,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Segment;

    fn long_mode() -> SystemRegisters {
        SystemRegisters {
            efer: EFER_LMA,
            cs: Segment {
                access: 0xa09b,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    fn protected_mode() -> SystemRegisters {
        SystemRegisters {
            cs: Segment::flat_code_32(0x10),
            ..Default::default()
        }
    }

    fn decoded(bytes: &[u8], system: &SystemRegisters) -> Access {
        let registers = Registers {
            rax: 0x1122_3344_5566_7788,
            rbx: 0xaabb,
            ..Default::default()
        };
        decode(bytes, 0x1000, &registers, system).expect("known")
    }

    #[test]
    fn stores_give_what_is_stored() {
        for (bytes, width, stored) in [
            // mov [rax], ebx; mov [rax], bl; mov [rax], bh; mov [rax], rax
            (&[0x89, 0x18][..], 4, 0xaabb),
            (&[0x88, 0x18], 1, 0xbb),
            (&[0x88, 0x38], 1, 0xaa),
            (&[0x48, 0x89, 0x00], 8, 0x1122_3344_5566_7788),
            // mov dword [rax], 0x12345678; mov word [rax], 0x1234
            (&[0xc7, 0x00, 0x78, 0x56, 0x34, 0x12], 4, 0x1234_5678),
            (&[0x66, 0xc7, 0x00, 0x34, 0x12], 2, 0x1234),
        ] {
            let access = decoded(bytes, &long_mode());
            assert_eq!(access.stored, Some(stored), "{bytes:02x?}");
            assert_eq!((access.width, access.length), (width, bytes.len() as u64));
        }
    }

    #[test]
    fn loads_change_as_much_of_the_register_as_the_processor_does() {
        const OLD: u64 = 0x1122_3344_5566_7788;
        for (bytes, value, new) in [
            // mov ebx, [rax]: clears the upper half.
            (&[0x8b, 0x18][..], 0xdead_beef, 0xdead_beef),
            // mov bx, [rax]; mov bl, [rax]; mov bh, [rax]
            (&[0x66, 0x8b, 0x18], 0xbeef, 0x1122_3344_5566_beef),
            (&[0x8a, 0x18], 0xef, 0x1122_3344_5566_77ef),
            (&[0x8a, 0x38], 0xef, 0x1122_3344_5566_ef88),
            // movzx ebx, byte [rax]; movsx rbx, word [rax]; movsxd rbx, [rax]
            (&[0x0f, 0xb6, 0x18], 0xff, 0xff),
            (&[0x48, 0x0f, 0xbf, 0x18], 0x8000, 0xffff_ffff_ffff_8000),
            (&[0x48, 0x63, 0x18], 0x8000_0000, 0xffff_ffff_8000_0000),
            // mov rbx, [rax]
            (&[0x48, 0x8b, 0x18], u64::MAX, u64::MAX),
        ] {
            let access = decoded(bytes, &long_mode());
            assert_eq!(access.target, Some(WHvX64RegisterRbx));
            assert_eq!(access.loaded(OLD, value), new, "{bytes:02x?}");
        }
    }

    #[test]
    fn the_mode_decides_what_the_bytes_mean() {
        // dec eax; mov [eax], eax in 32-bit mode, one instruction in 64-bit mode.
        let bytes = [0x48, 0x89, 0x00];
        assert_eq!(decoded(&bytes, &long_mode()).width, 8);
        let registers = Registers::default();
        assert!(decode(&bytes, 0, &registers, &protected_mode()).is_err());
    }

    #[test]
    fn other_instructions_are_named() {
        // add [rax], ebx; rep movsb; nothing.
        for bytes in [&[0x01, 0x18][..], &[0xf3, 0xa4], &[]] {
            let error = decode(bytes, 0x1000, &Registers::default(), &long_mode());
            assert!(error.expect_err("unknown").contains("0x1000"));
        }
    }
}
