//! `nvx bench`.

mod compare;
mod digests;
mod lifecycle;
mod peers;
mod subject;
mod turns;
mod writeback;

use crate::exit::ExitCode;

use crate::cli::{BenchArgs, BenchCommand};
use crate::exit::Failure;

/// Carries out the measurement asked for.
pub fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    match args.command {
        BenchCommand::Lifecycle(args) => lifecycle::run(args),
        BenchCommand::Compare(args) => compare::run(&args),
        BenchCommand::Merge(args) => compare::run_merge(&args),
        BenchCommand::Peers(args) => peers::run(&args),
        BenchCommand::Show(args) => lifecycle::show(&args),
        BenchCommand::Disturb(args) => lifecycle::run_disturbance(&args),
        BenchCommand::Writeback(args) => writeback::run(args),
        BenchCommand::Digests(args) => digests::run(args),
    }
}
