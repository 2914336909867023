//! `nvx perf gate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Judge a candidate against the base branch's history, or every commit of a history
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  nvx perf gate --base base/H.csv --candidate rows.csv --again rows-2.csv\n  \
nvx perf gate --replay data/H.csv --rules fixed\n\n\
Ends with 0 passed, 1 regression, 2 bad input, 3 another kind of host, 75 suspect: measure again."
)]
pub struct GateArgs {
    /// The base branch's history; one that does not exist is empty
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "replay",
        requires = "candidate"
    )]
    pub base: Option<PathBuf>,
    /// Rows of the candidate: one commit
    #[arg(long, value_name = "FILE", requires = "base")]
    pub candidate: Option<PathBuf>,
    /// The candidate branch's history, or its directory: metrics that it lacks begin anew
    #[arg(long, value_name = "PATH", requires = "base")]
    pub candidate_history: Option<PathBuf>,
    /// Let more than half of the metrics begin anew
    #[arg(long, requires = "candidate_history")]
    pub allow_reset: bool,
    /// Rows of a second measurement of the candidate
    #[arg(long, value_name = "FILE", requires = "base")]
    pub again: Option<PathBuf>,
    /// Interleaved comparison of base and candidate, of `nvx bench compare`; it decides
    #[arg(long, value_name = "FILE", requires = "base")]
    pub compare: Option<PathBuf>,
    /// Judge every commit of these histories by what came before it
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "base")]
    pub replay: Vec<PathBuf>,
    /// One threshold for all metrics, or each by its own noise
    #[arg(long, value_enum, default_value_t = RulesName::Adaptive)]
    pub rules: RulesName,
    /// fixed: rows that the median is taken of [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub window: Option<u32>,
    /// fixed: fewer rows than this are warm-up [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub minimum_history: Option<u32>,
    /// fixed: worse by more than this is a regression [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = not_negative)]
    pub threshold: Option<f64>,
    /// fixed: a time must also be worse by more than this [default: 10]
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pub absolute_tolerance_ms: Option<f64>,
    /// Append the verdict to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// By which rules. No documentation on the values: see [`crate::cli::Guest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RulesName {
    Adaptive,
    Fixed,
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("must be finite and not below zero".to_owned())
    }
}
