//! `nvx bench digests`: what it costs to make digests of memory, and to check them.

use std::fmt::Write as _;

use anyhow::Context as _;
use nvx_bench::digests::{DigestsError, DigestsReport, DigestsRequest, Times, measure};
use nvx_host::TerminationSignals;

use crate::cli::DigestsArgs;
use crate::exit::{ExitCode, Failure};
use crate::{output, size};

/// Measures and shows.
pub fn run(args: DigestsArgs) -> Result<ExitCode, Failure> {
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    let request = DigestsRequest {
        snapshot: args.snapshot,
        samples: args.samples,
    };
    let mut termination = None;
    let report = measure(&request, &mut || {
        termination = termination.or_else(|| signals.take());
        termination.is_some()
    });
    let report = match (report, termination) {
        (Err(DigestsError::Interrupted), Some(termination)) => {
            output::message(&format!("ended by {}", termination.name()));
            return Ok(ExitCode::from(termination.exit_code()));
        }
        (report, _) => report.map_err(Failure::input)?,
    };
    if args.json {
        output::json(&report).map_err(Failure::monitor)?;
    } else {
        output::result(&table(&report));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &DigestsReport) -> String {
    const MIB: f64 = 1_048_576.0;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} of memory, {:.1} MiB of it data, {} chunks of {}, {}",
        report.snapshot,
        size::format(report.memory_bytes),
        report.bytes_read as f64 / MIB,
        report.chunks,
        size::format(report.chunk_bytes),
        if report.is_sealed {
            "sealed"
        } else {
            "without digests"
        },
    );
    let _ = writeln!(
        text,
        "median of {}; processors: {}\n",
        report.open_ms.samples.len(),
        report.processors
    );
    let _ = writeln!(
        text,
        "{:<46}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "p50 ms", "p25", "p95", "sigma", "MiB/s"
    );
    let mut row = |what: &str, times: Option<&Times>, reads: bool| {
        let Some(Times { summary, .. }) = times else {
            let _ = writeln!(text, "{what:<46}{:>10}", "unknown");
            return;
        };
        let rate = if reads && summary.p50 > 0.0 {
            format!("{:.0}", report.bytes_read as f64 / MIB / summary.p50 * 1e3)
        } else {
            "-".to_owned()
        };
        let _ = writeln!(
            text,
            "{what:<46}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{rate:>10}",
            summary.p50, summary.p25, summary.p95, summary.sigma
        );
    };
    row("open, as every restore", Some(&report.open_ms), false);
    row(
        "--verify or --seal, file in memory",
        Some(&report.all_processors_ms),
        true,
    );
    row(
        "--verify or --seal, from the device",
        report.uncached_ms.as_ref(),
        true,
    );
    row(
        "--digests in a capture that copies, added",
        Some(&report.in_copy_ms),
        true,
    );
    text
}
