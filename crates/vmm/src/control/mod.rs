//! Control of a running VM by other processes: the socket's server, and what each request does.

pub mod client;
pub mod protocol;
mod server;

use std::path::Path;

use nvx_host::TerminationSignals;
use nvx_snapshot::{Destination, parent_of};

pub(crate) use server::{Asked, ControlServer};

use crate::capture::{self, CaptureRequest, Captured};
use crate::error::CaptureError;
use crate::vm::{Outcome, Served, Vm};
use protocol::{
    CONTROL_VERSION, CapturedInfo, Command, ErrorCode, Response, ResponseResult, Status,
};

/// Serves every request that has arrived.
pub(crate) fn serve(vm: &mut Vm, signals: &TerminationSignals) -> Served {
    if let Some(control) = &mut vm.control {
        control.progress();
    }
    while let Some(asked) = vm.control.as_mut().and_then(ControlServer::take_request) {
        if let Served::End(outcome) = serve_one(vm, &asked, signals) {
            return Served::End(outcome);
        }
    }
    Served::Continue
}

fn serve_one(vm: &mut Vm, asked: &Asked, signals: &TerminationSignals) -> Served {
    let (result, served) = match &asked.command {
        Command::Status => (ResponseResult::Status(status(vm)), Served::Continue),
        Command::Pause => (pause(vm), Served::Continue),
        Command::Resume => {
            vm.paused = false;
            vm.resume_vcpus();
            (ResponseResult::Done {}, Served::Continue)
        }
        Command::Stop => (ResponseResult::Done {}, Served::End(Outcome::Stopped)),
        Command::Capture {
            destination,
            continue_after,
        } => capture(vm, destination, *continue_after, signals),
    };
    let response = Response {
        version: CONTROL_VERSION,
        id: asked.id.clone(),
        result,
    };
    if let Some(control) = &mut vm.control {
        control.respond(asked, &response);
    }
    served
}

fn status(vm: &Vm) -> Status {
    Status {
        state: if vm.paused { "paused" } else { "running" }.to_owned(),
        pid: std::process::id(),
        backend: vm.backend.name().to_owned(),
        vcpus: vm.vcpus(),
        memory_bytes: vm.ram.memory.layout().total_bytes(),
        ram: vm.ram.place.name().to_owned(),
        captures: vm.captures,
    }
}

fn pause(vm: &mut Vm) -> ResponseResult {
    match vm.stop_vcpus() {
        Ok(()) => {
            vm.paused = true;
            ResponseResult::Done {}
        }
        Err(error) => {
            vm.resume_vcpus();
            failure(ErrorCode::PauseFailed, &error)
        }
    }
}

fn capture(
    vm: &mut Vm,
    path: &Path,
    continue_after: bool,
    signals: &TerminationSignals,
) -> (ResponseResult, Served) {
    let destination = match declare_below_roots(vm, path) {
        Ok(destination) => destination,
        Err(result) => return (result, Served::Continue),
    };
    let request = CaptureRequest {
        destination,
        continue_after,
    };
    match capture::capture(vm, &request, signals) {
        Ok(captured) => {
            let info = captured_info(&captured, continue_after);
            let served = if continue_after {
                // A guest that asked meanwhile has its answer: there is a snapshot, and this is
                // its source.
                vm.shared.take_snapshot_requests();
                vm.shared
                    .ports()
                    .set_snapshot_outcome(nvx_devices::Outcome::Source);
                vm.resume_vcpus();
                vm.profile.flush();
                Served::Continue
            } else {
                Served::End(Outcome::Captured(captured))
            };
            (ResponseResult::Captured(info), served)
        }
        Err((error, termination)) => {
            let result = failure(ErrorCode::CaptureFailed, &error);
            let served = match (&error, termination) {
                (_, Some(termination)) => Served::End(Outcome::Interrupted(termination)),
                // What ended the guest is the next event.
                (CaptureError::Superseded, None) => Served::Continue,
                _ => {
                    vm.resume_vcpus();
                    Served::Continue
                }
            };
            (result, served)
        }
    }
}

/// A destination that the host asks for must lie below a root that was declared at start.
fn declare_below_roots(vm: &Vm, path: &Path) -> Result<Destination, ResponseResult> {
    let roots = &vm.policy.roots;
    // Canonical, so that neither `..` nor a symbolic link leads out of a root.
    let parent = std::fs::canonicalize(parent_of(path));
    let below_a_root = parent
        .as_ref()
        .is_ok_and(|parent| roots.iter().any(|root| parent.starts_with(root)));
    if parent.is_err()
        && let Err(error) = Destination::declare(path)
    {
        // Says what is wrong with the parent, which is more than that it is outside.
        return Err(failure(ErrorCode::CaptureFailed, &error));
    }
    if !below_a_root {
        let known: Vec<String> = roots
            .iter()
            .map(|root| root.display().to_string())
            .collect();
        return Err(ResponseResult::Error {
            code: ErrorCode::OutsideRoots,
            message: format!(
                "{}: not below a declared snapshot root ({})",
                path.display(),
                if known.is_empty() {
                    "none is declared".to_owned()
                } else {
                    known.join(", ")
                }
            ),
        });
    }
    Destination::declare(path).map_err(|error| failure(ErrorCode::CaptureFailed, &error))
}

fn captured_info(captured: &Captured, continues: bool) -> CapturedInfo {
    CapturedInfo {
        destination: captured.path.clone(),
        publication: captured.publication.to_string(),
        reason: captured.reason.clone(),
        generation_ms: captured.generation.as_secs_f64() * 1e3,
        continues,
    }
}

fn failure(code: ErrorCode, error: &dyn std::error::Error) -> ResponseResult {
    ResponseResult::Error {
        code,
        message: crate::error::chain(error),
    }
}
