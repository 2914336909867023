//! `nvx run`.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use nvx_machine::kernel::read_kernel;
use nvx_machine::{InitramfsFile, InitramfsSource};
use nvx_memory::RamLayout;
use nvx_probe_guest::ProbeParams;
use nvx_profile::Profile;
use nvx_vmm::{BootGuest, BootRequest, RamRequest};

use super::session;
use crate::cli::{Guest, RunArgs};
use crate::exit::{ExitCode, Failure};

/// What a kernel is told unless the user says otherwise: its console, no messages but warnings, and that
/// a panic ends the VM.
const DEFAULT_COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1";

/// Starts a guest and runs it to its end.
pub fn run(args: RunArgs, profile: Profile) -> Result<ExitCode, Failure> {
    let RunArgs {
        guest: Guest::Probe,
        probe,
        linux,
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
    let guest = match linux.kernel {
        Some(kernel) => linux_guest(&kernel, linux.initrd.as_deref(), linux.cmdline)
            .map_err(Failure::monitor)?,
        None => probe_guest(&probe, &layout).map_err(Failure::monitor)?,
    };
    let scratch_root = scratch.clone();
    let request = BootRequest {
        layout,
        vcpus,
        guest,
        ram: RamRequest {
            scratch,
            file: ram_file.ram_file.unwrap_or_default(),
            writeback: ram_file.writeback.unwrap_or_default(),
        },
        options: session::vm_options(capture, scratch_root.as_deref()).map_err(Failure::monitor)?,
    };
    session::run(|console| nvx_vmm::boot(request, console, session::opener(backend), profile))
}

fn probe_guest(probe: &ProbeParams, layout: &RamLayout) -> anyhow::Result<BootGuest> {
    let low_ram_bytes = layout.ranges().first().map_or(0, |range| range.size_bytes);
    probe.check(low_ram_bytes).context("--probe")?;
    Ok(BootGuest::Plain {
        image: nvx_probe_guest::prebuilt().into(),
        command_line: probe.command_line(),
    })
}

fn linux_guest(
    kernel: &Path,
    initrd: Option<&Path>,
    command_line: Option<String>,
) -> anyhow::Result<BootGuest> {
    let initramfs = initrd.map(open_initramfs).transpose()?;
    Ok(BootGuest::Linux {
        kernel: read_kernel(kernel).context("--kernel")?,
        initramfs: initramfs.map(|file| Box::new(file) as Box<dyn InitramfsSource>),
        command_line: command_line.unwrap_or_else(|| DEFAULT_COMMAND_LINE.to_owned()),
    })
}

fn open_initramfs(path: &Path) -> anyhow::Result<InitramfsFile> {
    let of = || format!("--initrd {}", path.display());
    let file = File::open(path).with_context(of)?;
    InitramfsFile::new(file).with_context(of)
}
