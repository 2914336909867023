//! INS and OUTS: port accesses whose data are in guest memory.
//!
//! One element at a time: after each the registers are what the processor leaves between two elements,
//! so a repeated instruction that is interrupted, stopped or captured goes on by itself. The hypervisor
//! translates the guest's addresses.

use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use nvx_memory::GuestAddress;
use windows_sys::Win32::System::Hypervisor::*;

use super::emulate::code_bits;
use super::library::checked;
use super::partition::Machine;
use crate::error::SystemError;
use crate::registers::{Registers, SystemRegisters};

/// RFLAGS: string instructions go downwards.
const DIRECTION: u64 = 1 << 10;

/// One element of a string instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Linear address of its data.
    pub(super) address: u64,
    /// Bytes.
    pub(super) width: usize,
    is_output: bool,
    /// The registers after it.
    index: (WHV_REGISTER_NAME, u64),
    count: Option<u64>,
    rip: u64,
}

/// What string instruction is in `bytes`, with the registers before it; a text if it is none.
pub(super) fn decode(
    bytes: &[u8],
    width: usize,
    registers: &Registers,
    system: &SystemRegisters,
) -> Result<Element, String> {
    let bits = code_bits(system);
    let rip = registers.rip;
    let instruction = Decoder::with_ip(bits, bytes, rip, DecoderOptions::NONE).decode();
    let is_output = match instruction.mnemonic() {
        iced_x86::Mnemonic::Outsb | iced_x86::Mnemonic::Outsw | iced_x86::Mnemonic::Outsd => true,
        iced_x86::Mnemonic::Insb | iced_x86::Mnemonic::Insw | iced_x86::Mnemonic::Insd => false,
        _ => {
            return Err(format!(
                "instruction at {rip:#x} ({bytes:02x?}) accesses a port and is no INS or OUTS"
            ));
        }
    };
    let address_bits = address_bits(&instruction);
    let mask = u64::MAX >> (64 - address_bits);
    let (name, index) = match is_output {
        true => (WHvX64RegisterRsi, registers.rsi),
        false => (WHvX64RegisterRdi, registers.rdi),
    };
    let base = match (is_output, instruction.memory_segment()) {
        // Only FS and GS have a base in 64-bit mode.
        (true, Register::FS) => system.fs.base,
        (true, Register::GS) => system.gs.base,
        _ if bits == 64 => 0,
        (true, Register::CS) => system.cs.base,
        (true, Register::SS) => system.ss.base,
        (true, Register::ES) | (false, _) => system.es.base,
        _ => system.ds.base,
    };
    let linear_mask = if bits == 64 { u64::MAX } else { 0xffff_ffff };
    let moved = match registers.rflags & DIRECTION {
        0 => index.wrapping_add(width as u64),
        _ => index.wrapping_sub(width as u64),
    };
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let left = (registers.rcx & mask).wrapping_sub(1) & mask;
    let next = rip.wrapping_add(instruction.len() as u64);
    Ok(Element {
        address: base.wrapping_add(index & mask) & linear_mask,
        width,
        is_output,
        index: (name, part(index, moved, address_bits)),
        count: repeats.then(|| part(registers.rcx, left, address_bits)),
        rip: if repeats && left != 0 { rip } else { next },
    })
}

/// 16, 32 or 64: which parts of the index and of the count are used.
fn address_bits(instruction: &Instruction) -> u32 {
    let uses = |registers: [Register; 2]| {
        registers.contains(&instruction.memory_base())
            || (0..instruction.op_count()).any(|operand| {
                use iced_x86::OpKind;
                match instruction.op_kind(operand) {
                    OpKind::MemorySegSI | OpKind::MemoryESDI => registers[0] == Register::SI,
                    OpKind::MemorySegESI | OpKind::MemoryESEDI => registers[0] == Register::ESI,
                    _ => false,
                }
            })
    };
    if uses([Register::SI, Register::DI]) {
        16
    } else if uses([Register::ESI, Register::EDI]) {
        32
    } else {
        64
    }
}

/// A register of which the low `bits` have changed; 32 of them clear the upper half.
fn part(old: u64, new: u64, bits: u32) -> u64 {
    match bits {
        16 => old & !0xffff | new & 0xffff,
        32 => new & 0xffff_ffff,
        _ => new,
    }
}

impl Element {
    /// Whether its data come from memory.
    pub(super) fn is_output(&self) -> bool {
        self.is_output
    }
}

impl Machine {
    /// Moves the registers of vCPU `vcpu` behind `element`.
    pub(super) fn pass(&self, vcpu: u32, element: &Element) -> Result<(), SystemError> {
        let (name, index) = element.index;
        self.set_one(vcpu, name, index)?;
        if let Some(count) = element.count {
            self.set_one(vcpu, WHvX64RegisterRcx, count)?;
        }
        self.set_one(vcpu, WHvX64RegisterRip, element.rip)
    }

    /// Guest-physical addresses of the bytes of `element`, which may cross a page; a text if the guest
    /// has none there.
    pub(super) fn physical(
        &self,
        vcpu: u32,
        element: &Element,
    ) -> Result<Result<Vec<GuestAddress>, String>, SystemError> {
        let flags = match element.is_output {
            true => WHvTranslateGvaFlagValidateRead,
            false => WHvTranslateGvaFlagValidateWrite,
        } | WHvTranslateGvaFlagSetPageTableBits;
        let mut found = Vec::with_capacity(element.width);
        for offset in 0..element.width as u64 {
            let linear = element.address.wrapping_add(offset);
            let mut result = WHV_TRANSLATE_GVA_RESULT::default();
            let mut physical = 0;
            // SAFETY: both results live until the call returns.
            let called = unsafe {
                (self.library.translate)(
                    self.handle,
                    vcpu,
                    linear,
                    flags,
                    &raw mut result,
                    &raw mut physical,
                )
            };
            checked("WHvTranslateGva", called)?;
            if result.ResultCode != WHvTranslateGvaResultSuccess {
                return Ok(Err(format!(
                    "a string instruction accesses a port and memory at {linear:#x}, which is not \
                     mapped (result {})",
                    result.ResultCode
                )));
            }
            found.push(GuestAddress(physical));
        }
        Ok(Ok(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Segment;

    fn registers() -> Registers {
        Registers {
            rip: 0x1000,
            rsi: 0x1_0000_fffe,
            rdi: 0x2_0000_0010,
            rcx: 0x5_0000_0002,
            ..Default::default()
        }
    }

    fn protected_mode() -> SystemRegisters {
        SystemRegisters {
            cs: Segment::flat_code_32(0x10),
            ds: Segment {
                base: 0x100,
                ..Segment::flat_data_32(0x18)
            },
            es: Segment::flat_data_32(0x18),
            ..Default::default()
        }
    }

    #[test]
    fn an_element_of_a_repeated_output_leaves_the_instruction_to_be_repeated() {
        // rep outsw
        let element = decode(&[0xf3, 0x66, 0x6f], 2, &registers(), &protected_mode()).unwrap();
        assert!(element.is_output());
        assert_eq!(element.address, 0x1_00fe);
        assert_eq!(element.index, (WHvX64RegisterRsi, 0x1_0000));
        assert_eq!(element.count, Some(1));
        assert_eq!(element.rip, 0x1000);
    }

    #[test]
    fn the_last_element_ends_the_instruction() {
        let mut before = registers();
        before.rcx = 1;
        // rep insb
        let element = decode(&[0xf3, 0x6c], 1, &before, &protected_mode()).unwrap();
        assert!(!element.is_output());
        assert_eq!(element.address, 0x10);
        assert_eq!((element.count, element.rip), (Some(0), 0x1002));
    }

    #[test]
    fn prefixes_and_the_direction_are_obeyed() {
        let mut before = registers();
        before.rflags = DIRECTION;
        // outsb with 16-bit addresses, from ES
        let element = decode(&[0x26, 0x67, 0x6e], 1, &before, &protected_mode()).unwrap();
        assert_eq!(element.address, 0xfffe);
        assert_eq!(element.index, (WHvX64RegisterRsi, 0x1_0000_fffd));
        assert_eq!((element.count, element.rip), (None, 0x1003));
    }

    #[test]
    fn other_instructions_are_named() {
        let error = decode(&[0xec], 1, &registers(), &protected_mode()).unwrap_err();
        assert!(error.contains("0x1000"), "{error}");
    }
}
