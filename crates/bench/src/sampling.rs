//! One sample: one fresh process, observed from its creation to its end.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use nvx_profile::ParsedRecord;

use crate::lifecycle::{LifecycleError, LifecycleRequest, generation, milliseconds};
use crate::monitor::{Ended, Monitor, MonitorError};
use crate::result::{CaptureSample, PhaseRecord, RawSample, StartSample, TEARDOWN_TIMEOUT_SECONDS};

/// What a started probe guest prints when it is ready.
pub const READY_MARKER: &str = "PROBE-READY";
/// What a restored probe guest prints.
pub const RESTORED_MARKER: &str = "PROBE-RESTORED";
/// How often a resident set is looked at until it is seen: once, and three times more.
const MAX_RSS_ATTEMPTS: u32 = 4;

/// Takes samples of one build.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// What is run, and where.
    pub request: LifecycleRequest,
    /// Moments are told relative to this one.
    pub began: Instant,
}

/// How a guest's exit is asked for.
enum Exit {
    /// Once the marker is there.
    AfterMarker,
    /// Before the guest runs: the request waits in its input.
    Queued,
}

impl Sampler {
    /// Starts a guest, waits for it to be ready, and has it end.
    ///
    /// # Errors
    /// The guest does not get ready or does not end well.
    pub fn cold_start(&self) -> Result<StartSample, LifecycleError> {
        let arguments = self.request.run_arguments(None);
        self.start("cold start", &arguments, READY_MARKER, &Exit::AfterMarker)
    }

    /// Restores a snapshot, waits for its guest, which ends by itself.
    ///
    /// # Errors
    /// The guest does not come back or does not end well.
    pub fn restore(&self, snapshot: &Path) -> Result<StartSample, LifecycleError> {
        let arguments = self.request.restore_arguments(snapshot);
        self.start("restore", &arguments, RESTORED_MARKER, &Exit::Queued)
    }

    /// Starts a guest and has it ask for a snapshot at `snapshot`.
    ///
    /// # Errors
    /// The guest does not get ready, is not captured, or the records of it are doubtful.
    pub fn capture(&self, snapshot: &Path) -> Result<CaptureSample, LifecycleError> {
        let stage = "capture";
        let arguments = self.request.run_arguments(Some(snapshot));
        let mut attempt = 0;
        loop {
            let begin = self.began.elapsed();
            let mut monitor = self.spawn(stage, &arguments)?;
            let pid = monitor.pid();
            let failed = |source| LifecycleError::Monitor { stage, source };
            let ready = monitor.wait_for_line(READY_MARKER).map_err(failed)?;
            monitor.send_line("s").map_err(failed)?;
            // The guest's own clock stands still meanwhile, so the request's moment is the observer's.
            let requested = self
                .began
                .elapsed()
                .saturating_sub(begin)
                .max(ready.elapsed);
            let ended = monitor.wait_for_end(0).map_err(failed)?;
            check_pids(&ended.records, pid)?;
            let generation = generation(&ended.records, pid)?;
            let seen = ended.capture_seen.ok_or_else(|| LifecycleError::Records {
                what: "none arrived before the monitor's end".to_owned(),
            })?;
            if seen.peak_rss_bytes.is_none() && attempt + 1 < MAX_RSS_ATTEMPTS {
                remove_snapshot(snapshot)?;
                attempt += 1;
                continue;
            }
            return Ok(CaptureSample {
                generation_ms: milliseconds(generation),
                request_to_publication_ms: milliseconds(seen.elapsed.saturating_sub(requested)),
                post_publication_exit_ms: milliseconds(ended.elapsed.saturating_sub(seen.elapsed)),
                peak_rss_bytes: seen.peak_rss_bytes,
                remeasured: attempt,
                raw: RawSample {
                    pid,
                    records: ended.records.iter().map(PhaseRecord::of_monitor).collect(),
                    generation_duration_ns: u64::try_from(generation.as_nanos()).ok(),
                    writeback: writeback_of(snapshot),
                    begin_ms: milliseconds(begin),
                    end_ms: milliseconds(self.began.elapsed()),
                },
            });
        }
    }

    fn start(
        &self,
        stage: &'static str,
        arguments: &[OsString],
        marker: &str,
        exit: &Exit,
    ) -> Result<StartSample, LifecycleError> {
        let mut sample = self.start_once(stage, arguments, marker, exit)?;
        // A guest whose exit is queued may be gone before it is looked at. A repeat asks for the exit later,
        // so nothing but the resident set is taken from it.
        while sample.peak_rss_bytes.is_none() && sample.remeasured + 1 < MAX_RSS_ATTEMPTS {
            let repeat = self.start_once(stage, arguments, marker, &Exit::AfterMarker)?;
            sample.peak_rss_bytes = repeat.peak_rss_bytes;
            sample.remeasured += 1;
        }
        Ok(sample)
    }

    fn start_once(
        &self,
        stage: &'static str,
        arguments: &[OsString],
        marker: &str,
        exit: &Exit,
    ) -> Result<StartSample, LifecycleError> {
        let begin = self.began.elapsed();
        let failed = |source| LifecycleError::Monitor { stage, source };
        let mut monitor = self.spawn(stage, arguments)?;
        let pid = monitor.pid();
        if matches!(exit, Exit::Queued) {
            monitor.send_line("x0").map_err(failed)?;
        }
        let line = monitor.wait_for_line(marker).map_err(failed)?;
        let from = if matches!(exit, Exit::AfterMarker) {
            let now = self.began.elapsed().saturating_sub(begin);
            monitor.send_line("x0").map_err(failed)?;
            now
        } else {
            line.elapsed
        };
        monitor.set_limit(Duration::from_secs_f64(TEARDOWN_TIMEOUT_SECONDS));
        let ended = match monitor.wait_for_end(0) {
            Ok(ended) => Some(ended),
            Err(MonitorError::DoesNotEnd { .. }) => None,
            Err(source) => return Err(failed(source)),
        };
        let records = match &ended {
            Some(Ended { records, .. }) => {
                check_pids(records, pid)?;
                observed(records, line.elapsed, pid)
            }
            None => Vec::new(),
        };
        Ok(StartSample {
            elapsed_ms: milliseconds(line.elapsed),
            teardown_ms: ended.map(|ended| milliseconds(ended.elapsed.saturating_sub(from))),
            peak_rss_bytes: line.peak_rss_bytes,
            remeasured: 0,
            raw: RawSample {
                pid,
                records,
                generation_duration_ns: None,
                writeback: None,
                begin_ms: milliseconds(begin),
                end_ms: milliseconds(self.began.elapsed()),
            },
        })
    }

    fn spawn(
        &self,
        stage: &'static str,
        arguments: &[OsString],
    ) -> Result<Monitor, LifecycleError> {
        Monitor::start(&self.request.program, arguments, self.request.limit)
            .map_err(|source| LifecycleError::Monitor { stage, source })
    }
}

/// What the snapshot's manifest says of how guest RAM was written; `None` if it cannot be read, as of
/// another program's snapshot.
fn writeback_of(snapshot: &Path) -> Option<String> {
    let manifest = std::fs::read(snapshot.join("manifest.json")).ok()?;
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).ok()?;
    let strategy = manifest.pointer("/capture/strategy")?;
    strategy.as_str().map(str::to_owned)
}

fn remove_snapshot(snapshot: &Path) -> Result<(), LifecycleError> {
    std::fs::remove_dir_all(snapshot).map_err(|source| LifecycleError::Remove {
        path: snapshot.to_owned(),
        source,
    })
}

fn check_pids(records: &[ParsedRecord], pid: u32) -> Result<(), LifecycleError> {
    match records.iter().find(|record| record.pid != pid) {
        Some(record) => Err(LifecycleError::Records {
            what: format!(
                "{}.{} is of process {}, the monitor is {pid}",
                record.operation, record.phase, record.pid
            ),
        }),
        None => Ok(()),
    }
}

/// The monitor's records and what they leave of the time to the marker.
///
/// `process_startup` is what the process did on its own clock before the first record.
/// `resume_to_readiness` is the rest up to the marker after the last phase before it: mostly the guest,
/// and the creation of the process, which its own clock cannot see.
fn observed(records: &[ParsedRecord], ready: Duration, pid: u32) -> Vec<PhaseRecord> {
    let before: Vec<&ParsedRecord> = records
        .iter()
        .filter(|record| record.exclusive && record.end <= ready)
        .collect();
    let mut all = Vec::with_capacity(records.len() + 3);
    let operation = before
        .first()
        .map_or("startup", |record| record.operation.as_str());
    if let Some(begin) = before
        .first()
        .and_then(|first| first.end.checked_sub(first.duration))
    {
        all.push(PhaseRecord {
            process_elapsed_ns: u64::try_from(begin.as_nanos()).ok(),
            source: crate::result::MONITOR_SOURCE.to_owned(),
            ..PhaseRecord::of_observer("startup", "process_startup", true, begin, pid)
        });
    }
    all.extend(records.iter().map(PhaseRecord::of_monitor));
    let last = before.last().map_or(Duration::ZERO, |record| record.end);
    all.push(PhaseRecord::of_observer(
        operation,
        "resume_to_readiness",
        true,
        ready.saturating_sub(last),
        pid,
    ));
    all.push(PhaseRecord::of_observer(
        operation,
        "process_launch_to_readiness",
        false,
        ready,
        pid,
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: &str, duration_ms: u64, end_ms: u64) -> ParsedRecord {
        ParsedRecord {
            operation: "restore".to_owned(),
            phase: phase.to_owned(),
            exclusive: true,
            duration: Duration::from_millis(duration_ms),
            end: Duration::from_millis(end_ms),
            pid: 7,
            other: Vec::new(),
        }
    }

    #[test]
    fn observer_phases_fill_the_time_to_the_marker() {
        let records = [
            record("artifact_open", 2, 5),
            record("guest_resume", 3, 8),
            record("late", 1, 50),
        ];
        let all = observed(&records, Duration::from_millis(20), 7);
        let exclusive: u64 = all
            .iter()
            .filter(|record| record.exclusive && record.phase != "late")
            .map(|record| record.duration_ns)
            .sum();
        assert_eq!(exclusive, 20_000_000);
        let names: Vec<&str> = all.iter().map(|record| record.phase.as_str()).collect();
        assert_eq!(names[0], "process_startup");
        assert_eq!(
            names[4..],
            ["resume_to_readiness", "process_launch_to_readiness"]
        );
    }

    #[test]
    fn records_of_another_process_are_refused() {
        let error = check_pids(&[record("a", 1, 1)], 8)
            .expect_err("foreign")
            .to_string();
        assert!(
            error.contains("process 7") && error.contains("monitor is 8"),
            "{error}"
        );
        assert!(check_pids(&[record("a", 1, 1)], 7).is_ok());
    }

    // A shell script stands in for the monitor.
    #[cfg(unix)]
    #[test]
    fn a_resident_set_that_was_missed_is_taken_from_a_process_that_waits() {
        use std::os::unix::fs::PermissionsExt as _;

        use nvx_memory::{RamFileChoice, WritebackChoice};
        use nvx_probe_guest::ProbeParams;

        use crate::guest::Guest;

        let directory = tempfile::tempdir().expect("space");
        let program = directory.path().join("monitor");
        // The first time it is gone before its line comes; from then on its exit has to be asked for.
        let script = format!(
            "#!/bin/sh\nif mkdir {}; then (sleep 0.1; echo {RESTORED_MARKER}) & exit 0; fi\n\
             echo {RESTORED_MARKER}; read line; [ \"$line\" = x0 ]\n",
            directory
                .path()
                .join("was here")
                .display()
                .to_string()
                .replace(' ', "\\ "),
        );
        std::fs::write(&program, script).expect("space");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("own file");
        let sampler = Sampler {
            request: LifecycleRequest {
                program,
                backend: "kvm".to_owned(),
                memory_bytes: 1 << 27,
                vcpus: 1,
                guest: Guest::Probe(ProbeParams::default()),
                scratch: None,
                ram_file: RamFileChoice::Auto,
                writeback: WritebackChoice::Auto,
                limit: Duration::from_secs(20),
            },
            began: Instant::now(),
        };
        let sample = sampler.restore(directory.path()).expect("a sample");
        assert_eq!(sample.remeasured, 1);
        assert!(sample.peak_rss_bytes > Some(64 << 10));
        assert!(
            sample.elapsed_ms >= 100.0,
            "the time is the first process's"
        );
    }
}
