//! Moving pages between a view and files, and asking the kernel about a file's pages.

#![expect(
    unsafe_code,
    reason = "msync, pwrite from guest RAM and cachestat take addresses"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nvx_host::{FileSystem, FileSystemKind};
use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};

use crate::extents::ExtentList;
use crate::layout::PAGE_SIZE_BYTES;
use crate::volatile::VolatileBytes;

/// Number of the system call, the same on every architecture; the C library's headers lack it.
const SYS_CACHESTAT: libc::c_long = 451;
/// How much of a file is looked at at once.
const LOOK_BYTES: usize = 1 << 20;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheCounts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Writes the dirty pages of a part of a shared view to the file and waits until they are stored
/// there. Metadata and the device's cache are the file sync's work.
///
/// By `sync_file_range`, since `msync` on ext4 commits the journal and has the device empty its
/// cache, and the file sync that follows would do so again whenever anything changed in between.
/// Where the file system lacks it, by `msync`; on FUSE too, since there `sync_file_range` is done
/// once the server has the pages, stored or not: the server learns of a flush by `fsync` only, which
/// `msync` sends. Measured on ext4, new 128 MiB file, no other writer,
/// flush + fdatasync in ms, n = 15 interleaved, medians (`measure_flush_calls`):
///
/// | dirty pages | `msync` | `sync_file_range` | fdatasync alone |
/// | --- | --- | --- | --- |
/// | top 256 | 0.86 + 0.05 | 0.74 + 0.11 | 0.85 |
/// | 256, every 512 KiB | 2.26 + 0.05 | 1.99 + 0.17 | 2.16 |
/// | 16384, every other | 106.3 + 0.05 | 108.2 + 0.44 | 105.7 |
pub(crate) fn flush(
    file: &File,
    file_offset_bytes: u64,
    view: &VolatileBytes,
    offset_bytes: u64,
    size_bytes: usize,
) -> io::Result<()> {
    if FileSystem::of(file)?.kind == FileSystemKind::Fuse {
        return flush_by_view(view, offset_bytes, size_bytes);
    }
    match flush_by_file(file, file_offset_bytes + offset_bytes, size_bytes as u64) {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP)
            ) =>
        {
            flush_by_view(view, offset_bytes, size_bytes)
        }
        result => result,
    }
}

/// The flush by the file's offsets, without a journal commit.
pub(crate) fn flush_by_file(file: &File, offset_bytes: u64, size_bytes: u64) -> io::Result<()> {
    let (offset, size) = signed(offset_bytes, size_bytes)?;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    retry(|| {
        // SAFETY: the call takes no addresses.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, size, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// The flush by the view's addresses; on ext4 it commits the journal too.
pub(crate) fn flush_by_view(
    view: &VolatileBytes,
    offset_bytes: u64,
    size_bytes: usize,
) -> io::Result<()> {
    let start = view
        .pointer(offset_bytes, size_bytes)
        .ok_or(io::ErrorKind::InvalidInput)?;
    retry(|| {
        // SAFETY: `pointer` has checked that the part lies in the mapping; msync changes no byte.
        unsafe { msync(start.cast(), size_bytes, MsyncFlags::SYNC) }.map_err(io::Error::from)
    })
}

/// The pages of a part of the file that are dirty or on their way to the device. `None` where the
/// kernel cannot tell (before Linux 6.5). In-memory file systems have none.
pub(crate) fn unwritten_pages(file: &File, offset_bytes: u64, size_bytes: u64) -> Option<u64> {
    let range = CacheRange {
        offset: offset_bytes,
        length: size_bytes,
    };
    let mut counts = CacheCounts::default();
    // SAFETY: both structures have the kernel's layout and live through the call.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0_u32,
        )
    };
    (result == 0).then(|| counts.dirty.saturating_add(counts.writeback))
}

/// The parts of the first `length_bytes` bytes of a file that may hold data. `None` where the file
/// system cannot tell. Moves the file's position.
pub(crate) fn data_extents(file: &File, length_bytes: u64) -> io::Result<Option<ExtentList>> {
    let mut extents = ExtentList::new();
    let mut position = 0;
    while position < length_bytes {
        let start = match seek(file, SeekFrom::Data(position)) {
            Ok(start) => start,
            // No data behind this position.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end,
            // The file shrank in between, or the answer makes no sense: take the rest as data.
            Ok(_) | Err(Errno::NXIO) => length_bytes,
            Err(error) => return Err(error.into()),
        };
        let end = end.min(length_bytes);
        if start < end {
            extents.push(start, end - start);
        }
        position = end.max(position + 1);
    }
    Ok(Some(extents))
}

/// Whether a part of a file may hold data; false only where all of it is a hole, which reads as zeros.
/// Moves the file's position.
///
/// # Errors
/// What the system said, other than that this file system cannot tell.
pub fn may_hold_data(file: &File, offset_bytes: u64, size_bytes: u64) -> io::Result<bool> {
    match seek(file, SeekFrom::Data(offset_bytes)) {
        Ok(start) => Ok(start < offset_bytes.saturating_add(size_bytes)),
        // No data behind this position. If the file ends before the part does, reading tells.
        Err(Errno::NXIO) => Ok(file.metadata()?.len() < offset_bytes.saturating_add(size_bytes)),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The offset of a piece of at most [`LOOK_BYTES`] bytes of a file that is not all zeros; `None` if
/// the first `length_bytes` bytes are. Moves the file's position.
pub(crate) fn find_content(file: &File, length_bytes: u64) -> io::Result<Option<u64>> {
    let extents = match data_extents(file, length_bytes)? {
        Some(extents) => extents,
        None => {
            let mut whole = ExtentList::new();
            whole.push(0, length_bytes);
            whole
        }
    };
    let zeros = vec![0_u8; LOOK_BYTES];
    let mut piece = vec![0_u8; LOOK_BYTES];
    let found = extents.iter().find_map(|extent| {
        let mut position = extent.offset_bytes;
        while position < extent.end_bytes() {
            let rest = usize::try_from(extent.end_bytes() - position).unwrap_or(LOOK_BYTES);
            let piece = &mut piece[..rest.min(LOOK_BYTES)];
            match file.read_exact_at(piece, position) {
                Err(error) => return Some(Err(error)),
                Ok(()) if *piece != zeros[..piece.len()] => return Some(Ok(position)),
                Ok(()) => position += piece.len() as u64,
            }
        }
        None
    });
    // Pages that were read in a row may be in large folios, of which one store dirties all. A file
    // system that keeps them nevertheless only writes more.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    found.transpose()
}

/// Allocates all blocks of a file and gives it that length, without writing them. By `fallocate`
/// itself: the C library's `posix_fallocate` writes a byte to each page where the file system lacks it.
pub(crate) fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    retry(|| fallocate(file, FallocateFlags::empty(), 0, size_bytes).map_err(io::Error::from))
}

/// Frees a part of a file; it reads as zeros afterwards and the length stays.
pub(crate) fn punch_hole(file: &File, offset_bytes: u64, size_bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry(|| fallocate(file, flags, offset_bytes, size_bytes).map_err(io::Error::from))
}

/// Writes bytes of a view to a file. The kernel copies from guest RAM itself. Returns how many
/// bytes were written, at least 1.
pub(crate) fn write_from_view(
    view: &VolatileBytes,
    offset_bytes: u64,
    size_bytes: usize,
    file: &File,
    file_offset_bytes: u64,
) -> io::Result<usize> {
    let start = view
        .pointer(offset_bytes, size_bytes)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let (offset, _) = signed(file_offset_bytes, size_bytes as u64)?;
    retry(|| {
        // SAFETY: `pointer` has checked the part; the kernel only reads it, and copes with bytes
        // that change meanwhile and with pages that cannot be had (EFAULT).
        let written = unsafe {
            libc::pwrite(
                file.as_raw_fd(),
                start.cast_const().cast(),
                size_bytes,
                offset,
            )
        };
        match usize::try_from(written) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => Ok(count),
            Err(_) => Err(io::Error::last_os_error()),
        }
    })
}

/// Whether the error says that the memory to be written from could not be read.
pub(crate) fn is_unreadable_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}

fn signed(offset_bytes: u64, size_bytes: u64) -> io::Result<(i64, i64)> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    Ok((
        i64::try_from(offset_bytes).map_err(invalid)?,
        i64::try_from(size_bytes).map_err(invalid)?,
    ))
}

/// Repeats a call that a signal interrupted. Each interruption is a signal sent to this thread, so
/// the loop is bounded by their number.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

const _: () = assert!(
    PAGE_SIZE_BYTES == 4096,
    "cachestat counts in 4 KiB pages on x86-64"
);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{GuestAddress, GuestMemory, RamFile, RamLayout, RamRange};

    #[test]
    fn both_ways_of_flushing_leave_no_page_unwritten() {
        let range = RamRange {
            start: GuestAddress(0),
            size_bytes: 16 * PAGE_SIZE_BYTES,
            file_offset_bytes: 65536,
        };
        let layout = RamLayout::new(vec![range]).unwrap();
        let ram = RamFile::create(&std::env::temp_dir(), layout.file_len_bytes()).unwrap();
        let view = ram.try_clone_file().unwrap();
        let memory = GuestMemory::shared_file(layout, view, Path::new("ram")).unwrap();
        let bytes = memory.bytes_of(0).unwrap();
        let unwritten = || unwritten_pages(ram.file(), 65536, range.size_bytes);
        let Some(0) = unwritten() else {
            println!("skipped: this system cannot count dirty pages");
            return;
        };
        for round in 1..=2_u8 {
            memory.write(GuestAddress(4096), &[round; 8192]).unwrap();
            match round {
                1 => flush_by_view(bytes, 4096, 8192).unwrap(),
                _ => flush_by_file(ram.file(), 65536 + 4096, 8192).unwrap(),
            }
            assert_eq!(unwritten(), Some(0));
        }
        assert!(flush_by_view(bytes, 15 * 4096, 8192).is_err());
        assert!(flush_by_file(ram.file(), u64::MAX, 1).is_err());
    }

    #[test]
    fn data_and_holes_are_told_apart() {
        let ram = RamFile::create(&std::env::temp_dir(), 1 << 20).unwrap();
        let extents = || data_extents(ram.file(), 1 << 20).unwrap();
        let Some(empty) = extents() else {
            println!("skipped: this file system does not tell where data is");
            return;
        };
        assert!(empty.is_empty());
        ram.file().write_all_at(&[1; 4096], 65536).unwrap();
        ram.file()
            .write_all_at(&[1; 4096], (1 << 20) - 4096)
            .unwrap();
        let found: Vec<_> = extents().unwrap().iter().collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].offset_bytes <= 65536 && found[0].end_bytes() >= 65536 + 4096);
        assert_eq!(found[1].end_bytes(), 1 << 20);
        punch_hole(ram.file(), 65536, 65536).unwrap();
        assert_eq!(extents().unwrap().len(), 1);
    }
}
