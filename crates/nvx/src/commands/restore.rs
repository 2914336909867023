//! `nvx restore`.

use std::process::ExitCode;

use nvx_profile::Profile;
use nvx_vmm::RestoreRequest;

use super::session;
use crate::cli::RestoreArgs;
use crate::exit::Failure;

/// Continues a captured guest and runs it to its end.
pub fn run(args: RestoreArgs, profile: Profile) -> Result<ExitCode, Failure> {
    let RestoreArgs {
        directory,
        capture,
        backend,
    } = args;
    let request = RestoreRequest {
        snapshot: directory,
        capture: session::capture_policy(capture),
    };
    session::run(|console| {
        nvx_vmm::restore(request, console, session::open_backend(backend), profile)
    })
}
