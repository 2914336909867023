//! A running VM: its threads, its events, and how it ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvx_devices::Outcome as SnapshotOutcome;
use nvx_host::{
    ConsoleInput, ConsoleOutput, ControlListener, Directory, InputRead, Interest, Termination,
    TerminationSignals, Waitable as _, wait_many,
};
use nvx_hypervisor::{Hypervisor, Partition, StopHandle};
use nvx_profile::Profile;
use nvx_snapshot::Destination;

use crate::capture::{self, CaptureRequest, Captured};
use crate::control::{self, ControlServer};
use crate::error::{CaptureError, RunError};
use crate::ram::VmRam;
use crate::vcpu_thread::{Shared, VcpuCell, VcpuEvent, run_vcpu};

/// How long the vCPUs may take to stop. A stop needs one round trip to the kernel; a vCPU that
/// takes this long is stuck there.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How often a vCPU that has not stopped is kicked again: the first kick may have come just
/// before its thread began to wait for something else than the guest.
const KICK_INTERVAL: Duration = Duration::from_millis(5);

/// What the guest's console is connected to.
pub struct Console {
    /// Where input comes from; none: the guest never sees any.
    pub input: Option<ConsoleInput>,
    /// Where output goes.
    pub output: ConsoleOutput,
}

/// What a capture does and where it may go.
#[derive(Clone, Debug, Default)]
pub struct CapturePolicy {
    /// Where the guest's own request goes; none: it is refused.
    pub destination: Option<Destination>,
    /// After a capture that the guest asked for it goes on, instead of ending.
    pub continue_after: bool,
    /// Directories, as canonical paths, below which the host may ask for snapshots.
    pub roots: Vec<PathBuf>,
}

/// What a VM is given besides its machine.
#[derive(Debug, Default)]
pub struct VmOptions {
    /// What a capture does and where it may go.
    pub capture: CapturePolicy,
    /// Where other processes control the VM.
    pub control: Option<ControlListener>,
}

impl VmOptions {
    /// Whether the machine may ever be captured.
    pub(crate) fn may_capture(&self) -> bool {
        self.capture.destination.is_some() || self.control.is_some()
    }
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
    /// A control client ended the VM.
    Stopped,
}

/// Who wants to know what happens to a VM while it runs.
pub trait Observer {
    /// A capture that the guest asked for was refused or failed; the guest runs on, unless the
    /// process was asked to end.
    fn capture_failed(&mut self, error: &CaptureError);
    /// A capture succeeded and the guest runs on.
    fn captured_and_continues(&mut self, captured: &Captured);
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
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) control: Option<ControlServer>,
    /// A control client wants the vCPUs to stand still.
    pub(crate) paused: bool,
    /// Captures that succeeded.
    pub(crate) captures: u32,
    /// `restore` or `startup`, for the profile.
    pub(crate) origin: &'static str,
}

/// What serving one event came to.
pub(crate) enum Served {
    /// The VM lives on.
    Continue,
    /// The VM ends.
    End(Outcome),
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
        let result = started.and_then(|()| {
            self.profile.flush();
            // Only now that the guest runs: what earlier processes left can wait.
            self.remove_stale_files();
            self.serve(signals, observer)
        });
        self.end(result, signals)
    }

    /// Ends the threads, tells clients and brings out what is still to be written.
    fn end(
        mut self,
        result: Result<Outcome, RunError>,
        signals: &TerminationSignals,
    ) -> Result<Outcome, RunError> {
        self.end_threads();
        let Self {
            mut profile,
            cells,
            partition,
            shared,
            ram,
            control,
            ..
        } = self;
        let output = Arc::clone(&shared.output);
        let gate = Arc::clone(&shared.gate);
        if matches!(result, Ok(Outcome::Captured(_))) {
            // The published file may be this RAM: no view of it outlives the commit.
            drop((cells, partition, shared, ram));
        }
        if let Some(mut control) = control {
            control.end();
        }
        match result {
            // A reader that does not read is given up at the next request to end.
            Ok(Outcome::GuestExit { .. } | Outcome::Captured(_)) => output.drain(signals),
            // The end is wanted now: what can be written without waiting is written.
            _ => output.drain(gate.stop_waker()),
        }
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
        // A vCPU that is stuck in the kernel ends with the process.
        if self.stop_vcpus().is_ok() {
            for thread in self.threads.drain(..) {
                // A thread that panicked has said so itself.
                let _ = thread.join();
            }
        }
    }

    /// Stops all vCPUs with no unfinished exit, until [`Vm::resume_vcpus`].
    pub(crate) fn stop_vcpus(&self) -> Result<(), CaptureError> {
        let deadline = Instant::now() + STOP_DEADLINE;
        let gate = &self.shared.gate;
        gate.ask_for_stop();
        while Instant::now() < deadline {
            for handle in &self.stop_handles {
                handle.request_stop();
            }
            if gate.wait_for_all(self.threads.len(), KICK_INTERVAL) {
                return Ok(());
            }
        }
        Err(CaptureError::StopTimeout {
            deadline: STOP_DEADLINE,
        })
    }

    /// Lets the vCPUs run, unless a client wants them to stand still.
    pub(crate) fn resume_vcpus(&self) {
        if !self.paused {
            self.shared.gate.resume();
        }
    }

    /// Waits for events and serves them until one of them ends the VM.
    fn serve(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        loop {
            while let Some(event) = self.shared.take_event() {
                match event {
                    VcpuEvent::GuestExit { status } => return Ok(Outcome::GuestExit { status }),
                    VcpuEvent::Fault(fault) => return Err(fault.into()),
                    VcpuEvent::SnapshotRequested => {
                        if let Served::End(outcome) = self.serve_guest_request(signals, observer) {
                            return Ok(outcome);
                        }
                    }
                }
            }
            if let Some(termination) = signals.take() {
                return Ok(Outcome::Interrupted(termination));
            }
            if let Served::End(outcome) = control::serve(self, signals) {
                return Ok(outcome);
            }
            self.wait(signals).map_err(RunError::Wait)?;
        }
    }

    /// Waits until something happens, and takes console input if there is any.
    fn wait(&mut self, signals: &TerminationSignals) -> std::io::Result<()> {
        let room_bytes = self.shared.input.room_bytes();
        let mut sources = vec![
            (signals.source(), Interest::Readable),
            (self.shared.attention.source(), Interest::Readable),
        ];
        let input = self.input.as_ref().filter(|_| room_bytes > 0);
        sources.extend(input.map(|input| (input.source(), Interest::Readable)));
        let with_input = input.is_some();
        if let Some(control) = &self.control {
            sources.extend(control.sources());
        }
        let ready = wait_many(&sources, None)?;
        // Lowered before the events are looked at, so that none is missed.
        self.shared.attention.lower();
        if with_input && ready.get(2).copied().unwrap_or(false) {
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

    /// Captures to the declared destination, as the guest asked.
    fn serve_guest_request(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Served {
        let Some(destination) = self.policy.destination.clone() else {
            return self.answer_guest(SnapshotOutcome::Refused);
        };
        let request = CaptureRequest {
            destination,
            continue_after: self.policy.continue_after,
        };
        match capture::capture(self, &request, signals) {
            Ok(captured) if request.continue_after => {
                observer.captured_and_continues(&captured);
                self.answer_guest(SnapshotOutcome::Source)
            }
            Ok(captured) => Served::End(Outcome::Captured(captured)),
            // The event that supersedes the capture comes next and ends the VM.
            Err((CaptureError::Superseded, _)) => Served::Continue,
            Err((error, termination)) => {
                observer.capture_failed(&error);
                match termination {
                    Some(termination) => Served::End(Outcome::Interrupted(termination)),
                    None => self.answer_guest(SnapshotOutcome::Refused),
                }
            }
        }
    }

    fn answer_guest(&mut self, outcome: SnapshotOutcome) -> Served {
        // One answer for all who asked meanwhile.
        self.shared.take_snapshot_requests();
        self.shared.ports().set_snapshot_outcome(outcome);
        self.resume_vcpus();
        self.profile.flush();
        Served::Continue
    }

    fn remove_stale_files(&self) {
        // Best effort: what cannot be removed now is tried again at the next start.
        if let Some(destination) = &self.policy.destination {
            let _ = nvx_host::remove_stale(destination.parent());
        }
        let scratch = self.ram.place.directory();
        let roots = self.policy.roots.iter().map(PathBuf::as_path);
        for directory in scratch.into_iter().chain(roots) {
            remove_stale_in(directory);
        }
    }
}

fn remove_stale_in(directory: &Path) {
    if let Ok(directory) = Directory::open_following(directory) {
        let _ = nvx_host::remove_stale(&directory);
    }
}
