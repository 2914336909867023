//! `nvx run`.

use crate::exit::ExitCode;

use anyhow::Context as _;
use nvx_profile::Profile;
use nvx_vmm::{BootRequest, RamRequest};

use super::session;
use crate::cli::{Guest, RunArgs};
use crate::exit::Failure;

/// Starts a guest and runs it to its end.
pub fn run(args: RunArgs, profile: Profile) -> Result<ExitCode, Failure> {
    let RunArgs {
        guest: Guest::Probe,
        probe,
        memory,
        vcpus,
        capture,
        scratch,
        ram_file,
        backend,
    } = args;
    let layout = nvx_machine::ram_layout(memory)
        .context("--memory")
        .map_err(Failure::monitor)?;
    let low_ram_bytes = layout.ranges().first().map_or(0, |range| range.size_bytes);
    probe
        .check(low_ram_bytes)
        .context("--probe")
        .map_err(Failure::monitor)?;
    let scratch_root = scratch.clone();
    let request = BootRequest {
        layout,
        vcpus,
        image: nvx_probe_guest::prebuilt().into(),
        command_line: probe.command_line(),
        ram: RamRequest {
            scratch,
            file: ram_file.ram_file.unwrap_or_default(),
            writeback: ram_file.writeback.unwrap_or_default(),
        },
        options: session::vm_options(capture, scratch_root.as_deref()).map_err(Failure::monitor)?,
    };
    session::run(|console| nvx_vmm::boot(request, console, session::opener(backend), profile))
}
