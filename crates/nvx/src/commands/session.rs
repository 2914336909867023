//! What `run` and `restore` have in common: signals, console, back end, and how a VM's end becomes
//! an exit code.

use std::process::ExitCode;

use anyhow::Context as _;
use nvx_host::{ConsoleInput, ConsoleOutput, TerminationSignals};
use nvx_vmm::{
    CaptureError, CapturePolicy, Captured, Console, MachineError, Observer, Outcome, Vm,
};

use crate::cli::{Backend, CaptureArgs};
use crate::exit::Failure;
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
    let outcome = vm.run(&signals, &mut Messages).map_err(Failure::monitor)?;
    Ok(match outcome {
        Outcome::GuestExit { status } => ExitCode::from(status),
        Outcome::Captured(captured) => {
            output::message(&captured_message(&captured));
            ExitCode::SUCCESS
        }
        Outcome::Interrupted(termination) => {
            output::message(&format!("ended by {}", termination.name()));
            ExitCode::from(termination.exit_code())
        }
    })
}

/// Opens the back end that the arguments ask for.
pub fn open_backend(
    backend: Backend,
) -> impl FnOnce() -> Result<Box<dyn nvx_hypervisor::Hypervisor>, MachineError> {
    move || match backend {
        Backend::Auto | Backend::Kvm => Ok(Box::new(nvx_hypervisor::kvm::Kvm::open()?)),
    }
}

/// The capture policy that the arguments ask for.
pub fn capture_policy(args: CaptureArgs) -> CapturePolicy {
    let CaptureArgs {
        snapshot,
        continue_after,
    } = args;
    CapturePolicy {
        destination: snapshot,
        continue_after,
    }
}

struct Messages;

impl Observer for Messages {
    fn capture_failed(&mut self, error: &CaptureError) {
        let error = anyhow::Error::msg(chain(error));
        output::message(&format!("capture failed: {error:#}"));
    }

    fn captured_and_continues(&mut self, captured: &Captured) {
        output::message(&format!(
            "{}; the guest goes on",
            captured_message(captured)
        ));
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn captured_message(captured: &Captured) -> String {
    let Captured {
        path,
        publication,
        reason,
        generation,
    } = captured;
    format!(
        "captured to {} in {:.3} ms ({publication}: {reason})",
        path.display(),
        generation.as_secs_f64() * 1e3,
    )
}
