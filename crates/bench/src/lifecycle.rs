//! One turn of a VM's life, observed from outside: start the probe guest, capture it, restore it
//! in a new process, and have the guest prove that nothing was lost.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvx_memory::{RamFileChoice, WritebackChoice};
use nvx_profile::ParsedRecord;

use crate::guest::Guest;
use crate::monitor::{Monitor, MonitorError};

/// What is run.
#[derive(Clone, Debug)]
pub struct LifecycleRequest {
    /// The `nvx` program.
    pub program: PathBuf,
    /// Back end, as `--backend` takes it.
    pub backend: String,
    /// Guest RAM in bytes.
    pub memory_bytes: u64,
    /// How many vCPUs.
    pub vcpus: u8,
    /// The guest.
    pub guest: Guest,
    /// Where RAM files live; none: beside the snapshot.
    pub scratch: Option<PathBuf>,
    /// Which RAM file. One that was prepared serves one start.
    pub ram_file: RamFileChoice,
    /// How a capture writes it back.
    pub writeback: WritebackChoice,
    /// Bounds every wait for the monitor or the guest.
    pub limit: Duration,
}

impl LifecycleRequest {
    /// The arguments that start the guest anew, with a place for a snapshot if there is to be one.
    pub(crate) fn run_arguments(&self, snapshot: Option<&Path>) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["run".into()];
        arguments.extend(self.guest.arguments());
        arguments.extend([
            "--backend".into(),
            self.backend.clone().into(),
            "--memory".into(),
            self.memory_bytes.to_string().into(),
            "--vcpus".into(),
            self.vcpus.to_string().into(),
        ]);
        if let Some(snapshot) = snapshot {
            arguments.extend(["--snapshot".into(), snapshot.into()]);
        }
        if let Some(scratch) = &self.scratch {
            arguments.extend(["--scratch".into(), scratch.into()]);
        }
        // An older program is measured as well, as long as nothing is asked that it does not know.
        if self.ram_file != RamFileChoice::Auto {
            arguments.extend(["--ram-file".into(), self.ram_file.to_argument()]);
        }
        if self.writeback != WritebackChoice::Auto {
            arguments.extend(["--writeback".into(), self.writeback.to_string().into()]);
        }
        arguments
    }

    /// The arguments that restore `snapshot`.
    pub(crate) fn restore_arguments(&self, snapshot: &Path) -> Vec<OsString> {
        vec![
            "restore".into(),
            snapshot.into(),
            "--backend".into(),
            self.backend.clone().into(),
        ]
    }
}

/// What one turn measured.
#[derive(Clone, Debug)]
pub struct LifecycleSample {
    /// From just before the process's creation to the guest's ready line.
    pub cold_start: Duration,
    /// From the start of the input gate to the end of the commit, on the monitor's clock.
    pub generation: Duration,
    /// From just before the process's creation to the guest's restored line.
    pub restore: Duration,
    /// From the restored guest's exit request to the process's end.
    pub teardown: Duration,
    /// Peak resident set at the ready line; `None` where the system does not tell.
    pub cold_start_peak_rss_bytes: Option<u64>,
    /// Peak resident set at the restored line.
    pub restore_peak_rss_bytes: Option<u64>,
    /// Records of the process that captured.
    pub source_records: Vec<ParsedRecord>,
    /// Records of the process that restored.
    pub restore_records: Vec<ParsedRecord>,
    /// What the guest proved.
    pub proof: Proof,
}

/// What the restored guest showed to be as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The number that lives only in the guest's RAM.
    pub nonce: String,
    /// Checksum of the RAM that the guest filled.
    pub checksum: String,
    /// Command lines served before the capture and after the restore.
    pub count: (u64, u64),
}

/// What went wrong in a turn.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The monitor or the guest failed.
    #[error("{stage}")]
    Monitor {
        /// Which part of the turn.
        stage: &'static str,
        /// What happened.
        source: MonitorError,
    },
    /// The guest's answer lacks a field.
    #[error("{stage}: the guest's line '{line}' has no {field}")]
    Field {
        /// Which part of the turn.
        stage: &'static str,
        /// The line.
        line: String,
        /// What it lacks.
        field: &'static str,
    },
    /// The restored guest is not the one that was captured.
    #[error("the restored guest is another: {what} was {before}, is {after}")]
    NotTheSame {
        /// What differs.
        what: &'static str,
        /// At capture.
        before: String,
        /// After restore.
        after: String,
    },
    /// A snapshot that is not wanted any more cannot be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// The snapshot.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A record is missing, there twice, or of another process.
    #[error("the monitor's profile records: {what}")]
    Records {
        /// What is wrong.
        what: String,
    },
}

/// Runs one turn; the snapshot is left at `snapshot`.
///
/// # Errors
/// Any part fails; processes that were started are gone.
pub fn run_turn(
    request: &LifecycleRequest,
    snapshot: &Path,
) -> Result<LifecycleSample, LifecycleError> {
    let source = capture_guest(request, snapshot)?;
    let restored = restore_guest(request, snapshot)?;
    let proof = compare(&source, &restored)?;
    Ok(LifecycleSample {
        cold_start: source.ready,
        generation: generation(&source.records, source.pid)?,
        restore: restored.ready,
        teardown: restored.teardown,
        cold_start_peak_rss_bytes: source.peak_rss_bytes,
        restore_peak_rss_bytes: restored.peak_rss_bytes,
        source_records: source.records,
        restore_records: restored.records,
        proof,
    })
}

/// One process's part of a turn.
struct Part {
    pid: u32,
    ready: Duration,
    peak_rss_bytes: Option<u64>,
    nonce: String,
    count: u64,
    checksum: String,
    teardown: Duration,
    records: Vec<ParsedRecord>,
}

fn capture_guest(request: &LifecycleRequest, snapshot: &Path) -> Result<Part, LifecycleError> {
    let arguments = request.run_arguments(Some(snapshot));
    observe(
        request,
        "cold start and capture",
        &arguments,
        "PROBE-READY",
        "s",
    )
}

fn restore_guest(request: &LifecycleRequest, snapshot: &Path) -> Result<Part, LifecycleError> {
    let arguments = request.restore_arguments(snapshot);
    observe(request, "restore", &arguments, "PROBE-RESTORED", "x0")
}

/// Starts a monitor, waits for the guest's `marker`, has it verify its RAM, then sends `last`.
fn observe(
    request: &LifecycleRequest,
    stage: &'static str,
    arguments: &[OsString],
    marker: &str,
    last: &str,
) -> Result<Part, LifecycleError> {
    let failed = |source| LifecycleError::Monitor { stage, source };
    let mut monitor = Monitor::start(&request.program, arguments, request.limit).map_err(failed)?;
    let pid = monitor.pid();
    let ready = monitor.wait_for_line(marker).map_err(failed)?;
    let peak_rss_bytes = ready.peak_rss_bytes;
    monitor.send_line("v").map_err(failed)?;
    let verified = monitor.wait_for_line("PROBE-VERIFY ok").map_err(failed)?;
    let last_line_sent = std::time::Instant::now();
    monitor.send_line(last).map_err(failed)?;
    let ended = monitor.wait_for_end(0).map_err(failed)?;
    let field = |line: &str, name: &'static str| {
        guest_field(line, name).ok_or_else(|| LifecycleError::Field {
            stage,
            line: line.to_owned(),
            field: name,
        })
    };
    let count = field(&ready.text, "count")?;
    Ok(Part {
        pid,
        ready: ready.elapsed,
        peak_rss_bytes,
        nonce: field(&ready.text, "nonce")?,
        count: count.parse().map_err(|_| LifecycleError::Field {
            stage,
            line: ready.text.clone(),
            field: "numeric count",
        })?,
        checksum: field(&verified.text, "checksum")?,
        teardown: last_line_sent.elapsed(),
        records: ended.records,
    })
}

/// A duration in milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The value of `name=value` in a guest's line.
pub fn guest_field(line: &str, name: &str) -> Option<String> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value.to_owned())
}

fn compare(source: &Part, restored: &Part) -> Result<Proof, LifecycleError> {
    for (what, before, after) in [
        ("the nonce", &source.nonce, &restored.nonce),
        ("the RAM checksum", &source.checksum, &restored.checksum),
    ] {
        if before != after {
            return Err(LifecycleError::NotTheSame {
                what,
                before: before.clone(),
                after: after.clone(),
            });
        }
    }
    if restored.count <= source.count {
        return Err(LifecycleError::NotTheSame {
            what: "the guest's counter",
            before: source.count.to_string(),
            after: restored.count.to_string(),
        });
    }
    Ok(Proof {
        nonce: restored.nonce.clone(),
        checksum: restored.checksum.clone(),
        count: (source.count, restored.count),
    })
}

/// Snapshot generation from the records of a capture: from the start of `input_gate` to the end
/// of `publication_commit`.
///
/// # Errors
/// A boundary record is missing, there twice, of another process, or out of order.
pub fn generation(records: &[ParsedRecord], pid: u32) -> Result<Duration, LifecycleError> {
    let wrong = |what: String| LifecycleError::Records { what };
    let boundary = |phase: &str| {
        let mut found = records
            .iter()
            .filter(|record| record.operation == "capture" && record.phase == phase);
        let record = found.next().ok_or_else(|| wrong(format!("no {phase}")))?;
        if found.next().is_some() {
            return Err(wrong(format!("{phase} is there twice")));
        }
        if record.pid != pid {
            return Err(wrong(format!("{phase} is of process {}", record.pid)));
        }
        Ok(record)
    };
    let gate = boundary("input_gate")?;
    let commit = boundary("publication_commit")?;
    let order = || wrong("input_gate and publication_commit are out of order".to_owned());
    let begin = gate.end.checked_sub(gate.duration).ok_or_else(order)?;
    let commit_begin = commit.end.checked_sub(commit.duration).ok_or_else(order)?;
    if commit_begin < gate.end {
        return Err(order());
    }
    Ok(commit.end - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: &str, duration_ns: u64, end_ns: u64) -> ParsedRecord {
        ParsedRecord {
            operation: "capture".to_owned(),
            phase: phase.to_owned(),
            exclusive: true,
            duration: Duration::from_nanos(duration_ns),
            end: Duration::from_nanos(end_ns),
            pid: 7,
            other: Vec::new(),
        }
    }

    #[test]
    fn generation_spans_from_gate_start_to_commit_end() {
        let records = [
            record("input_gate", 10, 110),
            record("publication_commit", 20, 400),
        ];
        let generation = generation(&records, 7).expect("both boundaries");
        assert_eq!(generation, Duration::from_nanos(300));
    }

    #[test]
    fn doubtful_boundaries_are_errors() {
        let gate = record("input_gate", 10, 110);
        let commit = record("publication_commit", 20, 400);
        let early = record("publication_commit", 20, 120);
        let other_operation = ParsedRecord {
            operation: "restore".to_owned(),
            ..gate.clone()
        };
        for (records, pid, part) in [
            (vec![gate.clone()], 7, "no publication_commit"),
            (vec![other_operation, commit.clone()], 7, "no input_gate"),
            (vec![gate.clone(), gate.clone(), commit.clone()], 7, "twice"),
            (vec![gate.clone(), commit.clone()], 8, "of process 7"),
            (vec![gate, early], 7, "out of order"),
        ] {
            let text = generation(&records, pid).expect_err("doubtful").to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn guest_fields_are_found_by_name() {
        let line = "PROBE-READY nonce=00ff count=3";
        assert_eq!(guest_field(line, "nonce").as_deref(), Some("00ff"));
        assert_eq!(guest_field(line, "count").as_deref(), Some("3"));
        assert_eq!(guest_field(line, "on"), None);
    }
}
