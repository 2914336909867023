//! `nvx demo`: the whole promise in one command.

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nvx_bench::statistics::{median, nearest_rank};
use nvx_bench::{Guest, LifecycleRequest, LifecycleSample, run_turn};
use nvx_hypervisor::{Selected, open_backend};
use nvx_memory::RamFileChoice;
use nvx_probe_guest::ProbeParams;
use nvx_profile::ParsedRecord;
use nvx_snapshot::{CaptureFacts, Snapshot};
use serde::Serialize;

use crate::cli::DemoArgs;
use crate::exit::Failure;
use crate::output;

/// Bounds every wait of the demo. An emulated guest needs about 10 us a page, so that even 4 GiB
/// full of pages stay below it.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// A series of milliseconds.
#[derive(Serialize)]
struct Series {
    p50: f64,
    p25: f64,
    samples: Vec<f64>,
}

impl Series {
    fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let samples: Vec<f64> = durations.map(milliseconds).collect();
        Self {
            p50: median(&samples).unwrap_or_default(),
            p25: nearest_rank(&samples, 0.25).unwrap_or_default(),
            samples,
        }
    }
}

/// Medians of one phase.
#[derive(Serialize)]
struct Phase {
    operation: String,
    phase: String,
    p50_ms: f64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    schema_version: u32,
    samples: usize,
    backend: String,
    /// What the user should know about the back end.
    backend_notice: Option<String>,
    memory_bytes: u64,
    vcpus: u8,
    probe: String,
    cold_start_ms: Series,
    snapshot_generation_ms: Series,
    snapshot_restore_ms: Series,
    restore_guest_exit_teardown_ms: Series,
    cold_start_peak_rss_bytes: Option<f64>,
    snapshot_restore_peak_rss_bytes: Option<f64>,
    phases: Vec<Phase>,
    nonce: String,
    ram_checksum: String,
    snapshot: PathBuf,
    /// Where guest RAM lived, how it was written, and why so, as the last snapshot's manifest has it.
    capture: CaptureFacts,
}

/// Boots, captures, restores and proves, as often as asked.
pub fn run(args: DemoArgs) -> Result<ExitCode, Failure> {
    if let (Some(RamFileChoice::Prepared(path)), 2..) = (&args.ram_file.ram_file, args.samples) {
        return Err(Failure::input(anyhow::anyhow!(
            "--ram-file {}: a prepared file serves one turn, and --samples asks for {}",
            path.display(),
            args.samples
        )));
    }
    let document = measure(&args).map_err(Failure::monitor)?;
    if args.json {
        output::json(&document).map_err(Failure::monitor)?;
    } else {
        output::result(&table(&document));
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &DemoArgs) -> anyhow::Result<Document> {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // Chosen once, so that all turns use the same and the result can name it.
    let Selected { backend, notice } = open_backend(args.backend, None)?;
    let request = LifecycleRequest {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        backend: backend.name().to_owned(),
        memory_bytes: args.memory,
        vcpus: args.vcpus,
        guest: Guest::Probe(ProbeParams {
            fill: args.fill,
            ..Default::default()
        }),
        scratch: args.scratch.clone(),
        ram_file: args.ram_file.ram_file.clone().unwrap_or_default(),
        writeback: args.ram_file.writeback.unwrap_or_default(),
        limit: WAIT_LIMIT,
    };
    let mut samples = Vec::new();
    let mut last: Option<PathBuf> = None;
    for _ in 0..args.samples {
        let snapshot = parent.join(
            nvx_host::random_name("nvx-demo-").context("cannot get random bytes for a name")?,
        );
        let sample = run_turn(&request, &snapshot)?;
        samples.push(sample);
        // Only the last snapshot is kept: that of an earlier turn is of no use any more.
        if let Some(earlier) = last.replace(snapshot) {
            remove_snapshot(&earlier)?;
        }
    }
    let snapshot = last.context("no sample was taken")?;
    document(args, &request, notice, &samples, snapshot)
}

fn remove_snapshot(path: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))
}

fn document(
    args: &DemoArgs,
    request: &LifecycleRequest,
    backend_notice: Option<String>,
    samples: &[LifecycleSample],
    snapshot: PathBuf,
) -> anyhow::Result<Document> {
    let proof = samples
        .last()
        .map(|sample| sample.proof.clone())
        .context("no sample was taken")?;
    let rss = |of: fn(&LifecycleSample) -> Option<u64>| {
        let known: Option<Vec<f64>> = samples.iter().map(|s| of(s).map(|b| b as f64)).collect();
        known.and_then(|known| median(&known))
    };
    let capture = Snapshot::open(&snapshot)?.manifest().capture.clone();
    Ok(Document {
        schema: "nvx.demo",
        schema_version: 1,
        samples: samples.len(),
        backend: request.backend.clone(),
        backend_notice,
        memory_bytes: args.memory,
        vcpus: args.vcpus,
        probe: request.guest.probe_text(),
        cold_start_ms: Series::of(samples.iter().map(|sample| sample.cold_start)),
        snapshot_generation_ms: Series::of(samples.iter().map(|sample| sample.generation)),
        snapshot_restore_ms: Series::of(samples.iter().map(|sample| sample.restore)),
        restore_guest_exit_teardown_ms: Series::of(samples.iter().map(|sample| sample.teardown)),
        cold_start_peak_rss_bytes: rss(|sample| sample.cold_start_peak_rss_bytes),
        snapshot_restore_peak_rss_bytes: rss(|sample| sample.restore_peak_rss_bytes),
        phases: phases(samples),
        nonce: proof.nonce,
        ram_checksum: proof.checksum,
        snapshot,
        capture,
    })
}

/// Medians per phase, in the order in which the phases come.
fn phases(samples: &[LifecycleSample]) -> Vec<Phase> {
    let records = |sample: &LifecycleSample| -> Vec<ParsedRecord> {
        let both = sample.source_records.iter().chain(&sample.restore_records);
        both.cloned().collect()
    };
    let all: Vec<Vec<ParsedRecord>> = samples.iter().map(records).collect();
    let Some(first) = all.first() else {
        return Vec::new();
    };
    first
        .iter()
        .map(|row| {
            let series: Vec<f64> = all
                .iter()
                .flatten()
                .filter(|record| (&record.operation, &record.phase) == (&row.operation, &row.phase))
                .map(|record| milliseconds(record.duration))
                .collect();
            Phase {
                operation: row.operation.clone(),
                phase: row.phase.clone(),
                p50_ms: median(&series).unwrap_or_default(),
            }
        })
        .collect()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn table(document: &Document) -> String {
    let mut text = String::new();
    let n = document.samples;
    let _ = writeln!(
        text,
        "Booted the probe guest, captured it, restored it in a new process; it went on with\n\
         the same nonce {} and the same RAM (checksum {}).\n",
        document.nonce, document.ram_checksum
    );
    if let Some(notice) = &document.backend_notice {
        let _ = writeln!(text, "{notice}\n");
    }
    let _ = writeln!(text, "{:<42}{:>12}", format!("median of {n}"), "ms");
    for (name, series) in [
        (
            "cold start: process start to ready",
            &document.cold_start_ms,
        ),
        (
            "snapshot generation: gate to commit",
            &document.snapshot_generation_ms,
        ),
        (
            "restore: process start to next output",
            &document.snapshot_restore_ms,
        ),
    ] {
        let _ = writeln!(text, "{name:<42}{:>12.3}", series.p50);
    }
    let _ = writeln!(text);
    for phase in &document.phases {
        let name = format!("  {}.{}", phase.operation, phase.phase);
        let _ = writeln!(text, "{name:<42}{:>12.3}", phase.p50_ms);
    }
    let capture = &document.capture;
    let _ = writeln!(
        text,
        "\nGuest RAM: {} ({})\nWritten: {}; published by {}",
        capture.ram_backing, capture.ram_backing_reason, capture.strategy, capture.publication
    );
    let _ = writeln!(
        text,
        "The snapshot is {}\nRestore it with: nvx restore {}",
        document.snapshot.display(),
        document.snapshot.display()
    );
    text
}
