//! Arguments of `nvx bench lifecycle`, `show` and `disturb`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nvx_bench::disturb::{Disturbance, DisturbanceKind};
use nvx_hypervisor::BackendChoice;
use nvx_probe_guest::Fill;

use crate::cli::{RamFileArgs, backend_names, parse_fill};
use crate::size;

/// Measure cold start, capture, restore and teardown, a fresh process per sample
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx bench lifecycle --scratch /mnt/scratch --output result.json\n  \
nvx bench lifecycle --kernel /boot/vmlinuz --output linux.json"
)]
pub struct LifecycleArgs {
    /// Samples of each suite
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    #[command(flatten)]
    pub subject: SubjectArgs,
    #[command(flatten)]
    pub linux: LinuxSubjectArgs,
    /// The nvx program to measure [default: this one]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Restores of these guest sizes as well
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse)]
    pub memories: Vec<u64>,
    /// Page cache at restores: warm, cold, which is checked, or both
    #[arg(long, value_enum, default_value_t = Cache::Warm, hide_possible_values = true)]
    pub cache: Cache,
    /// The result, kept up to date
    #[arg(long, value_name = "FILE", default_value = "nvx-lifecycle.json")]
    pub output: PathBuf,
    /// Go on with the interrupted run whose result is in --output
    #[arg(long)]
    pub resume: bool,
    /// Measure, validate, once more if unstable; keep what is accepted
    #[arg(long, value_name = "DIR", conflicts_with_all = ["resume", "disturb"])]
    pub accept: Option<PathBuf>,
    /// The measured build's commit, for the result
    #[arg(long, value_name = "REV")]
    pub commit: Option<String>,
    /// Disturb from capture N on: writer@N, writer@N:MIB_PER_S, cpu@N, cache@N
    #[arg(long, value_name = "KIND@N", value_parser = parse_disturbance)]
    pub disturb: Vec<Disturbance>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is measured: a guest and where its files live.
#[derive(Clone, Debug, Args)]
pub struct SubjectArgs {
    /// Samples that are taken first and thrown away
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub warmups: u32,
    /// Guest RAM [default: 128M; Linux: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// vCPUs, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub vcpus: u8,
    /// Pages that the probe fills: all, alternate, top:N, spread:N [default: top:256]
    #[arg(long, value_name = "FILL", value_parser = parse_fill)]
    pub fill: Option<Fill>,
    /// RAM files and snapshots go there [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    #[command(flatten)]
    pub ram_file: RamFileArgs,
    /// What runs the guest: auto, kvm, whp or soft
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = backend_names(), hide_possible_values = true)]
    pub backend: BackendChoice,
    /// Seconds that any step of a guest may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// A Linux guest instead of the probe guest. It answers as `nvx guest probe` does.
#[derive(Clone, Debug, Default, Args)]
pub struct LinuxSubjectArgs {
    /// Linux kernel to measure with, instead of the probe guest
    #[arg(long, value_name = "FILE", conflicts_with = "fill")]
    pub kernel: Option<PathBuf>,
    /// Its initramfs, instead of one that is packed once
    #[arg(long, value_name = "FILE", requires = "kernel", conflicts_with_all = ["root", "command"])]
    pub initrd: Option<PathBuf>,
    /// Its command line, as nvx run takes it
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    pub cmdline: Option<String>,
    /// Root file system to pack [default: only nvx]
    #[arg(long, value_name = "DIR|TAR", requires = "kernel")]
    pub root: Option<PathBuf>,
    /// Command in the guest [default: nvx guest probe]
    #[arg(last = true, value_name = "COMMAND", requires = "kernel")]
    pub command: Vec<String>,
}

/// State of the page cache at restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    Warm,
    Cold,
    Both,
}

/// Show a lifecycle result
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx bench show result.json --html result.html")]
pub struct ShowArgs {
    /// The result
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// Write one self-contained page with pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Disturb on purpose, until standard input ends
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx bench disturb writer --dir /mnt/scratch --rate 200 --seconds 30"
)]
pub struct DisturbArgs {
    /// What disturbs: writer, cpu or cache
    #[arg(value_name = "KIND", value_parser = parse_kind)]
    pub kind: DisturbanceKind,
    /// Directory on the volume to disturb
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// MiB that the writer writes a second [default: as many as it can]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,
    /// End after so many seconds at the latest
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
}

fn parse_disturbance(text: &str) -> Result<Disturbance, String> {
    text.parse()
}

fn parse_kind(text: &str) -> Result<DisturbanceKind, String> {
    text.parse()
}
