//! `nvx perf collect`.

use std::path::PathBuf;

use clap::Args;

/// Turn an accepted result into rows of a history
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx perf collect acceptance.json --out rows.csv --history \
data/linux-kvm-bare-metal-microvm-v2-1vcpu.csv"
)]
pub struct CollectArgs {
    /// Result of `nvx bench lifecycle`
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// File for the rows [default: standard output]; the host goes beside it
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// History that the rows are for: its names are used, and it must be of the same platform
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Platform; may repeat what the result says, never change it
    #[arg(long, value_name = "NAME")]
    pub platform: Option<String>,
    /// Commit to collect under, where it is not the measured one
    #[arg(long, value_name = "HASH", requires = "provenance")]
    pub commit: Option<String>,
    /// Proof that both commits are one change: output of `nvx perf provenance --json`
    #[arg(long, value_name = "FILE", requires = "commit")]
    pub provenance: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
