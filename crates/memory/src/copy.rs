//! The publication by copy: guest RAM that is not the file to be published is written to it in one
//! ascending pass.
//!
//! Only what may differ from zeros is looked at (data of the file behind the view, pages of this
//! process), and of that only pages that do differ are written: holes stay holes. The kernel copies
//! straight from guest RAM, so no second copy of RAM is ever in memory.
//!
//! Which pages are this process's own the page map tells. Where it cannot be read, the dirty set does
//! if it is known to be complete; else all of RAM is looked at. A page is never left out because
//! nobody noticed its store.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::extents::ExtentList;
use crate::guest_memory::{GuestMemory, Source, file_or_anonymous};
use crate::layout::{PAGE_SIZE_BYTES, RamRange};
use crate::os::{page_map, storage};
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
        self.copy(destination, name, None)
    }

    /// As [`copy_to`](Self::copy_to); `observer` is given all that is written, with its offset in the
    /// file, in ascending order. What it is not given is zero in the file.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_to_observed(
        &self,
        destination: &File,
        name: &Path,
        observer: Observer<'_>,
    ) -> Result<CopyReport, CopyError> {
        self.copy(destination, name, Some(observer))
    }

    fn copy(
        &self,
        destination: &File,
        name: &Path,
        observer: Option<Observer<'_>>,
    ) -> Result<CopyReport, CopyError> {
        let started = Instant::now();
        self.prepare(destination, name)?;
        let extents = self.extents_to_copy()?;
        let mut copy = Copy {
            memory: self,
            destination,
            name,
            report: CopyReport::default(),
            handed_over: HandedOver::default(),
            observer: observer.map(|observer| (observer, vec![0; MAX_WRITE_BYTES as usize])),
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

    /// The number of pages that hold only zeros, found as [`copy_to`](Self::copy_to) finds them.
    pub fn count_zero_pages(&self) -> u64 {
        let ranges = self.layout().ranges().iter().enumerate();
        ranges
            .filter_map(|(index, range)| Some((self.bytes_of(index)?, range.pages())))
            .map(|(bytes, pages)| {
                let zero = |page: &u64| bytes.is_zero_page(page * PAGE_SIZE_BYTES);
                (0..pages).filter(zero).count() as u64
            })
            .sum()
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
        let dirty_set_is_complete = self.take_dirty_set_is_complete();
        let everything = || ExtentList::of_layout(self.layout());
        let found = match self.source() {
            Source::Shared { file, .. } => self.file_data(file)?.unwrap_or_else(everything),
            Source::Private { file, .. } => {
                match (self.file_data(file)?, self.own_pages(dirty_set_is_complete)) {
                    (Some(data), Some(own)) => data.union(&own),
                    _ => everything(),
                }
            }
            Source::Anonymous => self
                .own_pages(dirty_set_is_complete)
                .unwrap_or_else(everything),
        };
        Ok(found.pages_in(self.layout()))
    }

    /// The pages that were written since RAM was mapped, and maybe more; `None` if there is no way
    /// to know them all.
    fn own_pages(&self, dirty_set_is_complete: bool) -> Option<ExtentList> {
        match self.private_pages() {
            Ok(pages) => Some(pages.union(&self.dirty().extents())),
            Err(_) => dirty_set_is_complete.then(|| self.dirty().extents()),
        }
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

/// Who is given what a copy writes, with its offset in the file in bytes.
pub type Observer<'a> = &'a mut dyn FnMut(u64, &[u8]);

/// A copy on its way.
struct Copy<'a, 'o> {
    memory: &'a GuestMemory,
    destination: &'a File,
    name: &'a Path,
    report: CopyReport,
    handed_over: HandedOver,
    /// With room for what one write writes: guest RAM is never referred to.
    observer: Option<(Observer<'o>, Vec<u8>)>,
}

impl Copy<'_, '_> {
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
            nvx_host::start_writeback_of(self.destination, start, file_end_bytes - start);
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
        if let Some((observer, room)) = &mut self.observer
            && let Some(room) = room.get_mut(..end.saturating_sub(start) as usize)
            && !room.is_empty()
            && bytes.read(start - range.file_offset_bytes, room).is_some()
        {
            observer(start, room);
        }
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

    use super::*;
    use crate::{GuestAddress, RamFile, RamLayout};

    const PAGES_OF_RANGE: u64 = 64;
    const HIGH_START: u64 = 1 << 32;

    fn layout() -> RamLayout {
        let range = |start, file_offset_bytes| RamRange {
            start: GuestAddress(start),
            size_bytes: PAGES_OF_RANGE * PAGE_SIZE_BYTES,
            file_offset_bytes,
        };
        RamLayout::new(vec![range(0, 0), range(HIGH_START, 1 << 20)]).unwrap()
    }

    /// A private view of a file of holes, and anonymous RAM, both without a page map that answers.
    fn views_without_page_map() -> [GuestMemory; 2] {
        let layout = layout();
        let base = RamFile::create(&std::env::temp_dir(), layout.file_len_bytes()).unwrap();
        let file = base.try_clone_file().unwrap();
        let private = GuestMemory::private_file(layout.clone(), file, Path::new("base")).unwrap();
        let anonymous = GuestMemory::anonymous(layout).unwrap();
        [private, anonymous].map(|mut memory| {
            assert!(memory.page_map_readable());
            memory.replace_page_map(File::open("/dev/null").unwrap());
            assert!(!memory.page_map_readable());
            assert!(memory.open_page_map().is_err());
            memory
        })
    }

    /// The guest's store to the first page of the high range, which the accessor does not see.
    fn store_as_guest(memory: &GuestMemory) {
        memory.bytes_of(1).unwrap().write(0, &[7]).unwrap();
    }

    /// Copies RAM; tells the report and whether the guest's byte has arrived.
    fn copy(memory: &GuestMemory) -> (CopyReport, bool) {
        use std::os::unix::fs::FileExt;
        let target = RamFile::create(&std::env::temp_dir(), 0).unwrap();
        let report = memory.copy_to(target.file(), Path::new("target")).unwrap();
        let mut byte = [0];
        target.file().read_exact_at(&mut byte, 1 << 20).unwrap();
        (report, byte == [7])
    }

    #[test]
    fn a_store_that_nobody_logged_is_copied() {
        for memory in views_without_page_map() {
            memory.write(GuestAddress(0), &[1]).unwrap();
            store_as_guest(&memory);
            let (report, arrived) = copy(&memory);
            assert!(arrived);
            assert_eq!(
                (report.pages, report.zero_pages),
                (2, 2 * PAGES_OF_RANGE - 2)
            );
        }
    }

    #[test]
    fn a_log_of_one_range_speaks_for_no_other() {
        for memory in views_without_page_map() {
            store_as_guest(&memory);
            memory.merge_dirty(0, &[1]).unwrap();
            let (report, arrived) = copy(&memory);
            assert!(arrived);
            assert_eq!(
                (report.pages, report.zero_pages),
                (1, 2 * PAGES_OF_RANGE - 1)
            );
        }
    }

    #[test]
    fn logs_of_all_ranges_spare_a_look_at_everything_once() {
        for memory in views_without_page_map() {
            memory.merge_dirty(0, &[0b110]).unwrap();
            memory.merge_dirty(1, &[]).unwrap();
            let (report, _) = copy(&memory);
            assert_eq!((report.pages, report.zero_pages), (0, 2));
            // The guest has run on, and its log was not asked for again.
            store_as_guest(&memory);
            assert!(copy(&memory).1);
        }
    }

    #[test]
    fn a_guest_that_stores_by_the_accessor_needs_no_log() {
        for memory in views_without_page_map() {
            memory.declare_all_guest_stores_use_accessor();
            memory.write(GuestAddress(HIGH_START), &[7]).unwrap();
            for _ in 0..2 {
                let (report, arrived) = copy(&memory);
                assert!(arrived);
                assert_eq!((report.pages, report.zero_pages), (1, 0));
            }
        }
    }
}
