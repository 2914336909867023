//! What `nvx bench` runs: from arguments to a guest and what carries it out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use nvx_bench::host::ExecutionFacts;
use nvx_bench::{Guest, InitramfsChoice, LifecycleRequest, LinuxGuest};
use nvx_hypervisor::{HARDWARE_INSTRUCTIONS_PER_MS, Selected, measure_execution, open_backend};
use nvx_machine::kernel::read_kernel;
use nvx_memory::RamFileChoice;
use nvx_probe_guest::ProbeParams;

use crate::cli::{LinuxSubjectArgs, SubjectArgs};
use crate::commands::run::DEFAULT_COMMAND_LINE;
use crate::output;

/// Guest RAM in bytes where the user says nothing.
const DEFAULT_MEMORY_BYTES: u64 = 128 << 20;
/// The same for a Linux guest.
const DEFAULT_LINUX_MEMORY_BYTES: u64 = 256 << 20;
/// What a packed Linux guest runs where the user says nothing.
const DEFAULT_COMMAND: [&str; 2] = ["guest", "probe"];

/// The guest that the arguments ask for.
pub fn guest(args: &SubjectArgs, linux: &LinuxSubjectArgs) -> anyhow::Result<Guest> {
    let LinuxSubjectArgs {
        kernel,
        initrd,
        cmdline,
        root,
        command,
    } = linux;
    let Some(kernel) = kernel else {
        return Ok(probe_guest(args));
    };
    // Before anything is packed or measured.
    read_kernel(kernel).context("--kernel")?;
    let mut command_line = cmdline
        .as_deref()
        .unwrap_or(DEFAULT_COMMAND_LINE)
        .to_owned();
    let initramfs = match initrd {
        Some(file) => InitramfsChoice::File(file.clone()),
        None => {
            let init = nvx_guest::config::PROGRAM;
            command_line += &format!(" rdinit=/{init}");
            let root = root.iter().flat_map(|root| ["--root".into(), root.into()]);
            let mut contents: Vec<OsString> = root.chain(["--".into()]).collect();
            if command.is_empty() {
                contents.push(format!("/{init}").into());
                contents.extend(DEFAULT_COMMAND.map(OsString::from));
            }
            contents.extend(command.iter().map(OsString::from));
            InitramfsChoice::Packed(contents)
        }
    };
    Ok(Guest::Linux(LinuxGuest {
        kernel: kernel.clone(),
        initramfs,
        command_line,
    }))
}

/// The probe guest that the arguments ask for.
pub fn probe_guest(args: &SubjectArgs) -> Guest {
    let default = ProbeParams::default();
    Guest::Probe(ProbeParams {
        fill: args.fill.unwrap_or(default.fill),
        ..default
    })
}

/// What a build is asked to run, and how this host carries it out.
pub fn subject(
    args: &SubjectArgs,
    guest: Guest,
    program: PathBuf,
) -> anyhow::Result<(LifecycleRequest, ExecutionFacts)> {
    let ram_file = args.ram_file.ram_file.clone().unwrap_or_default();
    if let RamFileChoice::Prepared(path) = &ram_file {
        anyhow::bail!(
            "--ram-file {}: a prepared file serves one start, and here are many",
            path.display()
        );
    }
    let Selected { backend, notice } = open_backend(args.backend, None)?;
    if let Some(notice) = notice {
        output::message(&notice);
    }
    let memory_bytes = args.memory.unwrap_or(match guest {
        Guest::Probe(_) => DEFAULT_MEMORY_BYTES,
        Guest::Linux(_) => DEFAULT_LINUX_MEMORY_BYTES,
    });
    check_memory(memory_bytes, &guest).context("--memory")?;
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let execution = ExecutionFacts {
        // A host where the trial fails is one of which it cannot be told.
        guest_instructions_per_ms: measure_execution(backend.as_ref())
            .ok()
            .map(|speed| speed.instructions_per_ms),
        hardware_instructions_per_ms: HARDWARE_INSTRUCTIONS_PER_MS,
    };
    let request = LifecycleRequest {
        program,
        backend: backend.name().to_owned(),
        memory_bytes,
        vcpus: args.vcpus,
        guest,
        scratch: Some(scratch),
        ram_file,
        writeback: args.ram_file.writeback.unwrap_or_default(),
        limit: Duration::from_secs(args.timeout),
    };
    Ok((request, execution))
}

/// Whether a guest can have so much RAM.
pub fn check_memory(memory_bytes: u64, guest: &Guest) -> anyhow::Result<()> {
    let layout = nvx_machine::ram_layout(memory_bytes)?;
    if let Guest::Probe(probe) = guest {
        let low_ram_bytes = layout.ranges().first().map_or(0, |range| range.size_bytes);
        probe.check(low_ram_bytes)?;
    }
    Ok(())
}
