//! Instructions that the software CPU has not, and that guests with interrupts need: the interrupt flag,
//! the stack, CPUID, MSRs and strings to and from ports. In 32-bit protected mode with flat segments and
//! without paging, which is all that the software CPU has.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use nvx_hypervisor::{Registers, SystemRegisters};
use nvx_memory::{GuestAddress, GuestMemory};

pub const INTERRUPT_FLAG: u64 = 1 << 9;
const HALT: u8 = 0xf4;
/// Flags that POPF changes in ring 0 (Intel SDM volume 2, POPF), and the one that always reads as 1.
const POPPED_FLAGS: u64 = 0x0024_7fd5;
const FIXED_FLAGS: u64 = 2;

/// What came of an instruction.
pub enum Done {
    /// It is executed.
    Yes,
    /// It was STI, and HLT after it.
    Halted,
    /// The hypervisor may leave it to the monitor.
    Cpuid,
    ReadMsr,
    WriteMsr,
    StringPort(StringPort),
    /// It is none of these.
    Unknown,
}

/// INS or OUTS.
pub struct StringPort {
    pub port: u16,
    pub width: u8,
    pub is_write: bool,
    pub repeats: bool,
    /// The instruction, and how many of these bytes there are.
    pub bytes: [u8; 16],
    pub length: u8,
}

/// The instruction at `rip`.
pub fn fetch(memory: &GuestMemory, rip: u64) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    let mut length = 0;
    while length < 15
        && memory
            .read(
                GuestAddress(rip + length as u64),
                &mut bytes[length..=length],
            )
            .is_ok()
    {
        length += 1;
    }
    (bytes, length)
}

fn decode(bytes: &[u8], rip: u64) -> Instruction {
    Decoder::with_ip(32, bytes, rip, DecoderOptions::NONE).decode()
}

/// Executes the instruction at RIP, if it is one of those here.
pub fn execute(memory: &GuestMemory, registers: &mut Registers) -> Done {
    let (bytes, length) = fetch(memory, registers.rip);
    let instruction = decode(&bytes[..length], registers.rip);
    let next = registers.rip + instruction.len() as u64;
    let done = match instruction.mnemonic() {
        Mnemonic::Cli => {
            registers.rflags &= !INTERRUPT_FLAG;
            Done::Yes
        }
        Mnemonic::Sti => {
            registers.rflags |= INTERRUPT_FLAG;
            let mut following = [0];
            // Nothing interrupts between STI and the next instruction.
            let halts = memory.read(GuestAddress(next), &mut following).is_ok();
            if halts && following == [HALT] {
                registers.rip = next + 1;
                return Done::Halted;
            }
            Done::Yes
        }
        Mnemonic::Push => match general(registers, instruction.op0_register()) {
            Some(register) => {
                let value = *register as u32;
                push(memory, registers, value)
            }
            None => Done::Unknown,
        },
        Mnemonic::Pop => match pop(memory, registers) {
            Some(value) => match general(registers, instruction.op0_register()) {
                Some(register) => {
                    *register = u64::from(value);
                    Done::Yes
                }
                None => Done::Unknown,
            },
            None => Done::Unknown,
        },
        Mnemonic::Popfd => match pop(memory, registers) {
            Some(value) => {
                registers.rflags = u64::from(value) & POPPED_FLAGS | FIXED_FLAGS;
                Done::Yes
            }
            None => Done::Unknown,
        },
        Mnemonic::Cpuid => return Done::Cpuid,
        Mnemonic::Rdmsr => return Done::ReadMsr,
        Mnemonic::Wrmsr => return Done::WriteMsr,
        Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => {
            return string_port(registers, &instruction, bytes, length, true);
        }
        Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => {
            return string_port(registers, &instruction, bytes, length, false);
        }
        _ => Done::Unknown,
    };
    if let Done::Yes = done {
        registers.rip = next;
    }
    done
}

fn string_port(
    registers: &mut Registers,
    instruction: &Instruction,
    bytes: [u8; 16],
    length: usize,
    is_write: bool,
) -> Done {
    let repeats = instruction.has_rep_prefix();
    if repeats && registers.rcx as u32 == 0 {
        registers.rip += instruction.len() as u64;
        return Done::Yes;
    }
    Done::StringPort(StringPort {
        port: registers.rdx as u16,
        width: match instruction.mnemonic() {
            Mnemonic::Outsb | Mnemonic::Insb => 1,
            Mnemonic::Outsw | Mnemonic::Insw => 2,
            _ => 4,
        },
        is_write,
        repeats,
        bytes,
        length: length as u8,
    })
}

/// A 32-bit register.
fn general(registers: &mut Registers, name: Register) -> Option<&mut u64> {
    Some(match name {
        Register::EAX => &mut registers.rax,
        Register::EBX => &mut registers.rbx,
        Register::ECX => &mut registers.rcx,
        Register::EDX => &mut registers.rdx,
        Register::ESI => &mut registers.rsi,
        Register::EDI => &mut registers.rdi,
        Register::EBP => &mut registers.rbp,
        _ => return None,
    })
}

fn push(memory: &GuestMemory, registers: &mut Registers, value: u32) -> Done {
    let top = u64::from((registers.rsp as u32).wrapping_sub(4));
    if memory
        .write(GuestAddress(top), &value.to_le_bytes())
        .is_err()
    {
        return Done::Unknown;
    }
    registers.rsp = top;
    Done::Yes
}

fn pop(memory: &GuestMemory, registers: &mut Registers) -> Option<u32> {
    let value = memory.read_u32(GuestAddress(registers.rsp)).ok()?;
    registers.rsp = u64::from((registers.rsp as u32).wrapping_add(4));
    Some(value)
}

/// Takes an interrupt or an exception through the guest's table (Intel SDM volume 3, 6.12.1); a text if
/// the table does not lead to a handler in the same segment.
pub fn enter_handler(
    memory: &GuestMemory,
    registers: &mut Registers,
    system: &SystemRegisters,
    vector: u8,
    error_code: Option<u32>,
) -> Result<(), String> {
    let at = GuestAddress(system.idt.base + 8 * u64::from(vector));
    let mut gate = [0; 8];
    let is_inside = 8 * u32::from(vector) + 7 <= system.idt.limit;
    if !is_inside || memory.read(at, &mut gate).is_err() {
        return Err(format!("no gate for vector {vector:#x}"));
    }
    let gate = u64::from_le_bytes(gate);
    let kind = gate >> 40 & 0xff;
    let selector = (gate >> 16) as u16;
    if !matches!(kind, 0x8e | 0x8f) || u32::from(selector) != system.cs.selector {
        return Err(format!("gate {gate:#x} for vector {vector:#x}"));
    }
    let pushed = [
        Some(registers.rflags as u32),
        Some(system.cs.selector),
        Some(registers.rip as u32),
        error_code,
    ];
    for value in pushed.into_iter().flatten() {
        if let Done::Unknown = push(memory, registers, value) {
            return Err("no stack for an interrupt".to_owned());
        }
    }
    if kind == 0x8e {
        registers.rflags &= !INTERRUPT_FLAG;
    }
    registers.rip = gate & 0xffff | gate >> 32 & 0xffff_0000;
    Ok(())
}

/// Where the store began that has just been executed, with its bytes: the software CPU tells of it when
/// it is behind it.
pub fn start_of_store(
    memory: &GuestMemory,
    registers: &Registers,
    address: u64,
    width: usize,
) -> Option<u64> {
    (1..=15).rev().find_map(|length| {
        let start = registers.rip.checked_sub(length)?;
        let (bytes, available) = fetch(memory, start);
        let instruction = decode(&bytes[..available], start);
        let fits = instruction.len() as u64 == length
            && instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_size().size() == width;
        let value = |register: Register| {
            let mut copy = registers.clone();
            match register {
                Register::None => 0,
                Register::ESP => registers.rsp as u32,
                other => general(&mut copy, other).map_or(0, |value| *value as u32),
            }
        };
        let effective = || {
            value(instruction.memory_base())
                .wrapping_add(
                    value(instruction.memory_index())
                        .wrapping_mul(instruction.memory_index_scale()),
                )
                .wrapping_add(instruction.memory_displacement32())
        };
        (fits && u64::from(effective()) == address).then_some(start)
    })
}
