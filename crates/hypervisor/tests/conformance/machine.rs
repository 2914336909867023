//! The machine that the bodies run their few instructions on, and what its guest does, as values
//! that outlive the exit.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use iced_x86::IcedError;
use iced_x86::code_asm::CodeAssembler;
use nvx_hypervisor::{
    ClockState, Hypervisor, IrqChipState, Partition, PartitionOptions, Registers, SavedState,
    SystemRegisters, Vcpu, VcpuExit, VcpuState,
};
use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};

/// RAM of a machine from [`Machine::new`], from address 0.
pub const RAM_BYTES: u64 = 1 << 20;
/// Where guest code is put and entered.
pub const CODE: u32 = 0x1000;
/// Guest data. Nothing else is in this page.
pub const DATA: u32 = 0x4000;
/// The first byte behind the stack.
pub const STACK_END: u32 = 0x8000;
/// An address that no RAM backs and no interrupt chip claims.
pub const OUTSIDE_RAM: u32 = 0xd000_0000;
/// A port that no back end handles by itself.
pub const PORT: u16 = 0x510;
/// RFLAGS after reset: bit 1 always reads as 1.
pub const RFLAGS_RESET: u64 = 2;

/// No body takes this long, however slow the machine; a guest that hangs in the hypervisor ends
/// the test process after it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A vCPU that was asked to stop has stopped after this: generous, as the machine may be busy.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Ends the process when the result is still alive after [`TIME_LIMIT`]: nothing else ends a
/// call that hangs in the hypervisor.
pub fn time_limit(test: &'static str) -> Sender<()> {
    let (alive, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{test}: still running after {TIME_LIMIT:?}");
            std::process::exit(1);
        }
    });
    alive
}

/// Waits until `done` holds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIME_LIMIT / 2, "waited in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Assembles code of `bits` bits that is to run at [`CODE`].
pub fn assemble(
    bits: u32,
    emit: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(bits).unwrap();
    emit(&mut assembler).unwrap();
    assembler.assemble(u64::from(CODE)).unwrap()
}

/// An exit, with its bytes copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    PortWrite(u16, u8, Vec<u8>),
    /// Port, width, number of bytes wanted.
    PortRead(u16, u8, usize),
    MmioWrite(u64, Vec<u8>),
    /// Address, number of bytes wanted.
    MmioRead(u64, usize),
    Halted,
    Canceled,
    Shutdown,
    MemoryFault(Option<u64>),
    Unsupported(String),
}

/// Runs to the next exit. What a read exit asks for is filled from the front of `answer`, and
/// what was used of it is removed.
pub fn run_answering(vcpu: &mut dyn Vcpu, answer: &mut Vec<u8>) -> Event {
    let mut fill = |data: &mut [u8]| {
        assert!(
            answer.len() >= data.len(),
            "the guest reads {data:?}: no answer is left"
        );
        let rest = answer.split_off(data.len());
        data.copy_from_slice(answer);
        *answer = rest;
        data.len()
    };
    match vcpu.run().unwrap() {
        VcpuExit::PortRead { port, width, data } => Event::PortRead(port, width, fill(data)),
        VcpuExit::PortWrite { port, width, data } => Event::PortWrite(port, width, data.to_vec()),
        VcpuExit::MmioRead { address, data } => Event::MmioRead(address.0, fill(data)),
        VcpuExit::MmioWrite { address, data } => Event::MmioWrite(address.0, data.to_vec()),
        VcpuExit::Halted => Event::Halted,
        VcpuExit::Canceled => Event::Canceled,
        VcpuExit::Shutdown => Event::Shutdown,
        VcpuExit::MemoryFault { address } => Event::MemoryFault(address.map(|at| at.0)),
        VcpuExit::Unsupported(what) => Event::Unsupported(what),
    }
}

/// Runs to the next exit, which may not be a read.
pub fn run(vcpu: &mut dyn Vcpu) -> Event {
    run_answering(vcpu, &mut Vec::new())
}

/// Finishes the last exit without executing an instruction, as a capture does. The vCPU stays
/// stopped.
pub fn finish(vcpu: &mut dyn Vcpu) {
    vcpu.stop_handle().request_stop();
    assert_eq!(run(vcpu), Event::Canceled);
}

/// A partition with its RAM.
pub struct Machine {
    // Before the memory, as the hypervisor lets go of it first.
    pub partition: Box<dyn Partition>,
    pub memory: Arc<GuestMemory>,
}

impl Machine {
    /// A machine with [`RAM_BYTES`] of RAM from address 0.
    pub fn new(backend: &dyn Hypervisor) -> Self {
        Self::with(
            backend,
            GuestMemory::anonymous(low_ram()).unwrap(),
            PartitionOptions::default(),
        )
    }

    /// A machine over `memory`.
    pub fn with(backend: &dyn Hypervisor, memory: GuestMemory, options: PartitionOptions) -> Self {
        let memory = Arc::new(memory);
        Self {
            partition: backend.create_partition(&memory, options).unwrap(),
            memory,
        }
    }

    pub fn store(&self, address: u32, bytes: &[u8]) {
        self.memory
            .write(GuestAddress(u64::from(address)), bytes)
            .unwrap();
    }

    pub fn u32_at(&self, address: u32) -> u32 {
        self.memory
            .read_u32(GuestAddress(u64::from(address)))
            .unwrap()
    }

    /// A vCPU with the host's CPU model that has not run, bound to this thread.
    pub fn vcpu(&self, backend: &dyn Hypervisor, index: u8) -> Box<dyn Vcpu> {
        let mut vcpu = self.partition.create_vcpu(index).unwrap();
        let model = backend.cpu_model().unwrap();
        vcpu.set_cpu_model(&model.for_vcpu(index)).unwrap();
        vcpu.bind_to_this_thread();
        vcpu
    }

    /// vCPU 0, about to execute 32-bit `code` in flat protected mode.
    pub fn enter32(&self, backend: &dyn Hypervisor, code: &[u8]) -> Box<dyn Vcpu> {
        self.store(CODE, code);
        let mut vcpu = self.vcpu(backend, 0);
        let (_, reset) = vcpu.registers().unwrap();
        vcpu.set_registers(
            &entry_registers(),
            &SystemRegisters::protected_mode_entry(&reset),
        )
        .unwrap();
        vcpu
    }
}

/// RAM from 0 to [`RAM_BYTES`].
pub fn low_ram() -> RamLayout {
    RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: RAM_BYTES,
        file_offset_bytes: 0,
    }])
    .unwrap()
}

/// General registers at the entry of guest code.
pub fn entry_registers() -> Registers {
    Registers {
        rip: u64::from(CODE),
        rsp: u64::from(STACK_END),
        rflags: RFLAGS_RESET,
        ..Default::default()
    }
}

/// What a capture keeps of a [`Machine`] with one RAM range, as the bytes that a state file holds.
pub struct Captured {
    pub vcpus: Vec<VcpuState>,
    pub irq_chip: Option<IrqChipState>,
    pub clock: Option<ClockState>,
    ram: Vec<u8>,
}

impl Captured {
    /// Captures a machine, all of whose vCPUs are stopped with no unfinished exit.
    pub fn of(machine: &Machine, vcpus: &mut [Box<dyn Vcpu>]) -> Self {
        let mut ram = vec![0; RAM_BYTES as usize];
        machine.memory.read(GuestAddress(0), &mut ram).unwrap();
        let partition = &machine.partition;
        let clock = partition.clock().map(|clock| ClockState {
            guest_ns: clock.get().unwrap(),
        });
        Self {
            vcpus: vcpus
                .iter_mut()
                .map(|vcpu| through_bytes(&vcpu.save().unwrap()))
                .collect(),
            irq_chip: partition
                .irq_chip()
                .map(|chip| through_bytes(&chip.save().unwrap())),
            clock: clock.map(|clock| through_bytes(&clock)),
            ram,
        }
    }

    /// Makes a new machine of it, in the order that a restore keeps: every vCPU, the interrupt
    /// chip, then `lines` (what the devices do: their asserted lines), and the clock last.
    pub fn restore(
        &self,
        backend: &dyn Hypervisor,
        asserted_lines: &[u32],
    ) -> (Machine, Vec<Box<dyn Vcpu>>) {
        let machine = Machine::new(backend);
        machine.store(0, &self.ram);
        let mut vcpus: Vec<_> = (0..self.vcpus.len())
            .map(|index| machine.partition.create_vcpu(index as u8).unwrap())
            .collect();
        for (vcpu, state) in vcpus.iter_mut().zip(&self.vcpus) {
            vcpu.restore(state).unwrap();
            vcpu.bind_to_this_thread();
        }
        if let Some(chip) = machine.partition.irq_chip() {
            chip.restore(self.irq_chip.as_ref().unwrap()).unwrap();
            for line in asserted_lines {
                chip.set_line(*line, true).unwrap();
            }
        }
        if let Some(clock) = machine.partition.clock() {
            clock.set(self.clock.unwrap().guest_ns).unwrap();
        }
        (machine, vcpus)
    }
}

fn through_bytes<T: SavedState>(state: &T) -> T {
    T::from_payload(&state.to_payload()).unwrap()
}
