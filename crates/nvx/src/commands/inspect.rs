//! `nvx inspect`.

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nvx_snapshot::{Manifest, MemoryError, MemoryReport, STATE_FILE, Snapshot, StatePayload};
use serde::Serialize;

use crate::cli::InspectArgs;
use crate::exit::Failure;
use crate::{output, size};

/// A unit of `state.bin` without its content.
#[derive(Serialize)]
struct Unit<'a> {
    unit: &'a str,
    kind: &'a str,
    version: u32,
    length_bytes: usize,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    schema_version: u32,
    manifest: &'a Manifest,
    state: Vec<Unit<'a>>,
    memory_allocated_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_check: Option<Check>,
}

/// What was done with the content of memory.
#[derive(Clone, Copy, Serialize)]
struct Check {
    /// `verified`: it matches the digests in the manifest. `sealed`: digests were made and are there now.
    outcome: &'static str,
    chunks: usize,
    chunk_bytes: u64,
    /// Chunks that are holes: known to be zero without reading.
    holes: usize,
    bytes_read: u64,
    duration_ms: f64,
}

impl Check {
    fn new(outcome: &'static str, report: MemoryReport, duration: Duration) -> Self {
        let MemoryReport {
            chunks,
            chunk_bytes,
            holes,
            bytes_read,
        } = report;
        Self {
            outcome,
            chunks,
            chunk_bytes,
            holes,
            bytes_read,
            duration_ms: duration.as_secs_f64() * 1000.0,
        }
    }
}

/// Shows what a snapshot holds, after what else was asked for is done.
pub fn run(args: InspectArgs) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    let sealed = match args.seal {
        true => Some(nvx_snapshot::seal(&args.directory).map_err(Failure::input)?),
        false => None,
    };
    let sealing = started.elapsed();
    let snapshot = Snapshot::open(&args.directory).map_err(Failure::input)?;
    let memory_check = match sealed {
        Some(sealed) if sealed.was_sealed => Some(Check::new("verified", sealed.report, sealing)),
        Some(sealed) => Some(Check::new("sealed", sealed.report, sealing)),
        None if args.verify => Some(verify(&snapshot)?),
        None => None,
    };
    let reader = snapshot.state().map_err(Failure::input)?;
    let document = Document {
        schema: "nvx.inspect",
        schema_version: 1,
        manifest: snapshot.manifest(),
        state: reader.payloads().iter().map(unit).collect(),
        memory_allocated_bytes: allocated_bytes(snapshot.memory()),
        memory_check,
    };
    if args.json {
        output::json(&document).map_err(Failure::input)?;
    } else {
        output::result(&table(&document, &snapshot));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks all content against its digests.
fn verify(snapshot: &Snapshot) -> Result<Check, Failure> {
    let started = Instant::now();
    snapshot
        .verify_state()
        .with_context(|| format!("{}: {STATE_FILE}", snapshot.path().display()))
        .map_err(Failure::input)?;
    let report = snapshot
        .verify_memory()
        .map_err(|error| match error {
            error @ MemoryError::NoDigests { .. } => anyhow::Error::from(error)
                .context("nothing to verify; nvx inspect --seal makes digests"),
            error => error.into(),
        })
        .map_err(Failure::input)?;
    Ok(Check::new("verified", report, started.elapsed()))
}

/// Space that the file takes, in bytes; `None` where the system does not tell.
fn allocated_bytes(file: &std::fs::File) -> Option<u64> {
    nvx_host::allocated_bytes(file).ok()
}

fn unit<'a>(payload: &StatePayload<'a>) -> Unit<'a> {
    Unit {
        unit: payload.unit,
        kind: payload.kind,
        version: payload.version,
        length_bytes: payload.bytes.len(),
    }
}

fn table(document: &Document<'_>, snapshot: &Snapshot) -> String {
    let manifest = document.manifest;
    let capture = &manifest.capture;
    let ram_bytes: u64 = manifest.ram.iter().map(|range| range.size_bytes).sum();
    let on_disk = document
        .memory_allocated_bytes
        .map_or_else(|| "unknown".to_owned(), size::format);
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14} {value}");
    };
    row("snapshot", snapshot.path().display().to_string());
    row(
        "made by",
        format!(
            "{}, schema {}, machine contract {}",
            manifest.producer, manifest.schema_version, manifest.machine_contract
        ),
    );
    row(
        "machine",
        format!(
            "{} vCPU, {} RAM, back end {}, CPU {}",
            manifest.vcpus,
            size::format(ram_bytes),
            manifest.backend,
            manifest.cpu.vendor
        ),
    );
    row("memory.bin", format!("{on_disk} on disk"));
    row("digests", digests(document));
    row(
        "published by",
        format!("{}: {}", capture.publication, capture.publication_reason),
    );
    row(
        "guest RAM was",
        format!("{}: {}", capture.ram_backing, capture.ram_backing_reason),
    );
    row(
        "written",
        format!(
            "{}, {} pages, {} calls",
            capture.strategy,
            capture
                .pages
                .map_or_else(|| "unknown".to_owned(), |pages| pages.to_string()),
            capture.calls
        ),
    );
    if let Some(bytes) = capture.background_bytes.filter(|&bytes| bytes > 0) {
        row(
            "before that",
            format!("the system wrote {} by itself", size::format(bytes)),
        );
    }
    for fallback in &capture.fallbacks {
        row("fallback", fallback.clone());
    }
    for unit in &document.state {
        row(
            "state",
            format!(
                "{:<20} {} v{}, {} bytes",
                unit.unit, unit.kind, unit.version, unit.length_bytes
            ),
        );
    }
    text
}

/// What is known of the content of memory, and what it took to find out.
fn digests(document: &Document<'_>) -> String {
    if let Some(check) = &document.memory_check {
        return format!(
            "{}: {} chunks of {}, {} of them holes, {} read in {:.1} ms",
            check.outcome,
            check.chunks,
            size::format(check.chunk_bytes),
            check.holes,
            size::format(check.bytes_read),
            check.duration_ms
        );
    }
    let layer = document.manifest.memory.first();
    match layer.and_then(|layer| layer.digests.as_ref()) {
        Some(digests) => format!(
            "{} chunks of {}, not looked at now",
            digests.chunks.len(),
            size::format(digests.chunk_bytes)
        ),
        None => "none of memory; --seal makes them".to_owned(),
    }
}
