//! `nvx perf import`.

use std::path::PathBuf;

use clap::Args;

/// Read a result or profile lines of the public NVX/OpenVMM format
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx perf import acceptance.json --platform linux-kvm-virtual-machine --out rows.csv\n  \
nvx perf import vmm-stderr.log --json"
)]
pub struct ImportArgs {
    /// A result (JSON), or a log with profile lines
    #[arg(value_name = "FILE")]
    pub source: PathBuf,
    /// File for a result's rows [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// History that the rows are for: its names are used, and it must be of the same platform
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Platform, where the result does not say it
    #[arg(long, value_name = "NAME")]
    pub platform: Option<String>,
    /// Commit of the rows [default: the result's own revision of the monitor]
    #[arg(long, value_name = "HASH")]
    pub commit: Option<String>,
    /// Print everything as JSON, with members that the format does not define as they are
    #[arg(long)]
    pub json: bool,
}
