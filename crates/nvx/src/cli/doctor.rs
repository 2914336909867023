//! `nvx doctor`. The user page is doc/doctor.md.

use std::path::PathBuf;

use clap::Args;

/// Show what this host offers, what it lacks, and how to get it
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx doctor --scratch /mnt/fast\n  nvx doctor --clean /tmp\n\n\
Ends with 0 if `nvx demo` can run here, if only in software, else with 1."
)]
pub struct DoctorArgs {
    /// The directory for RAM files and snapshots to examine [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Remove what killed processes left in DIR, and list it, instead of examining the host
    #[arg(long, value_name = "DIR", conflicts_with = "scratch")]
    pub clean: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
