//! `nvx restore`.

use crate::exit::ExitCode;

use nvx_profile::Profile;
use nvx_vmm::{ClockPolicy, RestoreRequest};

use super::session;
use crate::cli::{Clock, RestoreArgs};
use crate::exit::Failure;

/// Continues a captured guest and runs it to its end.
pub fn run(args: RestoreArgs, profile: Profile) -> Result<ExitCode, Failure> {
    let RestoreArgs {
        directory,
        capture,
        clock,
        verify,
        private_copy,
        backend,
        no_seccomp,
    } = args;
    let request = RestoreRequest {
        snapshot: directory,
        clock: match clock {
            Clock::Advance => ClockPolicy::Advance,
            Clock::Freeze => ClockPolicy::Freeze,
        },
        verify,
        private_copy,
        options: session::vm_options(capture, None, no_seccomp).map_err(Failure::monitor)?,
    };
    session::run(|console| nvx_vmm::restore(request, console, session::opener(backend), profile))
}
