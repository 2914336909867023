//! `nvx bench writeback`: what each strategy writes, and how long it takes.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use anyhow::Context as _;
use nvx_bench::writeback::{
    Cell, Onlooker, Pattern, Progress, Report, RunRequest, Summary, WritebackBenchError,
    WritebackRequest, measure, single_run,
};
use nvx_host::{Termination, TerminationSignals};
use nvx_memory::{RamFileChoice, WritebackChoice};

use crate::cli::WritebackArgs;
use crate::exit::Failure;
use crate::{output, size};

/// What is compared if nothing else is asked for.
const STRATEGIES: [&str; 5] = [
    "ascending-marked",
    "ascending",
    "ranges:2",
    "ranges:4",
    "ranges:8",
];
/// A measurement that ended early: measure again.
const UNFIT: u8 = 75;

/// Measures, or carries out the one run that this process was started for.
pub fn run(args: WritebackArgs) -> Result<ExitCode, Failure> {
    let request = request(args).map_err(Failure::input)?;
    if request.single_run {
        return only_run(request.what);
    }
    // Before any process is started.
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    let mut screen = Screen {
        line: output::ProgressLine::new(),
        signals,
        interrupted: None,
    };
    let report = measure(&request.what, &mut screen);
    let interrupted = screen.interrupted;
    drop(screen);
    let report = match (report, interrupted) {
        (Err(WritebackBenchError::Interrupted), Some(termination)) => {
            output::message(&format!("ended by {}", termination.name()));
            return Ok(ExitCode::from(termination.exit_code()));
        }
        (report, _) => report.map_err(Failure::input)?,
    };
    if request.json {
        output::json(&report).map_err(Failure::monitor)?;
    } else {
        output::result(&table(&report));
    }
    let Some(reason) = &report.incomplete_reason else {
        return Ok(ExitCode::SUCCESS);
    };
    output::message(&format!("incomplete: {reason}"));
    Ok(ExitCode::from(
        interrupted.map_or(UNFIT, Termination::exit_code),
    ))
}

/// Shows progress and takes requests to end.
struct Screen {
    line: output::ProgressLine,
    signals: TerminationSignals,
    interrupted: Option<Termination>,
}

impl Onlooker for Screen {
    fn before(&mut self, progress: Progress<'_>) {
        self.line.show(&describe(&progress));
    }

    fn is_interrupted(&mut self) -> bool {
        self.interrupted = self.interrupted.or_else(|| self.signals.take());
        self.interrupted.is_some()
    }
}

struct Request {
    what: WritebackRequest,
    single_run: bool,
    json: bool,
}

fn request(args: WritebackArgs) -> anyhow::Result<Request> {
    let writebacks = if args.writeback.is_empty() {
        let all = STRATEGIES.into_iter().map(str::parse);
        all.collect::<Result<Vec<WritebackChoice>, _>>()?
    } else {
        args.writeback
    };
    let prepared = matches!(args.ram_file.first(), Some(RamFileChoice::Prepared(_)));
    Ok(Request {
        what: WritebackRequest {
            program: std::env::current_exe().context("cannot find this program's own file")?,
            directory: args.dir.unwrap_or_else(std::env::temp_dir),
            size_bytes: args.memory,
            ram_files: args.ram_file,
            writebacks,
            patterns: if args.pattern.is_empty() {
                Pattern::STANDARD.into()
            } else {
                args.pattern
            },
            samples: args.samples,
            // A prepared file can be used once only.
            warmups: args.warmups.unwrap_or(if prepared { 0 } else { 1 }),
        },
        single_run: args.single_run,
        json: args.json,
    })
}

fn only_run(request: WritebackRequest) -> Result<ExitCode, Failure> {
    let missing = || {
        Failure::input(anyhow::anyhow!(
            "a single run has one strategy, pattern and RAM file"
        ))
    };
    let run = RunRequest {
        directory: request.directory,
        size_bytes: request.size_bytes,
        ram_file: request.ram_files.first().cloned().ok_or_else(missing)?,
        writeback: request.writebacks.first().copied().ok_or_else(missing)?,
        pattern: request.patterns.first().copied().ok_or_else(missing)?,
    };
    let sample = single_run(&run).map_err(Failure::monitor)?;
    output::json(&sample).map_err(Failure::monitor)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(progress: &Progress<'_>) -> String {
    let kind = if progress.warmup { "warm-up" } else { "run" };
    format!(
        "{}/{} {kind}: {}, {}",
        progress.done + 1,
        progress.total,
        progress.pattern,
        progress.writeback
    )
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    let device = match (&report.device, &report.device_obstacle) {
        (Some(device), _) => format!("bytes counted at device {device}"),
        (None, Some(reason)) => format!("device bytes unknown: {reason}"),
        (None, None) => "device bytes unknown".to_owned(),
    };
    let _ = writeln!(
        text,
        "RAM file of {} ({}) in {}: {}; {device}",
        size::format(report.memory_bytes),
        report.ram_file,
        report.directory,
        report.file_system
    );
    let _ = writeln!(
        text,
        "median of {} (writeback and sync; MiB; x = device bytes / file size)\n",
        report.samples
    );
    let _ = writeln!(
        text,
        "{:<12}{:<18}{:>9}{:>9}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}{:>6}",
        "dirty",
        "strategy",
        "p50 ms",
        "p25",
        "p95",
        "sigma",
        "handed",
        "device",
        "x",
        "requests",
        "calls"
    );
    for cell in &report.cells {
        text.push_str(&row(cell));
    }
    if let Some(zero) = &report.zero_detection {
        let _ = writeln!(
            text,
            "\nzero pages are recognised at {:.0} % of the rate of plain reading ({:.1} against {:.1} ms for {})",
            zero.rate_to_plain * 100.0,
            zero.detection_p50_ms,
            zero.plain_p50_ms,
            size::format(zero.bytes)
        );
    }
    if report.disturbed_runs > 0 {
        let _ = writeln!(
            text,
            "other writers were active on the device during {} of the runs (marked *)",
            report.disturbed_runs
        );
    }
    text
}

fn row(cell: &Cell) -> String {
    let number = |summary: Option<Summary>, decimals: usize, scale: f64| match summary {
        Some(summary) => format!("{:.decimals$}", summary.p50 / scale),
        None => "unknown".to_owned(),
    };
    let of_time = |part: fn(&Summary) -> f64| match &cell.duration_ms {
        Some(summary) => format!("{:.2}", part(summary)),
        None => "-".to_owned(),
    };
    const MIB: f64 = 1_048_576.0;
    let disturbed = cell
        .samples
        .iter()
        .any(|sample| sample.other_writers == Some(true));
    let mut text = format!(
        "{:<12}{:<18}{:>9}{:>9}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}{:>6}",
        cell.pattern.to_string(),
        cell.writeback.to_string(),
        of_time(|summary| summary.p50),
        of_time(|summary| summary.p25),
        of_time(|summary| summary.p95),
        of_time(|summary| summary.sigma),
        number(cell.handed_over_bytes, 1, MIB),
        number(cell.device_bytes, 1, MIB),
        number(cell.write_amplification, 2, 1.0),
        number(cell.device_requests, 0, 1.0),
        number(cell.calls, 0, 1.0),
    );
    text.push_str(if disturbed { " *\n" } else { "\n" });
    text
}
