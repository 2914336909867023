//! Mapping guest RAM on Linux: one `mmap` per RAM range.
//!
//! Everything that Linux decides stands in this module and its children: [`fault`] ends the
//! process with a readable line when a page of a RAM file cannot be had, [`page_map`] finds the
//! pages of a private view, [`storage`] moves pages between the view and files, [`valid_data`]
//! tells how a file system treats the unwritten part of a file.

#![expect(unsafe_code, reason = "mmap, madvise and munmap take addresses")]

pub(crate) mod fault;
#[cfg(test)]
mod measurements;
pub(crate) mod page_map;
pub(crate) mod storage;
pub(crate) mod valid_data;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};

use rustix::fs::OFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::backing::Backing;
use crate::fault_table::Registration;
use crate::volatile::VolatileBytes;

/// What to ask of the kernel about a shared view of a RAM file on a block file system.
///
/// `MADV_RANDOM` switches off read-around. With read-around a fault on a hole brings a large folio
/// into the page cache, and one store then makes the whole folio dirty: it is allocated and written.
///
/// Measured on ext4, new 128 MiB file, n = 15 interleaved, medians (`measure_advice_for_shared_views`):
///
/// | dirty pages | advice | touch, ms | writeback + fdatasync, ms | on disk, MiB |
/// | --- | --- | --- | --- | --- |
/// | top 256 | none | 1.1 | 1.3 | 1.0 |
/// | | `MADV_RANDOM` | 0.6 | 1.3 | 1.0 |
/// | 256, every 512 KiB | none | 30.0 | 47.5 | 101.3 |
/// | | `MADV_RANDOM` | 1.1 | 3.5 | 1.0 |
/// | 16384, every other | none | 98.8 | 67.5 | 124.0 |
/// | | `MADV_RANDOM` | 69.5 | 108.5 | 64.2 |
///
/// Only for alternate pages is the writeback slower, as it consists of single pages; touch and
/// writeback together are near equal there, and half the bytes are written.
pub(crate) const SHARED_BLOCK_FILE_ADVICE: Advice = Advice::Random;

/// One RAM range mapped into this process; unmapped on drop.
#[derive(Debug)]
pub(crate) struct RangeView {
    bytes: VolatileBytes,
    fault_report: Option<Registration>,
}

impl RangeView {
    /// Maps `size_bytes` bytes, of a file from `file_offset_bytes` on.
    pub(crate) fn map(
        backing: Backing<'_>,
        file_offset_bytes: u64,
        size_bytes: u64,
    ) -> io::Result<Self> {
        let length =
            usize::try_from(size_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // RAM that the guest never touches must not count against the commit limit.
        let private = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED and with a null hint the kernel picks free addresses, so no
        // existing mapping is affected.
        let start = unsafe {
            match backing {
                Backing::Shared { file, writable, .. } => {
                    let protection = if writable { both } else { ProtFlags::READ };
                    mmap(
                        ptr::null_mut(),
                        length,
                        protection,
                        MapFlags::SHARED,
                        file,
                        file_offset_bytes,
                    )?
                }
                Backing::Private { file, .. } => mmap(
                    ptr::null_mut(),
                    length,
                    both,
                    private,
                    file,
                    file_offset_bytes,
                )?,
                Backing::Anonymous => mmap_anonymous(ptr::null_mut(), length, both, private)?,
            }
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // SAFETY: the mapping was just made with this length, at page granularity, and lives until
        // this value is dropped. Read-only views are never written: `GuestMemory` refuses.
        let bytes = unsafe { VolatileBytes::new(start, length) };
        let fault_report = backing
            .name()
            .and_then(|name| fault::register(start.as_ptr().addr(), length, name));
        let view = Self {
            bytes,
            fault_report,
        };
        // What a guest keeps in its RAM is nobody's business who finds a core file.
        view.advise(Advice::LinuxDontDump)?;
        Ok(view)
    }

    pub(crate) fn bytes(&self) -> &VolatileBytes {
        &self.bytes
    }

    /// Gives `advice` about the whole range, of a kind that does not change what the range holds.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this value's own mapping, and advice on read-ahead and core files (the only
        // kinds that are passed in) keeps contents.
        unsafe {
            madvise(
                self.bytes.start().as_ptr().cast(),
                self.bytes.size_bytes(),
                advice,
            )?
        };
        Ok(())
    }

    /// Drops the private pages of a part of the range; `None` if it is not all inside.
    pub(crate) fn drop_pages(&self, offset: u64, size_bytes: usize) -> Option<io::Result<()>> {
        let start = self.bytes.pointer(offset, size_bytes)?;
        // SAFETY: the part lies in this value's own mapping. The pages read as zeros or as the
        // file afterwards; nobody holds references into them.
        let dropped = unsafe { madvise(start.cast(), size_bytes, Advice::LinuxDontNeed) };
        Some(dropped.map_err(io::Error::from))
    }
}

impl Drop for RangeView {
    fn drop(&mut self) {
        // Before the addresses can be taken by somebody else's mapping.
        self.fault_report = None;
        // SAFETY: the mapping is this value's own, and every pointer that it gave out is documented
        // to live no longer than it.
        let unmapped =
            unsafe { munmap(self.bytes.start().as_ptr().cast(), self.bytes.size_bytes()) };
        debug_assert!(unmapped.is_ok(), "unmapping a range as it was mapped");
    }
}

/// Whether the descriptor was opened for writing.
pub(crate) fn is_writable(file: &File) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(flags.contains(OFlags::RDWR))
}

/// Opens an existing file of `directory` for reading and writing. The last component is not followed
/// if it is a symbolic link.
pub(crate) fn open_for_update(directory: impl AsFd, entry: &OsStr) -> io::Result<File> {
    // O_NONBLOCK: opening a FIFO must not wait for its other end. It has no effect on a file.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(directory, entry, flags, rustix::fs::Mode::empty())?;
    Ok(File::from(descriptor))
}

/// The number of names that the file has.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.nlink())
}

/// Lets nobody but its owner read or write the file.
pub(crate) fn restrict_to_owner(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fchmod(
        file,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )?)
}
