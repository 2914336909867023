//! Errors of a VM's life, one type per operation.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nvx_hypervisor::{BelowBaseline, CreateError, OpenError as BackendError, SystemError};
use nvx_machine::{LinuxLoadError, LoadError};
use nvx_memory::{AccessError, CopyError, WritebackError};
use nvx_snapshot::{MemoryError, OpenError, PublishError};

use crate::ram::RamError;
use crate::vcpu_thread::VcpuFault;

/// A VM could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Fewer or more vCPUs than the machine has.
    #[error("{vcpus} vCPUs: the machine has 1 to {limit}")]
    Vcpus {
        /// How many were asked for.
        vcpus: u8,
        /// The most there may be.
        limit: u8,
    },
    /// Guest RAM cannot be set up.
    #[error("guest RAM cannot be set up")]
    Ram(#[from] RamError),
    /// The guest's image cannot be loaded.
    #[error("the guest cannot be loaded")]
    Load(#[from] LoadError),
    /// The Linux guest cannot be loaded.
    #[error("the guest cannot be loaded")]
    LoadLinux(#[from] LinuxLoadError),
    /// The virtual machine cannot be made.
    #[error("the virtual machine cannot be made")]
    Machine(#[from] MachineError),
}

/// The hypervisor could not make the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// No back end.
    #[error("no hypervisor")]
    Backend(#[from] BackendError),
    /// The partition or a vCPU was refused.
    #[error("set-up")]
    Create(#[from] CreateError),
    /// A call failed.
    #[error("set-up")]
    System(#[from] SystemError),
    /// The CPU is less than what was asked for.
    #[error("the guest's CPU")]
    Cpu(#[from] BelowBaseline),
    /// The place of the generation ID is no guest RAM.
    #[error("the generation ID cannot be written to guest RAM")]
    GenerationId(#[source] AccessError),
    /// The host has no descriptor or thread left.
    #[error("cannot get a {what} from the system")]
    Host {
        /// What is missing.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A snapshot could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot cannot be opened.
    #[error("the snapshot cannot be opened")]
    Open(#[from] OpenError),
    /// The snapshot was made by a machine that this build or this host cannot continue.
    #[error("{}: {why}", snapshot.display())]
    Incompatible {
        /// The snapshot.
        snapshot: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A part of `state.bin` is missing or does not belong.
    #[error("{}: state.bin", snapshot.display())]
    State {
        /// The snapshot.
        snapshot: PathBuf,
        /// What is wrong with it.
        #[source]
        source: nvx_snapshot::StateError,
    },
    /// A part of the state is refused.
    #[error("{}: state of {unit}", snapshot.display())]
    Unit {
        /// The snapshot.
        snapshot: PathBuf,
        /// The unit in the state file.
        unit: String,
        /// Why it is refused.
        #[source]
        source: UnitError,
    },
    /// The content of the snapshot's memory does not match its digests, has none, or cannot be read.
    #[error("the snapshot's memory cannot be used")]
    Memory(#[from] MemoryError),
    /// Guest RAM cannot be set up.
    #[error("guest RAM cannot be set up")]
    Ram(#[from] RamError),
    /// The virtual machine cannot be made.
    #[error("the virtual machine cannot be made")]
    Machine(#[from] MachineError),
}

/// One unit's state cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum UnitError {
    /// A vCPU, the interrupt chip or the clock.
    Hypervisor(#[from] nvx_hypervisor::StateError),
    /// A call of the hypervisor.
    System(#[from] SystemError),
    /// A device.
    Device(#[from] nvx_devices::RestoreError),
}

/// A running VM ended for a reason of the monitor's.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A vCPU cannot go on.
    #[error("the guest cannot go on")]
    Fault(#[from] VcpuFault),
    /// Privileges cannot be given up; the guest did not run.
    #[error("cannot give up privileges")]
    Privileges(#[from] nvx_host::ConfineError),
    /// The monitor cannot wait for events.
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
    /// A thread cannot be started.
    #[error("cannot start the thread {name}")]
    Thread {
        /// Its name.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A capture was refused or failed. Nothing is left behind, and the guest can run on.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The destination cannot be used, or publication failed.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The vCPUs did not stop in time.
    #[error("the vCPUs did not stop within {} s", deadline.as_secs())]
    StopTimeout {
        /// How long was waited.
        deadline: Duration,
    },
    /// A unit's state cannot be saved.
    #[error("cannot save the state of {unit}")]
    Save {
        /// The unit.
        unit: String,
        /// Why.
        #[source]
        source: UnitError,
    },
    /// The state does not fit its envelope.
    #[error("state.bin")]
    Envelope(#[from] nvx_snapshot::StateError),
    /// Guest RAM cannot be written back to its file.
    #[error("cannot write guest RAM back")]
    Writeback(#[from] WritebackError),
    /// Guest RAM cannot be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The pages that the guest wrote cannot be told.
    #[error("cannot tell which pages the guest wrote")]
    DirtyLog(#[source] SystemError),
    /// The hypervisor's log does not fit guest RAM.
    #[error("the hypervisor's log of written pages does not fit guest RAM")]
    MergeDirtyLog(#[source] nvx_memory::DirtyLogError),
    /// The file behind guest RAM was cut short: a copy would have holes where RAM was lost.
    #[error("{}: {length_bytes} bytes, guest RAM needs {needed_bytes}: the file was truncated", file.display())]
    RamFileTruncated {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        length_bytes: u64,
        /// The length in bytes that it had when it was mapped.
        needed_bytes: u64,
    },
    /// The memory file cannot be made durable.
    #[error("cannot sync memory.bin")]
    Sync(#[source] io::Error),
    /// The guest ended, or crashed, before all vCPUs stood still.
    #[error("the guest ended before it could be captured")]
    Superseded,
    /// The process was asked to end before the snapshot was complete.
    #[error("interrupted by {signal}")]
    Interrupted {
        /// Name of the signal.
        signal: &'static str,
    },
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
