//! Arguments of `nvx bench writeback`.

use std::path::PathBuf;

use clap::Args;
use nvx_bench::writeback::Pattern;
use nvx_memory::{RamFileChoice, WritebackChoice};

use crate::cli::ram_file::parse;
use crate::size;

/// Measure how each writeback strategy brings a RAM file to its device
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx bench writeback --dir /mnt/scratch --memory 128M --samples 15"
)]
pub struct WritebackArgs {
    /// Directory for the RAM files [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the RAM file
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    pub memory: u64,
    /// A new file with all blocks allocated (dense) or none (sparse), or files that you prepared, one
    /// per run, in order; a single one is used again for every run
    #[arg(long, value_name = "dense|sparse|PATH", default_value = "sparse", value_parser = parse::<RamFileChoice>)]
    pub ram_file: Vec<RamFileChoice>,
    /// Strategy: auto, ascending, ascending-marked or ranges:N; repeatable [default: each]
    #[arg(long, value_name = "STRATEGY", value_parser = parse::<WritebackChoice>)]
    pub writeback: Vec<WritebackChoice>,
    /// Dirty pages: all, alternate, top:PAGES, spread:PAGES or random:PERCENT; repeatable [default: each]
    #[arg(long, value_name = "PATTERN", value_parser = parse::<Pattern>)]
    pub pattern: Vec<Pattern>,
    /// Measured runs of each strategy with each pattern
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Runs of each strategy with each pattern before the measured ones; 0 with files that you prepared
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub warmups: Option<u32>,
    /// Carry out one run in this process and print it; how the others are made
    #[arg(long, hide = true)]
    pub single_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}
