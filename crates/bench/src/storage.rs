//! What the scratch volume's device did while a run lasted.
//!
//! Cumulative counters are read just before and just after each sample; whatever is said of a sample
//! comes from those two readings. A reading every 50 ms serves the picture over time only. Nothing here
//! can fail a run or feeds the validator: what cannot be read is absent.
//!
//! *Other writers* are the device's written bytes minus those that our processes caused. The kernel
//! counts a process's bytes when a page becomes dirty and the device's when it is written, so the
//! difference of the two moments (what the system had dirty before and after) is the error of the
//! estimate, together with the journal's and metadata's writes, which belong to no process.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as os;

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::host::{BlockDevice, open_device};

/// Time between two readings of the time line.
pub const TIME_LINE_INTERVAL: Duration = Duration::from_millis(50);
/// After so many readings (an hour) the time line ends.
const MAX_TIME_LINE: usize = 72_000;
/// Journal and metadata writes that a sample may cause without any process being charged: a few
/// commits of a journal with their blocks, seen to stay below this on ext4.
const METADATA_ALLOWANCE_BYTES: u64 = 4 << 20;

/// Cumulative counters at one moment. Bytes count from the system's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageReading {
    /// Since the start of the run.
    pub elapsed_us: u64,
    /// Bytes read from the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_read_bytes: Option<u64>,
    /// Bytes written to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_written_bytes: Option<u64>,
    /// Milliseconds for which the device had work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_busy_ms: Option<u64>,
    /// Bytes that wait to be written, of the whole system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// Bytes that are being written, of the whole system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writeback_bytes: Option<u64>,
    /// Bytes that this process and the children that it has waited for had written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_written_bytes: Option<u64>,
    /// Microseconds for which some task waited for a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_us: Option<u64>,
}

/// The two readings of one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleStorage {
    /// `cold_start`, `generation` or `restore`.
    pub suite: String,
    /// The sample's index, from 0.
    pub index: u32,
    /// Just before it.
    pub before: StorageReading,
    /// Just after it.
    pub after: StorageReading,
}

/// What others wrote to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherWriters {
    /// The estimate.
    pub bytes: u64,
    /// By how much it may be wrong.
    pub error_bytes: u64,
}

impl OtherWriters {
    /// Whether there were others for certain.
    pub fn is_certain(self) -> bool {
        self.bytes > self.error_bytes
    }
}

impl SampleStorage {
    /// What others wrote to the device during the sample; none where the counters are missing.
    pub fn other_writers(&self) -> Option<OtherWriters> {
        let (before, after) = (&self.before, &self.after);
        let grown =
            |of: fn(&StorageReading) -> Option<u64>| Some(of(after)?.saturating_sub(of(before)?));
        let device = grown(|reading| reading.device_written_bytes)?;
        let own = grown(|reading| reading.own_written_bytes)?;
        let waiting =
            |reading: &StorageReading| Some(reading.dirty_bytes? + reading.writeback_bytes?);
        let waited = waiting(before)?.abs_diff(waiting(after)?);
        Some(OtherWriters {
            bytes: device.saturating_sub(own),
            error_bytes: waited + METADATA_ALLOWANCE_BYTES,
        })
    }
}

/// The storage section of a result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageTelemetry {
    /// Version of this section.
    pub schema_version: u32,
    /// The device below the scratch directory; absent where there is none.
    pub device: Option<String>,
    /// Two readings per sample, in the order of time.
    pub samples: Vec<SampleStorage>,
    /// Interval of the time line.
    pub interval_ms: u64,
    /// One reading per interval, for pictures.
    pub time_line: Vec<StorageReading>,
    /// Whether the run was longer than the time line.
    pub truncated: bool,
    /// How the estimate of other writers is made, and what its error is.
    pub estimate: String,
}

/// The device's work between two moments, as far as the time line shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Throughput {
    /// Bytes written per second.
    BytesPerSecond(f64),
    /// Fewer than two readings lie inside: nothing can be said, and nothing is interpolated.
    TooShort,
}

impl StorageTelemetry {
    /// The readings of one sample.
    pub fn of_sample(&self, suite: &str, index: u32) -> Option<&SampleStorage> {
        self.samples
            .iter()
            .find(|sample| sample.suite == suite && sample.index == index)
    }

    /// The device's write throughput from `begin_us` to `end_us` of the run.
    pub fn throughput(&self, begin_us: u64, end_us: u64) -> Throughput {
        let mut inside = self
            .time_line
            .iter()
            .filter(|reading| (begin_us..=end_us).contains(&reading.elapsed_us));
        let (Some(first), Some(last)) = (inside.next(), inside.next_back()) else {
            return Throughput::TooShort;
        };
        let (Some(from), Some(to)) = (first.device_written_bytes, last.device_written_bytes) else {
            return Throughput::TooShort;
        };
        let seconds = (last.elapsed_us - first.elapsed_us) as f64 / 1e6;
        Throughput::BytesPerSecond(to.saturating_sub(from) as f64 / seconds)
    }
}

/// Reads counters while a run lasts. Dropping it ends the time line.
pub struct StorageWatch {
    device: Option<BlockDevice>,
    began: Instant,
    samples: Vec<SampleStorage>,
    time_line: Option<TimeLine>,
}

/// The thread that reads the time line, and what ends it when dropped.
struct TimeLine {
    stop: Sender<()>,
    /// Gives the readings and whether there would have been more.
    thread: JoinHandle<(Vec<StorageReading>, bool)>,
}

impl StorageWatch {
    /// Begins to watch the device below `directory`.
    pub fn start(directory: &Path) -> Self {
        let began = Instant::now();
        let device = open_device(directory);
        let (stop, stopped) = channel();
        let watched = device.clone();
        let thread = std::thread::spawn(move || {
            let mut readings = Vec::new();
            loop {
                if readings.len() == MAX_TIME_LINE {
                    return (readings, true);
                }
                readings.push(os::read(watched.as_ref(), began));
                match stopped.recv_timeout(TIME_LINE_INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return (readings, false),
                }
            }
        });
        Self {
            device,
            began,
            samples: Vec::new(),
            time_line: Some(TimeLine { stop, thread }),
        }
    }

    /// When the run began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The counters now.
    pub fn read(&self) -> StorageReading {
        os::read(self.device.as_ref(), self.began)
    }

    /// Keeps a sample that began with the reading `before` and has just ended.
    pub fn record(&mut self, suite: &str, index: u32, before: StorageReading) {
        let after = self.read();
        self.samples.push(SampleStorage {
            suite: suite.to_owned(),
            index,
            before,
            after,
        });
    }

    /// What has been seen of samples so far, without the time line.
    pub fn so_far(&self) -> StorageTelemetry {
        StorageTelemetry {
            schema_version: 1,
            device: self.device.as_ref().map(|device| device.name.clone()),
            samples: self.samples.clone(),
            interval_ms: TIME_LINE_INTERVAL.as_millis() as u64,
            time_line: Vec::new(),
            truncated: false,
            estimate: format!(
                "other writers = bytes written to the device - bytes that our processes made dirty; \
                 the error is the change of dirty and writeback bytes plus {} MiB for journal and \
                 metadata",
                METADATA_ALLOWANCE_BYTES >> 20
            ),
        }
    }

    /// Ends the watch and tells everything.
    pub fn finish(mut self) -> StorageTelemetry {
        let mut telemetry = self.so_far();
        if let Some(TimeLine { stop, thread }) = self.time_line.take() {
            drop(stop);
            if let Ok((time_line, truncated)) = thread.join() {
                telemetry.time_line = time_line;
                telemetry.truncated = truncated;
            }
        }
        telemetry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(elapsed_us: u64, device: u64, own: u64, dirty: u64) -> StorageReading {
        StorageReading {
            elapsed_us,
            device_written_bytes: Some(device),
            own_written_bytes: Some(own),
            dirty_bytes: Some(dirty),
            writeback_bytes: Some(0),
            ..Default::default()
        }
    }

    fn sample(before: StorageReading, after: StorageReading) -> SampleStorage {
        SampleStorage {
            suite: "generation".to_owned(),
            index: 0,
            before,
            after,
        }
    }

    #[test]
    fn other_writers_are_the_rest_and_the_error_is_stated() {
        let mib = 1 << 20;
        let alone = sample(reading(0, 0, 0, 0), reading(9, 130 * mib, 128 * mib, 0));
        let others = alone.other_writers().expect("counters");
        assert_eq!((others.bytes, others.is_certain()), (2 * mib, false));
        let crowd = sample(
            reading(0, 0, 0, 0),
            reading(9, 300 * mib, 128 * mib, 50 * mib),
        );
        let others = crowd.other_writers().expect("counters");
        assert_eq!(others.bytes, 172 * mib);
        assert_eq!(others.error_bytes, 54 * mib);
        assert!(others.is_certain());
        let blind = sample(StorageReading::default(), reading(9, 1, 1, 1));
        assert_eq!(blind.other_writers(), None);
    }

    #[test]
    fn an_interval_without_readings_is_too_short() {
        let telemetry = StorageTelemetry {
            time_line: vec![
                reading(0, 0, 0, 0),
                reading(50_000, 500, 0, 0),
                reading(100_000, 1500, 0, 0),
            ],
            ..Default::default()
        };
        assert_eq!(telemetry.throughput(10_000, 90_000), Throughput::TooShort);
        assert_eq!(telemetry.throughput(10_000, 20_000), Throughput::TooShort);
        assert_eq!(
            telemetry.throughput(0, 100_000),
            Throughput::BytesPerSecond(15_000.0)
        );
    }

    #[test]
    fn what_this_process_writes_is_its_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut watch = StorageWatch::start(directory.path());
        let before = watch.read();
        std::fs::write(directory.path().join("file"), vec![1; 1 << 20]).expect("space");
        watch.record("generation", 0, before);
        let telemetry = watch.finish();
        assert!(!telemetry.time_line.is_empty());
        let sample = telemetry.of_sample("generation", 0).expect("the sample");
        assert!(sample.after.elapsed_us >= sample.before.elapsed_us);
        if let (Some(before), Some(after)) = (
            sample.before.own_written_bytes,
            sample.after.own_written_bytes,
        ) && telemetry.device.is_some()
        {
            assert!(after - before >= 1 << 20);
        }
    }
}
