//! `nvx bench`: one subcommand per thing that can be measured, each with a file of its own.

mod writeback;

use clap::{Args, Subcommand};

pub use writeback::WritebackArgs;

/// Measure
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Writeback(WritebackArgs),
}
