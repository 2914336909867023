//! The thread that runs one vCPU, and what it does with each exit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvx_devices::{Effect, Ports};
use nvx_host::Waker;
use nvx_hypervisor::{RunError, Vcpu, VcpuExit};
use nvx_memory::{GuestAddress, GuestMemory};

use crate::console::{IDLE_SLEEP, InputQueue};
use crate::gate::{Gate, Leave};

/// A vCPU as its thread and the main thread share it: the thread holds the lock while it runs the
/// guest, and has let it go while it stands at the gate.
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
    /// A snapshot has a place to go, so that a guest's request is worth stopping for.
    accepts_snapshots: AtomicBool,
    events: Mutex<VecDeque<VcpuEvent>>,
    /// Up when there are events, or when the input queue has room again.
    pub(crate) attention: Arc<Waker>,
}

impl Shared {
    pub(crate) fn new(
        gate: Arc<Gate>,
        ports: Ports,
        memory: Arc<GuestMemory>,
        input: Arc<InputQueue>,
        attention: Arc<Waker>,
    ) -> Self {
        Self {
            gate,
            ports: Mutex::new(ports),
            memory,
            input,
            accepts_snapshots: AtomicBool::new(false),
            events: Mutex::default(),
            attention,
        }
    }

    pub(crate) fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_accepts_snapshots(&self, accepts: bool) {
        self.accepts_snapshots.store(accepts, Ordering::Relaxed);
    }

    fn post(&self, event: VcpuEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back(event);
        self.attention.raise();
    }

    /// The oldest event that the main thread has not taken yet.
    pub(crate) fn take_event(&self) -> Option<VcpuEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.pop_front()
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
    /// The vCPU was stopped and has no unfinished exit.
    Stopped,
}

/// Runs the vCPU until the gate says to end. The body of each vCPU thread.
pub(crate) fn run_vcpu(shared: &Shared, cell: &VcpuCell) {
    let mut vcpu = lock_vcpu(cell);
    vcpu.bind_to_this_thread();
    loop {
        let next = if shared.gate.stop_wanted() {
            Next::Stand
        } else {
            run_once(shared, &mut **vcpu)
        };
        match next {
            // Stopped without a stop being wanted: a signal of somebody else's.
            Next::Run | Next::Stopped => {}
            Next::Idle => shared.gate.idle(IDLE_SLEEP),
            Next::Stand => {
                finish_exit(shared, &mut **vcpu);
                drop(vcpu);
                let leave = shared.gate.stand();
                vcpu = lock_vcpu(cell);
                if leave == Leave::End {
                    return;
                }
                vcpu.clear_stop();
            }
        }
    }
}

/// Leaves the vCPU with no unfinished exit: a state saved in the middle of a port access would
/// lose what the guest is to read, or repeat what it wrote.
fn finish_exit(shared: &Shared, vcpu: &mut dyn Vcpu) {
    vcpu.stop_handle().request_stop();
    loop {
        match run_once(shared, vcpu) {
            // A fault has been posted, or the vCPU is where it should be.
            Next::Stopped | Next::Stand => return,
            Next::Run | Next::Idle => {}
        }
    }
}

fn run_once(shared: &Shared, vcpu: &mut dyn Vcpu) -> Next {
    let index = vcpu.index();
    match vcpu.run() {
        Ok(exit) => handle_exit(shared, index, exit),
        Err(error) => fault(shared, VcpuFault::Run(error)),
    }
}

fn fault(shared: &Shared, fault: VcpuFault) -> Next {
    shared.post(VcpuEvent::Fault(fault));
    Next::Stand
}

fn handle_exit(shared: &Shared, vcpu: u8, exit: VcpuExit<'_>) -> Next {
    match exit {
        VcpuExit::PortRead { port, width, data } => {
            let mut ports = shared.ports();
            for element in data.chunks_exact_mut(usize::from(width)) {
                ports.read(port, element);
            }
            if shared.input.guest_waits() {
                Next::Idle
            } else {
                Next::Run
            }
        }
        VcpuExit::PortWrite { port, width, data } => {
            let mut next = Next::Run;
            for element in data.chunks_exact(usize::from(width)) {
                let effect = shared.ports().write(port, element);
                if apply(shared, effect) == Next::Stand {
                    next = Next::Stand;
                }
            }
            next
        }
        VcpuExit::MmioRead { address, data } => {
            if shared.memory.layout().contains(address) {
                return ram_lost(shared, Some(address));
            }
            // No device is mapped there: the bus floats.
            data.fill(0xff);
            Next::Run
        }
        VcpuExit::MmioWrite { address, .. } if shared.memory.layout().contains(address) => {
            ram_lost(shared, Some(address))
        }
        VcpuExit::MmioWrite { .. } => Next::Run,
        VcpuExit::Halted => Next::Idle,
        VcpuExit::Canceled => Next::Stopped,
        VcpuExit::Shutdown => fault(shared, VcpuFault::TripleFault { vcpu }),
        VcpuExit::MemoryFault { address } => ram_lost(shared, address),
        VcpuExit::Unsupported(reason) => fault(shared, VcpuFault::Unsupported { vcpu, reason }),
    }
}

fn ram_lost(shared: &Shared, address: Option<GuestAddress>) -> Next {
    let name = shared.memory.name().map(|name| name.display().to_string());
    fault(shared, VcpuFault::RamLost { address, name })
}

fn apply(shared: &Shared, effect: Effect) -> Next {
    match effect {
        Effect::None => Next::Run,
        Effect::Exit { status } => {
            shared.post(VcpuEvent::GuestExit { status });
            Next::Stand
        }
        Effect::SnapshotRequested if shared.accepts_snapshots.load(Ordering::Relaxed) => {
            shared.post(VcpuEvent::SnapshotRequested);
            Next::Stand
        }
        Effect::SnapshotRequested => {
            shared
                .ports()
                .set_snapshot_outcome(nvx_devices::Outcome::Refused);
            Next::Run
        }
    }
}
