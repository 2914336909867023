//! Putting a machine together: what starting anew and restoring have in common.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use nvx_devices::{GENERATION_ID_BYTES, Outcome, Ports, SystemClock, numbers};
use nvx_host::{ConsoleInput, Waker};
use nvx_hypervisor::{Hypervisor, Partition, PartitionOptions, Vcpu};
use nvx_machine::control_line::{
    Clock, ENTROPY_BYTES, GENERATION_BYTES, SNAPSHOT_PORT, SNAPSHOT_REFUSED, SNAPSHOT_SOURCE,
    ToGuest,
};
use nvx_machine::layout::GENERATION_ID;
use nvx_memory::GuestMemory;
use nvx_profile::Profile;

use crate::console::{InputQueue, OutputQueue, VmConsole};
use crate::control::ControlServer;
use crate::control_line::ControlLine;
use crate::error::MachineError;
use crate::escape::EscapeKeys;
use crate::gate::Gate;
use crate::platform::{PlatformKind, Wiring, random_bytes};
use crate::ram::VmRam;
use crate::restore::ClockPolicy;
use crate::vcpu_thread::Shared;
use crate::vm::{Console, Vm, VmOptions};
use crate::watcher::Watch;

const _: () = assert!(
    SNAPSHOT_PORT == numbers::SNAPSHOT
        && SNAPSHOT_REFUSED == Outcome::Refused as u8
        && SNAPSHOT_SOURCE == Outcome::Source as u8,
    "the device and the control line have different ports for snapshot requests"
);
const _: () = assert!(
    GENERATION_ID_BYTES == GENERATION_BYTES,
    "the device and the control line have generation IDs of different lengths"
);

/// Nanoseconds since 1970 on the host's wall clock; a clock before that is taken as 1970.
fn realtime_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        })
}

/// A machine whose vCPUs have no state yet.
pub(crate) struct Parts {
    pub(crate) partition: Arc<dyn Partition>,
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
    platform: PlatformKind,
    options: PartitionOptions,
    console: Console,
) -> Result<Parts, MachineError> {
    let no_descriptor = |source| MachineError::Host {
        what: "file descriptor",
        source,
    };
    let partition: Arc<dyn Partition> = backend.create_partition(memory, options)?.into();
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
    let mut ports = Ports::new(Box::new(console_io), Box::new(SystemClock));
    let mut control_line = None;
    if platform == PlatformKind::Linux {
        let line = Arc::new(ControlLine::new(Arc::clone(&attention)));
        let wiring = Wiring {
            partition: &partition,
            memory,
            input: &input,
            output: &output,
            control_line: &line,
        };
        ports = ports.with_platform(wiring.platform());
        control_line = Some(line);
    }
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
            control_line,
            attention,
        )),
        input: console.input,
    })
}

impl Parts {
    /// How many vCPUs there are.
    pub(crate) fn vcpu_count(&self) -> u8 {
        1 + self.other_vcpus.len() as u8
    }

    /// Gives a new machine its first generation ID.
    pub(crate) fn begin_generation(&self, memory: &GuestMemory) -> Result<(), MachineError> {
        let mut id = [0; GENERATION_ID_BYTES];
        random_bytes(&mut id)?;
        if let Some(platform) = self.shared.ports().platform() {
            platform
                .generation_id()
                .begin(memory, GENERATION_ID, id)
                .map_err(MachineError::GenerationId)?;
        }
        Ok(())
    }

    /// All vCPUs in order.
    pub(crate) fn vcpus(&mut self) -> impl Iterator<Item = &mut Box<dyn Vcpu>> {
        std::iter::once(&mut self.first_vcpu).chain(&mut self.other_vcpus)
    }

    /// Makes this restored machine differ from every other copy of its snapshot: a generation ID of its
    /// own, and a message to a guest that listens. After everything but the clock has its state, since it
    /// interrupts.
    pub(crate) fn become_a_copy(&self, clock: ClockPolicy) -> Result<(), MachineError> {
        let mut generation = [0; GENERATION_ID_BYTES];
        random_bytes(&mut generation)?;
        let mut entropy = [0; ENTROPY_BYTES];
        random_bytes(&mut entropy)?;
        if let Some(line) = &self.shared.control_line {
            line.tell_of_restore(&ToGuest::Restored {
                generation,
                entropy,
                clock: match clock {
                    ClockPolicy::Freeze => Clock::Freeze,
                    ClockPolicy::Advance => Clock::Advance {
                        realtime_ns: realtime_ns(),
                    },
                },
            });
        }
        if let Some(platform) = self.shared.ports().platform() {
            platform.assert_lines_again();
            platform
                .generation_id()
                .change(&self.shared.memory, GENERATION_ID, generation)
                .map_err(MachineError::GenerationId)?;
        }
        Ok(())
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
            privileges: options.privileges,
            profile,
            input: self.input,
            watch: Arc::new(self.watch),
            watcher: None,
            threads: Vec::new(),
            control: options.control.map(ControlServer::new),
            paused: false,
            escape: EscapeKeys::default(),
            forwarded: None,
            captures: 0,
            origin,
            unrepaired_since: None,
        }
    }
}
