//! `nvx perf persist`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nvx_perf::Prefix;

/// Append rows to a history; what it has already is never overwritten
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx perf persist data/linux-kvm-bare-metal-microvm-v2-1vcpu.csv rows.csv\n  \
nvx perf persist data/linux-kvm-bare-metal-microvm-v2-1vcpu.csv --rename-metrics nvx"
)]
pub struct PersistArgs {
    /// The history; begun where it does not exist
    #[arg(value_name = "HISTORY")]
    pub history: PathBuf,
    /// Files of rows, oldest first
    #[arg(value_name = "ROWS", required_unless_present = "rename_metrics")]
    pub rows: Vec<PathBuf>,
    /// First rename every lifecycle metric of the history to this prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefixes())]
    pub rename_metrics: Option<Prefix>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

fn prefixes() -> impl TypedValueParser<Value = Prefix> {
    PossibleValuesParser::new(["nvx", "openvmm"]).map(|name| match name.as_str() {
        "nvx" => Prefix::Nvx,
        _ => Prefix::Openvmm,
    })
}
