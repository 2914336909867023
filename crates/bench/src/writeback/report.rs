//! The result: raw samples, and what they come to.

use nvx_memory::{PAGE_SIZE_BYTES, WritebackChoice};
use serde::Serialize;

use super::zero_scan::ZeroScan;
use super::{Pattern, Sample, WritebackRequest};
use crate::statistics::{median, nearest_rank, sigma};

/// What a measurement found. Serialized, it is the JSON that `nvx bench writeback --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Always `nvx.writeback`.
    pub schema: &'static str,
    /// Version of the fields.
    pub schema_version: u32,
    /// Whether all runs were made.
    pub complete: bool,
    /// Why not.
    pub incomplete_reason: Option<String>,
    /// Where the RAM files were.
    pub directory: String,
    /// The directory's file system.
    pub file_system: String,
    /// The device whose counters were read; absent where there is none.
    pub device: Option<String>,
    /// Why there is none.
    pub device_obstacle: Option<String>,
    /// Size of guest RAM and of the file.
    pub memory_bytes: u64,
    /// The form of RAM file asked for; of prepared files their number.
    pub ram_file: String,
    /// Whether one prepared file was used for all runs.
    pub ram_file_reused: bool,
    /// Measured runs asked for, of each strategy with each pattern.
    pub samples: u32,
    /// Runs before them.
    pub warmups: u32,
    /// Runs during which somebody else wrote to the device.
    pub disturbed_runs: usize,
    /// One per pattern and strategy, in the order asked for.
    pub cells: Vec<Cell>,
    /// Recognising pages of zeros; absent if the measurement was interrupted.
    pub zero_detection: Option<ZeroDetection>,
}

/// The runs of one strategy with one pattern.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The pattern of dirty pages.
    #[serde(serialize_with = "as_text")]
    pub pattern: Pattern,
    /// The strategy asked for.
    #[serde(serialize_with = "as_text")]
    pub writeback: WritebackChoice,
    /// Dirty pages.
    pub dirty_pages: u64,
    /// Writeback and sync, in milliseconds.
    pub duration_ms: Option<Summary>,
    /// Bytes handed to the system.
    pub handed_over_bytes: Option<Summary>,
    /// Bytes that the device wrote.
    pub device_bytes: Option<Summary>,
    /// Requests that the device was given.
    pub device_requests: Option<Summary>,
    /// Device bytes over the file's size.
    pub write_amplification: Option<Summary>,
    /// Flush calls.
    pub calls: Option<Summary>,
    /// The measured runs in their order.
    pub samples: Vec<Sample>,
}

/// A series condensed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The median.
    pub p50: f64,
    /// The nearest-rank quantile at 0.25.
    pub p25: f64,
    /// The nearest-rank quantile at 0.95.
    pub p95: f64,
    /// The sample standard deviation; 0 for a single sample.
    pub sigma: f64,
}

impl Summary {
    /// `None` for an empty series.
    pub fn of(series: &[f64]) -> Option<Self> {
        Some(Self {
            p50: median(series)?,
            p25: nearest_rank(series, 0.25)?,
            p95: nearest_rank(series, 0.95)?,
            sigma: sigma(series).unwrap_or_default(),
        })
    }
}

/// The rate at which pages of zeros are recognised, and that of plainly reading as much memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ZeroDetection {
    /// Bytes scanned each time.
    pub bytes: u64,
    /// Median time of recognising zeros, in milliseconds.
    pub detection_p50_ms: f64,
    /// Median time of reading, in milliseconds.
    pub plain_p50_ms: f64,
    /// Detection's rate over reading's: 1 is as fast, and 0.5 is the least that is wanted.
    pub rate_to_plain: f64,
}

impl ZeroDetection {
    fn of(scan: &ZeroScan) -> Self {
        let p50_ms = |durations: &[std::time::Duration]| {
            let series: Vec<f64> = durations.iter().map(|d| d.as_secs_f64() * 1e3).collect();
            median(&series).unwrap_or_default()
        };
        let (detection, plain) = (p50_ms(&scan.detection), p50_ms(&scan.plain));
        Self {
            bytes: scan.bytes,
            detection_p50_ms: detection,
            plain_p50_ms: plain,
            rate_to_plain: if detection > 0.0 {
                plain / detection
            } else {
                0.0
            },
        }
    }
}

impl Cell {
    pub(super) fn new(pattern: Pattern, writeback: WritebackChoice, size_bytes: u64) -> Self {
        Self {
            pattern,
            writeback,
            dirty_pages: pattern.pages(size_bytes / PAGE_SIZE_BYTES).len() as u64,
            duration_ms: None,
            handed_over_bytes: None,
            device_bytes: None,
            device_requests: None,
            write_amplification: None,
            calls: None,
            samples: Vec::new(),
        }
    }

    fn condense(&mut self) {
        let series = |of: &dyn Fn(&Sample) -> Option<f64>| {
            let known: Option<Vec<f64>> = self.samples.iter().map(of).collect();
            known.and_then(|known| Summary::of(&known))
        };
        let count = |number: Option<u64>| number.map(|number| number as f64);
        self.duration_ms = series(&|sample| Some(sample.duration_ms));
        self.handed_over_bytes = series(&|sample| count(sample.handed_over_bytes));
        self.device_bytes = series(&|sample| count(sample.device_bytes));
        self.device_requests = series(&|sample| count(sample.device_requests));
        self.write_amplification = series(&|sample| sample.write_amplification);
        self.calls = series(&|sample| count(Some(sample.calls)));
    }
}

impl Report {
    pub(super) fn new(
        request: &WritebackRequest,
        file_system: String,
        mut cells: Vec<Cell>,
        zeros: Option<ZeroScan>,
        incomplete_reason: Option<String>,
    ) -> Self {
        cells.iter_mut().for_each(Cell::condense);
        let samples = || cells.iter().flat_map(|cell| &cell.samples);
        let prepared = request.ram_files.iter().filter_map(super::prepared_path);
        let prepared = prepared.count();
        let ram_file = match request.ram_files.as_slice() {
            [only] => only.to_string(),
            files => format!("{} prepared files", files.len()),
        };
        Self {
            schema: "nvx.writeback",
            schema_version: 1,
            complete: incomplete_reason.is_none(),
            incomplete_reason,
            directory: request.directory_of_files().display().to_string(),
            file_system,
            device: samples().find_map(|sample| sample.device.clone()),
            device_obstacle: samples().find_map(|sample| sample.device_obstacle.clone()),
            memory_bytes: request.size_bytes,
            ram_file,
            ram_file_reused: prepared == 1,
            samples: request.samples,
            warmups: request.warmups,
            disturbed_runs: samples()
                .filter(|sample| sample.other_writers == Some(true))
                .count(),
            zero_detection: zeros.as_ref().map(ZeroDetection::of),
            cells,
        }
    }
}

fn as_text<S: serde::Serializer>(
    value: &impl std::fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_condensed() {
        let summary = Summary::of(&[4.0, 2.0, 6.0, 8.0]).unwrap();
        assert_eq!((summary.p50, summary.p25, summary.p95), (5.0, 2.0, 8.0));
        assert!((summary.sigma - 20.0_f64.sqrt() / 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&[3.0]).unwrap().sigma, 0.0);
        assert_eq!(Summary::of(&[]), None);
    }
}
