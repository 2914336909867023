//! Mapping guest RAM on Windows: one view of a section per RAM range.
//!
//! A *section* is made of the file, and a view maps a part of it: shared and writable, only to be read,
//! or copy-on-write. A view begins at a multiple of 64 KiB in the file, which the layout sees to.
//! Anonymous RAM is committed memory: unlike Linux, Windows reserves backing for all of it, and for all
//! of a copy-on-write view, when it is made.

#![expect(unsafe_code, reason = "views are made and removed by address")]

mod borrowed;
pub(crate) mod fault;
pub(crate) mod page_map;
pub(crate) mod storage;
pub(crate) mod valid_data;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr::{self, NonNull};

use nvx_host::{Directory, read_exact_at};
use windows_sys::Wdk::Storage::FileSystem::{FileAccessInformation, NtQueryInformationFile};
use windows_sys::Win32::Foundation::RtlNtStatusToDosError;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_STANDARD_INFO, FILE_WRITE_DATA, FileStandardInfo, GetFileInformationByHandleEx,
};
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FILE_MAP, FILE_MAP_COPY, FILE_MAP_READ, FILE_MAP_WRITE, MEM_COMMIT,
    MEM_RELEASE, MEM_RESERVE, MEMORY_MAPPED_VIEW_ADDRESS, MapViewOfFile, PAGE_PROTECTION_FLAGS,
    PAGE_READONLY, PAGE_READWRITE, PAGE_WRITECOPY, UnmapViewOfFile, VirtualAlloc, VirtualFree,
};

use crate::backing::Backing;
use crate::fault_table::Registration;
use crate::layout::PAGE_SIZE_BYTES;
use crate::volatile::VolatileBytes;

/// Advice about how a view is read: Windows takes none for a view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advice;

/// See [`Advice`].
pub(crate) const SHARED_BLOCK_FILE_ADVICE: Advice = Advice;

/// Where mapped memory comes from, which decides how it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    View,
    Committed,
    /// Somebody else mapped it, and unmaps it.
    Borrowed,
}

/// One RAM range mapped into this process; unmapped on drop.
#[derive(Debug)]
pub(crate) struct RangeView {
    bytes: VolatileBytes,
    /// Of a view that stands on a file: what to read again when pages are dropped.
    private_of: Option<(File, u64)>,
    origin: Origin,
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
        let view = |file, protection, access| {
            map_view(file, protection, access, file_offset_bytes, length)
        };
        let mut private_of = None;
        let start = match backing {
            Backing::Shared {
                file,
                writable: true,
                ..
            } => view(file, PAGE_READWRITE, FILE_MAP_WRITE)?,
            Backing::Shared {
                file,
                writable: false,
                ..
            } => view(file, PAGE_READONLY, FILE_MAP_READ)?,
            Backing::Private { file, .. } => {
                private_of = Some((file.try_clone()?, file_offset_bytes));
                view(file, PAGE_WRITECOPY, FILE_MAP_COPY)?
            }
            Backing::Anonymous => commit(length)?,
        };
        // SAFETY: the memory was just mapped with this length, at page granularity, and lives until
        // this value is dropped. Read-only views are never written: `GuestMemory` refuses.
        let bytes = unsafe { VolatileBytes::new(start, length) };
        let fault_report = backing
            .name()
            .and_then(|name| fault::register(start.as_ptr().addr(), bytes.size_bytes(), name));
        Ok(Self {
            bytes,
            private_of,
            origin: match backing {
                Backing::Anonymous => Origin::Committed,
                Backing::Shared { .. } | Backing::Private { .. } => Origin::View,
            },
            fault_report,
        })
    }

    /// Memory that somebody else has mapped.
    ///
    /// # Safety
    /// `size_bytes` bytes at `start`, which is page aligned, stay mapped writable for as long as the value
    /// lives.
    pub(crate) unsafe fn borrowed(start: NonNull<u8>, size_bytes: usize) -> Self {
        Self {
            // SAFETY: as the caller promises.
            bytes: unsafe { VolatileBytes::new(start, size_bytes) },
            private_of: None,
            origin: Origin::Borrowed,
            fault_report: None,
        }
    }

    pub(crate) fn bytes(&self) -> &VolatileBytes {
        &self.bytes
    }

    /// Nothing to do; see [`Advice`].
    pub(crate) fn advise(&self, _advice: Advice) -> io::Result<()> {
        Ok(())
    }

    /// Makes a part of the range read as it did when it was mapped; `None` if it is not all inside.
    /// The memory stays committed: a part of a view cannot be unmapped, and memory that a hypervisor
    /// maps must not be decommitted.
    pub(crate) fn drop_pages(&self, offset: u64, size_bytes: usize) -> Option<io::Result<()>> {
        self.bytes.pointer(offset, size_bytes)?;
        let mut page = [0; PAGE_SIZE_BYTES as usize];
        let end = offset.checked_add(size_bytes as u64)?;
        for at in (offset..end).step_by(PAGE_SIZE_BYTES as usize) {
            if let Some((file, start)) = &self.private_of
                && let Err(error) = read_exact_at(file, &mut page, start + at)
            {
                return Some(Err(error));
            }
            self.bytes.write(at, &page)?;
        }
        Some(Ok(()))
    }
}

impl Drop for RangeView {
    fn drop(&mut self) {
        // Before the addresses can be taken by somebody else's mapping.
        self.fault_report = None;
        let start = self.bytes.start().as_ptr().cast();
        // SAFETY: the memory is this value's own, made by the call that the one chosen undoes, and
        // every pointer that it gave out is documented to live no longer than it.
        let done = unsafe {
            match self.origin {
                Origin::View => UnmapViewOfFile(MEMORY_MAPPED_VIEW_ADDRESS { Value: start }),
                Origin::Committed => VirtualFree(start, 0, MEM_RELEASE),
                Origin::Borrowed => 1,
            }
        };
        debug_assert!(done != 0, "unmapping a range as it was mapped");
    }
}

/// Maps a part of a file; the view keeps the section.
fn map_view(
    file: &File,
    protection: PAGE_PROTECTION_FLAGS,
    access: FILE_MAP,
    offset_bytes: u64,
    length: usize,
) -> io::Result<NonNull<u8>> {
    // SAFETY: the handle is open; null stands for default security and no name, the size 0 for the
    // file's length.
    let section = unsafe {
        let handle = CreateFileMappingW(
            file.as_raw_handle(),
            ptr::null(),
            protection,
            0,
            0,
            ptr::null(),
        );
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        OwnedHandle::from_raw_handle(handle)
    };
    // SAFETY: the section is open; the system picks free addresses.
    let view = unsafe {
        MapViewOfFile(
            section.as_raw_handle(),
            access,
            (offset_bytes >> 32) as u32,
            offset_bytes as u32,
            length,
        )
    };
    NonNull::new(view.Value.cast()).ok_or_else(io::Error::last_os_error)
}

fn commit(length: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: with a null address the system picks free ones.
    let start = unsafe {
        VirtualAlloc(
            ptr::null(),
            length,
            MEM_RESERVE | MEM_COMMIT,
            PAGE_READWRITE,
        )
    };
    NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)
}

/// Whether the handle has the right to write.
pub(crate) fn is_writable(file: &File) -> io::Result<bool> {
    let mut rights = 0_u32;
    let mut outcome = IO_STATUS_BLOCK::default();
    // SAFETY: the structure of this class is one number, an access mask (FILE_ACCESS_INFORMATION); both
    // live until the call returns.
    let status = unsafe {
        NtQueryInformationFile(
            file.as_raw_handle(),
            &raw mut outcome,
            (&raw mut rights).cast(),
            size_of::<u32>() as u32,
            FileAccessInformation,
        )
    };
    if status < 0 {
        // SAFETY: the call takes a number and gives a number.
        let code = unsafe { RtlNtStatusToDosError(status) };
        return Err(io::Error::from_raw_os_error(code.cast_signed()));
    }
    Ok(rights & FILE_WRITE_DATA != 0)
}

/// Opens an existing file of `directory` for reading and writing; a reparse point is not followed.
pub(crate) fn open_for_update(directory: &Directory, entry: &OsStr) -> io::Result<File> {
    directory
        .open_for_update(entry)
        .map_err(|error| match error {
            nvx_host::OpenError::System { source, .. } => source,
            nvx_host::OpenError::NotFound { .. } => io::ErrorKind::NotFound.into(),
            error => io::Error::other(error),
        })
}

/// The number of names that the file has.
pub(crate) fn link_count(file: &File) -> io::Result<u64> {
    let mut facts = FILE_STANDARD_INFO::default();
    // SAFETY: the class and its structure, FILE_STANDARD_INFO, belong together.
    let done = unsafe {
        GetFileInformationByHandleEx(
            file.as_raw_handle(),
            FileStandardInfo,
            (&raw mut facts).cast(),
            size_of::<FILE_STANDARD_INFO>() as u32,
        )
    };
    match done {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(u64::from(facts.NumberOfLinks)),
    }
}

/// A prepared file keeps the access list that its owner gave it.
pub(crate) fn restrict_to_owner(_file: &File) -> io::Result<()> {
    Ok(())
}
