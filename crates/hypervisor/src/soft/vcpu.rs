//! A software vCPU: batches of instructions, and exits.

use std::sync::Arc;

use nvx_memory::{GuestAddress, GuestMemory};

use super::alu::Width;
use super::code_cache::{self, CodeCache};
use super::cpu::{Cpu, Exit, Fault, Surroundings};
use super::instruction::{self, Instruction};
use super::stop::SoftStop;
use super::time_stamp::TimeStampCounter;
use super::{PURPOSE, mode, state};
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{RunError, StateError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::VcpuState;
use crate::traits::{StopHandle, Vcpu};

/// Instructions between two looks at the stop flag: some tens of microseconds.
const BATCH_INSTRUCTIONS: u32 = 4096;

/// What a vCPU does when it is let run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Executes,
    /// Since no interrupt ever comes, for good.
    Halted,
    /// For good as well: there is no interrupt controller that could send INIT.
    WaitsForInit,
}

/// What the last exit still needs when the vCPU runs next.
#[derive(Clone, Copy)]
enum Unfinished {
    /// The value of an IN, for AL or EAX.
    PortRead(Width),
    /// The value of a load, with which the instruction is executed again.
    MmioRead(Instruction, Width),
}

/// A vCPU of [`super::Soft`].
pub(super) struct SoftVcpu {
    index: u8,
    memory: Arc<GuestMemory>,
    pub(super) cpuid: Vec<CpuidEntry>,
    cpu: Cpu,
    /// The registers as they were last set, for the parts that 32-bit code cannot reach.
    registers: Registers,
    system: SystemRegisters,
    pub(super) activity: Activity,
    pub(super) time: TimeStampCounter,
    code: CodeCache,
    stop: Arc<SoftStop>,
    unfinished: Option<Unfinished>,
    /// What an exit exchanges with its reader.
    data: [u8; 4],
    /// Why no instruction can be executed with these registers, or after the last one.
    refusal: Option<String>,
}

impl SoftVcpu {
    pub(super) fn new(index: u8, memory: Arc<GuestMemory>) -> Self {
        let (registers, system) = mode::after_reset();
        let mut vcpu = Self {
            index,
            memory,
            cpuid: Vec::new(),
            cpu: Cpu::default(),
            registers: Registers::default(),
            system: SystemRegisters::default(),
            activity: Activity::WaitsForInit,
            time: TimeStampCounter::at_power_on(),
            code: CodeCache::new(),
            stop: Arc::default(),
            unfinished: None,
            data: [0; 4],
            refusal: None,
        };
        if vcpu.boots() {
            vcpu.activity = Activity::Executes;
        }
        vcpu.load_registers(&registers, &system);
        vcpu
    }

    /// Whether this is the vCPU that runs; all others wait.
    pub(super) fn boots(&self) -> bool {
        self.index == 0
    }

    pub(super) fn has_unfinished_exit(&self) -> bool {
        self.unfinished.is_some()
    }

    pub(super) fn all_registers(&self) -> (Registers, SystemRegisters) {
        (self.cpu.to_registers(&self.registers), self.system.clone())
    }

    pub(super) fn load_registers(&mut self, registers: &Registers, system: &SystemRegisters) {
        self.cpu = Cpu::from(registers);
        self.registers = registers.clone();
        self.system = system.clone();
        self.unfinished = None;
        self.refusal = mode::refusal(registers, system);
    }

    /// Finishes the last exit; the further exit that this took, if it did.
    fn finish_exit(&mut self) -> Option<Exit> {
        let value = u32::from_le_bytes(self.data);
        match self.unfinished.take()? {
            Unfinished::PortRead(width) => {
                self.cpu.finish_port_read(width, value);
                None
            }
            Unfinished::MmioRead(instruction, width) => {
                self.execute(instruction, Some(value & width.mask())).err()
            }
        }
    }

    /// Executes at most [`BATCH_INSTRUCTIONS`].
    fn run_batch(&mut self) -> Option<Exit> {
        for _ in 0..BATCH_INSTRUCTIONS {
            let Some(instruction) = self.code.fetch(self.cpu.eip, &self.memory) else {
                return Some(Exit::Fault(Fault::NotExecutable));
            };
            if let Err(exit) = self.execute(instruction, None) {
                return Some(exit);
            }
        }
        None
    }

    fn execute(&mut self, instruction: Instruction, answer: Option<u32>) -> Result<(), Exit> {
        let at = self.cpu.eip;
        self.cpu.eip = at.wrapping_add(u32::from(instruction.length));
        let mut around = Surroundings {
            memory: &self.memory,
            code: &mut self.code,
            time: &self.time,
            answer,
        };
        let result = self.cpu.execute(instruction, &mut around);
        if let Err(exit) = result {
            self.note_exit(at, instruction, exit);
        }
        result
    }

    /// Remembers what `exit` of the instruction at `at` leaves to be done.
    #[cold]
    fn note_exit(&mut self, at: u32, instruction: Instruction, exit: Exit) {
        match exit {
            Exit::PortRead { width, .. } => self.unfinished = Some(Unfinished::PortRead(width)),
            Exit::MmioRead { width, .. } => {
                self.cpu.eip = at;
                self.unfinished = Some(Unfinished::MmioRead(instruction, width));
            }
            Exit::Fault(_) => self.cpu.eip = at,
            Exit::Halted => self.activity = Activity::Halted,
            Exit::PortWrite { .. } | Exit::MmioWrite { .. } => {}
        }
    }

    /// The exit as the monitor sees it.
    fn report(&mut self, exit: Exit) -> VcpuExit<'_> {
        let at = |address| GuestAddress(u64::from(address));
        match exit {
            Exit::PortRead { port, width } => VcpuExit::PortRead {
                port,
                width: width.bytes() as u8,
                data: self.exchange(0, width),
            },
            Exit::PortWrite { port, width, value } => VcpuExit::PortWrite {
                port,
                width: width.bytes() as u8,
                data: self.exchange(value, width),
            },
            Exit::MmioRead { address, width } => VcpuExit::MmioRead {
                address: at(address),
                data: self.exchange(0, width),
            },
            Exit::MmioWrite {
                address,
                width,
                value,
            } => VcpuExit::MmioWrite {
                address: at(address),
                data: self.exchange(value, width),
            },
            Exit::Halted => VcpuExit::Halted,
            Exit::Fault(fault) => {
                let text = self.describe(fault);
                self.refusal = Some(text.clone());
                VcpuExit::Unsupported(text)
            }
        }
    }

    fn exchange(&mut self, value: u32, width: Width) -> &mut [u8] {
        self.data = value.to_le_bytes();
        self.data.get_mut(..width.bytes()).unwrap_or_default()
    }

    /// Says what is wrong with the instruction at EIP.
    fn describe(&self, fault: Fault) -> String {
        let address = self.cpu.eip;
        let (bytes, length) = code_cache::read_code(address, &self.memory);
        let bytes = bytes.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            return format!("no instruction can be fetched at {address:#x}, which is not RAM");
        }
        let instruction = instruction::describe(address, bytes);
        match fault {
            Fault::NotExecutable => format!(
                "instruction at {address:#x} is not one of those implemented: {instruction}; this \
                 is a {PURPOSE}"
            ),
            Fault::Divide => {
                format!("divide error (#DE) by the instruction at {address:#x}: {instruction}")
            }
            Fault::Straddles {
                address: target,
                size_bytes,
            } => format!(
                "instruction at {address:#x} accesses {size_bytes} bytes at {target:#x}, of which \
                 only a part is RAM: {instruction}"
            ),
        }
    }
}

impl Vcpu for SoftVcpu {
    fn index(&self) -> u8 {
        self.index
    }

    fn set_cpu_model(&mut self, model: &CpuModel) -> Result<(), SystemError> {
        self.cpuid.clone_from(&model.entries);
        Ok(())
    }

    fn registers(&self) -> Result<(Registers, SystemRegisters), SystemError> {
        Ok(self.all_registers())
    }

    fn set_registers(
        &mut self,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError> {
        self.load_registers(registers, system);
        Ok(())
    }

    fn bind_to_this_thread(&mut self) {
        // A stop reaches this vCPU through memory alone, whichever thread runs it.
    }

    fn run(&mut self) -> Result<VcpuExit<'_>, RunError> {
        if let Some(exit) = self.finish_exit() {
            return Ok(self.report(exit));
        }
        if self.activity == Activity::WaitsForInit {
            self.stop.wait();
        }
        // The monitor may have changed memory since the last exit.
        self.code.begin_epoch();
        while !self.stop.is_requested() {
            if self.activity == Activity::Halted {
                return Ok(VcpuExit::Halted);
            }
            if let Some(refusal) = &self.refusal {
                return Ok(VcpuExit::Unsupported(refusal.clone()));
            }
            if let Some(exit) = self.run_batch() {
                return Ok(self.report(exit));
            }
        }
        Ok(VcpuExit::Canceled)
    }

    fn stop_handle(&self) -> Arc<dyn StopHandle> {
        Arc::clone(&self.stop) as Arc<dyn StopHandle>
    }

    fn hold(&mut self) {
        self.stop_handle().request_stop();
    }

    fn clear_stop(&mut self) {
        self.stop.clear();
    }

    fn save(&mut self) -> Result<VcpuState, StateError> {
        state::save(self)
    }

    fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        state::restore(self, state)
    }
}
