//! `nvx inspect`.

use crate::exit::ExitCode;
use std::fmt::Write as _;

use nvx_snapshot::{Manifest, Snapshot, StatePayload};
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
}

/// Shows what a snapshot holds.
pub fn run(args: InspectArgs) -> Result<ExitCode, Failure> {
    let snapshot = Snapshot::open(&args.directory).map_err(Failure::input)?;
    let reader = snapshot.state().map_err(Failure::input)?;
    let document = Document {
        schema: "nvx.inspect",
        schema_version: 1,
        manifest: snapshot.manifest(),
        state: reader.payloads().iter().map(unit).collect(),
        memory_allocated_bytes: allocated_bytes(snapshot.memory()),
    };
    if args.json {
        output::json(&document).map_err(Failure::input)?;
    } else {
        output::result(&table(&document, &snapshot));
    }
    Ok(ExitCode::SUCCESS)
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
