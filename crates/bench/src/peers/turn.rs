//! One turn of one monitor: start, capture, restore, and the guest's proof that it is the same.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::contender::{Contender, TurnFiles};
use super::{PeerError, PeerMetric, PeersError};
use crate::lifecycle::{LifecycleRequest, guest_field, milliseconds};
use crate::monitor::Monitor;
use crate::sampling::READY_MARKER;

/// Start, capture, restore and proof of one monitor, in the empty directory `directory`.
pub(super) fn turn(
    contender: &dyn Contender,
    request: &LifecycleRequest,
    directory: &Path,
    image: &[u8],
) -> Result<[(PeerMetric, f64); 8], PeersError> {
    let at = |step| {
        move |source| PeersError::Turn {
            name: contender.name(),
            step,
            source: Box::new(source),
        }
    };
    let files = TurnFiles::in_directory(directory);
    std::fs::write(&files.kernel, image)
        .map_err(PeerError::file(&files.kernel))
        .and_then(|()| contender.prepare(request, &files))
        .map_err(at("prepare"))?;
    let mut started = start(contender, request, &files).map_err(at("start"))?;
    let before = verify(&mut started.monitor).map_err(at("start"))?;
    let captured = contender
        .capture(started.monitor, &files)
        .map_err(at("capture"))?;
    let (synced, disk_bytes) = sync(&files.snapshot).map_err(at("capture"))?;
    let mut restored = restore(contender, request, &files).map_err(at("restore"))?;
    let after = verify(&mut restored.monitor).map_err(at("restore"))?;
    compare(&before, &after).map_err(at("restore"))?;
    let rss = |bytes: Option<u64>| {
        bytes
            .map(mebibytes)
            .ok_or(PeerError::NoResidentSet)
            .map_err(at("resident set"))
    };
    Ok([
        (PeerMetric::StartMs, milliseconds(started.elapsed)),
        (PeerMetric::CaptureMs, milliseconds(captured.elapsed)),
        (
            PeerMetric::CaptureSyncedMs,
            milliseconds(captured.elapsed + synced),
        ),
        (PeerMetric::RestoreMs, milliseconds(restored.elapsed)),
        (PeerMetric::StartPeakRssMib, rss(started.peak_rss_bytes)?),
        (PeerMetric::CapturePeakRssMib, rss(captured.peak_rss_bytes)?),
        (PeerMetric::RestorePeakRssMib, rss(restored.peak_rss_bytes)?),
        (PeerMetric::SnapshotDiskMib, mebibytes(disk_bytes)),
    ])
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A guest that has said its line.
struct Arrived {
    monitor: Monitor,
    elapsed: Duration,
    peak_rss_bytes: Option<u64>,
}

/// What a guest tells of its RAM.
struct Verified {
    checksum: String,
    /// Lines that it has taken so far.
    count: u64,
}

/// Has the guest compare its RAM.
fn verify(monitor: &mut Monitor) -> Result<Verified, PeerError> {
    monitor.send_line("v")?;
    let line = monitor.wait_for_line("PROBE-VERIFY ")?.text;
    let field = |field: &'static str| {
        guest_field(&line, field).ok_or_else(|| PeerError::Field {
            line: line.clone(),
            field,
        })
    };
    let count = field("count")?;
    Ok(Verified {
        checksum: field("checksum")?,
        count: count.parse().map_err(|_| PeerError::Field {
            line: line.clone(),
            field: "numeric count",
        })?,
    })
}

fn start(
    contender: &dyn Contender,
    request: &LifecycleRequest,
    files: &TurnFiles,
) -> Result<Arrived, PeerError> {
    let arguments = contender.start(request, files);
    let mut monitor = Monitor::start(contender.program(), &arguments, request.limit)?;
    let ready = monitor.wait_for_line(READY_MARKER)?;
    let peak_rss_bytes = monitor.peak_rss_bytes();
    Ok(Arrived {
        monitor,
        elapsed: ready.elapsed,
        peak_rss_bytes,
    })
}

fn restore(
    contender: &dyn Contender,
    request: &LifecycleRequest,
    files: &TurnFiles,
) -> Result<Arrived, PeerError> {
    match std::fs::remove_file(&files.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(PeerError::file(&files.socket)(error));
        }
        _ => {}
    }
    let words = contender.first_words();
    let arguments = contender.restore(request, files);
    let mut monitor = Monitor::start(contender.program(), &arguments, request.limit)?;
    if !words.input.is_empty() {
        monitor.send_line(words.input)?;
    }
    if let Err(error) = contender.resume(&mut monitor, files) {
        // A process that is gone says itself why, and better.
        return Err(match monitor.has_ended() {
            true => match monitor.wait_for_line(words.marker) {
                Err(why) => why.into(),
                Ok(_) => error,
            },
            false => error,
        });
    }
    let line = monitor.wait_for_line(words.marker)?;
    Ok(Arrived {
        peak_rss_bytes: monitor.peak_rss_bytes(),
        elapsed: line.elapsed,
        monitor,
    })
}

/// Whether a restored guest is the one that was captured: its RAM is the same, and it took one line since
/// that was looked at (the request for the capture, or the question whose answer was its first output).
fn compare(before: &Verified, after: &Verified) -> Result<(), PeerError> {
    let expected = before.count + 2;
    let differs = |what, before: String, after: String| PeerError::NotTheSame {
        what,
        before,
        after,
    };
    if after.checksum != before.checksum {
        let (before, after) = (before.checksum.clone(), after.checksum.clone());
        return Err(differs("the RAM checksum", before, after));
    }
    if after.count != expected {
        let (expected, after) = (expected.to_string(), after.count.to_string());
        return Err(differs("the guest's counter", expected, after));
    }
    Ok(())
}

/// Syncs every file of a snapshot and its directory; gives how long that took, and what they take of the
/// volume in bytes.
fn sync(snapshot: &Path) -> Result<(Duration, u64), PeerError> {
    let failed = || PeerError::file(snapshot);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(snapshot).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        files.push(File::open(&path).map_err(PeerError::file(&path))?);
    }
    let directory = File::open(snapshot).map_err(failed())?;
    let begin = Instant::now();
    for file in &files {
        file.sync_all().map_err(failed())?;
    }
    directory.sync_all().map_err(failed())?;
    let elapsed = begin.elapsed();
    let mut bytes = 0;
    for file in &files {
        bytes += nvx_host::allocated_bytes(file).map_err(failed())?;
    }
    Ok((elapsed, bytes))
}
