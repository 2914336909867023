//! How much of a file is in the page cache.
#![expect(
    unsafe_code,
    reason = "cachestat has no wrapper in the libraries in use, and reading to find out would fill the cache"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn written_pages_are_cached() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 * 4096]).unwrap();
        match cached_pages(&file) {
            Ok(pages) => assert_eq!(pages, 3),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                println!("skipped: this kernel cannot tell");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
