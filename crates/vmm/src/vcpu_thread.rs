//! Running a vCPU, and what is done with each exit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvx_devices::{Effect, Outcome, Ports, numbers};
use nvx_host::{ConfineError, ConfinedThread, Waker};
use nvx_hypervisor::{RunError, Vcpu, VcpuExit};
use nvx_memory::{GuestAddress, GuestMemory};

use crate::console::{IDLE_SLEEP, InputQueue, OutputQueue};
use crate::control_line::ControlLine;
use crate::gate::{Gate, Leave};
use crate::interrupt::Interrupt;
use crate::ram::VmRam;

/// A vCPU other than the first as its thread and the main thread share it: the thread holds the
/// lock while it runs the guest, and has let it go while it stands at the gate.
pub(crate) type VcpuCell = Arc<Mutex<Box<dyn Vcpu>>>;

pub(crate) fn lock_vcpu(cell: &VcpuCell) -> MutexGuard<'_, Box<dyn Vcpu>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a vCPU met that the main thread must decide on. The vCPU stands still until then.
#[derive(Debug)]
pub(crate) enum VcpuEvent {
    /// The guest wants to end with this status.
    GuestExit {
        /// The status.
        status: u8,
    },
    /// The guest switched the machine off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest asks for a snapshot.
    SnapshotRequested,
    /// The vCPU cannot go on.
    Fault(VcpuFault),
}

/// Why a vCPU cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum VcpuFault {
    /// The guest crashed beyond repair.
    #[error("vCPU {vcpu}: triple fault")]
    TripleFault {
        /// The vCPU's index.
        vcpu: u8,
    },
    /// A page of guest RAM cannot be read or stored.
    #[error("{}guest RAM{}: a page could not be read or stored (file truncated, or its file system is full)",
        ram_file(name.as_deref()), at(*address))]
    RamLost {
        /// Where, if the hypervisor tells.
        address: Option<GuestAddress>,
        /// The file that holds guest RAM, if one does.
        name: Option<String>,
    },
    /// The hypervisor cannot execute what the guest does.
    #[error("vCPU {vcpu}: {reason}")]
    Unsupported {
        /// The vCPU's index.
        vcpu: u8,
        /// What the hypervisor reported.
        reason: String,
    },
    /// The vCPU's thread cannot give up privileges.
    #[error("vCPU {vcpu}: its thread cannot give up privileges")]
    Privileges {
        /// The vCPU's index.
        vcpu: u8,
        /// Why.
        source: ConfineError,
    },
    /// The hypervisor refuses to run the vCPU.
    #[error("the guest cannot run")]
    Run(#[source] RunError),
}

fn ram_file(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!("RAM file {name}: "))
}

fn at(address: Option<GuestAddress>) -> impl fmt::Display {
    address.map_or_else(String::new, |address| format!(" at {address}"))
}

/// What the vCPU threads of one VM share with each other and with the main thread.
pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    pub(crate) ports: Mutex<Ports>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) input: Arc<InputQueue>,
    pub(crate) output: Arc<OutputQueue>,
    /// The control line, of a machine that has one.
    pub(crate) control_line: Option<Arc<ControlLine>>,
    /// A guest's request for a snapshot has a place to go, so that it is worth stopping for.
    accepts_snapshots: AtomicBool,
    events: Mutex<VecDeque<VcpuEvent>>,
    /// Up when there are events, or when the input queue has room again.
    pub(crate) attention: Arc<Waker>,
    /// Which host this is, for the manifest; known soon after the guest runs.
    pub(crate) host_identity: OnceLock<Option<Vec<u8>>>,
}

impl Shared {
    pub(crate) fn new(
        gate: Arc<Gate>,
        ports: Ports,
        memory: Arc<GuestMemory>,
        (input, output): (Arc<InputQueue>, Arc<OutputQueue>),
        control_line: Option<Arc<ControlLine>>,
        attention: Arc<Waker>,
    ) -> Self {
        Self {
            gate,
            ports: Mutex::new(ports),
            memory,
            input,
            output,
            control_line,
            accepts_snapshots: AtomicBool::new(false),
            events: Mutex::default(),
            attention,
            host_identity: OnceLock::new(),
        }
    }

    pub(crate) fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the guest that there is input at a serial port. Called without the devices' lock.
    pub(crate) fn input_arrived(&self) {
        if let Some(platform) = self.ports().platform() {
            platform.input_arrived();
        }
    }

    pub(crate) fn set_accepts_snapshots(&self, accepts: bool) {
        self.accepts_snapshots.store(accepts, Ordering::Relaxed);
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<VcpuEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts an event of vCPU `vcpu`, whose thread then stands at the gate until the main thread
    /// has decided.
    fn post(&self, vcpu: u8, event: VcpuEvent) {
        self.gate.hold(vcpu);
        self.events().push_back(event);
        self.attention.raise();
    }

    /// The oldest event that the main thread has not taken yet.
    pub(crate) fn take_event(&self) -> Option<VcpuEvent> {
        self.events().pop_front()
    }

    /// Whether an event waits after which there is no machine to capture.
    pub(crate) fn is_ending(&self) -> bool {
        self.events()
            .iter()
            .any(|event| !matches!(event, VcpuEvent::SnapshotRequested))
    }

    /// Takes every request for a snapshot: one capture answers them all.
    pub(crate) fn take_snapshot_requests(&self) {
        self.events()
            .retain(|event| !matches!(event, VcpuEvent::SnapshotRequested));
    }
}

/// How a vCPU thread goes on after an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Run on.
    Run,
    /// Run on, but the guest waits for something: sleep a little first.
    Idle,
    /// Stand at the gate: the main thread has to decide.
    Stand,
    /// Stand at the gate, and leave the vCPU alone: it cannot run.
    Faulted,
    /// The vCPU was stopped and has no unfinished exit.
    Stopped,
}

/// Why a vCPU was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// It was to be left.
    Interrupted,
    /// It has posted an event on which the main thread must decide.
    Event,
    /// It has posted a fault, and cannot run any more.
    Faulted,
}

/// Runs a vCPU until `interrupt` is wanted or it has posted an event. It may have an unfinished
/// exit afterwards.
pub(crate) fn run_until(shared: &Shared, vcpu: &mut dyn Vcpu, interrupt: &Interrupt) -> Left {
    loop {
        if interrupt.is_wanted() {
            return Left::Interrupted;
        }
        match run_once(shared, vcpu, interrupt) {
            Next::Run => {}
            Next::Idle => shared.gate.idle(IDLE_SLEEP),
            // A stop that is over already, or a signal of somebody else's. Cleared before the
            // wish is looked at again, so that a new stop is not cleared with it.
            Next::Stopped => vcpu.clear_stop(),
            Next::Stand => return Left::Event,
            Next::Faulted => return Left::Faulted,
        }
    }
}

/// The body of the thread of each vCPU but the first: runs it until the gate says to end.
pub(crate) fn run_thread(shared: &Shared, cell: &VcpuCell, filter_system_calls: bool) {
    let mut vcpu = lock_vcpu(cell);
    let index = vcpu.index();
    // What the process has given up already holds for this thread too; this only takes more.
    let confined = !filter_system_calls || confine(shared, index);
    vcpu.bind_to_this_thread();
    loop {
        let stop = shared.gate.stop();
        if confined && run_until(shared, &mut **vcpu, stop) != Left::Faulted {
            finish_exit(shared, &mut **vcpu, stop);
        }
        drop(vcpu);
        let leave = shared.gate.stand(index);
        vcpu = lock_vcpu(cell);
        if leave == Leave::End {
            return;
        }
        vcpu.clear_stop();
    }
}

/// Takes from this thread what a vCPU does not need; returns whether that was done, or the VM is to end.
fn confine(shared: &Shared, vcpu: u8) -> bool {
    match nvx_host::confine_thread(ConfinedThread::Vcpu) {
        Ok(()) => true,
        Err(source) => {
            let fault = VcpuFault::Privileges { vcpu, source };
            shared.post(vcpu, VcpuEvent::Fault(fault));
            false
        }
    }
}

/// Leaves the vCPU with no unfinished exit: a state saved in the middle of a port access would
/// lose what the guest is to read, or repeat what it wrote.
pub(crate) fn finish_exit(shared: &Shared, vcpu: &mut dyn Vcpu, interrupt: &Interrupt) {
    vcpu.hold();
    while !matches!(
        run_once(shared, vcpu, interrupt),
        Next::Stopped | Next::Faulted
    ) {}
}

fn run_once(shared: &Shared, vcpu: &mut dyn Vcpu, interrupt: &Interrupt) -> Next {
    let index = vcpu.index();
    let next = match vcpu.run() {
        Ok(exit) => handle_exit(shared, index, exit),
        Err(error) => fault(shared, index, VcpuFault::Run(error)),
    };
    shared.output.write_due(interrupt, &shared.gate);
    next
}

fn fault(shared: &Shared, vcpu: u8, fault: VcpuFault) -> Next {
    shared.post(vcpu, VcpuEvent::Fault(fault));
    Next::Faulted
}

fn handle_exit(shared: &Shared, vcpu: u8, exit: VcpuExit<'_>) -> Next {
    match exit {
        VcpuExit::PortRead { port, width, data } => read_port(shared, port, width, data),
        VcpuExit::PortWrite { port, width, data } => write_port(shared, vcpu, port, width, data),
        VcpuExit::MmioRead { address, .. } | VcpuExit::MmioWrite { address, .. }
            if shared.memory.layout().contains(address) =>
        {
            ram_lost(shared, vcpu, Some(address))
        }
        VcpuExit::MmioRead { address, data } => {
            shared.ports().read_mmio(address.0, data);
            Next::Run
        }
        VcpuExit::MmioWrite { address, data } => {
            shared.ports().write_mmio(address.0, data);
            Next::Run
        }
        VcpuExit::Halted => Next::Idle,
        VcpuExit::Canceled => Next::Stopped,
        VcpuExit::Shutdown => fault(shared, vcpu, VcpuFault::TripleFault { vcpu }),
        VcpuExit::MemoryFault { address } => ram_lost(shared, vcpu, address),
        // How the loss of the page that holds the next instruction shows.
        VcpuExit::Unsupported(_) if VmRam::truncated_length_bytes(&shared.memory).is_some() => {
            ram_lost(shared, vcpu, None)
        }
        VcpuExit::Unsupported(reason) => {
            fault(shared, vcpu, VcpuFault::Unsupported { vcpu, reason })
        }
    }
}

fn read_port(shared: &Shared, port: u16, width: u8, data: &mut [u8]) -> Next {
    let mut ports = shared.ports();
    for element in data.chunks_exact_mut(usize::from(width)) {
        ports.read(port, element);
    }
    if port == numbers::CONSOLE_STATUS && shared.input.guest_waits() {
        Next::Idle
    } else {
        Next::Run
    }
}

fn write_port(shared: &Shared, vcpu: u8, port: u16, width: u8, data: &[u8]) -> Next {
    let mut next = Next::Run;
    for element in data.chunks_exact(usize::from(width)) {
        let effect = shared.ports().write(port, element);
        match effect {
            Effect::None => {}
            Effect::Exit { status } => {
                shared.post(vcpu, VcpuEvent::GuestExit { status });
                next = Next::Stand;
            }
            Effect::PowerOff => {
                shared.post(vcpu, VcpuEvent::PowerOff);
                next = Next::Stand;
            }
            Effect::Reset => {
                shared.post(vcpu, VcpuEvent::Reset);
                next = Next::Stand;
            }
            Effect::SnapshotRequested if shared.accepts_snapshots.load(Ordering::Relaxed) => {
                shared.post(vcpu, VcpuEvent::SnapshotRequested);
                next = Next::Stand;
            }
            Effect::SnapshotRequested => shared.ports().set_snapshot_outcome(Outcome::Refused),
        }
    }
    next
}

fn ram_lost(shared: &Shared, vcpu: u8, address: Option<GuestAddress>) -> Next {
    let name = shared.memory.name().map(|name| name.display().to_string());
    fault(shared, vcpu, VcpuFault::RamLost { address, name })
}
