//! `nvx run`.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use nvx_machine::kernel::read_kernel;
use nvx_machine::{InitramfsFile, InitramfsSource};
use nvx_probe_guest::ProbeParams;
use nvx_profile::Profile;
use nvx_vmm::{BootGuest, BootRequest, CpuChoice, RamRequest};

use super::{guest_contents, session};
use crate::cli::{Cpu, Guest, GuestContentsArgs, LinuxArgs, RunArgs};
use crate::exit::{ExitCode, Failure};

/// What a kernel is told unless the user says otherwise: its console; that a panic ends the VM; and to keep
/// its messages, errors included, off the console, which is the command's (a machine without PCI is an error
/// to it). A panic is more than an error.
pub(super) const DEFAULT_COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=3 panic=-1";

/// Guest RAM in bytes where the user says nothing.
const DEFAULT_MEMORY_BYTES: u64 = 128 << 20;
/// The same for a Linux guest, besides its initramfs: a distribution's kernel takes a third of it.
const DEFAULT_LINUX_MEMORY_BYTES: u64 = 256 << 20;
/// What a default amount of RAM is a multiple of, in bytes.
const DEFAULT_MEMORY_STEP_BYTES: u64 = 32 << 20;

/// Starts a guest and runs it to its end.
pub fn run(args: RunArgs, profile: Profile) -> Result<ExitCode, Failure> {
    let RunArgs {
        guest: Guest::Probe,
        probe,
        linux,
        contents,
        memory,
        vcpus,
        cpu,
        capture,
        scratch,
        ram_file,
        backend,
        no_seccomp,
    } = args;
    let is_linux = linux.kernel.is_some() || linux.cmdline.is_some() || !contents.is_empty();
    let (guest, memory) = if is_linux {
        linux_guest(linux, contents, memory)
    } else {
        probe_guest(&probe, memory)
    }
    .map_err(Failure::monitor)?;
    let layout = nvx_machine::ram_layout(memory)
        .context("--memory")
        .map_err(Failure::monitor)?;
    let scratch_root = scratch.clone();
    let request = BootRequest {
        layout,
        vcpus,
        guest,
        cpu: match cpu {
            Cpu::Host => CpuChoice::Host,
            Cpu::Baseline => CpuChoice::Baseline,
        },
        ram: RamRequest {
            scratch,
            file: ram_file.ram_file.unwrap_or_default(),
            writeback: ram_file.writeback.unwrap_or_default(),
        },
        options: session::vm_options(capture, scratch_root.as_deref(), no_seccomp)
            .map_err(Failure::monitor)?,
    };
    session::run(|console| nvx_vmm::boot(request, console, session::opener(backend), profile))
}

fn probe_guest(probe: &ProbeParams, memory: Option<u64>) -> anyhow::Result<(BootGuest, u64)> {
    let memory = memory.unwrap_or(DEFAULT_MEMORY_BYTES);
    let layout = nvx_machine::ram_layout(memory).context("--memory")?;
    let low_ram_bytes = layout.ranges().first().map_or(0, |range| range.size_bytes);
    probe.check(low_ram_bytes).context("--probe")?;
    let guest = BootGuest::Plain {
        image: nvx_probe_guest::prebuilt().into(),
        command_line: probe.command_line(),
    };
    Ok((guest, memory))
}

fn linux_guest(
    linux: LinuxArgs,
    contents: GuestContentsArgs,
    memory: Option<u64>,
) -> anyhow::Result<(BootGuest, u64)> {
    let LinuxArgs {
        kernel,
        initrd,
        cmdline,
    } = linux;
    let kernel_file = match kernel {
        Some(kernel) => kernel,
        None => guest_contents::host_kernel()?,
    };
    let kernel = read_kernel(&kernel_file).context("--kernel")?;
    let mut command_line = cmdline.unwrap_or_else(|| DEFAULT_COMMAND_LINE.to_owned());
    let initramfs: Option<Box<dyn InitramfsSource>> = match initrd {
        Some(file) => Some(Box::new(open_initramfs(&file)?)),
        None if contents.is_empty() => None,
        None => {
            command_line += &format!(" rdinit=/{}", nvx_guest::config::PROGRAM);
            Some(Box::new(guest_contents::plan(&kernel_file, contents)?))
        }
    };
    let initramfs_bytes = initramfs.as_ref().map_or(0, |source| source.size_bytes());
    // While the kernel unpacks it, both are there.
    let wanted = DEFAULT_LINUX_MEMORY_BYTES.saturating_add(initramfs_bytes.saturating_mul(2));
    let memory = memory.unwrap_or(wanted.next_multiple_of(DEFAULT_MEMORY_STEP_BYTES));
    let guest = BootGuest::Linux {
        kernel,
        initramfs,
        command_line,
    };
    Ok((guest, memory))
}

fn open_initramfs(path: &Path) -> anyhow::Result<InitramfsFile> {
    let of = || format!("--initrd {}", path.display());
    let file = File::open(path).with_context(of)?;
    InitramfsFile::new(file).with_context(of)
}
