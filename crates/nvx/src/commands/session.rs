//! What `run` and `restore` have in common: signals, console, back end, and how a VM's end becomes
//! an exit code.

use crate::exit::ExitCode;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nvx_host::{ConsoleInput, ConsoleOutput, ControlListener, Directory, TerminationSignals};
use nvx_hypervisor::{BackendChoice, Hypervisor, OpenError, open_backend};
use nvx_machine::control_line::FromGuest;
use nvx_snapshot::{Destination, parent_of};
use nvx_vmm::{
    CaptureError, CapturePolicy, Captured, Console, Observer, Outcome, Privileges, Vm, VmOptions,
    chain,
};

use super::guest_terminal::GuestTerminal;
use crate::cli::CaptureArgs;
use crate::exit::{ESCAPED, Failure, GUEST_RESET, STOPPED};
use crate::output;

/// Takes the signals over, makes the VM by `make`, runs it, and tells how it ended.
pub fn run<E>(make: impl FnOnce(Console) -> Result<Vm, E>) -> Result<ExitCode, Failure>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    let output = ConsoleOutput::stdout()
        .context("standard output cannot be used")
        .map_err(Failure::monitor)?;
    let console = Console {
        // A closed standard input is a guest without input, not an error.
        input: ConsoleInput::stdin().ok(),
        output,
    };
    let vm = make(console).map_err(Failure::monitor)?;
    let terminal = vm.guest_line().map(GuestTerminal::attach).transpose();
    let mut messages = Messages {
        terminal: terminal.map_err(Failure::monitor)?,
    };
    let outcome = vm.run(&signals, &mut messages);
    // Before anything is said of the end.
    drop(messages);
    let outcome = outcome.map_err(Failure::monitor)?;
    Ok(match outcome {
        Outcome::GuestExit { status } => ExitCode::from(status),
        Outcome::GuestReset => {
            output::message("the guest reset its machine (a reboot, or a panic)");
            ExitCode::from(GUEST_RESET)
        }
        Outcome::Captured(captured) => {
            output::message(&captured_message(&captured));
            ExitCode::SUCCESS
        }
        Outcome::Interrupted(termination) => {
            output::message(&format!("ended by {}", termination.name()));
            ExitCode::from(termination.exit_code())
        }
        Outcome::Stopped => {
            output::message("stopped by a control client");
            ExitCode::from(STOPPED)
        }
        Outcome::Escaped => {
            output::message("ended from the keyboard");
            ExitCode::from(ESCAPED)
        }
    })
}

/// Opens the back end that the arguments ask for, and says what the user should know about it.
pub fn opener(
    choice: BackendChoice,
) -> impl FnOnce(Option<&str>) -> Result<Box<dyn Hypervisor>, OpenError> {
    move |captured_on| {
        let selected = open_backend(choice, captured_on)?;
        if let Some(notice) = &selected.notice {
            output::message(notice);
        }
        Ok(selected.backend)
    }
}

/// What the arguments say of captures and control. The socket listens from here on.
pub fn vm_options(
    args: CaptureArgs,
    scratch: Option<&Path>,
    no_seccomp: bool,
) -> anyhow::Result<VmOptions> {
    let CaptureArgs {
        snapshot,
        continue_after,
        digests,
        control,
        mut snapshot_roots,
    } = args;
    if snapshot_roots.is_empty() {
        snapshot_roots.extend(scratch.map(Path::to_owned));
    }
    snapshot_roots.extend(snapshot.as_deref().map(|path| parent_of(path).to_owned()));
    let destination = snapshot
        .map(|path| Destination::declare(&path))
        .transpose()
        .context("the snapshot cannot be put there")?;
    Ok(VmOptions {
        capture: CapturePolicy {
            destination,
            continue_after,
            digests,
            roots: match &control {
                Some(_) => canonical(&snapshot_roots)?,
                None => Vec::new(),
            },
        },
        control: control
            .map(|path| ControlListener::bind(&path))
            .transpose()
            .context("the control socket cannot be made")?,
        privileges: if no_seccomp {
            Privileges::KeepSystemCalls
        } else {
            Privileges::Least
        },
    })
}

fn canonical(roots: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    roots
        .iter()
        .map(|root| {
            let of = || format!("snapshot root {}", root.display());
            // Says what is there instead, if it is no directory.
            Directory::open_following(root).with_context(of)?;
            std::fs::canonicalize(root).with_context(of)
        })
        .collect()
}

struct Messages {
    /// The user's terminal, if the guest is one that uses it.
    terminal: Option<GuestTerminal>,
}

impl Messages {
    fn say(&self, text: &str) {
        // Where the terminal is raw a newline alone does not begin a new line at its left.
        let is_raw = self.terminal.as_ref().is_some_and(GuestTerminal::is_raw);
        let end = if is_raw { "\r" } else { "" };
        output::message(&format!("{text}{end}"));
    }
}

impl Observer for Messages {
    fn capture_failed(&mut self, error: &CaptureError) {
        self.say(&format!("capture failed: {}", chain(error)));
    }

    fn paths_not_confined(&mut self) {
        output::message(
            "there is no Landlock here: the process can open any path that its user can",
        );
    }

    fn captured_and_continues(&mut self, captured: &Captured) {
        self.say(&format!(
            "{}; the guest goes on",
            captured_message(captured)
        ));
    }

    fn input_is_typed(&self) -> bool {
        self.terminal.as_ref().is_some_and(GuestTerminal::is_raw)
    }

    fn copy_repaired(&mut self, window: Duration, in_guest: Duration) {
        self.say(&format!(
            "the copy has a clock and random numbers of its own, {:.3} ms after it went on ({:.3} ms of them its own work)",
            window.as_secs_f64() * 1e3,
            in_guest.as_secs_f64() * 1e3,
        ));
    }

    fn guest_said(&mut self, message: &FromGuest) {
        match message {
            FromGuest::Ready { mode } => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.guest_is_ready(*mode);
                }
            }
            FromGuest::Failed { reason } => self.say(&format!("in the guest: {reason}")),
            FromGuest::Notice { text } => self.say(&format!("in the guest: {text}")),
            FromGuest::Snapshot | FromGuest::Repaired { .. } | FromGuest::Exit { .. } => {}
        }
    }
}

fn captured_message(captured: &Captured) -> String {
    let Captured {
        path,
        publication,
        reason,
        generation,
        untaken_input_bytes,
    } = captured;
    let untaken = match untaken_input_bytes {
        0 => String::new(),
        bytes => format!("; {bytes} bytes of input that the guest had not taken are not in it"),
    };
    format!(
        "captured to {} in {:.3} ms ({publication}: {reason}){untaken}",
        path.display(),
        generation.as_secs_f64() * 1e3,
    )
}
