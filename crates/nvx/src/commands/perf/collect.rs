//! `nvx perf collect`.

use crate::exit::ExitCode;

use nvx_perf::{CollectRequest, collect};

use super::show;
use crate::cli::CollectArgs;
use crate::exit::Failure;

/// Collects, and writes the rows where they are wanted.
pub fn run(args: CollectArgs) -> Result<ExitCode, Failure> {
    let result = collect(&CollectRequest {
        result: args.result,
        history: args.history,
        platform: args.platform,
        commit: args.commit,
        provenance: args.provenance,
    })
    .map_err(Failure::input)?;
    if let Some(path) = &args.out {
        result.write(path).map_err(Failure::input)?;
    }
    show(&result, args.json, |result| match &args.out {
        Some(path) => format!(
            "{}: {} rows of {}, commit {}\n",
            path.display(),
            result.rows,
            result.identity,
            result.commit
        ),
        None => result.csv.clone(),
    })?;
    Ok(ExitCode::SUCCESS)
}
