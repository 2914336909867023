//! `nvx perf provenance`.

use crate::exit::ExitCode;

use nvx_perf::{Provenance, ProvenanceRequest, provenance};

use super::show;
use crate::cli::ProvenanceArgs;
use crate::exit::Failure;

/// Two ranges that differ.
const DIFFERENT: u8 = 1;

/// Compares two ranges.
pub fn run(args: ProvenanceArgs) -> Result<ExitCode, Failure> {
    let result = provenance(&ProvenanceRequest {
        repository: args.repository,
        left: args.measured,
        right: args.shipped,
    })
    .map_err(Failure::input)?;
    show(&result, args.json, Provenance::to_text)?;
    Ok(if result.verdict.is_same() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIFFERENT)
    })
}
