//! One run, in the process that it has for itself.

use std::thread;
use std::time::{Duration, Instant};

use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamFile};
use serde::{Deserialize, Serialize};

use super::os::{self, DeviceCounter, DeviceCounts};
use super::{RunRequest, WritebackBenchError, layout};

/// A device whose counter has stood still for this long is at rest.
const STILL: Duration = Duration::from_millis(200);
/// How often the counter is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A device that does not come to rest within this time has other writers.
const STILL_LIMIT: Duration = Duration::from_millis(800);
/// A device that writes less than this while it is waited for is at rest all the same: the records of
/// a file system that has just made or removed a file, written at its leisure.
const NOISE_BYTES: u64 = 256 << 10;

/// What one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The strategy used.
    pub strategy: String,
    /// Why it was.
    pub reason: String,
    /// Time from the first mark or flush to the end of the sync, in milliseconds.
    pub duration_ms: f64,
    /// The part of it up to the end of the last flush.
    pub writeback_ms: f64,
    /// The part of the file's sync.
    pub sync_ms: f64,
    /// Pages that were dirtied.
    pub dirty_pages: u64,
    /// Pages that were marked modified in addition.
    pub marked_pages: u64,
    /// Bytes of modified pages handed to the system; absent where it does not tell.
    pub handed_over_bytes: Option<u64>,
    /// Flush calls.
    pub calls: u64,
    /// Space that the file takes on its file system afterwards.
    pub allocated_bytes: Option<u64>,
    /// The device whose counters were read.
    pub device: Option<String>,
    /// Why there are no counters.
    pub device_obstacle: Option<String>,
    /// Bytes that the device has written meanwhile.
    pub device_bytes: Option<u64>,
    /// Requests by which it did so.
    pub device_requests: Option<u64>,
    /// Device bytes over the file's size.
    pub write_amplification: Option<f64>,
    /// Whether somebody else wrote to the device meanwhile; absent where there are no counters.
    pub other_writers: Option<bool>,
}

/// Carries out one run in this process.
///
/// # Errors
/// [`WritebackBenchError`].
pub fn single_run(run: &RunRequest) -> Result<Sample, WritebackBenchError> {
    let ram = RamFile::obtain(&run.ram_file, &run.directory, run.size_bytes)?;
    let chosen = run.writeback.resolve(ram.file());
    let view = ram.try_clone_file()?;
    let memory = GuestMemory::shared_file(layout(run.size_bytes)?, view, ram.display_name())?;
    let counter = DeviceCounter::of(ram.file());
    let sync_error = |source| WritebackBenchError::Sync {
        name: ram.display_name().to_owned(),
        source,
    };
    os::sync_server(ram.file()).map_err(sync_error)?;
    let before = rest(counter.as_ref().ok())?;
    let dirty_pages = dirty(&memory, run)?;

    let started = Instant::now();
    let report = memory.writeback(chosen.strategy)?;
    let written = started.elapsed();
    ram.file().sync_data().map_err(sync_error)?;
    let synced = started.elapsed();

    os::sync_server(ram.file()).map_err(sync_error)?;
    let after = rest(counter.as_ref().ok())?;
    let device = Device::between(
        before,
        after,
        run.size_bytes + dirty_pages * PAGE_SIZE_BYTES,
    );
    Ok(Sample {
        strategy: chosen.strategy.to_string(),
        reason: chosen.reason.to_string(),
        duration_ms: milliseconds(synced),
        writeback_ms: milliseconds(written),
        sync_ms: milliseconds(synced - written),
        dirty_pages,
        marked_pages: report.marked_pages,
        handed_over_bytes: report.bytes,
        calls: report.calls,
        allocated_bytes: nvx_host::allocated_bytes(ram.file()).ok(),
        device_bytes: device.map(|device| device.bytes),
        device_requests: device.map(|device| device.requests),
        write_amplification: device.map(|device| device.bytes as f64 / run.size_bytes as f64),
        other_writers: device.map(|device| device.other_writers),
        device_obstacle: counter.as_ref().err().cloned(),
        device: counter.ok().map(|counter| counter.name),
    })
}

/// Writes all of each page, as a guest does that uses it.
fn dirty(memory: &GuestMemory, run: &RunRequest) -> Result<u64, WritebackBenchError> {
    let pages = run.pattern.pages(run.size_bytes / PAGE_SIZE_BYTES);
    let mut content = [0xa5_u8; PAGE_SIZE_BYTES as usize];
    for page in &pages {
        let stamp = page.to_le_bytes();
        for (target, byte) in content.iter_mut().zip(stamp) {
            *target = byte;
        }
        memory.write(GuestAddress(page * PAGE_SIZE_BYTES), &content)?;
    }
    Ok(pages.len() as u64)
}

/// A device's counters at a moment, and whether the device was at rest.
#[derive(Clone, Copy)]
struct Reading {
    counts: DeviceCounts,
    at_rest: bool,
}

/// Waits until the device is at rest, but not for ever.
fn rest(counter: Option<&DeviceCounter>) -> Result<Option<Reading>, WritebackBenchError> {
    let Some(counter) = counter else {
        return Ok(None);
    };
    let read = || {
        counter
            .read()
            .map_err(|source| WritebackBenchError::Counters {
                device: counter.name.clone(),
                source,
            })
    };
    let started = Instant::now();
    let first = read()?;
    let mut counts = first;
    let mut changed = started;
    while changed.elapsed() < STILL && started.elapsed() < STILL_LIMIT {
        thread::sleep(LOOK_EVERY);
        let now = read()?;
        if now != counts {
            counts = now;
            changed = Instant::now();
        }
    }
    let at_rest = changed.elapsed() >= STILL || counts.bytes - first.bytes <= NOISE_BYTES;
    Ok(Some(Reading { counts, at_rest }))
}

/// What a device did between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    bytes: u64,
    requests: u64,
    other_writers: bool,
}

impl Device {
    /// A run can write each page of the file as zeros and each dirty page once more; what goes beyond
    /// `explained_bytes` is somebody else's.
    fn between(
        before: Option<Reading>,
        after: Option<Reading>,
        explained_bytes: u64,
    ) -> Option<Self> {
        let (before, after) = (before?, after?);
        let bytes = after.counts.bytes.checked_sub(before.counts.bytes)?;
        let requests = after.counts.requests.checked_sub(before.counts.requests)?;
        let beyond = bytes > explained_bytes.saturating_add(NOISE_BYTES);
        Some(Self {
            bytes,
            requests,
            other_writers: beyond || !before.at_rest || !after.at_rest,
        })
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(bytes: u64, requests: u64, at_rest: bool) -> Option<Reading> {
        let counts = DeviceCounts { requests, bytes };
        Some(Reading { counts, at_rest })
    }

    #[test]
    fn a_run_is_charged_with_what_the_device_did_meanwhile() {
        let quiet = Device::between(reading(1000, 5, true), reading(5096, 7, true), 4096);
        let expected = Device {
            bytes: 4096,
            requests: 2,
            other_writers: false,
        };
        assert_eq!(quiet, Some(expected));
        for (before_rests, after_rests, end) in
            [(false, true, 0), (true, false, 0), (true, true, 1 << 20)]
        {
            let device = Device::between(
                reading(0, 0, before_rests),
                reading(end, 1, after_rests),
                4096,
            );
            assert!(device.unwrap().other_writers);
        }
        // A device that was replaced meanwhile counts from 0 again.
        assert_eq!(
            Device::between(reading(9, 9, true), reading(0, 0, true), 0),
            None
        );
        assert_eq!(Device::between(None, reading(0, 0, true), 0), None);
    }
}
