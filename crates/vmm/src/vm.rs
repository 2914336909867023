//! A running VM: its threads, its events, and how it ends.
//!
//! The main thread runs the first vCPU itself and looks at the host when the watcher interrupts it
//! or the vCPU has an event. So a guest with one vCPU starts, is captured and is restored without
//! a hand-over between threads, each of which would cost a wake-up on another processor.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvx_devices::Outcome as SnapshotOutcome;
use nvx_host::{
    ConsoleInput, ConsoleOutput, ControlListener, Directory, InputRead, Interest, Termination,
    TerminationSignals, WaitSource, Waitable as _, Waiting, wait_any,
};
use nvx_hypervisor::{Hypervisor, Partition, StopHandle, Vcpu};
use nvx_machine::control_line::{FromGuest, ToGuest};
use nvx_profile::Profile;
use nvx_snapshot::Destination;

use crate::capture::{self, CaptureRequest, Captured};
use crate::control::{self, ControlServer};
use crate::control_line::GuestLine;
use crate::error::{CaptureError, RunError};
use crate::escape::EscapeKeys;
use crate::privileges::Privileges;
use crate::ram::VmRam;
use crate::vcpu_thread::{Shared, VcpuCell, VcpuEvent, finish_exit, run_thread, run_until};
use crate::watcher::{self, Watch};

/// How long the vCPUs may take to stop. A stop needs one round trip to the kernel; a vCPU that
/// takes this long is stuck there.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How often a vCPU that has not stopped is kicked again: the first kick may have come just
/// before its thread began to wait for something else than the guest.
const KICK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a guest's command may take to follow a request to end before the machine ends without it.
const FORWARDED_DEADLINE: Duration = Duration::from_secs(10);

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
    /// Digests of memory content are made where it is copied; a linked file is never read.
    pub digests: bool,
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
    /// What the process keeps while the guest runs.
    pub privileges: Privileges,
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
    /// The guest asked for a reset of its machine, without having told a status.
    GuestReset,
    /// The guest lives on in a snapshot.
    Captured(Captured),
    /// The process was asked to end.
    Interrupted(Termination),
    /// A control client ended the VM.
    Stopped,
    /// The user ended the VM from the keyboard, by [`crate::ESCAPE_KEY`].
    Escaped,
}

/// Who wants to know what happens to a VM while it runs.
pub trait Observer {
    /// A capture that the guest asked for was refused or failed; the guest runs on, unless the
    /// process was asked to end.
    fn capture_failed(&mut self, error: &CaptureError);
    /// A capture succeeded and the guest runs on.
    fn captured_and_continues(&mut self, captured: &Captured);
    /// The guest said something on the control line.
    fn guest_said(&mut self, message: &FromGuest) {
        let _ = message;
    }
    /// Whether console input is what a user types at a terminal that gives every key to the guest.
    fn input_is_typed(&self) -> bool {
        false
    }
    /// A restored guest's random numbers and clock are its own, `window` after its vCPUs went on; the repair
    /// itself took `in_guest`, by the guest's clock.
    fn copy_repaired(&mut self, window: Duration, in_guest: Duration) {
        let _ = (window, in_guest);
    }
    /// The process was to be confined and this kernel cannot confine paths.
    fn paths_not_confined(&mut self);
}

/// A virtual machine, ready to run or running.
pub struct Vm {
    pub(crate) backend: Box<dyn Hypervisor>,
    /// vCPU 0, which the main thread runs.
    pub(crate) first_vcpu: Box<dyn Vcpu>,
    /// The other vCPUs in order, each run by a thread of its own.
    pub(crate) other_vcpus: Vec<VcpuCell>,
    pub(crate) other_stop_handles: Vec<Arc<dyn StopHandle>>,
    pub(crate) partition: Arc<dyn Partition>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ram: VmRam,
    pub(crate) policy: CapturePolicy,
    pub(crate) privileges: Privileges,
    pub(crate) profile: Profile,
    pub(crate) input: Option<ConsoleInput>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) watcher: Option<JoinHandle<()>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    pub(crate) control: Option<ControlServer>,
    /// A control client wants the vCPUs to stand still.
    pub(crate) paused: bool,
    /// The user's way out of a guest that has the keyboard.
    pub(crate) escape: EscapeKeys,
    /// A request to end that the guest was told of, and when.
    pub(crate) forwarded: Option<(Termination, Instant)>,
    /// Captures that succeeded.
    pub(crate) captures: u32,
    /// `restore` or `startup`, for the profile.
    pub(crate) origin: &'static str,
    /// When the guest went on after a restore, on the process clock, until it has said that it is repaired.
    pub(crate) unrepaired_since: Option<Duration>,
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
        let started = self
            .drop_privileges(observer)
            .and_then(|()| self.start_threads(signals));
        let result = started.and_then(|()| self.serve(signals, observer));
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
            first_vcpu,
            other_vcpus,
            partition,
            shared,
            ram,
            control,
            ..
        } = self;
        let output = Arc::clone(&shared.output);
        let gate = Arc::clone(&shared.gate);
        let VmRam { memory, file, .. } = ram;
        // Declared before what maps it, and so dropped after: Windows removes no file that is mapped.
        let _ram_file = file;
        let mut machine = Some((first_vcpu, other_vcpus, partition, shared, memory));
        if matches!(result, Ok(Outcome::Captured(_))) {
            // The published file may be this RAM: no view of it outlives the commit.
            drop(machine.take());
        }
        if let Some(mut control) = control {
            control.end();
        }
        match result {
            // A reader that does not read is given up at the next request to end.
            Ok(Outcome::GuestExit { .. } | Outcome::GuestReset | Outcome::Captured(_)) => {
                output.drain(signals);
            }
            // The end is wanted now: what can be written without waiting is written.
            _ => output.drain(gate.stop().waker()),
        }
        profile.flush();
        result
    }

    fn drop_privileges(&mut self, observer: &mut dyn Observer) -> Result<(), RunError> {
        let mut profile = std::mem::replace(&mut self.profile, Profile::start(false));
        let confined = profile.phase(self.origin, "privilege_drop", |_| {
            let control = self.control.as_ref();
            self.privileges.drop_rest(&self.policy, &self.ram, control)
        });
        self.profile = profile;
        if confined?.is_some_and(|confined| !confined.paths) {
            observer.paths_not_confined();
        }
        Ok(())
    }

    fn start_threads(&mut self, signals: &TerminationSignals) -> Result<(), RunError> {
        self.first_vcpu.bind_to_this_thread();
        let mut profile = std::mem::replace(&mut self.profile, Profile::start(false));
        let result = profile.phase(self.origin, "guest_resume", |_| {
            self.watcher = Some(self.start_watcher(signals)?);
            for (index, cell) in (1..).zip(&self.other_vcpus) {
                let shared = Arc::clone(&self.shared);
                let cell = Arc::clone(cell);
                let filter = self.privileges.filters_system_calls();
                let body = move || run_thread(&shared, &cell, filter);
                self.threads
                    .push(start_thread(format!("vcpu{index}"), body)?);
            }
            Ok(())
        });
        if self.origin == crate::restore::OPERATION {
            self.unrepaired_since = profile.records().last().map(|resumed| resumed.end);
        }
        self.profile = profile;
        result
    }

    fn start_watcher(&self, signals: &TerminationSignals) -> Result<JoinHandle<()>, RunError> {
        let signals = signals.try_clone().map_err(RunError::Wait)?;
        let watch = Arc::clone(&self.watch);
        let shared = Arc::clone(&self.shared);
        let first_vcpu = self.first_vcpu.stop_handle();
        let destination = self.policy.destination.clone();
        let scratch = self.ram.place.directory().map(Path::to_owned);
        let directories: Vec<PathBuf> = scratch
            .into_iter()
            .chain(self.policy.roots.iter().cloned())
            .collect();
        let (memory, writeback) = (
            Arc::clone(&self.ram.memory),
            Arc::clone(&self.ram.writeback),
        );
        start_thread("watcher".to_owned(), move || {
            // Here and only now, since the guest does not wait for it.
            writeback.strategy(&memory);
            drop(memory);
            let _ = shared.host_identity.set(nvx_host::boot_identity());
            remove_stale_files(destination.as_ref(), &directories);
            watcher::run(&watch, &shared.gate, &*first_vcpu, &signals);
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
        self.watch.end();
        self.shared.attention.raise();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }

    /// Stops all vCPUs with no unfinished exit, until [`Vm::resume_vcpus`].
    pub(crate) fn stop_vcpus(&mut self) -> Result<(), CaptureError> {
        let deadline = Instant::now() + STOP_DEADLINE;
        self.shared.gate.ask_for_stop();
        let gate = &self.shared.gate;
        finish_exit(&self.shared, &mut *self.first_vcpu, gate.stop());
        // Whoever stands here by an event of its own need not be kicked.
        if gate.wait_for_all(self.threads.len(), Duration::ZERO) {
            return Ok(());
        }
        while Instant::now() < deadline {
            for handle in &self.other_stop_handles {
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

    /// How many vCPUs there are.
    pub(crate) fn vcpus(&self) -> u8 {
        1 + self.other_vcpus.len() as u8
    }

    /// Lets the vCPUs run, unless a client wants them to stand still.
    pub(crate) fn resume_vcpus(&self) {
        if self.paused {
            return;
        }
        if self.shared.gate.stop().is_wanted() {
            self.first_vcpu.note_pause();
            // One that is in use has not stopped, and so has nothing to be told.
            for vcpu in self
                .other_vcpus
                .iter()
                .filter_map(|cell| cell.try_lock().ok())
            {
                vcpu.note_pause();
            }
        }
        self.shared.gate.resume();
    }

    /// Runs the first vCPU and serves what comes up until something ends the VM.
    fn serve(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        self.watch_for(signals.source())?;
        self.watch_for(self.shared.attention.source())?;
        self.update_sources()?;
        loop {
            if self.paused {
                self.watch.sources.wait().map_err(RunError::Wait)?;
            } else {
                self.first_vcpu.clear_stop();
                self.watch.arm();
                // Why it was left shows in the events.
                self.watch.in_guest.store(true, Ordering::SeqCst);
                let _ = run_until(&self.shared, &mut *self.first_vcpu, &self.watch.host);
                self.watch.in_guest.store(false, Ordering::SeqCst);
            }
            if let Served::End(outcome) = self.look(signals, observer)? {
                return Ok(outcome);
            }
        }
    }

    /// A way to talk to `nvx` inside the guest, for other threads too; none for a built-in guest.
    #[must_use]
    pub fn guest_line(&self) -> Option<GuestLine> {
        let line = self.shared.control_line.as_ref();
        line.map(|_| GuestLine::new(Arc::clone(&self.shared)))
    }

    /// The status that the guest told by the control line, if it did.
    fn declared_status(&self) -> Option<u8> {
        self.shared.control_line.as_ref()?.declared_status()
    }

    fn watch_for(&self, source: WaitSource<'_>) -> Result<(), RunError> {
        let sources = &self.watch.sources;
        let waiting = sources.watch(source, Interest::Readable);
        waiting.map(drop).map_err(RunError::Wait)
    }

    /// Looks at everything that may have come up.
    fn look(
        &mut self,
        signals: &TerminationSignals,
        observer: &mut dyn Observer,
    ) -> Result<Served, RunError> {
        self.profile.flush();
        // Lowered before the events are looked at, so that none is missed.
        self.shared.attention.lower();
        while let Some(event) = self.shared.take_event() {
            let served = match event {
                VcpuEvent::GuestExit { status } => Served::End(Outcome::GuestExit { status }),
                VcpuEvent::PowerOff => Served::End(Outcome::GuestExit {
                    status: self.declared_status().unwrap_or(0),
                }),
                VcpuEvent::Reset => Served::End(match self.declared_status() {
                    Some(status) => Outcome::GuestExit { status },
                    None => Outcome::GuestReset,
                }),
                VcpuEvent::Fault(fault) => return Err(fault.into()),
                VcpuEvent::SnapshotRequested => self.serve_guest_request(signals, observer),
            };
            if let Served::End(_) = served {
                return Ok(served);
            }
        }
        if let Some(termination) = self.take_termination(signals) {
            return Ok(Served::End(Outcome::Interrupted(termination)));
        }
        if let Served::End(outcome) = control::serve(self, signals) {
            return Ok(Served::End(outcome));
        }
        if let Served::End(outcome) = self.hear_guest(signals, observer) {
            return Ok(Served::End(outcome));
        }
        let is_typed = observer.input_is_typed();
        if let Served::End(outcome) = self.take_input(is_typed).map_err(RunError::Wait)? {
            return Ok(Served::End(outcome));
        }
        self.update_sources()?;
        Ok(Served::Continue)
    }

    /// Takes a request to end this process. The first one goes to the guest's command, if the guest takes
    /// it, which may want to end in order; a second one, and one that the command has not followed in time,
    /// is this process's.
    fn take_termination(&mut self, signals: &TerminationSignals) -> Option<Termination> {
        if let Some(termination) = signals.take() {
            if self.forwarded.is_some() || !self.forward(termination) {
                return Some(termination);
            }
            self.forwarded = Some((termination, Instant::now()));
        }
        let (termination, since) = self.forwarded?;
        (since.elapsed() >= FORWARDED_DEADLINE).then_some(termination)
    }

    /// False if the guest does not take signals.
    fn forward(&self, termination: Termination) -> bool {
        // The exit code is 128 and the signal's number.
        let message = ToGuest::Signal {
            number: termination.exit_code() & !128,
        };
        if !self.guest_line().is_some_and(|line| line.send(&message)) {
            return false;
        }
        let shared = Arc::clone(&self.shared);
        start_thread("deadline".to_owned(), move || {
            std::thread::sleep(FORWARDED_DEADLINE);
            shared.attention.raise();
        })
        .is_ok()
    }

    /// Takes what the guest has said on the control line, and passes it on.
    fn hear_guest(&mut self, signals: &TerminationSignals, observer: &mut dyn Observer) -> Served {
        loop {
            let line = self.shared.control_line.as_ref();
            let Some(message) = line.and_then(|line| line.take_message()) else {
                return Served::Continue;
            };
            observer.guest_said(&message);
            let served = match message {
                FromGuest::Snapshot => self.serve_guest_request(signals, observer),
                FromGuest::Exit { status } => Served::End(Outcome::GuestExit { status }),
                FromGuest::Repaired { elapsed_us } => {
                    self.note_repair(Duration::from_micros(elapsed_us), observer);
                    Served::Continue
                }
                FromGuest::Ready { .. } if self.input.is_none() => {
                    self.tell_input_end();
                    Served::Continue
                }
                _ => Served::Continue,
            };
            if let Served::End(_) = served {
                return served;
            }
        }
    }

    /// A restored guest has become different from other copies; how long that took is told once.
    fn note_repair(&mut self, in_guest: Duration, observer: &mut dyn Observer) {
        let Some(since) = self.unrepaired_since.take() else {
            return;
        };
        let window = self
            .profile
            .milestone(crate::restore::OPERATION, "guest_repair", since);
        observer.copy_repaired(window, in_guest);
    }

    /// Tells a guest that listens that its console's input has ended, and how much there was.
    fn tell_input_end(&self) {
        let received_bytes = match self.shared.ports().platform() {
            Some(platform) => platform.console_received_bytes(),
            None => return,
        };
        if let Some(line) = self.guest_line() {
            line.send(&ToGuest::InputEnd {
                bytes: received_bytes + self.shared.input.queued_bytes() as u64,
            });
        }
    }

    /// Takes console input while there is some and the guest's queue has room. Of what `is_typed`, some keys
    /// end the VM.
    fn take_input(&mut self, is_typed: bool) -> std::io::Result<Served> {
        let mut buffer = [0; 4096];
        while let Some(input) = &self.input {
            let room_bytes = self.shared.input.room_bytes().min(buffer.len());
            let poll = [(input.source(), Interest::Readable)];
            if room_bytes == 0 || wait_any(poll, Some(Duration::ZERO))? == [false] {
                break;
            }
            match input.read(&mut buffer[..room_bytes]) {
                InputRead::Data(length) => {
                    self.shared.input.push(&buffer[..length]);
                    self.shared.input_arrived();
                    if is_typed && self.escape.are_in(&buffer[..length]) {
                        return Ok(Served::End(Outcome::Escaped));
                    }
                }
                InputRead::Nothing => break,
                InputRead::End => {
                    self.watch.sources.forget(input.source());
                    self.input = None;
                    self.tell_input_end();
                }
            }
        }
        Ok(Served::Continue)
    }

    /// Brings what is waited for up to date with what could be served.
    fn update_sources(&mut self) -> Result<(), RunError> {
        if let Some(input) = &self.input {
            if self.shared.input.room_bytes() > 0 {
                match self.watch.sources.watch(input.source(), Interest::Readable) {
                    Ok(Waiting::Yes) => {}
                    // Nobody tells when it is ready, because it is: it is read as there is room.
                    Ok(Waiting::AlwaysReady) => self.shared.attention.raise(),
                    Err(error) => return Err(RunError::Wait(error)),
                }
            } else {
                // The guest tells when there is room again.
                self.watch.sources.forget(input.source());
            }
        }
        match &mut self.control {
            Some(control) => control.watch(&self.watch.sources).map_err(RunError::Wait),
            None => Ok(()),
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
        if let Some(line) = self.guest_line() {
            // Who asked by the port alone has nobody who waits for this.
            line.send(&ToGuest::Snapshot {
                taken: outcome == SnapshotOutcome::Source,
            });
        }
        self.resume_vcpus();
        self.profile.flush();
        Served::Continue
    }
}

fn start_thread(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RunError> {
    let builder = std::thread::Builder::new().name(name.clone());
    builder
        .spawn(body)
        .map_err(|source| RunError::Thread { name, source })
}

/// Removes what dead processes left where this VM puts files. Best effort: what cannot be removed
/// now is tried again at the next start.
fn remove_stale_files(destination: Option<&Destination>, directories: &[PathBuf]) {
    if let Some(destination) = destination {
        let _ = nvx_host::remove_stale(destination.parent());
    }
    for directory in directories {
        if let Ok(directory) = Directory::open_following(directory) {
            let _ = nvx_host::remove_stale(&directory);
        }
    }
}
