//! Registers, and the execution of one instruction.
//!
//! Each instruction reads, computes, changes registers, and stores *last*. So one that meets an
//! address outside RAM while it reads has changed nothing and can be executed again once the value
//! is there, and one that meets it while it stores is complete.

use nvx_memory::{GuestAddress, GuestMemory};

use super::alu::{self, CF, Width, ZF};
use super::code_cache::CodeCache;
use super::instruction::{Address, Condition, Instruction, Operand, Operation, Port, Register};
use super::time_stamp::TimeStampCounter;
use crate::registers::Registers;

const EAX: Register = Register(0);
const EDX: Register = Register(2);
const ESP: Register = Register(4);

/// The registers that 32-bit code can reach.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpu {
    /// In the order of their numbers in machine code.
    general: [u32; 8],
    pub(super) eip: u32,
    pub(super) eflags: u32,
}

/// What an instruction needs from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// The instruction is complete but for the value.
    PortRead { port: u16, width: Width },
    /// The instruction is complete.
    PortWrite { port: u16, width: Width, value: u32 },
    /// The instruction is to be executed again with the value.
    MmioRead { address: u32, width: Width },
    /// The instruction is complete.
    MmioWrite {
        address: u32,
        width: Width,
        value: u32,
    },
    /// HLT; the instruction is complete.
    Halted,
    /// The instruction cannot be executed.
    Fault(Fault),
}

/// Why an instruction cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is none of those that are implemented, or lies outside RAM.
    NotExecutable,
    /// DIV by zero, or a quotient that does not fit (#DE).
    Divide,
    /// An access that is only in part RAM, or that wraps at 4 GiB.
    Straddles { address: u32, size_bytes: usize },
}

/// What instructions reach beside the registers.
pub(super) struct Surroundings<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) code: &'a mut CodeCache,
    pub(super) time: &'a TimeStampCounter,
    /// The value for an [`Exit::MmioRead`] that is being finished.
    pub(super) answer: Option<u32>,
}

impl Surroundings<'_> {
    fn load(&mut self, address: u32, width: Width) -> Result<u32, Exit> {
        let mut bytes = [0; 4];
        let wanted = bytes.get_mut(..width.bytes()).unwrap_or_default();
        if self
            .memory
            .read(GuestAddress(u64::from(address)), wanted)
            .is_ok()
        {
            return Ok(u32::from_le_bytes(bytes));
        }
        if let Some(value) = self.answer.take() {
            return Ok(value);
        }
        self.require_outside(address, width)?;
        Err(Exit::MmioRead { address, width })
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), Exit> {
        let bytes = value.to_le_bytes();
        let wanted = bytes.get(..width.bytes()).unwrap_or_default();
        if self
            .memory
            .write(GuestAddress(u64::from(address)), wanted)
            .is_ok()
        {
            self.code.note_store(address, width.bytes());
            return Ok(());
        }
        self.require_outside(address, width)?;
        Err(Exit::MmioWrite {
            address,
            width,
            value,
        })
    }

    /// An access that RAM cannot serve as a whole must not touch RAM at all.
    #[cold]
    fn require_outside(&self, address: u32, width: Width) -> Result<(), Exit> {
        let size_bytes = width.bytes();
        let straddles = Err(Exit::Fault(Fault::Straddles {
            address,
            size_bytes,
        }));
        let Some(last) = address.checked_add(size_bytes as u32 - 1) else {
            return straddles;
        };
        let layout = self.memory.layout();
        if layout.contains(GuestAddress(u64::from(address)))
            || layout.contains(GuestAddress(u64::from(last)))
        {
            return straddles;
        }
        Ok(())
    }
}

impl Cpu {
    /// Executes `instruction`, which `eip` is already behind.
    pub(super) fn execute(
        &mut self,
        instruction: Instruction,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Exit> {
        match instruction.operation {
            Operation::Binary(operation, width, target, source) => {
                let a = self.read(target, width, around)?;
                let b = self.read(source, width, around)?;
                let (result, flags) = alu::binary(operation, width, a, b, self.eflags);
                self.eflags = flags;
                if operation.stores() {
                    return self.write(target, width, result, around);
                }
            }
            Operation::Step(step, width, target) => {
                let value = self.read(target, width, around)?;
                let (result, flags) = alu::step(step, width, value, self.eflags);
                self.eflags = flags;
                return self.write(target, width, result, around);
            }
            Operation::Shift(shift, width, target, count) => {
                let value = self.read(target, width, around)?;
                let count = self.read(count, Width::Byte, around)?;
                let (result, flags) = alu::shift(shift, width, value, count, self.eflags);
                self.eflags = flags;
                return self.write(target, width, result, around);
            }
            Operation::Move(width, target, source) => {
                let value = self.read(source, width, around)?;
                return self.write(target, width, value, around);
            }
            Operation::ZeroExtend(target, source) => {
                let value = self.read(source, Width::Byte, around)?;
                self.set(target, value);
            }
            Operation::Multiply(target, a, b) => {
                let a = self.read(a, Width::Dword, around)?;
                let b = self.read(b, Width::Dword, around)?;
                let (result, flags) = alu::multiply(a, b, self.eflags);
                self.eflags = flags;
                self.set(target, result);
            }
            Operation::Divide(divisor) => {
                let divisor = self.read(divisor, Width::Dword, around)?;
                let (quotient, remainder) = alu::divide(self.get(EDX), self.get(EAX), divisor)
                    .ok_or(Exit::Fault(Fault::Divide))?;
                self.set(EAX, quotient);
                self.set(EDX, remainder);
            }
            Operation::Jump(condition, to) => {
                if self.holds(condition) {
                    self.eip = to;
                }
            }
            Operation::Call(to) => {
                let back = self.eip;
                let top = self.get(ESP).wrapping_sub(4);
                self.set(ESP, top);
                self.eip = to;
                return around.store(top, Width::Dword, back);
            }
            Operation::Return => {
                let top = self.get(ESP);
                self.eip = around.load(top, Width::Dword)?;
                self.set(ESP, top.wrapping_add(4));
            }
            Operation::PortIn(width, port) => {
                let port = self.port(port);
                return Err(Exit::PortRead { port, width });
            }
            Operation::PortOut(width, port) => {
                return Err(Exit::PortWrite {
                    port: self.port(port),
                    width,
                    value: self.get(EAX),
                });
            }
            Operation::Halt => return Err(Exit::Halted),
            Operation::ReadTimeStampCounter => {
                let now = around.time.now();
                self.set(EAX, now as u32);
                self.set(EDX, (now >> 32) as u32);
            }
        }
        Ok(())
    }

    /// Gives AL or EAX what an IN has read.
    pub(super) fn finish_port_read(&mut self, width: Width, value: u32) {
        self.set_part(EAX, width, value);
    }

    fn holds(&self, condition: Condition) -> bool {
        let carry = self.eflags & CF != 0;
        let zero = self.eflags & ZF != 0;
        match condition {
            Condition::Always => true,
            Condition::Above => !carry && !zero,
            Condition::AboveOrEqual => !carry,
            Condition::Below => carry,
            Condition::BelowOrEqual => carry || zero,
            Condition::Equal => zero,
            Condition::NotEqual => !zero,
        }
    }

    fn port(&self, port: Port) -> u16 {
        match port {
            Port::Dx => self.get(EDX) as u16,
            Port::Immediate(number) => u16::from(number),
        }
    }

    fn read(
        &self,
        operand: Operand,
        width: Width,
        around: &mut Surroundings<'_>,
    ) -> Result<u32, Exit> {
        match operand {
            Operand::Register(register) => Ok(self.part(register, width)),
            Operand::Immediate(value) => Ok(value),
            Operand::Memory(address) => around.load(self.address(address), width),
        }
    }

    fn write(
        &mut self,
        operand: Operand,
        width: Width,
        value: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Exit> {
        match operand {
            Operand::Register(register) => self.set_part(register, width, value),
            Operand::Memory(address) => return around.store(self.address(address), width, value),
            // The decoder takes no instruction with a constant as target.
            Operand::Immediate(_) => {}
        }
        Ok(())
    }

    fn address(&self, address: Address) -> u32 {
        let base = address.base.map_or(0, |register| self.get(register));
        let index = address.index.map_or(0, |register| self.get(register));
        base.wrapping_add(index << (address.scale_shift & 3))
            .wrapping_add(address.displacement)
    }

    fn part(&self, register: Register, width: Width) -> u32 {
        match width {
            Width::Dword => self.get(register),
            Width::Word => self.get(register) & 0xffff,
            Width::Byte => self.get(Register(register.0 & 3)) >> byte_shift(register) & 0xff,
        }
    }

    fn set_part(&mut self, register: Register, width: Width, value: u32) {
        match width {
            Width::Dword => self.set(register, value),
            Width::Word => {
                let kept = self.get(register) & !0xffff;
                self.set(register, kept | value & 0xffff);
            }
            Width::Byte => {
                let (whole, shift) = (Register(register.0 & 3), byte_shift(register));
                let kept = self.get(whole) & !(0xff << shift);
                self.set(whole, kept | (value & 0xff) << shift);
            }
        }
    }

    fn get(&self, register: Register) -> u32 {
        self.general[usize::from(register.0 & 7)]
    }

    fn set(&mut self, register: Register, value: u32) {
        self.general[usize::from(register.0 & 7)] = value;
    }

    /// The registers with the parts that 32-bit code cannot reach taken from `unreachable`.
    pub(super) fn to_registers(&self, unreachable: &Registers) -> Registers {
        let low = |value: u64, low: u32| value & !u64::from(u32::MAX) | u64::from(low);
        let [eax, ecx, edx, ebx, esp, ebp, esi, edi] = self.general;
        Registers {
            rax: low(unreachable.rax, eax),
            rbx: low(unreachable.rbx, ebx),
            rcx: low(unreachable.rcx, ecx),
            rdx: low(unreachable.rdx, edx),
            rsi: low(unreachable.rsi, esi),
            rdi: low(unreachable.rdi, edi),
            rsp: low(unreachable.rsp, esp),
            rbp: low(unreachable.rbp, ebp),
            rip: low(unreachable.rip, self.eip),
            rflags: low(unreachable.rflags, self.eflags),
            ..unreachable.clone()
        }
    }
}

impl From<&Registers> for Cpu {
    fn from(registers: &Registers) -> Self {
        let r = registers;
        Self {
            general: [r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi]
                .map(|value| value as u32),
            eip: r.rip as u32,
            eflags: r.rflags as u32,
        }
    }
}

/// AH, CH, DH and BH (numbers 4 to 7) are the second bytes of the first four registers.
fn byte_shift(register: Register) -> u32 {
    u32::from(register.0 & 4) * 2
}
