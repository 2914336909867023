//! `nvx perf`: the performance history. What is done with it is [`nvx_perf`]'s.

mod collect;
mod evaluate;
mod gate;
mod import;
mod persist;
mod provenance;
mod report;
mod validate;

use crate::exit::ExitCode;

use crate::cli::{PerfArgs, PerfCommand};
use crate::exit::Failure;
use crate::output;

pub use validate::text as validation_text;

/// Carries out what is asked for.
pub fn run(args: PerfArgs) -> Result<ExitCode, Failure> {
    match args.command {
        PerfCommand::Validate(args) => validate::run(&args),
        PerfCommand::Collect(args) => collect::run(args),
        PerfCommand::Import(args) => import::run(args),
        PerfCommand::Persist(args) => persist::run(args),
        PerfCommand::Gate(args) => gate::run(args),
        PerfCommand::Evaluate(args) => evaluate::run(args),
        PerfCommand::Report(args) => report::run(args),
        PerfCommand::Provenance(args) => provenance::run(args),
    }
}

/// Shows a result, as JSON or as `text` says it.
fn show<T: serde::Serialize>(
    result: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if json {
        output::json(result).map_err(Failure::input)
    } else {
        output::result(&text(result));
        Ok(())
    }
}
