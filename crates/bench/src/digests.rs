//! What digests of a snapshot's memory cost.
//!
//! The snapshot is one that the user has, because the cost depends on what is in it: holes are not read, and all
//! else is. Nothing is written to it. Each sample does four things, by turns, so that a drift of the machine meets all
//! of them alike:
//!
//! - open the snapshot, which checks manifest and state and reads no memory: what every restore does;
//! - make the digests of memory on all processors, which is what `inspect --seal`, `inspect --verify` and
//!   `restore --verify` do;
//! - the same after the file's pages were dropped from the page cache, so that the device is in it as well;
//! - hash what is not a hole on one processor, in ascending order: what `--digests` adds to a capture that copies.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvx_memory::may_hold_data;
use nvx_snapshot::{ChunkDigester, MEMORY_FILE, MemoryError, MemoryReport, OpenError, Snapshot};
use serde::Serialize;
use thiserror::Error;

use crate::writeback::Summary;

/// How much a capture hands over at once.
const PIECE_BYTES: u64 = 256 << 10;

/// What to measure.
#[derive(Clone, Debug)]
pub struct DigestsRequest {
    /// The snapshot directory.
    pub snapshot: PathBuf,
    /// How often.
    pub samples: u32,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DigestsReport {
    /// `nvx.digests`.
    pub schema: &'static str,
    /// 1.
    pub schema_version: u32,
    /// The snapshot directory.
    pub snapshot: String,
    /// Whether its manifest has digests, so that it could be verified.
    pub is_sealed: bool,
    /// Length of its memory.
    pub memory_bytes: u64,
    /// So much of it is not a hole, and is read.
    pub bytes_read: u64,
    /// Chunks, each with a digest.
    pub chunks: usize,
    /// Size of each but the last, in bytes.
    pub chunk_bytes: u64,
    /// Processors that took part.
    pub processors: usize,
    /// Opening without a look at memory, in milliseconds.
    pub open_ms: Times,
    /// Digests of all of memory on all processors, in milliseconds.
    pub all_processors_ms: Times,
    /// The same with the device; `None` where the page cache cannot be emptied of a file.
    pub uncached_ms: Option<Times>,
    /// Digests in a copy on one processor, in milliseconds.
    pub in_copy_ms: Times,
}

/// A series and its condensed form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Condensed.
    #[serde(flatten)]
    pub summary: Summary,
    /// Every sample, in order.
    pub samples: Vec<f64>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum DigestsError {
    /// The snapshot cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Its memory cannot be read, or its pages cannot be dropped from the page cache.
    #[error("{}: cannot {operation}", path.display())]
    Io {
        /// The memory file.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The user asked for an end.
    #[error("interrupted")]
    Interrupted,
    /// No samples were asked for.
    #[error("no samples")]
    Nothing,
}

/// Measures. `is_interrupted` is asked before each sample.
///
/// # Errors
/// [`DigestsError`].
pub fn measure(
    request: &DigestsRequest,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<DigestsReport, DigestsError> {
    let path = request.snapshot.as_path();
    let snapshot = Snapshot::open(path)?;
    let memory_path = path.join(MEMORY_FILE);
    // The first pass brings the file into memory and is no sample.
    let (_, report) = snapshot.digest_memory()?;
    let mut can_drop = true;
    let (mut open, mut all, mut uncached, mut in_copy) = (vec![], vec![], vec![], vec![]);
    for _ in 0..request.samples {
        if is_interrupted() {
            return Err(DigestsError::Interrupted);
        }
        let started = Instant::now();
        Snapshot::open(path)?;
        open.push(milliseconds(started.elapsed()));
        if can_drop {
            match nvx_host::drop_cached_pages(snapshot.memory()) {
                Ok(()) => uncached.push(time_of_digests(&snapshot)?),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => can_drop = false,
                Err(source) => {
                    return Err(DigestsError::Io {
                        path: memory_path,
                        operation: "drop its pages from the page cache",
                        source,
                    });
                }
            }
        }
        all.push(time_of_digests(&snapshot)?);
        in_copy.push(time_in_copy(&snapshot, &memory_path)?);
    }
    let times = |samples: Vec<f64>| {
        let summary = Summary::of(&samples)?;
        Some(Times { summary, samples })
    };
    let needed = |samples| times(samples).ok_or(DigestsError::Nothing);
    let MemoryReport {
        chunks,
        chunk_bytes,
        bytes_read,
        ..
    } = report;
    let layers = &snapshot.manifest().memory;
    Ok(DigestsReport {
        schema: "nvx.digests",
        schema_version: 1,
        snapshot: path.display().to_string(),
        is_sealed: layers.iter().all(|layer| layer.digests.is_some()),
        memory_bytes: layers.iter().map(|layer| layer.length_bytes).sum(),
        bytes_read,
        chunks,
        chunk_bytes,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        open_ms: needed(open)?,
        all_processors_ms: needed(all)?,
        uncached_ms: times(uncached),
        in_copy_ms: needed(in_copy)?,
    })
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn time_of_digests(snapshot: &Snapshot) -> Result<f64, DigestsError> {
    let started = Instant::now();
    snapshot.digest_memory()?;
    Ok(milliseconds(started.elapsed()))
}

/// Without the reading, which a copy does anyhow.
fn time_in_copy(snapshot: &Snapshot, path: &Path) -> Result<f64, DigestsError> {
    let io_error = |source| DigestsError::Io {
        path: path.to_owned(),
        operation: "read it",
        source,
    };
    let file = snapshot.memory();
    let length_bytes = file.metadata().map_err(io_error)?.len();
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut taken = Duration::ZERO;
    let started = Instant::now();
    let mut digester = ChunkDigester::new(length_bytes);
    taken += started.elapsed();
    for offset in (0..length_bytes).step_by(PIECE_BYTES as usize) {
        let size = PIECE_BYTES.min(length_bytes - offset);
        if !may_hold_data(file, offset, size).map_err(io_error)? {
            continue;
        }
        let bytes = &mut piece[..size as usize];
        nvx_host::read_exact_at(file, bytes, offset).map_err(io_error)?;
        let started = Instant::now();
        digester.update(offset, bytes);
        taken += started.elapsed();
    }
    let started = Instant::now();
    std::hint::black_box(digester.finish());
    Ok(milliseconds(taken + started.elapsed()))
}
