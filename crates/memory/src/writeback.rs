//! Writeback: bringing the modified pages of a shared view to its RAM file.
//!
//! A *strategy* says in which order and by how many threads. What a strategy does to given extents
//! is a pure function, [`Strategy::plan`], so that it can be checked, and replayed against a model
//! of a file system, without writing anything. After writeback the pages are with the file; only a
//! sync of the file makes them durable.
//!
//! A page that the device refused is lost silently the next time: the system reports the failure once
//! and takes the page for written. So after a failure the next writeback marks every page that holds
//! data, and a capture that is tried again publishes nothing that is only in the cache.
//!
//! Only a writable shared view has something to write back. A private view would be copied, a
//! read-only one has no modified page, anonymous memory has no file: each is refused by name.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use nvx_host::FileSystem;
use thiserror::Error;

use crate::extents::{ExtentList, FileExtent};
use crate::guest_memory::{GuestMemory, Source};
use crate::layout::{GuestAddress, PAGE_SIZE_BYTES};
use crate::os::storage;

/// The largest number of concurrent flushes.
pub const MAX_WORKERS: u8 = 8;

/// A number of concurrent flushes, from 1 to [`MAX_WORKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerCount(u8);

impl WorkerCount {
    /// `None` outside 1 to [`MAX_WORKERS`].
    pub fn new(count: u8) -> Option<Self> {
        (1..=MAX_WORKERS).contains(&count).then_some(Self(count))
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// How pages are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One pass in ascending order. Written `ascending`, or `ascending-marked` with marking.
    Ascending {
        /// First mark every page of the view modified, contents unchanged, so that the file is
        /// written once and in full. The remedy for file systems that fill a new file with zeros
        /// below a write behind its valid data length (NTFS); elsewhere it writes holes as zeros.
        mark_every_page: bool,
    },
    /// Concurrent flushes over disjoint ranges of equal size. Written `ranges:N`.
    Ranges {
        /// How many flushes.
        workers: WorkerCount,
    },
}

impl Default for Strategy {
    fn default() -> Self {
        Self::Ascending {
            mark_every_page: false,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ascending {
                mark_every_page: false,
            } => f.write_str("ascending"),
            Self::Ascending {
                mark_every_page: true,
            } => f.write_str("ascending-marked"),
            Self::Ranges { workers } => write!(f, "ranges:{}", workers.get()),
        }
    }
}

/// A text that names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no writeback strategy: auto (where it can be chosen), ascending, ascending-marked, or ranges:N with N from 1 to {MAX_WORKERS}"
)]
pub struct UnknownStrategy {
    /// The text.
    pub text: String,
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownStrategy {
            text: text.to_owned(),
        };
        match text {
            "ascending" => Ok(Self::Ascending {
                mark_every_page: false,
            }),
            "ascending-marked" => Ok(Self::Ascending {
                mark_every_page: true,
            }),
            _ => {
                let count = text.strip_prefix("ranges:").ok_or_else(unknown)?;
                let one_digit = matches!(count.as_bytes(), [b'1'..=b'9']);
                let count = count.parse().ok().filter(|_| one_digit);
                let workers = count.and_then(WorkerCount::new).ok_or_else(unknown)?;
                Ok(Self::Ranges { workers })
            }
        }
    }
}

/// What a strategy does to given extents of the RAM file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether every page is marked modified first, in ascending order.
    pub mark_every_page: bool,
    /// The flushes of each worker, ascending; all workers run at the same time. Together they cover
    /// each byte exactly once, worker by worker in ascending order. One flush is one call.
    pub workers: Vec<Vec<FileExtent>>,
}

impl Strategy {
    /// Plans the writeback of `extents`: page aligned, ascending, disjoint. A flush never spans two
    /// of them. Fewer workers than asked for are planned when there are fewer pages than workers.
    pub fn plan(&self, extents: &[FileExtent]) -> Plan {
        match *self {
            Self::Ascending { mark_every_page } => Plan {
                mark_every_page,
                workers: vec![extents.to_vec()],
            },
            Self::Ranges { workers } => Plan {
                mark_every_page: false,
                workers: split_evenly(extents, workers),
            },
        }
    }
}

/// Deals the extents out in equal shares of whole pages, the last share being the smaller one.
fn split_evenly(extents: &[FileExtent], workers: WorkerCount) -> Vec<Vec<FileExtent>> {
    let total_pages: u64 = extents
        .iter()
        .map(|extent| extent.size_bytes.div_ceil(PAGE_SIZE_BYTES))
        .sum();
    let share_bytes = total_pages.div_ceil(u64::from(workers.get())).max(1) * PAGE_SIZE_BYTES;
    let mut shares = vec![Vec::new()];
    let mut room = share_bytes;
    for extent in extents {
        let mut rest = *extent;
        while rest.size_bytes > 0 {
            if room == 0 {
                shares.push(Vec::new());
                room = share_bytes;
            }
            let size_bytes = rest.size_bytes.min(room);
            if let Some(share) = shares.last_mut() {
                share.push(FileExtent {
                    offset_bytes: rest.offset_bytes,
                    size_bytes,
                });
            }
            room -= size_bytes;
            rest.offset_bytes += size_bytes;
            rest.size_bytes -= size_bytes;
        }
    }
    shares
}

/// The parts of `extents` that have a byte of `data`, rounded outwards to whole pages.
fn intersection(extents: &[FileExtent], data: &ExtentList) -> Vec<FileExtent> {
    let mut parts = Vec::new();
    for extent in extents {
        let mut list = ExtentList::new();
        for found in data.iter() {
            let start = found.offset_bytes / PAGE_SIZE_BYTES * PAGE_SIZE_BYTES;
            let end = found.end_bytes().next_multiple_of(PAGE_SIZE_BYTES);
            let (start, end) = (start.max(extent.offset_bytes), end.min(extent.end_bytes()));
            if start < end {
                list.push(start, end - start);
            }
        }
        parts.extend(list.iter());
    }
    parts
}

/// Why a plan was not carried out in full.
#[derive(Debug)]
enum PlanFailure {
    Flush {
        extent: FileExtent,
        source: io::Error,
    },
    Worker(io::Error),
}

impl Plan {
    /// Carries the plan out by `flush`, one thread per worker. Every worker that was started finishes,
    /// also when another one fails; a worker's own flushes end at its first failure. Of several failures
    /// the one lowest in the file is returned.
    fn run<F>(&self, flush: &F) -> Result<(), PlanFailure>
    where
        F: Fn(&FileExtent) -> io::Result<()> + Sync,
    {
        let in_order = |flushes: &[FileExtent]| {
            flushes.iter().try_for_each(|extent| {
                flush(extent).map_err(|source| PlanFailure::Flush {
                    extent: *extent,
                    source,
                })
            })
        };
        let Some((first, others)) = self.workers.split_first() else {
            return Ok(());
        };
        thread::scope(|scope| {
            let started: Vec<_> = others
                .iter()
                .map(|flushes| {
                    thread::Builder::new()
                        .name("nvx-writeback".to_owned())
                        .spawn_scoped(scope, move || in_order(flushes))
                })
                .collect();
            let mut result = in_order(first);
            for worker in started {
                let outcome = match worker.map(thread::ScopedJoinHandle::join) {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) => Err(PlanFailure::Worker(io::Error::other(
                        "the thread ended abnormally",
                    ))),
                    Err(source) => Err(PlanFailure::Worker(source)),
                };
                result = result.and(outcome);
            }
            result
        })
    }
}

/// What a writeback did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackReport {
    /// The strategy used.
    pub strategy: Strategy,
    /// Pages that were modified, or already on their way to the device, when the flushes began;
    /// pages marked first are among them. 0 on an in-memory file system, `None` where the system
    /// cannot tell (Linux before 6.5).
    pub pages: Option<u64>,
    /// The same in bytes.
    pub bytes: Option<u64>,
    /// Bytes of pages that were modified, or already on their way to the device, before any was
    /// marked; `None` where the system cannot tell.
    pub modified_bytes: Option<u64>,
    /// Pages marked modified first: every page if the strategy wants that, and those that hold data
    /// if the system failed to store some earlier.
    pub marked_pages: u64,
    /// Flush calls made.
    pub calls: u64,
    /// Time from the first mark or flush to the end of the last one.
    pub duration: Duration,
}

/// Why pages were not written back.
#[derive(Debug, Error)]
pub enum WritebackError {
    /// Nothing to write back was asked for. Refused, since some systems take a length of 0 as "to
    /// the end of the mapping".
    #[error("writeback of zero bytes at {address}")]
    ZeroLength {
        /// Start of the range.
        address: GuestAddress,
    },
    /// Start or length is not a multiple of the page size.
    #[error("writeback of {size_bytes} bytes at {address}: not page aligned")]
    Unaligned {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// Not all bytes lie in one RAM range.
    #[error("writeback of {size_bytes} bytes at {address}: they are not all guest RAM")]
    OutOfRange {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// The view only reads.
    #[error("writeback of RAM file {}, which is mapped read-only", name.display())]
    ReadOnly {
        /// The file.
        name: PathBuf,
    },
    /// The view is copy-on-write, so its modified pages do not belong to the file.
    #[error("writeback of a private view of {}", name.display())]
    PrivateView {
        /// The file.
        name: PathBuf,
    },
    /// There is no file.
    #[error("writeback of anonymous RAM, which has no file")]
    Anonymous,
    /// The system could not store a part of the file.
    #[error("cannot write {size_bytes} bytes at offset {offset_bytes} of RAM file {}", name.display())]
    Flush {
        /// The file.
        name: PathBuf,
        /// Start of the flush in the file, in bytes.
        offset_bytes: u64,
        /// Length of the flush in bytes.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A thread for a concurrent flush could not be started. The others have finished.
    #[error("cannot start a writeback thread for RAM file {}", name.display())]
    Worker {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A writable shared view, which is the only kind that has a writeback.
struct SharedView<'a> {
    memory: &'a GuestMemory,
    file: &'a File,
    name: &'a Path,
}

impl GuestMemory {
    /// Writes all modified pages back.
    ///
    /// # Errors
    /// [`WritebackError`]: refused views by name; a failed flush after all workers have finished,
    /// the one lowest in the file if several failed.
    pub fn writeback(&self, strategy: Strategy) -> Result<WritebackReport, WritebackError> {
        let extents: Vec<_> = self
            .layout()
            .ranges()
            .iter()
            .map(|range| FileExtent {
                offset_bytes: range.file_offset_bytes,
                size_bytes: range.size_bytes,
            })
            .collect();
        self.shared_view()?.run(strategy, &extents)
    }

    /// Writes the modified pages of a part of one RAM range back.
    ///
    /// # Errors
    /// As [`writeback`](Self::writeback), and for a range that is empty, unaligned or not RAM.
    pub fn writeback_range(
        &self,
        address: GuestAddress,
        size_bytes: u64,
        strategy: Strategy,
    ) -> Result<WritebackReport, WritebackError> {
        let view = self.shared_view()?;
        if size_bytes == 0 {
            return Err(WritebackError::ZeroLength { address });
        }
        if !address.0.is_multiple_of(PAGE_SIZE_BYTES) || !size_bytes.is_multiple_of(PAGE_SIZE_BYTES)
        {
            return Err(WritebackError::Unaligned {
                address,
                size_bytes,
            });
        }
        let refused = || WritebackError::OutOfRange {
            address,
            size_bytes,
        };
        let (index, offset) = self
            .layout()
            .locate(address, size_bytes)
            .ok_or_else(refused)?;
        let range = self.layout().ranges().get(index).ok_or_else(refused)?;
        let offset_bytes = range.file_offset_bytes + offset;
        view.run(
            strategy,
            &[FileExtent {
                offset_bytes,
                size_bytes,
            }],
        )
    }

    fn shared_view(&self) -> Result<SharedView<'_>, WritebackError> {
        match self.source() {
            Source::Shared {
                file,
                name,
                writable: true,
            } => Ok(SharedView {
                memory: self,
                file,
                name,
            }),
            Source::Shared {
                name,
                writable: false,
                ..
            } => Err(WritebackError::ReadOnly { name: name.clone() }),
            Source::Private { name, .. } => Err(WritebackError::PrivateView { name: name.clone() }),
            Source::Anonymous => Err(WritebackError::Anonymous),
        }
    }
}

impl SharedView<'_> {
    fn run(
        &self,
        strategy: Strategy,
        extents: &[FileExtent],
    ) -> Result<WritebackReport, WritebackError> {
        let started = Instant::now();
        let plan = strategy.plan(extents);
        if FileSystem::of(self.file).is_ok_and(|found| found.is_memory()) {
            // The pages of the view are the file: nothing has to be brought anywhere, and counting
            // them would cost more than all else.
            let marks = if plan.mark_every_page { extents } else { &[] };
            return Ok(WritebackReport {
                strategy,
                pages: Some(0),
                bytes: Some(0),
                modified_bytes: Some(0),
                marked_pages: self.mark(marks),
                calls: 0,
                duration: started.elapsed(),
            });
        }
        let modified_pages = self.unwritten_pages(extents);
        let again = self.memory.take_unstored_pages();
        let marked_pages = if plan.mark_every_page {
            self.mark(extents)
        } else if again {
            self.mark(&self.holding_data(extents))
        } else {
            0
        };
        let pages = match marked_pages {
            0 => modified_pages,
            _ => self.unwritten_pages(extents),
        };
        plan.run(&|extent| self.flush(extent)).map_err(|failure| {
            self.memory.expect_unstored_pages();
            self.describe(failure)
        })?;
        let bytes = |pages: Option<u64>| pages.map(|pages| pages * PAGE_SIZE_BYTES);
        Ok(WritebackReport {
            strategy,
            pages,
            bytes: bytes(pages),
            modified_bytes: bytes(modified_pages),
            marked_pages,
            calls: plan
                .workers
                .iter()
                .map(|flushes| flushes.len() as u64)
                .sum(),
            duration: started.elapsed(),
        })
    }

    /// Pages that are modified or on their way to the device.
    fn unwritten_pages(&self, extents: &[FileExtent]) -> Option<u64> {
        extents.iter().try_fold(0_u64, |sum, extent| {
            Some(sum + storage::unwritten_pages(self.file, extent.offset_bytes, extent.size_bytes)?)
        })
    }

    /// The parts of the extents, in whole pages, where the file may hold data.
    fn holding_data(&self, extents: &[FileExtent]) -> Vec<FileExtent> {
        let length_bytes = extents.last().map_or(0, FileExtent::end_bytes);
        match storage::data_extents(self.file, length_bytes) {
            Ok(Some(data)) => intersection(extents, &data),
            // Holes that are written as zeros cost only space.
            Ok(None) | Err(_) => extents.to_vec(),
        }
    }

    /// Marks every page of the extents modified, ascending; returns how many.
    fn mark(&self, extents: &[FileExtent]) -> u64 {
        let mut marked = 0;
        for extent in extents {
            let Some((index, first)) = self.locate_in_view(extent) else {
                continue;
            };
            let Some(bytes) = self.memory.bytes_of(index) else {
                continue;
            };
            let pages = extent.size_bytes / PAGE_SIZE_BYTES;
            marked += (0..pages)
                .filter(|page| {
                    bytes
                        .mark_modified(first + page * PAGE_SIZE_BYTES)
                        .is_some()
                })
                .count() as u64;
        }
        marked
    }

    fn describe(&self, failure: PlanFailure) -> WritebackError {
        let name = self.name.to_owned();
        match failure {
            PlanFailure::Flush { extent, source } => WritebackError::Flush {
                name,
                offset_bytes: extent.offset_bytes,
                size_bytes: extent.size_bytes,
                source,
            },
            PlanFailure::Worker(source) => WritebackError::Worker { name, source },
        }
    }

    fn flush(&self, extent: &FileExtent) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let (index, offset) = self.locate_in_view(extent).ok_or_else(outside)?;
        let bytes = self.memory.bytes_of(index).ok_or_else(outside)?;
        storage::flush(
            self.file,
            extent.offset_bytes - offset,
            bytes,
            offset,
            extent.size_bytes as usize,
        )
    }

    /// The RAM range that an extent lies in, and the extent's offset there.
    fn locate_in_view(&self, extent: &FileExtent) -> Option<(usize, u64)> {
        let ranges = self.memory.layout().ranges();
        let index = ranges
            .partition_point(|range| range.file_offset_bytes <= extent.offset_bytes)
            .checked_sub(1)?;
        let range = ranges.get(index)?;
        let inside = extent.end_bytes() <= range.file_end_bytes();
        inside.then_some((index, extent.offset_bytes - range.file_offset_bytes))
    }
}

#[cfg(test)]
mod tests;
