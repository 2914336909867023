//! `nvx perf evaluate`.

use std::path::PathBuf;

use clap::Args;

/// Try what the adaptive rules find in histories, and how often they cry wolf
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx perf evaluate data/linux-kvm-bare-metal-microvm-v2-1vcpu.csv"
)]
pub struct EvaluateArgs {
    /// The histories
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
