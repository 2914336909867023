//! Putting a machine together: what starting anew and restoring have in common.

use std::sync::{Arc, Mutex};

use nvx_devices::{Ports, SystemClock};
use nvx_host::{ConsoleInput, Waker};
use nvx_hypervisor::{Hypervisor, Partition, PartitionOptions, Vcpu};
use nvx_memory::GuestMemory;
use nvx_profile::Profile;

use crate::console::{InputQueue, OutputQueue, VmConsole};
use crate::control::ControlServer;
use crate::error::MachineError;
use crate::gate::Gate;
use crate::ram::VmRam;
use crate::vcpu_thread::Shared;
use crate::vm::{Console, Vm, VmOptions};
use crate::watcher::Watch;

/// A machine whose vCPUs have no state yet.
pub(crate) struct Parts {
    pub(crate) partition: Box<dyn Partition>,
    pub(crate) first_vcpu: Box<dyn Vcpu>,
    pub(crate) other_vcpus: Vec<Box<dyn Vcpu>>,
    pub(crate) shared: Arc<Shared>,
    watch: Watch,
    input: Option<ConsoleInput>,
}

/// Makes partition, vCPUs and devices over `memory`.
pub(crate) fn create(
    backend: &dyn Hypervisor,
    memory: &Arc<GuestMemory>,
    vcpus: u8,
    options: PartitionOptions,
    console: Console,
) -> Result<Parts, MachineError> {
    let no_descriptor = |source| MachineError::Host {
        what: "file descriptor",
        source,
    };
    let partition = backend.create_partition(memory, options)?;
    if partition.stores_through_accessor() {
        memory.declare_all_guest_stores_use_accessor();
    }
    let first_vcpu = partition.create_vcpu(0)?;
    let other_vcpus = (1..vcpus)
        .map(|index| partition.create_vcpu(index))
        .collect::<Result<Vec<_>, _>>()?;
    let gate = Arc::new(Gate::new().map_err(no_descriptor)?);
    let attention = Arc::new(Waker::new().map_err(no_descriptor)?);
    let input = Arc::new(InputQueue::new(Arc::clone(&gate), Arc::clone(&attention)));
    let output = Arc::new(OutputQueue::new(console.output));
    let console_io = VmConsole::new(Arc::clone(&input), Arc::clone(&output));
    let ports = Ports::new(Box::new(console_io), Box::new(SystemClock));
    Ok(Parts {
        partition,
        first_vcpu,
        other_vcpus,
        watch: Watch::new().map_err(no_descriptor)?,
        shared: Arc::new(Shared::new(
            gate,
            ports,
            Arc::clone(memory),
            (input, output),
            attention,
        )),
        input: console.input,
    })
}

impl Parts {
    /// All vCPUs in order.
    pub(crate) fn vcpus(&mut self) -> impl Iterator<Item = &mut Box<dyn Vcpu>> {
        std::iter::once(&mut self.first_vcpu).chain(&mut self.other_vcpus)
    }

    /// The machine, once its vCPUs and devices have their state.
    pub(crate) fn into_vm(
        self,
        backend: Box<dyn Hypervisor>,
        ram: VmRam,
        options: VmOptions,
        profile: Profile,
        origin: &'static str,
    ) -> Vm {
        self.shared
            .set_accepts_snapshots(options.capture.destination.is_some());
        let others = self.other_vcpus;
        Vm {
            backend,
            first_vcpu: self.first_vcpu,
            other_stop_handles: others.iter().map(|vcpu| vcpu.stop_handle()).collect(),
            other_vcpus: others
                .into_iter()
                .map(|vcpu| Arc::new(Mutex::new(vcpu)))
                .collect(),
            partition: self.partition,
            shared: self.shared,
            ram,
            policy: options.capture,
            profile,
            input: self.input,
            watch: Arc::new(self.watch),
            watcher: None,
            threads: Vec::new(),
            control: options.control.map(ControlServer::new),
            paused: false,
            captures: 0,
            origin,
        }
    }
}
