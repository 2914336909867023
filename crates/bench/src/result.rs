//! The result of a lifecycle run: what was run, where, and every raw sample.
//!
//! Section and field names are those of the public lifecycle format where the meaning is the same; a
//! result of ours says so by `schema` and `schema_version`. Everything that is computed from samples is
//! computed in one place ([`TimeSeries::of`] and its siblings), so that a reader can recompute it.
//! Times are milliseconds, sizes bytes, unless the name says otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nvx_profile::ParsedRecord;
use serde::{Deserialize, Serialize};

use crate::host::HostFingerprint;
use crate::statistics::{median, nearest_rank, sigma};
use crate::storage::StorageTelemetry;

/// The value of `schema`.
pub const LIFECYCLE_SCHEMA: &str = "nvx.lifecycle";
/// The value of `schema_version`.
pub const LIFECYCLE_SCHEMA_VERSION: u32 = 1;
/// The value of `controls.suite`.
pub const LIFECYCLE_SUITE: &str = "lifecycle";
/// The value of `controls.snapshot_capture_timing`: generation is measured on the monitor's own clock.
pub const CAPTURE_TIMING: &str = "nvx-input-gate-to-publication";
/// How long a guest's exit may take before it counts as timed out, in seconds.
pub const TEARDOWN_TIMEOUT_SECONDS: f64 = 15.0;

/// A whole result document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifecycleResult {
    /// [`LIFECYCLE_SCHEMA`].
    pub schema: String,
    /// [`LIFECYCLE_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When the run began, ISO 8601 in UTC.
    pub timestamp_utc: String,
    /// What was asked for.
    pub controls: Controls,
    /// The host that it ran on.
    pub host: HostFingerprint,
    /// The files that were run.
    pub build: BuildIdentity,
    /// Cold start, by back end.
    pub backends: BTreeMap<String, StartResult>,
    /// Snapshot generation, by back end.
    pub snapshot_capture: BTreeMap<String, CaptureResult>,
    /// Restore, by back end.
    pub snapshot_restore: BTreeMap<String, StartResult>,
    /// Restores of further sizes and page-cache states, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restore_matrix: Vec<RestoreCell>,
    /// What the scratch volume's device did meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_telemetry: Option<StorageTelemetry>,
    /// What the reader should know, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What was asked for, and what the result may be used for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controls {
    /// [`LIFECYCLE_SUITE`].
    pub suite: String,
    /// Whether every sample was taken; an interrupted run says false and can be resumed.
    pub complete: bool,
    /// Whether the validator accepted the result.
    pub validated: bool,
    /// Whether something disturbed the run on purpose; such a result is never accepted.
    pub disturbed: bool,
    /// What disturbed it, as `--disturb` takes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<String>,
    /// Whether guest code was emulated, or it could not be told that it was not.
    pub emulated: bool,
    /// The measured build's commit, if it was told.
    pub commit: Option<String>,
    /// Samples of each suite that were taken first and thrown away.
    pub warmups: u32,
    /// Samples of each suite that count.
    pub runs: u32,
    /// Guest RAM.
    pub memory_mib: u64,
    /// `<os>-<backend>-<bare-metal|virtual-machine|emulated>`.
    pub platform: String,
    /// The back end.
    pub backend: String,
    /// Version of the microVM ABI.
    pub microvm_abi_version: u32,
    /// How many vCPUs.
    pub processors: u32,
    /// The guest: `probe` or `linux`.
    pub guest: String,
    /// What the probe guest was asked to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub probe: String,
    /// A Linux guest's kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// Its initramfs, if it was not packed for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// Its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_line: Option<String>,
    /// What was packed for it, as arguments of `nvx guest pack`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<String>,
    /// How a guest ends: `guest-exit`.
    pub teardown_mode: String,
    /// [`TEARDOWN_TIMEOUT_SECONDS`].
    pub teardown_timeout_seconds: f64,
    /// Bounds every other wait, in seconds.
    pub timeout_seconds: u64,
    /// What a started guest prints when it is ready.
    pub marker: String,
    /// What a restored guest prints.
    pub restore_marker: String,
    /// [`CAPTURE_TIMING`].
    pub snapshot_capture_timing: String,
    /// Whether the exit request waits in the restored guest's input already.
    pub snapshot_restore_guest_exit_prequeued: bool,
    /// Whether phase records are kept.
    pub snapshot_profile: bool,
    /// Page cache of the snapshot at each restore: `warm`, `cold` or `both`.
    pub cache_state: String,
    /// Where RAM files and snapshots lived.
    pub scratch_directory: PathBuf,
    /// Which RAM file was asked for, as `--ram-file` takes it.
    #[serde(default = "auto", skip_serializing_if = "is_auto")]
    pub ram_file: String,
    /// Which writeback was asked for, as `--writeback` takes it.
    #[serde(default = "auto", skip_serializing_if = "is_auto")]
    pub writeback: String,
}

/// What is asked for if nothing is said.
fn auto() -> String {
    "auto".to_owned()
}

fn is_auto(choice: &String) -> bool {
    choice == "auto"
}

/// Which files were run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildIdentity {
    /// The monitor.
    pub program: PathBuf,
    /// BLAKE3 of the monitor's file, hexadecimal.
    pub program_blake3: String,
    /// BLAKE3 of the guest's kernel image, hexadecimal; of the probe guest it is the ELF file.
    pub kernel_blake3: String,
    /// BLAKE3 of the initramfs, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs_blake3: Option<String>,
}

/// Statistics of a series of milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSeries {
    /// Every sample in the order in which they were taken.
    pub samples_ms: Vec<f64>,
    /// The median; absent where there is no sample.
    pub p50_ms: Option<f64>,
    /// Nearest rank.
    pub p25_ms: Option<f64>,
    /// Nearest rank.
    pub p95_ms: Option<f64>,
    /// The smallest.
    pub min_ms: Option<f64>,
    /// The largest.
    pub max_ms: Option<f64>,
    /// Standard deviation; absent for fewer than two samples.
    pub sigma_ms: Option<f64>,
}

impl TimeSeries {
    /// Describes samples.
    pub fn of(samples_ms: Vec<f64>) -> Self {
        Self {
            p50_ms: median(&samples_ms),
            p25_ms: nearest_rank(&samples_ms, 0.25),
            p95_ms: nearest_rank(&samples_ms, 0.95),
            min_ms: nearest_rank(&samples_ms, 0.0),
            max_ms: nearest_rank(&samples_ms, 1.0),
            sigma_ms: sigma(&samples_ms),
            samples_ms,
        }
    }
}

/// Peak resident sets of a series of processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeakRss {
    /// One per sample.
    pub peak_rss_samples_bytes: Vec<u64>,
    /// The median, its half cut off.
    pub peak_rss_p50_bytes: Option<u64>,
    /// The smallest.
    pub peak_rss_min_bytes: Option<u64>,
    /// The largest.
    pub peak_rss_max_bytes: Option<u64>,
    /// How often a sample was taken again because the process was gone before it could be read.
    pub peak_rss_remeasured_count: u32,
}

impl PeakRss {
    /// Describes samples.
    pub fn of(samples_bytes: Vec<u64>, remeasured: u32) -> Self {
        let as_floats: Vec<f64> = samples_bytes.iter().map(|bytes| *bytes as f64).collect();
        Self {
            peak_rss_p50_bytes: median(&as_floats).map(|bytes| bytes as u64),
            peak_rss_min_bytes: samples_bytes.iter().min().copied(),
            peak_rss_max_bytes: samples_bytes.iter().max().copied(),
            peak_rss_samples_bytes: samples_bytes,
            peak_rss_remeasured_count: remeasured,
        }
    }
}

/// How long guests took to end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Teardown {
    /// One per sample; none where it timed out.
    pub teardown_samples_ms: Vec<Option<f64>>,
    /// Those that ended.
    pub teardown_completed_samples_ms: Vec<f64>,
    /// How many timed out.
    pub teardown_timeout_count: u32,
    /// [`TEARDOWN_TIMEOUT_SECONDS`].
    pub teardown_timeout_seconds: f64,
    /// The median of those that ended.
    pub teardown_p50_ms: Option<f64>,
    /// Nearest rank.
    pub teardown_p95_ms: Option<f64>,
    /// The smallest.
    pub teardown_min_ms: Option<f64>,
    /// The largest.
    pub teardown_max_ms: Option<f64>,
}

impl Teardown {
    /// Describes samples.
    pub fn of(samples_ms: Vec<Option<f64>>) -> Self {
        let completed: Vec<f64> = samples_ms.iter().flatten().copied().collect();
        Self {
            teardown_timeout_count: (samples_ms.len() - completed.len()) as u32,
            teardown_timeout_seconds: TEARDOWN_TIMEOUT_SECONDS,
            teardown_p50_ms: median(&completed),
            teardown_p95_ms: nearest_rank(&completed, 0.95),
            teardown_min_ms: nearest_rank(&completed, 0.0),
            teardown_max_ms: nearest_rank(&completed, 1.0),
            teardown_samples_ms: samples_ms,
            teardown_completed_samples_ms: completed,
        }
    }
}

/// Cold starts or restores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartResult {
    /// Just before the process's creation to the guest's marker.
    #[serde(flatten)]
    pub time: TimeSeries,
    /// Resident sets at the marker.
    #[serde(flatten)]
    pub peak_rss: PeakRss,
    /// Exit request (cold start) or marker (restore) to the process's end.
    #[serde(flatten)]
    pub teardown: Teardown,
    /// Phases.
    pub profile: ProfileSection,
}

/// Captures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureResult {
    /// Generation: start of the input gate to the end of the commit, on the monitor's clock.
    #[serde(flatten)]
    pub time: TimeSeries,
    /// Resident sets when the capture's records arrived.
    #[serde(flatten)]
    pub peak_rss: PeakRss,
    /// The capture request on the console to the first sight of its records; a diagnostic.
    pub request_to_publication_samples_ms: Vec<f64>,
    /// The median of it.
    pub request_to_publication_p50_ms: Option<f64>,
    /// First sight of the records to the process's end; a diagnostic.
    pub post_publication_exit_samples_ms: Vec<f64>,
    /// The median of it.
    pub post_publication_exit_p50_ms: Option<f64>,
    /// Phases.
    pub profile: ProfileSection,
}

/// Restores of one size with one state of the page cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoreCell {
    /// Guest RAM.
    pub memory_mib: u64,
    /// `warm` or `cold`.
    pub cache_state: String,
    /// The restores.
    pub result: StartResult,
}

/// The phases of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileSection {
    /// Version of this section.
    pub schema_version: u32,
    /// One per sample.
    pub raw_samples: Vec<RawSample>,
    /// Statistics by `operation.phase`.
    pub phases: BTreeMap<String, PhaseSeries>,
}

/// The records of one sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RawSample {
    /// The process that was observed.
    pub pid: u32,
    /// Its records and the observer's, in the order of time as far as it is known.
    pub records: Vec<PhaseRecord>,
    /// Of a capture: generation in ns, from the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_duration_ns: Option<u64>,
    /// Of a capture: how guest RAM was written, and why so, as the snapshot's manifest has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writeback: Option<String>,
    /// When the sample began, in ms since the start of the run.
    pub begin_ms: f64,
    /// When it ended.
    pub end_ms: f64,
}

/// One phase of one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// The operation.
    pub operation: String,
    /// The phase.
    pub phase: String,
    /// Exclusive phases do not overlap.
    pub exclusive: bool,
    /// How long.
    pub duration_ns: u64,
    /// When it ended on the monitor's clock; absent in the observer's records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_elapsed_ns: Option<u64>,
    /// The process.
    pub pid: u32,
    /// `nvx` for the monitor's records, `benchmark_observer` for ours.
    pub source: String,
    /// Counters and whatever else the record held.
    #[serde(flatten)]
    pub other: BTreeMap<String, String>,
}

/// `source` of a record of the monitor.
pub const MONITOR_SOURCE: &str = "nvx";
/// `source` of a record that was made from outside.
pub const OBSERVER_SOURCE: &str = "benchmark_observer";

impl PhaseRecord {
    /// A record as the monitor wrote it.
    pub fn of_monitor(record: &ParsedRecord) -> Self {
        Self {
            operation: record.operation.clone(),
            phase: record.phase.clone(),
            exclusive: record.exclusive,
            duration_ns: nanoseconds(record.duration),
            process_elapsed_ns: Some(nanoseconds(record.end)),
            pid: record.pid,
            source: MONITOR_SOURCE.to_owned(),
            other: record.other.iter().cloned().collect(),
        }
    }

    /// A phase that was observed from outside.
    pub fn of_observer(
        operation: &str,
        phase: &str,
        exclusive: bool,
        duration: std::time::Duration,
        pid: u32,
    ) -> Self {
        Self {
            operation: operation.to_owned(),
            phase: phase.to_owned(),
            exclusive,
            duration_ns: nanoseconds(duration),
            process_elapsed_ns: None,
            pid,
            source: OBSERVER_SOURCE.to_owned(),
            other: BTreeMap::new(),
        }
    }
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Statistics of one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeries {
    /// Exclusive phases do not overlap.
    pub exclusive: bool,
    /// Whose record it is.
    pub source: String,
    /// The durations.
    #[serde(flatten)]
    pub time: TimeSeries,
}

impl ProfileSection {
    /// The phases of samples.
    pub fn of(raw_samples: Vec<RawSample>) -> Self {
        type Found<'a> = (bool, &'a str, Vec<f64>);
        let mut found: BTreeMap<String, Found<'_>> = BTreeMap::new();
        for record in raw_samples.iter().flat_map(|sample| &sample.records) {
            let name = format!("{}.{}", record.operation, record.phase);
            let entry = found
                .entry(name)
                .or_insert((record.exclusive, &record.source, Vec::new()));
            entry.2.push(record.duration_ns as f64 / 1e6);
        }
        let phases = found
            .into_iter()
            .map(|(name, (exclusive, source, samples_ms))| {
                let source = source.to_owned();
                let time = TimeSeries::of(samples_ms);
                (
                    name,
                    PhaseSeries {
                        exclusive,
                        source,
                        time,
                    },
                )
            })
            .collect();
        Self {
            schema_version: 1,
            raw_samples,
            phases,
        }
    }
}

impl StartResult {
    /// Puts series together from what each sample gave.
    pub fn of(samples: Vec<StartSample>) -> Self {
        let remeasured = samples.iter().map(|sample| sample.remeasured).sum();
        let rss = samples
            .iter()
            .filter_map(|sample| sample.peak_rss_bytes)
            .collect();
        Self {
            time: TimeSeries::of(samples.iter().map(|sample| sample.elapsed_ms).collect()),
            peak_rss: PeakRss::of(rss, remeasured),
            teardown: Teardown::of(samples.iter().map(|sample| sample.teardown_ms).collect()),
            profile: ProfileSection::of(samples.into_iter().map(|sample| sample.raw).collect()),
        }
    }

    /// The samples, as [`StartResult::of`] took them, for a run that goes on.
    pub fn samples(&self) -> Vec<StartSample> {
        let raw = &self.profile.raw_samples;
        (0..self.time.samples_ms.len().min(raw.len()))
            .map(|index| StartSample {
                elapsed_ms: self.time.samples_ms[index],
                teardown_ms: self
                    .teardown
                    .teardown_samples_ms
                    .get(index)
                    .copied()
                    .flatten(),
                peak_rss_bytes: self.peak_rss.peak_rss_samples_bytes.get(index).copied(),
                remeasured: match index {
                    0 => self.peak_rss.peak_rss_remeasured_count,
                    _ => 0,
                },
                raw: raw[index].clone(),
            })
            .collect()
    }
}

/// What one cold start or restore gave.
#[derive(Clone, Debug, PartialEq)]
pub struct StartSample {
    /// Process creation to the marker.
    pub elapsed_ms: f64,
    /// How long the guest took to end; none: it timed out.
    pub teardown_ms: Option<f64>,
    /// Resident set at the marker; none where the system does not tell.
    pub peak_rss_bytes: Option<u64>,
    /// Attempts that were thrown away because the resident set could not be read any more.
    pub remeasured: u32,
    /// Phases.
    pub raw: RawSample,
}

/// What one capture gave.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptureSample {
    /// Generation.
    pub generation_ms: f64,
    /// The capture request to the first sight of its records.
    pub request_to_publication_ms: f64,
    /// From there to the process's end.
    pub post_publication_exit_ms: f64,
    /// Resident set when the records arrived.
    pub peak_rss_bytes: Option<u64>,
    /// Attempts that were thrown away because the resident set could not be read any more.
    pub remeasured: u32,
    /// Phases.
    pub raw: RawSample,
}

impl CaptureResult {
    /// Puts series together from what each sample gave.
    pub fn of(samples: Vec<CaptureSample>) -> Self {
        let remeasured = samples.iter().map(|sample| sample.remeasured).sum();
        let rss = samples
            .iter()
            .filter_map(|sample| sample.peak_rss_bytes)
            .collect();
        let series =
            |of: fn(&CaptureSample) -> f64| -> Vec<f64> { samples.iter().map(of).collect() };
        let request = series(|sample| sample.request_to_publication_ms);
        let exit = series(|sample| sample.post_publication_exit_ms);
        Self {
            time: TimeSeries::of(series(|sample| sample.generation_ms)),
            peak_rss: PeakRss::of(rss, remeasured),
            request_to_publication_p50_ms: median(&request),
            request_to_publication_samples_ms: request,
            post_publication_exit_p50_ms: median(&exit),
            post_publication_exit_samples_ms: exit,
            profile: ProfileSection::of(samples.into_iter().map(|sample| sample.raw).collect()),
        }
    }

    /// The samples, as [`CaptureResult::of`] took them, for a run that goes on.
    pub fn samples(&self) -> Vec<CaptureSample> {
        let raw = &self.profile.raw_samples;
        let at = |list: &[f64], index: usize| list.get(index).copied().unwrap_or_default();
        (0..self.time.samples_ms.len().min(raw.len()))
            .map(|index| CaptureSample {
                generation_ms: self.time.samples_ms[index],
                request_to_publication_ms: at(&self.request_to_publication_samples_ms, index),
                post_publication_exit_ms: at(&self.post_publication_exit_samples_ms, index),
                peak_rss_bytes: self.peak_rss.peak_rss_samples_bytes.get(index).copied(),
                remeasured: match index {
                    0 => self.peak_rss.peak_rss_remeasured_count,
                    _ => 0,
                },
                raw: raw[index].clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(elapsed_ms: f64, teardown_ms: Option<f64>) -> StartSample {
        let record = PhaseRecord::of_observer(
            "restore",
            "resume_to_readiness",
            true,
            std::time::Duration::from_millis(2),
            7,
        );
        StartSample {
            elapsed_ms,
            teardown_ms,
            peak_rss_bytes: Some(1 << 20),
            remeasured: 1,
            raw: RawSample {
                pid: 7,
                records: vec![record],
                ..Default::default()
            },
        }
    }

    #[test]
    fn a_result_goes_through_json_and_back_to_its_samples() {
        let result = StartResult::of(vec![start(3.0, Some(1.0)), start(1.0, None)]);
        assert_eq!(result.teardown.teardown_timeout_count, 1);
        assert_eq!(result.time.p50_ms, Some(2.0));
        assert_eq!(
            result.profile.phases["restore.resume_to_readiness"]
                .time
                .p50_ms,
            Some(2.0)
        );
        let text = serde_json::to_string(&result).expect("JSON");
        let read: StartResult = serde_json::from_str(&text).expect("the same");
        assert_eq!(read, result);
        assert_eq!(StartResult::of(read.samples()), result);
        assert_eq!(StartResult::of(Vec::new()).time.p50_ms, None);
    }

    #[test]
    fn the_median_of_bytes_is_cut_off() {
        let rss = PeakRss::of(vec![1, 2], 0);
        assert_eq!(rss.peak_rss_p50_bytes, Some(1));
        assert_eq!(
            (rss.peak_rss_min_bytes, rss.peak_rss_max_bytes),
            (Some(1), Some(2))
        );
    }
}
