//! Arguments of `nvx bench peers`.

use std::path::PathBuf;

use clap::Args;

use super::SubjectArgs;

/// Measure nvx beside other monitors: same guest, memory and volume, in turns
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx bench peers --qemu /usr/bin/qemu-system-x86_64 --scratch /mnt/scratch"
)]
pub struct PeersArgs {
    /// A QEMU for x86-64 [default: the installed one, if --firecracker is not given]
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// A Firecracker [default: the installed one, if --qemu is not given]
    #[arg(long, value_name = "PATH")]
    pub firecracker: Option<PathBuf>,
    /// Samples of each monitor
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub samples: u32,
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// The nvx program to measure [default: this one]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Show what exactly is run of each monitor, and measure nothing
    #[arg(long)]
    pub explain: bool,
    /// Where the result goes
    #[arg(long, value_name = "FILE", conflicts_with = "explain")]
    pub output: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
