//! The command line's shape. Parsing is pure: no file is opened and nothing is looked up here.

mod bench;
mod doctor;
mod generate;
mod guest;
mod perf;
mod plain_start;
mod ram_file;
mod suggest;

use std::path::PathBuf;

pub use bench::{
    BenchArgs, BenchCommand, Cache, CompareArgs, DigestsArgs, DisturbArgs, LifecycleArgs,
    LinuxSubjectArgs, MergeArgs, PeersArgs, ShowArgs, SubjectArgs, WritebackArgs,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
pub use doctor::DoctorArgs;
pub use generate::{CompletionsArgs, ManArgs};
pub use guest::{GuestArgs, GuestCommand, GuestContentsArgs, GuestPackArgs};
use nvx_hypervisor::{BACKEND_CHOICES, BackendChoice};
use nvx_probe_guest::{Fill, ProbeParams};
pub use perf::{
    CollectArgs, EvaluateArgs, GateArgs, ImportArgs, PerfArgs, PerfCommand, PersistArgs,
    ProvenanceArgs, ReportArgs, RulesName, ValidateArgs,
};

pub use ram_file::RamFileArgs;

use crate::size;

/// Run, capture and restore microVMs.
#[derive(Debug, Parser)]
#[command(
    name = "nvx",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(
    after_help = "Example:\n  nvx demo        boot a guest, capture it, restore it, and prove that nothing was lost"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Reads the command line.
///
/// # Errors
/// What clap says of it; a wish for help is among its errors.
pub fn parse() -> Result<Cli, clap::Error> {
    match plain_start::read(std::env::args_os().skip(1)) {
        Some(command) => Ok(Cli { command }),
        None => Cli::try_parse(),
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Demo(DemoArgs),
    Run(RunArgs),
    Restore(RestoreArgs),
    Capture(CaptureCommandArgs),
    Ctl(CtlArgs),
    Inspect(InspectArgs),
    Guest(GuestArgs),
    Bench(BenchArgs),
    Perf(PerfArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

/// Which guest to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Guest {
    // The built-in guest that fills, verifies and re-dirties its RAM. Not a documentation comment:
    // one on a value makes clap put every description on a line of its own, beyond a screen.
    Probe,
}

/// Boot a guest, capture it, restore it in a new process, and prove that nothing was lost
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx demo --memory 256M --fill spread:256 --samples 15")]
pub struct DemoArgs {
    /// Repeat the whole turn N times and show medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Guest RAM
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub memory: u64,
    /// vCPUs, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub vcpus: u8,
    /// Pages that the guest fills: all, alternate, top:PAGES or spread:PAGES
    #[arg(long, value_name = "FILL", default_value = "top:256", value_parser = parse_fill)]
    pub fill: Fill,
    /// Directory that the snapshot is put into [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory where RAM files live [default: beside the snapshot]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    #[command(flatten)]
    pub ram_file: RamFileArgs,
    /// What runs the guest's instructions: auto, kvm or soft
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = backend_names(), hide_possible_values = true)]
    pub backend: BackendChoice,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Start a guest; its console is standard input and output, its exit status is nvx's
#[derive(Debug, Args)]
#[command(after_help = "Examples (in the first one, type v, d, s or x0):\n  \
nvx run --guest probe --probe fill=top:256,seed=7 --snapshot ./snap\n  \
nvx run --kernel /boot/vmlinuz --root ./rootfs -- /bin/sh")]
pub struct RunArgs {
    /// Built-in guest to start
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Guest::Probe, conflicts_with_all = LINUX_ONLY)]
    pub guest: Guest,
    /// What the probe guest does: fill=all|alternate|top:PAGES|spread:PAGES, seed=N
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "fill=top:256,seed=1", value_parser = parse_probe, conflicts_with_all = LINUX_ONLY)]
    pub probe: ProbeParams,
    #[command(flatten)]
    pub linux: LinuxArgs,
    #[command(flatten)]
    pub contents: GuestContentsArgs,
    /// Guest RAM [default: 128M; Linux: 256M and twice its initramfs]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// vCPUs, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub vcpus: u8,
    /// CPU: host, or baseline, which every host has
    #[arg(long, value_enum, default_value_t = Cpu::Host, hide_possible_values = true)]
    pub cpu: Cpu,
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// Directory of the RAM file [default: beside the snapshot or none]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    #[command(flatten)]
    pub ram_file: RamFileArgs,
    /// What runs the guest's instructions: auto, kvm or soft
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = backend_names(), hide_possible_values = true)]
    pub backend: BackendChoice,
    /// Do not filter system calls, to see whether the filter is in the way
    #[arg(long)]
    pub no_seccomp: bool,
}

/// The CPU that a guest sees; the help text of the option says it to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cpu {
    #[default]
    Host,
    Baseline,
}

/// A stock Linux kernel, instead of a built-in guest.
#[derive(Debug, Default, Args)]
pub struct LinuxArgs {
    /// Linux kernel to start instead [default with a command: the host's]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Initramfs of the kernel, instead of one that is packed here
    #[arg(long, value_name = "FILE", requires = "kernel", conflicts_with_all = CONTENTS)]
    pub initrd: Option<PathBuf>,
    /// Its command line [default: console=ttyS0 quiet loglevel=3 panic=-1]
    #[arg(long, value_name = "TEXT")]
    pub cmdline: Option<String>,
}

/// What says what a packed guest has in it.
const CONTENTS: [&str; 7] = [
    "root",
    "modules",
    "environment",
    "working_directory",
    "on_restore",
    "hostname",
    "command",
];

/// What makes no sense with a built-in guest.
const LINUX_ONLY: [&str; 10] = [
    "kernel",
    "initrd",
    "cmdline",
    "root",
    "modules",
    "environment",
    "working_directory",
    "on_restore",
    "hostname",
    "command",
];

/// What a capture does, and who may ask for one.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Where the guest's request for a snapshot puts it; must not exist yet
    #[arg(long, value_name = "DIR")]
    pub snapshot: Option<PathBuf>,
    /// After the capture the guest goes on, instead of ending
    #[arg(long = "continue", requires = "snapshot")]
    pub continue_after: bool,
    /// Make digests of memory in captures that copy it, for --verify
    #[arg(long)]
    pub digests: bool,
    /// Socket by which `nvx capture` and `nvx ctl` reach this VM
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Where `nvx capture` may put them; repeatable [default: --scratch]
    #[arg(long = "snapshot-root", value_name = "DIR", requires = "control")]
    pub snapshot_roots: Vec<PathBuf>,
}

/// Capture a running VM that was started with --control
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx capture ./snap --control ./vm.sock --continue")]
pub struct CaptureCommandArgs {
    /// The snapshot directory to make; must lie below a declared root and not exist yet
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The VM's control socket
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The guest goes on afterwards, instead of ending
    #[arg(long = "continue")]
    pub continue_after: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Ask about or steer a running VM that was started with --control
#[derive(Debug, Args)]
#[command(
    after_help = "Actions:\n  status  tell about the VM\n  pause   let the vCPUs stand still\n  \
resume  let the vCPUs run\n  stop    end the VM; its process ends with 143\n\n\
Example:\n  nvx ctl status --control ./vm.sock --json"
)]
pub struct CtlArgs {
    /// What to do
    #[arg(value_enum)]
    pub action: CtlAction,
    /// The VM's control socket
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// What `nvx ctl` does; the help text of the command says it to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CtlAction {
    Status,
    Pause,
    Resume,
    Stop,
}

/// What the wall clock of a restored guest does; the help text of the option says it to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Clock {
    #[default]
    Advance,
    Freeze,
}

/// Continue a captured guest in this process; the snapshot is not changed
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx restore ./snap --snapshot ./snap2")]
pub struct RestoreArgs {
    /// The snapshot directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    #[command(flatten)]
    pub capture: CaptureArgs,
    /// What a Linux guest's wall clock does: go to the host's time, or on from the captured one
    #[arg(long, value_enum, default_value_t = Clock::Advance)]
    pub clock: Clock,
    /// First check all of memory against its digests
    #[arg(long)]
    pub verify: bool,
    /// Copy memory instead of mapping it: who writes to the snapshot later does not reach this VM
    #[arg(long)]
    pub private_copy: bool,
    /// What runs the guest's instructions: auto, kvm or soft
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = backend_names(), hide_possible_values = true)]
    pub backend: BackendChoice,
    /// Do not filter system calls, to see whether the filter is in the way
    #[arg(long)]
    pub no_seccomp: bool,
}

/// Show what a snapshot holds; check it, or make digests of its memory
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx inspect ./snap --json\n  nvx inspect ./snap --seal && nvx inspect ./snap --verify"
)]
pub struct InspectArgs {
    /// The snapshot directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Check all of state and memory against their digests, on all processors
    #[arg(long, conflicts_with = "seal")]
    pub verify: bool,
    /// Make digests of memory, put them into the manifest and change nothing else
    #[arg(long)]
    pub seal: bool,
    /// Print the manifest and the table of state units as JSON
    #[arg(long)]
    pub json: bool,
}

fn backend_names() -> impl TypedValueParser<Value = BackendChoice> {
    let names = BACKEND_CHOICES.map(|(name, _)| name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<BackendChoice>())
}

fn parse_fill(text: &str) -> Result<Fill, String> {
    text.parse().map_err(|error| suggest::explain(&error))
}

fn parse_probe(text: &str) -> Result<ProbeParams, String> {
    text.parse().map_err(|error| suggest::explain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_help_fits_a_screen_and_leaf_commands_have_an_example() {
        fn check(command: &mut clap::Command) {
            let help = command.render_help().to_string();
            assert!(
                help.lines().count() <= 40,
                "{}:\n{help}",
                command.get_name()
            );
            if command.get_subcommands().next().is_none() {
                assert!(help.contains("Example"), "{}", command.get_name());
            }
            for sub in command.get_subcommands_mut() {
                check(sub);
            }
        }
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        check(&mut command);
    }
}
