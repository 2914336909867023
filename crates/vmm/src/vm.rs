//! A running VM: its threads, its events, and how it ends.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvx_devices::Outcome as SnapshotOutcome;
use nvx_host::{
    ConsoleInput, ConsoleOutput, InputRead, Interest, Termination, TerminationSignals, wait_any,
};
use nvx_hypervisor::{Hypervisor, Partition, StopHandle};
use nvx_memory::{GuestMemory, RamFile};
use nvx_profile::Profile;

use crate::capture::{self, Captured};
use crate::console::OutputBuffer;
use crate::error::{CaptureError, RunError};
use crate::ram::RamPlace;
use crate::vcpu_thread::{Shared, VcpuCell, VcpuEvent, lock_vcpu, run_vcpu};

/// How long the vCPUs may take to stop. A stop needs one round trip to the kernel; a vCPU that
/// takes this long is stuck there.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// What the guest's console is connected to.
pub struct Console {
    /// Where input comes from; none: the guest never sees any.
    pub input: Option<ConsoleInput>,
    /// Where output goes.
    pub output: ConsoleOutput,
}

/// What a capture does and where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturePolicy {
    /// The snapshot directory to make; none: requests are refused.
    pub destination: Option<PathBuf>,
    /// After the capture the guest goes on, instead of ending.
    pub continue_after: bool,
}

/// How a VM's life in this process ended.
#[derive(Debug)]
pub enum Outcome {
    /// The guest ended with this status.
    GuestExit {
        /// The status.
        status: u8,
    },
    /// The guest lives on in a snapshot.
    Captured(Captured),
    /// The process was asked to end.
    Interrupted(Termination),
}

/// Who wants to know what happens to a VM while it runs.
pub trait Observer {
    /// A capture was refused or failed; the guest runs on, unless the process was asked to end.
    fn capture_failed(&mut self, error: &CaptureError);
    /// A capture succeeded and the guest runs on.
    fn captured_and_continues(&mut self, captured: &Captured);
}

/// Guest RAM as the main thread holds it.
pub(crate) struct VmRam {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) file: Option<RamFile>,
    /// A nameless file can be given a name once only, so a capture that fails after linking it
    /// leaves one that the next capture must copy.
    pub(crate) link_spent: bool,
    pub(crate) place: RamPlace,
}

/// A virtual machine, ready to run or running.
pub struct Vm {
    pub(crate) backend: Box<dyn Hypervisor>,
    pub(crate) cells: Vec<VcpuCell>,
    pub(crate) stop_handles: Vec<Arc<dyn StopHandle>>,
    pub(crate) partition: Box<dyn Partition>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ram: VmRam,
    pub(crate) policy: CapturePolicy,
    pub(crate) profile: Profile,
    pub(crate) input: Option<ConsoleInput>,
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// `restore` or `startup`, for the profile.
    pub(crate) origin: &'static str,
}

impl Vm {
    /// Runs the guest until it ends, is captured, or the process is asked to end.
    ///
    /// # Errors
    /// A vCPU cannot go on, or the monitor itself cannot.
    pub fn run(
        mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        let started = self.start_threads();
        // What earlier processes left behind is removed only now that the guest runs.
        let result = started.and_then(|()| {
            self.profile.flush();
            self.remove_stale_files();
            self.serve(signals, observer)
        });
        self.end_threads();
        let Self {
            output,
            mut profile,
            cells,
            partition,
            shared,
            ram,
            ..
        } = self;
        if matches!(result, Ok(Outcome::Captured(_))) {
            // The published file may be this RAM: no view of it outlives the commit.
            drop((cells, partition, shared, ram));
        }
        drain_output(&output, signals);
        profile.flush();
        result
    }

    fn start_threads(&mut self) -> Result<(), RunError> {
        let Self {
            cells,
            shared,
            profile,
            threads,
            origin,
            ..
        } = self;
        profile.phase(origin, "guest_resume", |_| {
            for (index, cell) in cells.iter().enumerate() {
                let shared = Arc::clone(shared);
                let cell = Arc::clone(cell);
                let thread = std::thread::Builder::new()
                    .name(format!("vcpu{index}"))
                    .spawn(move || run_vcpu(&shared, &cell))
                    .map_err(|source| RunError::Thread {
                        vcpu: index as u8,
                        source,
                    })?;
                threads.push(thread);
            }
            Ok(())
        })
    }

    fn end_threads(&mut self) {
        self.shared.gate.end();
        self.ask_for_stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }

    fn ask_for_stop(&self) {
        self.shared.gate.ask_for_stop();
        for handle in &self.stop_handles {
            handle.request_stop();
        }
    }

    /// Stops all vCPUs with no unfinished exit; after [`Vm::resume`] they run again.
    pub(crate) fn stop_vcpus(&self) -> Result<(), CaptureError> {
        self.ask_for_stop();
        if self
            .shared
            .gate
            .wait_for_all(self.threads.len(), STOP_DEADLINE)
        {
            Ok(())
        } else {
            Err(CaptureError::StopTimeout {
                deadline: STOP_DEADLINE,
            })
        }
    }

    fn resume(&self) {
        self.shared.gate.resume();
    }

    /// Waits for events and serves them until one of them ends the VM.
    fn serve(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        loop {
            while let Some(event) = self.shared.take_event() {
                let outcome = match event {
                    VcpuEvent::GuestExit { status } => Some(Outcome::GuestExit { status }),
                    VcpuEvent::Fault(fault) => return Err(fault.into()),
                    VcpuEvent::SnapshotRequested => self.serve_snapshot_request(signals, observer),
                };
                if let Some(outcome) = outcome {
                    return Ok(outcome);
                }
            }
            if let Some(termination) = signals.take() {
                return Ok(Outcome::Interrupted(termination));
            }
            self.wait(signals).map_err(RunError::Wait)?;
        }
    }

    fn wait(&mut self, signals: &TerminationSignals) -> std::io::Result<()> {
        let attention = Arc::clone(&self.shared.attention);
        let room_bytes = self.shared.input.room_bytes();
        let signal = (signals.as_fd(), Interest::Readable);
        let event = (attention.as_fd(), Interest::Readable);
        let input_ready = match &self.input {
            Some(input) if room_bytes > 0 => {
                let [.., ready] =
                    wait_any([signal, event, (input.as_fd(), Interest::Readable)], None)?;
                ready
            }
            _ => {
                wait_any([signal, event], None)?;
                false
            }
        };
        // Lowered before the events are looked at, so that none is missed.
        attention.lower();
        if input_ready {
            self.read_input(room_bytes);
        }
        Ok(())
    }

    fn read_input(&mut self, room_bytes: usize) {
        let mut buffer = [0; 4096];
        let buffer = &mut buffer[..room_bytes.min(4096)];
        let Some(input) = &self.input else { return };
        match input.read(buffer) {
            InputRead::Data(length) => self.shared.input.push(&buffer[..length]),
            InputRead::Nothing => {}
            InputRead::End => self.input = None,
        }
    }

    /// Captures to the declared destination. `None`: the guest runs on.
    fn serve_snapshot_request(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Option<Outcome> {
        let captured = match capture::capture(self, signals) {
            Ok(captured) => captured,
            Err((error, termination)) => {
                observer.capture_failed(&error);
                if let Some(termination) = termination {
                    return Some(Outcome::Interrupted(termination));
                }
                self.answer_guest(SnapshotOutcome::Refused);
                return None;
            }
        };
        if self.policy.continue_after {
            observer.captured_and_continues(&captured);
            self.answer_guest(SnapshotOutcome::Source);
            self.profile.flush();
            return None;
        }
        Some(Outcome::Captured(captured))
    }

    fn answer_guest(&self, outcome: SnapshotOutcome) {
        self.shared.ports().set_snapshot_outcome(outcome);
        self.resume();
    }

    fn remove_stale_files(&self) {
        let destination = self.policy.destination.as_deref();
        let parent = destination.map(crate::ram::parent_directory);
        let scratch = self.ram.place.directory();
        for directory in [parent.as_deref(), scratch].into_iter().flatten() {
            // Best effort: what cannot be removed now is tried again at the next start.
            if let Ok(directory) = nvx_host::Directory::open(directory) {
                let _ = nvx_host::remove_stale(&directory);
            }
        }
    }

    /// Reads vCPU `index` while it stands at the gate.
    pub(crate) fn with_vcpu<T>(
        &self,
        index: usize,
        work: impl FnOnce(&mut dyn nvx_hypervisor::Vcpu) -> T,
    ) -> Option<T> {
        let cell = self.cells.get(index)?;
        Some(work(&mut **lock_vcpu(cell)))
    }
}

/// Brings all console output to its reader; a request to end gives up on a reader that does not
/// read.
fn drain_output(output: &Mutex<OutputBuffer>, signals: &TerminationSignals) {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    output.flush(signals);
}
