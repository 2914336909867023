//! `nvx perf report`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

/// Show histories: a page, tables for a pull request, or one metric's chart
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("form").required(true).args(["html", "markdown", "svg", "json"])))]
#[command(
    after_help = "Examples:\n  nvx perf report data/*.csv --html history.html\n  \
nvx perf report data/linux-kvm-bare-metal-microvm-v2-1vcpu.csv --svg nvx_cold_start > chart.svg"
)]
pub struct ReportArgs {
    /// The histories
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Write one page that needs nothing else
    #[arg(long, value_name = "PAGE")]
    pub html: Option<PathBuf>,
    /// Print tables
    #[arg(long)]
    pub markdown: bool,
    /// Print the chart of this metric, from the first history that has it
    #[arg(long, value_name = "METRIC")]
    pub svg: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}
