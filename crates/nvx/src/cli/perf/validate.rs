//! `nvx perf validate`.

use std::path::PathBuf;

use clap::Args;

/// Tell whether a result may be accepted
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx perf validate result.json --platform linux-kvm-bare-metal\n\n\
Ends with 0 valid, 2 not to be accepted, 75 unstable: measure again."
)]
pub struct ValidateArgs {
    /// Result of `nvx bench lifecycle`, or of the public NVX/OpenVMM format
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// Platform that the result must be of
    #[arg(long, value_name = "NAME")]
    pub platform: Option<String>,
    /// Tell as well how often results with such samples would be accepted
    #[arg(long)]
    pub acceptance_rate: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
