//! `nvx perf evaluate`.

use crate::exit::ExitCode;
use std::path::PathBuf;

use nvx_perf::{Evaluation, evaluate};

use super::show;
use crate::cli::EvaluateArgs;
use crate::exit::Failure;

/// Evaluates each history; nothing is printed where one of them is wrong.
pub fn run(args: EvaluateArgs) -> Result<ExitCode, Failure> {
    let evaluations: Result<Vec<Evaluation>, _> = args
        .files
        .iter()
        .map(|path: &PathBuf| evaluate(path))
        .collect();
    let evaluations = evaluations.map_err(Failure::input)?;
    show(&evaluations, args.json, |evaluations| {
        evaluations.iter().map(Evaluation::to_text).collect()
    })?;
    Ok(ExitCode::SUCCESS)
}
