//! How much of a file is in the page cache.
#![expect(
    unsafe_code,
    reason = "cachestat and mincore have no wrapper in the libraries in use, and reading to find out would fill the cache"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `cachestat`, numbered alike on every architecture (`asm-generic/unistd.h`; since Linux 6.5).
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`; a length of 0 reaches to the end of the file.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of a file are in the page cache. Asking changes nothing.
///
/// # Errors
///
/// The operating system's; [`io::ErrorKind::Unsupported`] where it cannot tell.
pub fn cached_pages(file: &File) -> io::Result<u64> {
    match by_cachestat(file) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => by_mincore(file),
        known => known,
    }
}

/// By the call that is made for this, since Linux 6.5 and not on every file system.
fn by_cachestat(file: &File) -> io::Result<u64> {
    let range = Range {
        offset: 0,
        length: 0,
    };
    let mut counts = Counts::default();
    // SAFETY: both pointers are to values of the layout that the call reads and writes, which live
    // until it returns; the descriptor is open. Flags must be 0.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0,
        )
    };
    if result == 0 {
        return Ok(counts.cached);
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => io::ErrorKind::Unsupported.into(),
        _ => error,
    })
}

/// By a mapping of the whole file that nobody reads (mincore(2)). Where the caller neither owns the file nor
/// may write to it, the kernel says that everything is cached, so a doubt never looks cold.
fn by_mincore(file: &File) -> io::Result<u64> {
    let length = usize::try_from(file.metadata()?.len())
        .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    if length == 0 {
        return Ok(0);
    }
    // SAFETY: a new mapping at a place that the kernel chooses; the descriptor is open, and the mapping is
    // never read.
    let start = unsafe {
        mmap(
            ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    let mut pages = vec![0u8; length.div_ceil(rustix::param::page_size())];
    // SAFETY: the mapping is `length` bytes long, and the vector has a byte for each page of it.
    let result = unsafe { libc::mincore(start, length, pages.as_mut_ptr()) };
    let outcome = match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: this mapping, which nobody else knows.
    unsafe { munmap(start, length) }?;
    outcome?;
    // Bit 0 says that the page is resident; the others are undefined.
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64)
}

/// Asks for a file's clean pages to be dropped from the page cache; dirty ones stay.
///
/// # Errors
///
/// The operating system's.
pub fn drop_cached_pages(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(
        file,
        0,
        None,
        rustix::fs::Advice::DontNeed,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn written_pages_are_cached() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(by_mincore(&file).unwrap(), 0);
        // A page that is only begun counts whole.
        file.write_all(&[7; 3 * 4096 - 5]).unwrap();
        assert_eq!(cached_pages(&file).unwrap(), 3);
        assert_eq!(by_mincore(&file).unwrap(), 3);
        match by_cachestat(&file) {
            Ok(pages) => assert_eq!(pages, 3),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
    }

    #[test]
    fn holes_are_not_cached() {
        let mut file = tempfile::tempfile_in(".").unwrap();
        file.write_all(&[7; 4096]).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(by_mincore(&file).unwrap(), 1);
        assert_eq!(cached_pages(&file).unwrap(), 1);
    }
}
