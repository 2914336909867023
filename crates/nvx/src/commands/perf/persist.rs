//! `nvx perf persist`.

use crate::exit::ExitCode;

use nvx_perf::{PersistRequest, PersistResult, persist};

use super::show;
use crate::cli::PersistArgs;
use crate::exit::Failure;

/// Appends.
pub fn run(args: PersistArgs) -> Result<ExitCode, Failure> {
    let result = persist(&PersistRequest {
        history: args.history,
        rows: args.rows,
        rename_metrics: args.rename_metrics,
    })
    .map_err(Failure::input)?;
    show(&result, args.json, PersistResult::to_text)?;
    Ok(ExitCode::SUCCESS)
}
