//! What a small C function stores through its three pointer arguments, found by following its machine code.
//!
//! The function is a straight run of moves between registers, its stack frame and the places that its
//! arguments point to, as a compiler makes it of `*a = 1; *b = 2; *c = 3;` with or without optimisation
//! (System V AMD64 calling convention: RDI, RSI, RDX). It is followed with values that are a constant, an
//! argument, a place in the stack frame, or unknown. Anything else (a branch, a call, another
//! instruction, a store to an unknown place) is refused, never guessed at.

use std::collections::BTreeMap;

/// Why the stores of a function are not known.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstantStoresError {
    /// An instruction that such a function does not need.
    #[error("byte {offset} is not one of the instructions that such a function has")]
    Instruction {
        /// Where in the function it begins.
        offset: usize,
    },
    /// The code ends before the function returns.
    #[error("the function does not return within {bytes} bytes")]
    NoReturn {
        /// How much of it was looked at.
        bytes: usize,
    },
    /// A store that is neither to the stack nor of 64 bits through an argument.
    #[error("the instruction at byte {offset} stores to an unknown place")]
    Store {
        /// Where in the function it begins.
        offset: usize,
    },
    /// An argument got no constant.
    #[error("no constant is stored through argument {position}")]
    NotStored {
        /// Position of the argument, from 0.
        position: usize,
    },
}

const RSP: usize = 4;
const RBP: usize = 5;
const REGISTERS: usize = 16;
/// RDI, RSI, RDX.
const ARGUMENT_REGISTERS: [usize; 3] = [7, 6, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    Constant(u64),
    Argument(usize),
    /// Offset from the stack pointer at entry, in bytes.
    Stack(i64),
}

impl Value {
    fn plus(self, offset: i64) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value.wrapping_add_signed(offset)),
            Self::Stack(at) => Self::Stack(at.wrapping_add(offset)),
            Self::Argument(position) if offset == 0 => Self::Argument(position),
            Self::Argument(_) | Self::Unknown => Self::Unknown,
        }
    }

    /// What a move of the lower 32 bits leaves: the upper ones become zero.
    fn low_32_bits(self) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value & 0xffff_ffff),
            _ => Self::Unknown,
        }
    }
}

/// An operand that a ModRM byte names.
#[derive(Clone, Copy)]
enum Place {
    Register(usize),
    Memory(Value),
}

/// The constants that the function in `code` stores through its first three arguments, each as a 64-bit value.
pub(super) fn constant_stores(code: &[u8]) -> Result<[u64; 3], ConstantStoresError> {
    let mut walk = Walk::new(code);
    while !walk.step()? {}
    let mut stored = [0; 3];
    for (position, (constant, value)) in stored.iter_mut().zip(walk.stored).enumerate() {
        let Value::Constant(value) = value else {
            return Err(ConstantStoresError::NotStored { position });
        };
        *constant = value;
    }
    Ok(stored)
}

struct Walk<'code> {
    code: &'code [u8],
    /// Next byte.
    at: usize,
    /// First byte of the current instruction.
    start: usize,
    registers: [Value; REGISTERS],
    stack: BTreeMap<i64, Value>,
    stored: [Value; 3],
}

/// Extensions of the current instruction's operands.
#[derive(Clone, Copy, Default)]
struct Rex {
    wide: bool,
    reg: usize,
    index: usize,
    base: usize,
}

impl<'code> Walk<'code> {
    fn new(code: &'code [u8]) -> Self {
        let mut registers = [Value::Unknown; REGISTERS];
        for (position, register) in ARGUMENT_REGISTERS.into_iter().enumerate() {
            registers[register] = Value::Argument(position);
        }
        registers[RSP] = Value::Stack(0);
        Self {
            code,
            at: 0,
            start: 0,
            registers,
            stack: BTreeMap::new(),
            stored: [Value::Unknown; 3],
        }
    }

    /// Follows one instruction; true when it returns.
    fn step(&mut self) -> Result<bool, ConstantStoresError> {
        self.start = self.at;
        if self
            .code
            .get(self.at..)
            .unwrap_or_default()
            .starts_with(&[0xf3, 0x0f, 0x1e, 0xfa])
        {
            self.at += 4; // endbr64
            return Ok(false);
        }
        let mut opcode = self.byte()?;
        let mut rex = Rex::default();
        if opcode & 0xf0 == 0x40 {
            let bit = |shift: u8| usize::from(opcode >> shift & 1) << 3;
            rex = Rex {
                wide: opcode & 8 != 0,
                reg: bit(2),
                index: bit(1),
                base: bit(0),
            };
            opcode = self.byte()?;
        }
        let low_register = usize::from(opcode & 7) | rex.base;
        match opcode {
            0x90 => {}
            0xc3 => return Ok(true),
            0xc9 => {
                self.registers[RSP] = self.registers[RBP];
                let value = self.pop();
                self.registers[RBP] = value;
            }
            0x50..=0x57 => self.push(self.registers[low_register])?,
            0x58..=0x5f => {
                let value = self.pop();
                self.registers[low_register] = value;
            }
            0xb8..=0xbf => {
                let constant = match rex.wide {
                    true => u64::from_le_bytes(self.bytes()?),
                    false => u64::from(u32::from_le_bytes(self.bytes()?)),
                };
                self.registers[low_register] = Value::Constant(constant);
            }
            0x31 | 0x33 | 0x81 | 0x83 | 0x89 | 0x8b | 0x8d | 0xc7 => {
                self.two_operands(opcode, rex)?;
            }
            _ => return Err(self.unexpected()),
        }
        Ok(false)
    }

    /// An instruction with a ModRM byte.
    fn two_operands(&mut self, opcode: u8, rex: Rex) -> Result<(), ConstantStoresError> {
        let (field, place) = self.operands(rex)?;
        let register = field | rex.reg;
        match opcode {
            // xor of a register with itself.
            0x31 | 0x33 => match place {
                Place::Register(other) if other == register => {
                    self.registers[register] = Value::Constant(0);
                }
                _ => return Err(self.unexpected()),
            },
            // add or sub of an immediate: the stack frame.
            0x81 | 0x83 => {
                let immediate = if opcode == 0x83 {
                    i64::from(i8::from_le_bytes(self.bytes()?))
                } else {
                    i64::from(i32::from_le_bytes(self.bytes()?))
                };
                let offset = match field {
                    0 => immediate,
                    5 => -immediate,
                    _ => return Err(self.unexpected()),
                };
                match place {
                    Place::Register(register) if rex.wide => {
                        self.registers[register] = self.registers[register].plus(offset);
                    }
                    _ => return Err(self.unexpected()),
                }
            }
            0x89 => self.store(place, self.registers[register], rex.wide)?,
            0x8b => {
                let value = self.load(place);
                self.registers[register] = if rex.wide { value } else { value.low_32_bits() };
            }
            0x8d => match place {
                Place::Memory(address) if rex.wide => self.registers[register] = address,
                _ => return Err(self.unexpected()),
            },
            // 0xc7: mov of an immediate, sign-extended.
            _ if field == 0 => {
                let immediate = i64::from(i32::from_le_bytes(self.bytes()?));
                self.store(place, Value::Constant(immediate.cast_unsigned()), rex.wide)?;
            }
            _ => return Err(self.unexpected()),
        }
        Ok(())
    }

    /// The register field of a ModRM byte, and the operand that the rest of it names.
    fn operands(&mut self, rex: Rex) -> Result<(usize, Place), ConstantStoresError> {
        let byte = self.byte()?;
        let field = usize::from(byte >> 3 & 7);
        let low = usize::from(byte & 7);
        let mode = byte >> 6;
        if mode == 3 {
            return Ok((field, Place::Register(low | rex.base)));
        }
        let mut base = match low {
            RSP => self.indexed(mode, rex)?,
            // Relative to the next instruction.
            RBP if mode == 0 => {
                self.bytes::<4>()?;
                Value::Unknown
            }
            _ => self.registers[low | rex.base],
        };
        base = match mode {
            1 => base.plus(i64::from(i8::from_le_bytes(self.bytes()?))),
            2 => base.plus(i64::from(i32::from_le_bytes(self.bytes()?))),
            _ => base,
        };
        Ok((field, Place::Memory(base)))
    }

    /// The base that a SIB byte names; unknown if there is an index too.
    fn indexed(&mut self, mode: u8, rex: Rex) -> Result<Value, ConstantStoresError> {
        let byte = self.byte()?;
        let index = usize::from(byte >> 3 & 7) | rex.index;
        let low = usize::from(byte & 7);
        if low == RBP && mode == 0 {
            self.bytes::<4>()?;
            return Ok(Value::Unknown);
        }
        Ok(match index {
            RSP => self.registers[low | rex.base],
            _ => Value::Unknown,
        })
    }

    fn load(&self, place: Place) -> Value {
        match place {
            Place::Register(register) => self.registers[register],
            Place::Memory(Value::Stack(at)) => {
                self.stack.get(&at).copied().unwrap_or(Value::Unknown)
            }
            Place::Memory(_) => Value::Unknown,
        }
    }

    fn store(&mut self, place: Place, value: Value, wide: bool) -> Result<(), ConstantStoresError> {
        match place {
            Place::Register(register) => {
                self.registers[register] = if wide { value } else { value.low_32_bits() };
            }
            Place::Memory(Value::Stack(at)) => {
                // What a narrow store leaves beside it is not followed.
                let value = if wide { value } else { Value::Unknown };
                self.stack.insert(at, value);
            }
            Place::Memory(Value::Argument(position)) if wide => self.stored[position] = value,
            Place::Memory(_) => return Err(ConstantStoresError::Store { offset: self.start }),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), ConstantStoresError> {
        self.registers[RSP] = self.registers[RSP].plus(-8);
        self.store(Place::Memory(self.registers[RSP]), value, true)
    }

    fn pop(&mut self) -> Value {
        let value = self.load(Place::Memory(self.registers[RSP]));
        self.registers[RSP] = self.registers[RSP].plus(8);
        value
    }

    fn byte(&mut self) -> Result<u8, ConstantStoresError> {
        self.bytes().map(|[byte]| byte)
    }

    fn bytes<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], ConstantStoresError> {
        let rest = self.code.get(self.at..).unwrap_or_default();
        let bytes = rest
            .first_chunk()
            .copied()
            .ok_or(ConstantStoresError::NoReturn {
                bytes: self.code.len(),
            })?;
        self.at += COUNT;
        Ok(bytes)
    }

    fn unexpected(&self) -> ConstantStoresError {
        ConstantStoresError::Instruction { offset: self.start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What gcc makes of libkrunfw's function without optimisation.
    const UNOPTIMISED: &[u8] = &[
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x89, 0x75, 0xf0, 0x48, 0x89, 0x55,
        0xe8, 0x48, 0x8b, 0x45, 0xf8, 0x48, 0xc7, 0x00, 0x00, 0x00, 0x00, 0x01, 0x48, 0x8b, 0x45,
        0xf0, 0x48, 0xc7, 0x00, 0x23, 0x01, 0x00, 0x01, 0x48, 0x8b, 0x45, 0xe8, 0x48, 0xc7, 0x00,
        0x00, 0x00, 0x45, 0x01, 0x48, 0x8b, 0x05, 0xa7, 0x2e, 0x00, 0x00, 0x5d, 0xc3,
    ];
    const EXPECTED: [u64; 3] = [0x0100_0000, 0x0100_0123, 0x0145_0000];

    #[test]
    fn a_function_without_optimisation_is_followed() {
        assert_eq!(constant_stores(UNOPTIMISED), Ok(EXPECTED));
        let with_endbr = [&[0xf3, 0x0f, 0x1e, 0xfa], UNOPTIMISED].concat();
        assert_eq!(constant_stores(&with_endbr), Ok(EXPECTED));
    }

    #[test]
    fn an_optimised_function_is_followed() {
        let code = [
            0x48, 0xc7, 0x07, 0, 0, 0, 1, // movq $0x1000000,(%rdi)
            0xb8, 0x23, 0x01, 0, 1, // mov $0x1000123,%eax
            0x48, 0x89, 0x06, // mov %rax,(%rsi)
            0x49, 0xb8, 0, 0, 0x45, 1, 2, 0, 0, 0, // movabs $0x201450000,%r8
            0x4c, 0x89, 0x02, // mov %r8,(%rdx)
            0x48, 0x8d, 0x05, 1, 2, 3, 4, // lea 0x4030201(%rip),%rax
            0xc3,
        ];
        assert_eq!(
            constant_stores(&code),
            Ok([0x0100_0000, 0x0100_0123, 0x2_0145_0000])
        );
    }

    #[test]
    fn a_frame_on_the_stack_pointer_is_followed() {
        let code = [
            0x48, 0x83, 0xec, 0x18, // sub $24,%rsp
            0x48, 0x89, 0x7c, 0x24, 0x08, // mov %rdi,8(%rsp)
            0x31, 0xc0, // xor %eax,%eax
            0x48, 0x8b, 0x4c, 0x24, 0x08, // mov 8(%rsp),%rcx
            0x48, 0x89, 0x01, // mov %rax,(%rcx)
            0x48, 0xc7, 0x06, 0xff, 0xff, 0xff, 0xff, // movq $-1,(%rsi)
            0x48, 0xc7, 0x02, 1, 0, 0, 0, // movq $1,(%rdx)
            0x48, 0x83, 0xc4, 0x18, // add $24,%rsp
            0xc3,
        ];
        assert_eq!(constant_stores(&code), Ok([0, u64::MAX, 1]));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        use ConstantStoresError::{Instruction, NoReturn, NotStored, Store};
        assert_eq!(constant_stores(&[]), Err(NoReturn { bytes: 0 }));
        assert_eq!(
            constant_stores(&UNOPTIMISED[..50]),
            Err(NoReturn { bytes: 50 })
        );
        assert_eq!(constant_stores(&[0xc3]), Err(NotStored { position: 0 }));
        // A jump.
        assert_eq!(
            constant_stores(&[0x90, 0xeb, 0xfe]),
            Err(Instruction { offset: 1 })
        );
        // A store of 32 bits, and one through RAX.
        let narrow = [0xc7, 0x07, 0, 0, 0, 1, 0xc3];
        assert_eq!(constant_stores(&narrow), Err(Store { offset: 0 }));
        let elsewhere = [0x48, 0xc7, 0x00, 0, 0, 0, 1, 0xc3];
        assert_eq!(constant_stores(&elsewhere), Err(Store { offset: 0 }));
        // A value that is not a constant.
        let argument = [0x48, 0x89, 0x37, 0xc3];
        assert_eq!(constant_stores(&argument), Err(NotStored { position: 0 }));
    }

    proptest::proptest! {
        #[test]
        fn any_code_ends(code in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            let _ = constant_stores(&code);
        }

        #[test]
        fn a_damaged_function_ends(at in 0..UNOPTIMISED.len(), byte: u8) {
            let mut code = UNOPTIMISED.to_vec();
            code[at] = byte;
            let _ = constant_stores(&code);
        }
    }
}
