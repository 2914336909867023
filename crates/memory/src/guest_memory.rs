//! Guest RAM as the rest of the monitor sees it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nvx_host::FileSystem;
use thiserror::Error;

use crate::backing::Backing;
use crate::dirty::{DirtyBitmap, DirtyLogError, DirtySet};
use crate::layout::{GuestAddress, PAGE_SIZE_BYTES, RamLayout};
use crate::os::{self, RangeView};
use crate::volatile::VolatileBytes;

/// What kind of view of memory guest RAM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// A shared view of a RAM file: stores reach the file by writeback.
    SharedFile,
    /// A copy-on-write view of a snapshot's memory: stores stay in this process.
    PrivateFile,
    /// Memory without a file; begins as zeros.
    Anonymous,
}

/// Why guest RAM could not be mapped.
#[derive(Debug, Error)]
pub enum MapError {
    /// The file's length or kind cannot be read.
    #[error("cannot inspect RAM file {}", name.display())]
    Inspect {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a regular file.
    #[error("RAM file {} is not a regular file", name.display())]
    NotRegular {
        /// The file.
        name: PathBuf,
    },
    /// The file ends before the layout does.
    #[error("RAM file {} has {length_bytes} bytes, but guest RAM needs {needed_bytes}", name.display())]
    FileTooShort {
        /// The file.
        name: PathBuf,
        /// Its length in bytes.
        length_bytes: u64,
        /// The layout's length in the file, in bytes.
        needed_bytes: u64,
    },
    /// A shared view was asked of a file that is open for reading only.
    #[error("RAM file {} is open for reading only, and a shared view writes to it", name.display())]
    ReadOnlyFile {
        /// The file.
        name: PathBuf,
    },
    /// The system refused a mapping.
    #[error("cannot map {size_bytes} bytes of {} for guest RAM at {start}", file_or_anonymous(name.as_deref()))]
    Map {
        /// The file; `None` for anonymous memory.
        name: Option<PathBuf>,
        /// Start of the RAM range.
        start: GuestAddress,
        /// Length of the RAM range in bytes.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused advice about a mapping.
    #[error("cannot advise the system how RAM file {} is read", name.display())]
    Advise {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why an access to guest RAM was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// Not all bytes lie in one RAM range.
    #[error("{size_bytes} bytes at {address} are not all guest RAM")]
    OutOfRange {
        /// Start of the access.
        address: GuestAddress,
        /// Length of the access in bytes.
        size_bytes: u64,
    },
    /// A write to a view that only reads.
    #[error("write to {address} in a read-only view of guest RAM")]
    ReadOnly {
        /// Start of the access.
        address: GuestAddress,
    },
}

/// Why pages could not be given back.
#[derive(Debug, Error)]
pub enum DiscardError {
    /// Not all bytes lie in one RAM range.
    #[error("cannot discard {size_bytes} bytes at {address}: they are not all guest RAM")]
    OutOfRange {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// Start or length is not a multiple of the page size.
    #[error("cannot discard {size_bytes} bytes at {address}: not page aligned")]
    Unaligned {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// The view only reads.
    #[error("cannot discard {size_bytes} bytes at {address} of a read-only view")]
    ReadOnly {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
    },
    /// The system refused; a RAM file's file system may not be able to free parts of a file.
    #[error("cannot discard {size_bytes} bytes of guest RAM at {address}")]
    System {
        /// Start of the range.
        address: GuestAddress,
        /// Length in bytes.
        size_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// One RAM range as the hypervisor maps it into the guest.
///
/// The memory at `host` stays mapped while the [`GuestMemory`] that gave it out lives, and no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRegion {
    /// Where the guest sees the range.
    pub guest: GuestAddress,
    /// Where this process sees it; page aligned.
    pub host: NonNull<u8>,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl HostRegion {
    /// The host address as a number, as hypervisor interfaces take it.
    pub fn host_address(&self) -> u64 {
        // Exposed, since the hypervisor reaches the memory through the number.
        self.host.as_ptr().expose_provenance() as u64
    }
}

/// What stands behind the views.
#[derive(Debug)]
pub(crate) enum Source {
    Shared {
        file: File,
        name: PathBuf,
        writable: bool,
    },
    Private {
        file: File,
        name: PathBuf,
    },
    Anonymous,
}

/// Guest RAM, mapped into this process.
///
/// Accesses are checked against the layout and never span a gap. They are volatile: the guest may
/// change any byte at any time, so what is read twice may differ. Dropping the value unmaps RAM.
///
/// If a page of a file view cannot be read or stored (the file was truncated, its file system is
/// full), touching it ends the process with status 125 and a line that names the file.
#[derive(Debug)]
pub struct GuestMemory {
    layout: RamLayout,
    views: Vec<RangeView>,
    dirty: Vec<DirtyBitmap>,
    source: Source,
    page_map: OnceLock<File>,
    /// Of each range: whether the hypervisor's log was merged since the last copy.
    log_merged: Vec<AtomicBool>,
    accessor_sees_all_stores: AtomicBool,
    /// The system has failed to store pages of the RAM file since they were last all stored.
    unstored_pages: AtomicBool,
}

impl GuestMemory {
    /// RAM without a file, all zeros.
    ///
    /// # Errors
    /// [`MapError::Map`].
    pub fn anonymous(layout: RamLayout) -> Result<Self, MapError> {
        Self::map(layout, Source::Anonymous)
    }

    /// A shared view of a RAM file that is open for reading and writing and at least as long as
    /// the layout's [`file_len_bytes`](RamLayout::file_len_bytes). `name` appears in messages.
    ///
    /// # Errors
    /// Any [`MapError`].
    pub fn shared_file(layout: RamLayout, file: File, name: &Path) -> Result<Self, MapError> {
        let writable = check_file(&layout, &file, name)?;
        if !writable {
            return Err(MapError::ReadOnlyFile {
                name: name.to_owned(),
            });
        }
        let memory = Self::map(
            layout,
            Source::Shared {
                file,
                name: name.to_owned(),
                writable,
            },
        )?;
        memory.advise_shared_view()?;
        Ok(memory)
    }

    /// A view of a RAM file that only reads, for inspecting it; writes and writeback are refused.
    ///
    /// # Errors
    /// Any [`MapError`] but [`MapError::ReadOnlyFile`].
    pub fn read_only_file(layout: RamLayout, file: File, name: &Path) -> Result<Self, MapError> {
        check_file(&layout, &file, name)?;
        Self::map(
            layout,
            Source::Shared {
                file,
                name: name.to_owned(),
                writable: false,
            },
        )
    }

    /// A copy-on-write view of a snapshot's memory file. The file is never changed, and may be
    /// open for reading only. `name` appears in messages.
    ///
    /// # Errors
    /// Any [`MapError`] but [`MapError::ReadOnlyFile`].
    pub fn private_file(layout: RamLayout, file: File, name: &Path) -> Result<Self, MapError> {
        check_file(&layout, &file, name)?;
        Self::map(
            layout,
            Source::Private {
                file,
                name: name.to_owned(),
            },
        )
    }

    fn map(layout: RamLayout, source: Source) -> Result<Self, MapError> {
        let backing = match &source {
            Source::Shared {
                file,
                name,
                writable,
            } => Backing::Shared {
                file,
                name,
                writable: *writable,
            },
            Source::Private { file, name } => Backing::Private { file, name },
            Source::Anonymous => Backing::Anonymous,
        };
        let mut views = Vec::with_capacity(layout.ranges().len());
        for range in layout.ranges() {
            let view = RangeView::map(backing, range.file_offset_bytes, range.size_bytes);
            views.push(view.map_err(|error| MapError::Map {
                name: source.name().map(Path::to_owned),
                start: range.start,
                size_bytes: range.size_bytes,
                source: error,
            })?);
        }
        Ok(Self::of_views(layout, source, views))
    }

    /// RAM whose ranges are mapped.
    pub(crate) fn of_views(layout: RamLayout, source: Source, views: Vec<RangeView>) -> Self {
        let dirty = layout
            .ranges()
            .iter()
            .map(|range| DirtyBitmap::new(range.pages()))
            .collect();
        let log_merged = layout.ranges().iter().map(|_| AtomicBool::new(false));
        Self {
            log_merged: log_merged.collect(),
            layout,
            views,
            dirty,
            source,
            page_map: OnceLock::new(),
            accessor_sees_all_stores: AtomicBool::new(false),
            unstored_pages: AtomicBool::new(false),
        }
    }

    fn advise_shared_view(&self) -> Result<(), MapError> {
        let Source::Shared { file, name, .. } = &self.source else {
            return Ok(());
        };
        let inspect = |source| MapError::Inspect {
            name: name.clone(),
            source,
        };
        if FileSystem::of(file).map_err(inspect)?.is_memory() {
            return Ok(());
        }
        for view in &self.views {
            view.advise(os::SHARED_BLOCK_FILE_ADVICE)
                .map_err(|source| MapError::Advise {
                    name: name.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    /// Where RAM lies.
    pub fn layout(&self) -> &RamLayout {
        &self.layout
    }

    /// The kind of view.
    pub fn view_kind(&self) -> ViewKind {
        match self.source {
            Source::Shared { .. } => ViewKind::SharedFile,
            Source::Private { .. } => ViewKind::PrivateFile,
            Source::Anonymous => ViewKind::Anonymous,
        }
    }

    /// Tells that the system has failed to store pages of the RAM file. From then on it takes them for
    /// stored and never tries again, though the device does not have them; so the next
    /// [`writeback`](Self::writeback) has all pages that hold data written once more. A failed writeback
    /// tells so itself; to be called when a sync of the file fails.
    pub fn expect_unstored_pages(&self) {
        self.unstored_pages.store(true, Ordering::Release);
    }

    /// Whether pages may be unstored; they are taken for stored from now on.
    pub(crate) fn take_unstored_pages(&self) -> bool {
        self.unstored_pages.swap(false, Ordering::AcqRel)
    }

    /// The file behind the view.
    pub fn file(&self) -> Option<&File> {
        match &self.source {
            Source::Shared { file, .. } | Source::Private { file, .. } => Some(file),
            Source::Anonymous => None,
        }
    }

    /// The file's name, as it was given.
    pub fn name(&self) -> Option<&Path> {
        self.source.name()
    }

    /// The mapped ranges in the layout's order, for the hypervisor's memory slots.
    pub fn host_regions(&self) -> impl ExactSizeIterator<Item = HostRegion> + '_ {
        self.layout
            .ranges()
            .iter()
            .zip(&self.views)
            .map(|(range, view)| HostRegion {
                guest: range.start,
                host: view.bytes().start(),
                size_bytes: range.size_bytes,
            })
    }

    /// Reads guest RAM at `address` into all of `target`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; then nothing has been read.
    pub fn read(&self, address: GuestAddress, target: &mut [u8]) -> Result<(), AccessError> {
        let refused = AccessError::OutOfRange {
            address,
            size_bytes: target.len() as u64,
        };
        let (index, offset) = self
            .layout
            .locate(address, target.len() as u64)
            .ok_or(refused)?;
        self.bytes_of(index)
            .and_then(|bytes| bytes.read(offset, target))
            .ok_or(refused)
    }

    /// Writes all of `source` to guest RAM at `address`, and marks the pages dirty.
    ///
    /// # Errors
    /// [`AccessError`]; then nothing has been written.
    pub fn write(&self, address: GuestAddress, source: &[u8]) -> Result<(), AccessError> {
        let size_bytes = source.len() as u64;
        let refused = AccessError::OutOfRange {
            address,
            size_bytes,
        };
        if self.is_read_only() {
            return Err(AccessError::ReadOnly { address });
        }
        let (index, offset) = self.layout.locate(address, size_bytes).ok_or(refused)?;
        let bytes = self.bytes_of(index).ok_or(refused)?;
        if let (Some(last), Some(dirty)) = (size_bytes.checked_sub(1), self.dirty.get(index)) {
            // Before the store: a page must never hold new bytes without its bit.
            let first_page = offset / PAGE_SIZE_BYTES;
            dirty.mark(
                first_page,
                (offset + last) / PAGE_SIZE_BYTES - first_page + 1,
            );
        }
        bytes.write(offset, source).ok_or(refused)
    }

    /// Loads a little-endian `u16` in one access, so that a value which the guest changes at the same
    /// time is the old or the new one. For the indices of rings that are shared with the guest.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], also for an odd address.
    pub fn load_u16(&self, address: GuestAddress) -> Result<u16, AccessError> {
        let size_bytes = size_of::<u16>() as u64;
        self.layout
            .locate(address, size_bytes)
            .and_then(|(index, offset)| self.bytes_of(index)?.load_u16(offset))
            .map(u16::from_le)
            .ok_or(AccessError::OutOfRange {
                address,
                size_bytes,
            })
    }

    /// Stores a little-endian `u16` in one access, and marks the page dirty.
    ///
    /// # Errors
    /// [`AccessError`], [`AccessError::OutOfRange`] also for an odd address.
    pub fn store_u16(&self, address: GuestAddress, value: u16) -> Result<(), AccessError> {
        let size_bytes = size_of::<u16>() as u64;
        if self.is_read_only() {
            return Err(AccessError::ReadOnly { address });
        }
        self.layout
            .locate(address, size_bytes)
            .and_then(|(index, offset)| {
                // An odd address may have its second byte in another page; it is refused below.
                self.dirty.get(index)?.mark(offset / PAGE_SIZE_BYTES, 1);
                self.bytes_of(index)?.store_u16(offset, value.to_le())
            })
            .ok_or(AccessError::OutOfRange {
                address,
                size_bytes,
            })
    }

    /// Reads a little-endian `u32`; any alignment.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_u32(&self, address: GuestAddress) -> Result<u32, AccessError> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian `u64`; any alignment.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_u64(&self, address: GuestAddress) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a little-endian `u32`; any alignment.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_u32(&self, address: GuestAddress, value: u32) -> Result<(), AccessError> {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes a little-endian `u64`; any alignment.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_u64(&self, address: GuestAddress, value: u64) -> Result<(), AccessError> {
        self.write(address, &value.to_le_bytes())
    }

    /// The pages written so far: by [`write`](Self::write) since RAM was mapped, and by the guest
    /// as far as the hypervisor's logs were merged.
    pub fn dirty(&self) -> DirtySet {
        DirtySet::new(&self.layout, &self.dirty)
    }

    /// Adds a hypervisor's log of one RAM range to the dirty set: bit 0 of word 0 is the range's
    /// first page. Bits behind the last page are ignored. The log must have been kept since the
    /// hypervisor was given the range, or since the last merge: once every range's log was merged,
    /// the next copy may take the dirty set for all that was written.
    ///
    /// # Errors
    /// [`DirtyLogError`]; then nothing has been merged.
    pub fn merge_dirty(&self, region_index: usize, log: &[u64]) -> Result<(), DirtyLogError> {
        let count = self.layout.ranges().len();
        let bitmap = self
            .dirty
            .get(region_index)
            .ok_or(DirtyLogError::NoSuchRegion {
                region_index,
                count,
            })?;
        if bitmap.merge(log) {
            if let Some(merged) = self.log_merged.get(region_index) {
                merged.store(true, Ordering::Release);
            }
            return Ok(());
        }
        let pages = self
            .layout
            .ranges()
            .get(region_index)
            .map_or(0, |range| range.pages());
        Err(DirtyLogError::TooLong {
            region_index,
            words: log.len(),
            pages,
        })
    }

    /// Gives pages back to the system. They read as zeros afterwards; those of a private view read
    /// as the snapshot's bytes again. The dirty set does not change.
    ///
    /// # Errors
    /// [`DiscardError`]. A size of 0 is in order and does nothing.
    pub fn discard(&self, address: GuestAddress, size_bytes: u64) -> Result<(), DiscardError> {
        if self.is_read_only() {
            return Err(DiscardError::ReadOnly {
                address,
                size_bytes,
            });
        }
        if !address.0.is_multiple_of(PAGE_SIZE_BYTES) || !size_bytes.is_multiple_of(PAGE_SIZE_BYTES)
        {
            return Err(DiscardError::Unaligned {
                address,
                size_bytes,
            });
        }
        let refused = || DiscardError::OutOfRange {
            address,
            size_bytes,
        };
        let (index, offset) = self
            .layout
            .locate(address, size_bytes)
            .ok_or_else(refused)?;
        let range = self.layout.ranges().get(index).ok_or_else(refused)?;
        if size_bytes == 0 {
            return Ok(());
        }
        let result = match &self.source {
            Source::Shared { file, .. } => {
                os::storage::punch_hole(file, range.file_offset_bytes + offset, size_bytes)
            }
            Source::Private { .. } | Source::Anonymous => self
                .views
                .get(index)
                .and_then(|view| view.drop_pages(offset, size_bytes as usize))
                .ok_or_else(refused)?,
        };
        result.map_err(|source| DiscardError::System {
            address,
            size_bytes,
            source,
        })
    }

    /// Declares that the guest has no way to RAM but [`write`](Self::write), as when its processor
    /// is software in this process: then the dirty set is all that was written, without any log.
    pub fn declare_all_guest_stores_use_accessor(&self) {
        self.accessor_sees_all_stores.store(true, Ordering::Release);
    }

    /// Whether the dirty set has every page written so far, for one copy: the logs are asked for
    /// anew each time, since the guest runs on between copies.
    pub(crate) fn take_dirty_set_is_complete(&self) -> bool {
        let mut all_merged = true;
        for merged in &self.log_merged {
            all_merged &= merged.swap(false, Ordering::AcqRel);
        }
        all_merged || self.accessor_sees_all_stores.load(Ordering::Acquire)
    }

    /// Opens this process's page map, which a copy of anonymous or private RAM uses to find pages
    /// without reading them, and tries to read it. To be called before privileges are dropped, after
    /// which it may no longer be possible. Without it a copy needs a complete dirty set
    /// ([`merge_dirty`](Self::merge_dirty) of every range), or it looks at all of RAM.
    ///
    /// # Errors
    /// What the system said; the view works without.
    pub fn open_page_map(&self) -> io::Result<()> {
        let file = self.page_map()?;
        match self.views.first() {
            Some(view) => os::page_map::try_reading(file, view.bytes()),
            None => Ok(()),
        }
    }

    /// Whether a copy will find pages by the page map; if not, the hypervisor's dirty log is wanted.
    /// As [`open_page_map`](Self::open_page_map), for those who need no reason.
    pub fn page_map_readable(&self) -> bool {
        self.open_page_map().is_ok()
    }

    /// Puts another file in the page map's place.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn replace_page_map(&mut self, file: File) {
        self.page_map = OnceLock::from(file);
    }

    pub(crate) fn page_map(&self) -> io::Result<&File> {
        match self.page_map.get() {
            Some(file) => Ok(file),
            None => {
                let opened = os::page_map::open()?;
                Ok(self.page_map.get_or_init(|| opened))
            }
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(
            self.source,
            Source::Shared {
                writable: false,
                ..
            }
        )
    }

    /// The mapped bytes of one RAM range.
    pub(crate) fn bytes_of(&self, index: usize) -> Option<&VolatileBytes> {
        self.views.get(index).map(RangeView::bytes)
    }
}

impl Source {
    fn name(&self) -> Option<&Path> {
        match self {
            Self::Shared { name, .. } | Self::Private { name, .. } => Some(name),
            Self::Anonymous => None,
        }
    }
}

/// Checks that `file` can back the layout; tells whether it may be written.
fn check_file(layout: &RamLayout, file: &File, name: &Path) -> Result<bool, MapError> {
    let inspect = |source| MapError::Inspect {
        name: name.to_owned(),
        source,
    };
    let metadata = file.metadata().map_err(inspect)?;
    if !metadata.is_file() {
        return Err(MapError::NotRegular {
            name: name.to_owned(),
        });
    }
    if metadata.len() < layout.file_len_bytes() {
        return Err(MapError::FileTooShort {
            name: name.to_owned(),
            length_bytes: metadata.len(),
            needed_bytes: layout.file_len_bytes(),
        });
    }
    os::is_writable(file).map_err(inspect)
}

/// What guest RAM is called in a message.
pub(crate) fn file_or_anonymous(name: Option<&Path>) -> String {
    match name {
        Some(name) => format!("RAM file {}", name.display()),
        None => "anonymous RAM".to_owned(),
    }
}
