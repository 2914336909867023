//! `nvx perf provenance`.

use std::path::PathBuf;

use clap::Args;

/// Tell whether the measured build is the shipped build: do two ranges make the same change?
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx perf provenance main..measured main..shipped --json > proof.json\n\n\
Ends with 0 same tree or same patch, 1 different."
)]
pub struct ProvenanceArgs {
    /// The measured commits
    #[arg(value_name = "A..B")]
    pub measured: String,
    /// The shipped commits
    #[arg(value_name = "C..D")]
    pub shipped: String,
    /// A directory of the git repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub repository: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
