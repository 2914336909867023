//! Arguments of `nvx bench digests`.

use std::path::PathBuf;

use clap::Args;

/// Measure what digests of a snapshot's memory cost
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx bench digests snap --samples 15")]
pub struct DigestsArgs {
    /// The snapshot; nothing is written to it
    #[arg(value_name = "DIR")]
    pub snapshot: PathBuf,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
