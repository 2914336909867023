//! `nvx perf import`: results and profile lines of the public NVX/OpenVMM format.
//!
//! A result becomes rows under the target history's names; whatever the format does not define is kept
//! as it is. A log becomes its profile records, and what each phase took.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvx_bench::statistics::{median, nearest_rank};
use nvx_profile::{LineError, ParsedRecord, parse_line};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::collect::{CollectError, prefix_for};
use crate::csv::{History, NameRule, check_commit, read_bytes};
use crate::identity::Identity;
use crate::lifecycle_document::Document;
use crate::metric_name::Prefix;

/// Prefix of a record line in the public format.
const PUBLIC_PREFIX: &str = "OPENVMM_SNAPSHOT_PROFILE_V1";
/// Members of a result that the public format defines.
const KNOWN_MEMBERS: [&str; 9] = [
    "timestamp_utc",
    "controls",
    "backends",
    "snapshot_capture",
    "snapshot_restore",
    "phase2",
    "comparison",
    "e2e_comparison",
    "snapshot_profile_matrix",
];

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// A result (a JSON object) or a log with profile lines.
    pub source: PathBuf,
    /// The history that the rows are for: its names are used.
    pub history: Option<PathBuf>,
    /// The platform, where the result does not say it.
    pub platform: Option<String>,
    /// The commit; without it the result's own revision of the monitor.
    pub commit: Option<String>,
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ImportResult {
    /// A result.
    Lifecycle(ImportedLifecycle),
    /// A log's profile lines.
    Profile(ImportedProfile),
}

/// Rows of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedLifecycle {
    /// What the rows are about.
    pub identity: Identity,
    /// The commit that they are of.
    pub commit: String,
    /// How many rows there are.
    pub rows: usize,
    /// The rows, as a file.
    pub csv: String,
    /// Members that the format does not define, as they are.
    pub unknown: Map<String, Value>,
}

/// Profile records of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedProfile {
    /// The records, in the log's order.
    pub records: Vec<ImportedRecord>,
    /// What each phase took, by `operation.phase`.
    pub phases: BTreeMap<String, PhaseSummary>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportedRecord {
    /// The operation.
    pub operation: String,
    /// The phase.
    pub phase: String,
    /// Exclusive phases do not overlap.
    pub exclusive: bool,
    /// How long the phase took, in ns.
    pub duration_ns: u64,
    /// When it ended on the process's clock, in ns.
    pub process_elapsed_ns: u64,
    /// The process.
    pub pid: u32,
    /// Every other field of the line, as text.
    pub other: BTreeMap<String, String>,
}

/// What one phase took, over every record of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseSummary {
    /// Exclusive phases do not overlap.
    pub exclusive: bool,
    /// Every duration, in ms.
    pub samples_ms: Vec<f64>,
    /// Their median, in ms.
    pub p50_ms: f64,
    /// Their nearest-rank 95 % quantile, in ms.
    pub p95_ms: f64,
    /// The shortest, in ms.
    pub min_ms: f64,
    /// The longest, in ms.
    pub max_ms: f64,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The result is wrong or refused.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// A line begins like a profile record and is none.
    #[error("{}:{line}", path.display())]
    Line {
        /// The log.
        path: PathBuf,
        /// The line, the first is 1.
        line: usize,
        /// What is wrong with it.
        source: LineError,
    },
    /// A log without a profile line.
    #[error("{}: is neither a result nor a log with profile lines", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
    },
}

/// Imports a result or a log of the public format.
///
/// # Errors
/// The source is wrong, or a result that is not to be accepted; see [`ImportError`].
pub fn import(request: &ImportRequest) -> Result<ImportResult, ImportError> {
    let content = read_bytes(&request.source).map_err(CollectError::from)?;
    let first = content.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'{') {
        let document = Document::parse(&request.source, &content).map_err(CollectError::from)?;
        return Ok(ImportResult::Lifecycle(lifecycle(request, &document)?));
    }
    profile(&request.source, &String::from_utf8_lossy(&content)).map(ImportResult::Profile)
}

fn lifecycle(
    request: &ImportRequest,
    document: &Document,
) -> Result<ImportedLifecycle, CollectError> {
    document.expect_accepted_controls("e2e")?;
    for (field, wanted) in [
        ("controls.marker", json!("ALPINE-MICROVM-BOOT-OK")),
        (
            "controls.restore_marker",
            json!("OPENVMM-SNAPSHOT-RESTORE-OK"),
        ),
        (
            "controls.snapshot_capture_timing",
            json!("openvmm-input-gate-to-publication"),
        ),
        (
            "controls.snapshot_restore_guest_exit_prequeued",
            json!(true),
        ),
    ] {
        document.expect("mismatched", field, &wanted)?;
    }
    let identity = document.identity(request.platform.as_deref())?;
    let commit = match &request.commit {
        Some(commit) => commit.clone(),
        None => document
            .text("controls.artifact_revisions.openvmm")?
            .to_owned(),
    };
    if !check_commit(&commit) {
        return Err(CollectError::Commit { commit });
    }
    let prefix = prefix_for(request.history.as_deref(), &identity, Prefix::Openvmm)?;
    let rows = document.rows(identity.clone(), &commit, prefix)?;
    let csv = rows.to_csv();
    History::parse(&request.source, csv.as_bytes(), NameRule::Rows)?;
    let unknown = document
        .root
        .iter()
        .filter(|(name, _)| !KNOWN_MEMBERS.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    Ok(ImportedLifecycle {
        identity,
        commit,
        rows: rows.row_count(),
        csv,
        unknown,
    })
}

fn profile(path: &Path, text: &str) -> Result<ImportedProfile, ImportError> {
    let mut records = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // The two formats differ in the first word only.
        let ours = match line.strip_prefix(PUBLIC_PREFIX) {
            Some(rest) => format!("{}{rest}", nvx_profile::LINE_PREFIX),
            None => line.to_owned(),
        };
        let parsed = parse_line(&ours).map_err(|source| ImportError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })?;
        records.extend(parsed.map(imported));
    }
    if records.is_empty() {
        return Err(ImportError::Nothing {
            path: path.to_owned(),
        });
    }
    let mut durations: BTreeMap<String, (bool, Vec<f64>)> = BTreeMap::new();
    for record in &records {
        let phase = durations
            .entry(format!("{}.{}", record.operation, record.phase))
            .or_insert((record.exclusive, Vec::new()));
        phase.1.push(record.duration_ns as f64 / 1e6);
    }
    let phases = durations
        .into_iter()
        .map(|(name, (exclusive, samples_ms))| (name, summary(exclusive, samples_ms)))
        .collect();
    Ok(ImportedProfile { records, phases })
}

fn imported(record: ParsedRecord) -> ImportedRecord {
    let nanoseconds =
        |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    ImportedRecord {
        operation: record.operation,
        phase: record.phase,
        exclusive: record.exclusive,
        duration_ns: nanoseconds(record.duration),
        process_elapsed_ns: nanoseconds(record.end),
        pid: record.pid,
        other: record.other.into_iter().collect(),
    }
}

fn summary(exclusive: bool, samples_ms: Vec<f64>) -> PhaseSummary {
    PhaseSummary {
        exclusive,
        p50_ms: median(&samples_ms).unwrap_or(0.0),
        p95_ms: nearest_rank(&samples_ms, 0.95).unwrap_or(0.0),
        min_ms: samples_ms.iter().copied().fold(f64::INFINITY, f64::min),
        max_ms: samples_ms.iter().copied().fold(0.0, f64::max),
        samples_ms,
    }
}

#[cfg(test)]
mod tests;
