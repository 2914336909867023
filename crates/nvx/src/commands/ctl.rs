//! `nvx capture` and `nvx ctl`: clients of a running VM's control socket.

use crate::exit::ExitCode;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nvx_vmm::control::client::Client;
use nvx_vmm::control::protocol::{ResponseResult, WireRequest};

use crate::cli::{CaptureCommandArgs, CtlAction, CtlArgs};
use crate::exit::Failure;
use crate::{output, size};

/// Carries out `nvx capture`.
pub fn capture(args: CaptureCommandArgs) -> Result<ExitCode, Failure> {
    let CaptureCommandArgs {
        directory,
        control,
        continue_after,
        json,
    } = args;
    let request = || {
        Ok(WireRequest {
            command: "capture".to_owned(),
            destination: Some(absolute(&directory)?),
            continue_after: Some(continue_after),
            ..Default::default()
        })
    };
    request()
        .and_then(|request| ask(&control, request, json))
        .map_err(Failure::input)
}

/// Carries out `nvx ctl`.
pub fn run(args: CtlArgs) -> Result<ExitCode, Failure> {
    let CtlArgs {
        action,
        control,
        json,
    } = args;
    let command = match action {
        CtlAction::Status => "status",
        CtlAction::Pause => "pause",
        CtlAction::Resume => "resume",
        CtlAction::Stop => "stop",
    };
    let request = WireRequest {
        command: command.to_owned(),
        ..Default::default()
    };
    ask(&control, request, json).map_err(Failure::input)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{}", path.display()))
}

fn ask(control: &Path, request: WireRequest, json: bool) -> anyhow::Result<ExitCode> {
    let mut client = Client::connect(control)?;
    let result = client.ask(request)?;
    if let ResponseResult::Error { message, .. } = &result {
        bail!("{message}");
    }
    if json {
        output::json(&result)?;
    } else {
        output::result(&text(&result));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(result: &ResponseResult) -> String {
    match result {
        ResponseResult::Done {} | ResponseResult::Error { .. } => String::new(),
        ResponseResult::Status(status) => format!(
            "{}: process {}, {} vCPU, {} RAM ({}), back end {}, {} captures\n",
            status.state,
            status.pid,
            status.vcpus,
            size::format(status.memory_bytes),
            status.ram,
            status.backend,
            status.captures
        ),
        ResponseResult::Captured(captured) => format!(
            "captured to {} in {:.3} ms ({}: {}); the guest {}\n",
            captured.destination.display(),
            captured.generation_ms,
            captured.publication,
            captured.reason,
            if captured.continues {
                "goes on"
            } else {
                "ended"
            }
        ),
    }
}
