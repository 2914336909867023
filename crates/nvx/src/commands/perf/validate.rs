//! `nvx perf validate`.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use anyhow::Context as _;
use nvx_bench::result::LifecycleResult;
use nvx_bench::validate::{Validation, acceptance_rate, validate_file};

use crate::cli::ValidateArgs;
use crate::exit::Failure;
use crate::output;

/// Of how many results the acceptance is told.
const SIMULATED_RUNS: u32 = 20;

/// Validates a result.
pub fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let validation =
        validate_file(&args.result, args.platform.as_deref()).map_err(Failure::input)?;
    if args.json {
        output::json(&validation).map_err(Failure::monitor)?;
    } else {
        output::result(&text(&validation));
    }
    if args.acceptance_rate {
        output::message(&rate(args).map_err(Failure::input)?);
    }
    Ok(ExitCode::from(validation.verdict.exit_code()))
}

/// The verdict and its reason, then every series.
pub fn text(validation: &Validation) -> String {
    let verdict = match validation.verdict.exit_code() {
        0 => "valid",
        75 => "unstable: measure again",
        _ => "invalid",
    };
    let mut text = String::new();
    if validation.reason == verdict {
        let _ = writeln!(text, "{verdict}");
    } else {
        let _ = writeln!(text, "{verdict}: {}", validation.reason);
    }
    for series in &validation.series {
        let state = match (series.unstable, series.gating) {
            (false, _) => "stable",
            (true, true) => "unstable",
            (true, false) => "unstable (does not decide)",
        };
        let _ = writeln!(
            text,
            "  {:<20} {state}: p50/p25 {:.3}, widest split {:.3}",
            series.metric, series.p50_over_p25, series.widest_split
        );
        for finding in &series.findings {
            let _ = writeln!(text, "    {finding}");
        }
    }
    if !validation.series.is_empty() {
        text.push_str(
            "  A disturbance that was there from the first sample to the last shows in no series.\n",
        );
    }
    text
}

fn rate(args: &ValidateArgs) -> anyhow::Result<String> {
    let text = std::fs::read(&args.result).context("cannot read the result")?;
    let result: LifecycleResult =
        serde_json::from_slice(&text).context("only results of this program can be simulated")?;
    let samples = result
        .snapshot_capture
        .values()
        .next()
        .map(|capture| capture.time.samples_ms.clone())
        .unwrap_or_default();
    let (accepted, of) =
        acceptance_rate(&samples, SIMULATED_RUNS).context("too few samples to tell")?;
    Ok(format!(
        "{accepted} of {of} results with such samples would have been accepted"
    ))
}
