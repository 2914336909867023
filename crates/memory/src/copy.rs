//! The publication by copy: guest RAM that is not the file to be published is written to it in one
//! ascending pass.
//!
//! Only what may differ from zeros is looked at (data of the file behind the view, pages of this
//! process), and of that only pages that do differ are written: holes stay holes. The kernel copies
//! straight from guest RAM, so no second copy of RAM is ever in memory.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::extents::ExtentList;
use crate::guest_memory::{GuestMemory, Source, file_or_anonymous};
use crate::layout::{PAGE_SIZE_BYTES, RamRange};
use crate::linux::{page_map, storage};
use crate::volatile::VolatileBytes;

/// The longest single write. Long enough that its cost is the copying; short enough that the pages
/// just looked at for zeros are still in the processor's cache.
const MAX_WRITE_BYTES: u64 = 1 << 20;

/// How much is copied between two requests to the system to start storing it. On ext4 a copy of
/// 64 MiB in one piece, synced, took 36 ms with such requests and 60 ms without (n = 15, medians).
const HAND_OVER_BYTES: u64 = 8 << 20;

/// The mean length of a write from which such a request pays. With 4 KiB writes (every other page)
/// the same copy took 211-227 ms with requests and 184-201 ms without.
const HAND_OVER_WRITE_BYTES: u64 = 64 << 10;

/// What a copy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Pages written.
    pub pages: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// Pages looked at, found to be zero and left as holes.
    pub zero_pages: u64,
    /// Write calls made.
    pub calls: u64,
    /// Time from the search for data to the end of the last write.
    pub duration: Duration,
}

/// Why a copy of guest RAM failed. The destination then holds a part of it.
#[derive(Debug, Error)]
pub enum CopyError {
    /// The destination has content already, which holes would let shine through.
    #[error("destination {} of the RAM copy is not empty", destination.display())]
    DestinationNotEmpty {
        /// The file.
        destination: PathBuf,
    },
    /// The destination could not be brought to RAM's length.
    #[error("cannot set the length of {} to {length_bytes} bytes", destination.display())]
    Resize {
        /// The file.
        destination: PathBuf,
        /// The wanted length in bytes.
        length_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The system did not tell where the file behind the view has data.
    #[error("cannot find the data of {}", file_or_anonymous(ram.as_deref()))]
    FindData {
        /// The file behind the view; `None` for anonymous RAM.
        ram: Option<PathBuf>,
        /// What the system said.
        source: io::Error,
    },
    /// Guest RAM could not be read: its file was truncated or its device failed.
    #[error("cannot read {} at offset {offset_bytes}", file_or_anonymous(ram.as_deref()))]
    RamUnreadable {
        /// The file behind the view; `None` for anonymous RAM.
        ram: Option<PathBuf>,
        /// Where in the RAM file, in bytes.
        offset_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The destination's file system, or the user's quota of it, is full.
    #[error("no space for guest RAM in {}", destination.display())]
    DestinationFull {
        /// The file.
        destination: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The destination could not be written for another reason.
    #[error("cannot write guest RAM to {} at offset {offset_bytes}", destination.display())]
    Write {
        /// The file.
        destination: PathBuf,
        /// Where in the file, in bytes.
        offset_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl GuestMemory {
    /// Copies guest RAM to `destination`, an empty file that is open for writing, and gives it
    /// RAM's [length](crate::RamLayout::file_len_bytes). `name` appears in messages. Works for every
    /// kind of view. The guest must stand still, or the copy is of no single moment. Nothing is
    /// synced.
    ///
    /// # Errors
    /// [`CopyError`], naming RAM or the destination, whichever failed.
    pub fn copy_to(&self, destination: &File, name: &Path) -> Result<CopyReport, CopyError> {
        let started = Instant::now();
        self.prepare(destination, name)?;
        let extents = self.extents_to_copy()?;
        let mut copy = Copy {
            memory: self,
            destination,
            name,
            report: CopyReport::default(),
            handed_over: HandedOver::default(),
        };
        for (index, range) in self.layout().ranges().iter().enumerate() {
            if let Some(bytes) = self.bytes_of(index) {
                copy.copy_range(range, bytes, &extents)?;
            }
        }
        let mut report = copy.report;
        report.bytes = report.pages * PAGE_SIZE_BYTES;
        report.duration = started.elapsed();
        Ok(report)
    }

    fn prepare(&self, destination: &File, name: &Path) -> Result<(), CopyError> {
        let length_bytes = self.layout().file_len_bytes();
        let resize = |source| CopyError::Resize {
            destination: name.to_owned(),
            length_bytes,
            source,
        };
        if destination.metadata().map_err(resize)?.len() != 0 {
            return Err(CopyError::DestinationNotEmpty {
                destination: name.to_owned(),
            });
        }
        destination.set_len(length_bytes).map_err(resize)
    }

    /// The pages that may hold something, as extents of the RAM file.
    fn extents_to_copy(&self) -> Result<ExtentList, CopyError> {
        let everything = || ExtentList::of_layout(self.layout());
        let found = match self.source() {
            Source::Shared { file, .. } => self.file_data(file)?.unwrap_or_else(everything),
            Source::Private { file, .. } => match self.file_data(file)? {
                // The page map knows the copied pages better than logs, which may not have been
                // kept; but it may be out of reach.
                Some(data) => {
                    let own = self.private_pages().unwrap_or_default();
                    data.union(&own).union(&self.dirty().extents())
                }
                None => everything(),
            },
            Source::Anonymous => self.private_pages().unwrap_or_else(|_| everything()),
        };
        Ok(found.pages_in(self.layout()))
    }

    fn file_data(&self, file: &File) -> Result<Option<ExtentList>, CopyError> {
        storage::data_extents(file, self.layout().file_len_bytes()).map_err(|source| {
            CopyError::FindData {
                ram: self.name().map(Path::to_owned),
                source,
            }
        })
    }

    fn private_pages(&self) -> io::Result<ExtentList> {
        let file = self.page_map()?;
        let mut all = ExtentList::new();
        for (index, range) in self.layout().ranges().iter().enumerate() {
            let Some(bytes) = self.bytes_of(index) else {
                continue;
            };
            for extent in page_map::private_pages(file, bytes, range.file_offset_bytes)?.iter() {
                all.push(extent.offset_bytes, extent.size_bytes);
            }
        }
        Ok(all)
    }
}

/// How far the device has been given work.
#[derive(Default)]
struct HandedOver {
    file_end_bytes: u64,
    pages: u64,
    calls: u64,
}

/// A copy on its way.
struct Copy<'a> {
    memory: &'a GuestMemory,
    destination: &'a File,
    name: &'a Path,
    report: CopyReport,
    handed_over: HandedOver,
}

impl Copy<'_> {
    fn copy_range(
        &mut self,
        range: &RamRange,
        bytes: &VolatileBytes,
        extents: &ExtentList,
    ) -> Result<(), CopyError> {
        for extent in extents.iter() {
            let start = extent.offset_bytes.max(range.file_offset_bytes);
            let end = extent.end_bytes().min(range.file_end_bytes());
            let mut piece = start;
            while piece < end {
                let piece_end = end.min(piece + MAX_WRITE_BYTES);
                self.copy_piece(range, bytes, piece, piece_end)?;
                piece = piece_end;
                self.hand_over_early(piece_end);
            }
        }
        Ok(())
    }

    /// Lets the device begin while the copy goes on, once there is enough for it. Not when the
    /// writes are small: handing over many small fragments takes as long as the copy itself.
    fn hand_over_early(&mut self, file_end_bytes: u64) {
        let CopyReport { pages, calls, .. } = self.report;
        let bytes = (pages - self.handed_over.pages) * PAGE_SIZE_BYTES;
        if bytes < HAND_OVER_BYTES {
            return;
        }
        let start = self.handed_over.file_end_bytes;
        if bytes / (calls - self.handed_over.calls).max(1) >= HAND_OVER_WRITE_BYTES {
            storage::start_writeback(self.destination, start, file_end_bytes - start);
        }
        self.handed_over = HandedOver {
            file_end_bytes,
            pages,
            calls,
        };
    }

    /// Copies the pages of one piece that are not zero, in runs as long as possible.
    fn copy_piece(
        &mut self,
        range: &RamRange,
        bytes: &VolatileBytes,
        start: u64,
        end: u64,
    ) -> Result<(), CopyError> {
        let mut page = start;
        let mut run = start;
        while page < end {
            let next = page + PAGE_SIZE_BYTES;
            if bytes.is_zero_page(page - range.file_offset_bytes) {
                self.write_run(range, bytes, run, page)?;
                self.report.zero_pages += 1;
                run = next;
            }
            page = next;
        }
        self.write_run(range, bytes, run, end)
    }

    fn write_run(
        &mut self,
        range: &RamRange,
        bytes: &VolatileBytes,
        start: u64,
        end: u64,
    ) -> Result<(), CopyError> {
        let mut at = start;
        while at < end {
            let offset = at - range.file_offset_bytes;
            let written =
                storage::write_from_view(bytes, offset, (end - at) as usize, self.destination, at)
                    .map_err(|source| self.failed(at, source))?;
            at += written as u64;
            self.report.calls += 1;
        }
        self.report.pages += end.saturating_sub(start) / PAGE_SIZE_BYTES;
        Ok(())
    }

    fn failed(&self, offset_bytes: u64, source: io::Error) -> CopyError {
        let destination = self.name.to_owned();
        if storage::is_unreadable_memory(&source) {
            let ram = self.memory.name().map(Path::to_owned);
            return CopyError::RamUnreadable {
                ram,
                offset_bytes,
                source,
            };
        }
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                CopyError::DestinationFull {
                    destination,
                    source,
                }
            }
            _ => CopyError::Write {
                destination,
                offset_bytes,
                source,
            },
        }
    }
}
