//! `nvx bench`.

mod writeback;

use std::process::ExitCode;

use crate::cli::{BenchArgs, BenchCommand};
use crate::exit::Failure;

/// Carries out the measurement asked for.
pub fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    match args.command {
        BenchCommand::Writeback(args) => writeback::run(args),
    }
}
