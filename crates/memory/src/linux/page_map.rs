//! Which pages of a view belong to this process alone: the touched pages of anonymous memory, the
//! copied pages of a private view.
//!
//! `/proc/self/pagemap` tells. Its `PAGEMAP_SCAN` request (Linux 6.7) answers with ranges and skips
//! what was never mapped; older kernels give one 64-bit entry per page. Both formats: kernel
//! documentation, admin-guide/mm/pagemap.

#![expect(
    unsafe_code,
    reason = "PAGEMAP_SCAN is an ioctl with a structure of addresses"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::extents::ExtentList;
use crate::layout::PAGE_SIZE_BYTES;
use crate::volatile::VolatileBytes;

/// Page categories of `PAGEMAP_SCAN`, from `linux/fs.h`.
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// Bits of a pagemap entry.
const ENTRY_FILE_OR_SHARED: u64 = 1 << 61;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_PRESENT: u64 = 1 << 63;

/// Ranges taken from the kernel by the first call. Most guests have not more, and fresh memory for answers costs a
/// capture a page fault for each 4 KiB.
const FIRST_SCAN_RANGES: usize = 128;
/// Ranges taken from the kernel by each further call: 24 KiB of answers.
const SCAN_RANGES: usize = 1024;
/// Entries read per call: 64 KiB.
const READ_ENTRIES: usize = 8192;

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)` in the generic encoding, which x86-64 and arm64 use.
const PAGEMAP_SCAN: libc::Ioctl = (3 << 30)
    | ((size_of::<ScanArguments>() as libc::Ioctl) << 16)
    | ((b'f' as libc::Ioctl) << 8)
    | 16;

/// Opens this process's page map. The permission is checked here, not at each read.
pub(crate) fn open() -> io::Result<File> {
    File::open("/proc/self/pagemap")
}

/// Reads the entry of the first page of `view`, to find out whether that is possible.
pub(crate) fn try_reading(page_map: &File, view: &VolatileBytes) -> io::Result<()> {
    let page = view.start().as_ptr().addr() as u64 / PAGE_SIZE_BYTES;
    page_map.read_exact_at(&mut [0; size_of::<u64>()], page * size_of::<u64>() as u64)
}

/// The private pages of `view`, as extents of the RAM file in which it begins at `file_offset_bytes`.
pub(crate) fn private_pages(
    page_map: &File,
    view: &VolatileBytes,
    file_offset_bytes: u64,
) -> io::Result<ExtentList> {
    match scan(page_map, view, file_offset_bytes) {
        // ENOTTY: a kernel without the request. EINVAL: one that knows other categories.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
            read_entries(page_map, view, file_offset_bytes)
        }
        result => result,
    }
}

fn scan(page_map: &File, view: &VolatileBytes, file_offset_bytes: u64) -> io::Result<ExtentList> {
    let first = view.start().as_ptr().addr() as u64;
    let end = first + view.size_bytes() as u64;
    let mut found = ExtentList::new();
    let mut answers = vec![PageRegion::default(); FIRST_SCAN_RANGES];
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        flags: 0,
        start: first,
        end,
        walk_end: 0,
        vec: answers.as_mut_ptr().addr() as u64,
        vec_len: 0,
        max_pages: 0,
        category_inverted: PAGE_IS_FILE,
        category_mask: PAGE_IS_FILE,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: PAGE_IS_FILE,
    };
    while arguments.start < end {
        arguments.vec = answers.as_mut_ptr().expose_provenance() as u64;
        arguments.vec_len = answers.len() as u64;
        // SAFETY: the arguments and the answers live through the call, and `vec_len` is the length
        // of the answers. The request without flags changes no page.
        let count = unsafe { libc::ioctl(page_map.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for region in answers.get(..count).unwrap_or_default() {
            found.push(
                file_offset_bytes + (region.start - first),
                region.end - region.start,
            );
        }
        if arguments.walk_end <= arguments.start {
            return Err(io::Error::other("the page map scan made no progress"));
        }
        arguments.start = arguments.walk_end;
        answers.resize(SCAN_RANGES, PageRegion::default());
    }
    Ok(found)
}

fn read_entries(
    page_map: &File,
    view: &VolatileBytes,
    file_offset_bytes: u64,
) -> io::Result<ExtentList> {
    let first_page = view.start().as_ptr().addr() as u64 / PAGE_SIZE_BYTES;
    let pages = view.size_bytes() as u64 / PAGE_SIZE_BYTES;
    let mut found = ExtentList::new();
    let mut buffer = vec![0; READ_ENTRIES * size_of::<u64>()];
    let mut page = 0;
    while page < pages {
        let wanted = (pages - page).min(READ_ENTRIES as u64) as usize * size_of::<u64>();
        let part = buffer.get_mut(..wanted).unwrap_or_default();
        page_map.read_exact_at(part, (first_page + page) * size_of::<u64>() as u64)?;
        let (entries, _) = part.as_chunks::<8>();
        for entry in entries {
            let entry = u64::from_ne_bytes(*entry);
            if entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && entry & ENTRY_FILE_OR_SHARED == 0 {
                found.push(file_offset_bytes + page * PAGE_SIZE_BYTES, PAGE_SIZE_BYTES);
            }
            page += 1;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::*;
    use crate::{GuestAddress, GuestMemory, RamFile, RamLayout, RamRange};

    const PAGES: u64 = 9000;
    const OFFSET: u64 = 65536;

    fn layout() -> RamLayout {
        let range = RamRange {
            start: GuestAddress(0),
            size_bytes: PAGES * PAGE_SIZE_BYTES,
            file_offset_bytes: OFFSET,
        };
        RamLayout::new(vec![range]).unwrap()
    }

    fn assert_finds_written_pages(memory: &GuestMemory, pages: &std::collections::BTreeSet<u64>) {
        let mut expected = ExtentList::new();
        for page in pages {
            let address = GuestAddress(page * PAGE_SIZE_BYTES);
            memory.write(address, &[1]).unwrap();
            expected.push(OFFSET + address.0, PAGE_SIZE_BYTES);
        }
        let view = memory.bytes_of(0).unwrap();
        let page_map = open().unwrap();
        assert_eq!(read_entries(&page_map, view, OFFSET).unwrap(), expected);
        assert_eq!(private_pages(&page_map, view, OFFSET).unwrap(), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn both_requests_find_the_pages_of_this_process(
            pages in proptest::collection::btree_set(0..PAGES, 0..2500),
        ) {
            assert_finds_written_pages(&GuestMemory::anonymous(layout()).unwrap(), &pages);
            let base = RamFile::create(&std::env::temp_dir(), layout().file_len_bytes()).unwrap();
            let file = base.try_clone_file().unwrap();
            let name = std::path::Path::new("base");
            let private = GuestMemory::private_file(layout(), file, name).unwrap();
            // Pages that were only read belong to the file.
            for page in (0..PAGES).step_by(7) {
                let read = private.read_u64(GuestAddress(page * PAGE_SIZE_BYTES));
                prop_assert_eq!(read.unwrap(), 0);
            }
            assert_finds_written_pages(&private, &pages);
        }
    }
}
