//! `nvx perf report`.

use crate::exit::ExitCode;

use anyhow::anyhow;
use nvx_perf::{ReportRequest, report, write_file};

use crate::cli::ReportArgs;
use crate::exit::Failure;
use crate::output;

/// Shows histories in the form that is asked for.
pub fn run(args: ReportArgs) -> Result<ExitCode, Failure> {
    let report = report(&ReportRequest { files: args.files }).map_err(Failure::input)?;
    if let Some(path) = &args.html {
        write_file(path, report.to_html().as_bytes()).map_err(Failure::input)?;
    } else if let Some(metric) = &args.svg {
        let picture = report.to_svg(metric);
        let missing = || Failure::input(anyhow!("no history has a metric '{metric}'"));
        output::result(&picture.ok_or_else(missing)?);
    } else if args.markdown {
        output::result(&report.to_markdown());
    } else {
        output::json(&report).map_err(Failure::input)?;
    }
    Ok(ExitCode::SUCCESS)
}
