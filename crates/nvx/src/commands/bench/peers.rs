//! `nvx bench peers`.

use crate::exit::ExitCode;
use std::path::PathBuf;

use anyhow::Context as _;
use nvx_bench::peers::{PeerKind, PeersError, PeersPlan, explain, explanation, run_peers, text};
use nvx_host::TerminationSignals;

use super::lifecycle::check_output;
use super::subject::{probe_guest, subject};
use super::turns::{Turns, keep};
use crate::cli::PeersArgs;
use crate::exit::Failure;
use crate::output;

/// Where `--explain` says that a turn's files would be.
const TURN_DIRECTORY: &str = "TURN";

/// Measures, or says what would be run.
pub fn run(args: &PeersArgs) -> Result<ExitCode, Failure> {
    // Before any thread is started: they inherit the mask.
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    let plan = plan(args).map_err(Failure::input)?;
    if args.explain {
        return show_commands(args, &plan);
    }
    if let Some(path) = &args.output {
        check_output(path).map_err(Failure::input)?;
    }
    let mut turns = Turns::begin(&signals);
    let outcome = run_peers(&plan, &mut |done, total| turns.go_on(done, total));
    let result = match (outcome, turns.end()) {
        (Ok(result), _) => result,
        (Err(error @ (PeersError::Interrupted | PeersError::Turn { .. })), Some(signal)) => {
            output::message(&error.to_string());
            return Ok(ExitCode::from(signal.exit_code()));
        }
        (Err(error), _) => return Err(Failure::input(error)),
    };
    keep(args.output.as_deref(), &result)?;
    if args.json {
        output::json(&result).map_err(Failure::monitor)?;
    } else {
        output::result(&text(&result));
    }
    Ok(ExitCode::SUCCESS)
}

fn show_commands(args: &PeersArgs, plan: &PeersPlan) -> Result<ExitCode, Failure> {
    let scratch = plan.request.scratch.clone().unwrap_or_default();
    let peers = explain(plan, &scratch.join(TURN_DIRECTORY)).map_err(Failure::input)?;
    if args.json {
        output::json(&peers).map_err(Failure::monitor)?;
    } else {
        output::result(&explanation(&peers));
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &PeersArgs) -> anyhow::Result<PeersPlan> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program's own file")?,
    };
    let (request, execution) = subject(&args.subject, probe_guest(&args.subject), program)?;
    let named = |kind| match kind {
        PeerKind::Qemu => args.qemu.clone(),
        PeerKind::Firecracker => args.firecracker.clone(),
    };
    let mut peers: Vec<(PeerKind, PathBuf)> = PeerKind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind, named(kind)?)))
        .collect();
    if peers.is_empty() {
        let installed = |kind: PeerKind| Some((kind, on_path(kind.usual_program())?));
        peers = PeerKind::ALL.into_iter().filter_map(installed).collect();
    }
    Ok(PeersPlan {
        request,
        peers,
        warmups: args.subject.warmups,
        samples: args.samples,
        execution,
    })
}

/// The first file of that name in a directory of `PATH`.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}
