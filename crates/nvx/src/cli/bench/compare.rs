//! Arguments of `nvx bench compare` and `merge`.

use std::path::PathBuf;

use clap::Args;
use nvx_bench::compare::MetricKind;

use super::{LinuxSubjectArgs, SubjectArgs};

/// Measure builds in turns on this host and tell what changed
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx bench compare --build old=./nvx-old --build new=./nvx --samples 20"
)]
pub struct CompareArgs {
    /// A build; the first is what the others are compared with
    #[arg(long = "build", value_name = "NAME=PATH", required = true, value_parser = named)]
    pub builds: Vec<(String, String)>,
    /// A build's commit, for the result
    #[arg(long = "commit", value_name = "NAME=REV", value_parser = named)]
    pub commits: Vec<(String, String)>,
    /// Samples of each build; even, since every other round is mirrored
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub samples: u32,
    /// The metric that decides
    #[arg(long, value_name = "METRIC", default_value = "generation", value_parser = metric)]
    pub primary: MetricKind,
    /// Test the primary alone, with the whole error probability
    #[arg(long)]
    pub primary_only: bool,
    /// A change within so many percent does not matter
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = margin)]
    pub margin: f64,
    /// Compare one build with itself: every difference is a false alarm
    #[arg(long)]
    pub aa: bool,
    #[command(flatten)]
    pub subject: SubjectArgs,
    #[command(flatten)]
    pub linux: LinuxSubjectArgs,
    /// Where the result goes
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Show several hosts' comparisons of the same builds in one table
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx bench merge host-a.json host-b.json")]
pub struct MergeArgs {
    /// Results of `nvx bench compare`
    #[arg(value_name = "RESULT", required = true)]
    pub results: Vec<PathBuf>,
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("'{text}' is not NAME=VALUE")),
    }
}

fn metric(text: &str) -> Result<MetricKind, String> {
    text.parse()
}

fn margin(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent),
        _ => Err(format!("'{text}' is not a number between 0 and 100")),
    }
}
