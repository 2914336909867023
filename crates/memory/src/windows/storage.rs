//! Moving pages between a view and files.
//!
//! `SetFileValidData` would spare NTFS the zeros of a new file. It is not used: it takes the privilege
//! to manage the volume, and what the device held before could be read from the file.

#![expect(
    unsafe_code,
    reason = "FlushViewOfFile and WriteFile from guest RAM take addresses"
)]

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle as _;

use windows_sys::Win32::Foundation::ERROR_NOACCESS;
use windows_sys::Win32::Storage::FileSystem::WriteFile;
use windows_sys::Win32::System::IO::{DeviceIoControl, OVERLAPPED};
use windows_sys::Win32::System::Ioctl::{FILE_ZERO_DATA_INFORMATION, FSCTL_SET_ZERO_DATA};
use windows_sys::Win32::System::Memory::FlushViewOfFile;

use crate::extents::ExtentList;
use crate::volatile::VolatileBytes;

/// How much of a file is looked at at once.
const LOOK_BYTES: u64 = 1 << 20;

/// Begins to write the dirty pages of a part of a shared view to the file and waits until the file
/// system has them. That the device has them too, and the metadata, is the file sync's work
/// (Microsoft, "FlushViewOfFile").
pub(crate) fn flush(
    _file: &File,
    _file_offset_bytes: u64,
    view: &VolatileBytes,
    offset_bytes: u64,
    size_bytes: usize,
) -> io::Result<()> {
    // A length of 0 means "to the end of the mapping" to the system.
    if size_bytes == 0 {
        return Ok(());
    }
    let start = view
        .pointer(offset_bytes, size_bytes)
        .ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: `pointer` has checked that the part lies in the view; the call changes no byte.
    match unsafe { FlushViewOfFile(start.cast_const().cast(), size_bytes) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `None`: Windows does not tell which pages of a view are dirty.
pub(crate) fn unwritten_pages(_file: &File, _offset_bytes: u64, _size_bytes: u64) -> Option<u64> {
    None
}

/// `None`: RAM files and snapshots are dense here, so there are no holes to leave out.
pub(crate) fn data_extents(_file: &File, _length_bytes: u64) -> io::Result<Option<ExtentList>> {
    Ok(None)
}

/// True: there are no holes that a look at the bytes could be spared for.
///
/// # Errors
/// None; as on other systems.
pub fn may_hold_data(_file: &File, _offset_bytes: u64, _size_bytes: u64) -> io::Result<bool> {
    Ok(true)
}

/// The offset of a piece of at most 1 MiB of a file that is not all zeros; `None` if the first
/// `length_bytes` bytes are.
pub(crate) fn find_content(file: &File, length_bytes: u64) -> io::Result<Option<u64>> {
    let mut piece = vec![0_u8; LOOK_BYTES as usize];
    for position in (0..length_bytes).step_by(LOOK_BYTES as usize) {
        let length = (length_bytes - position).min(LOOK_BYTES) as usize;
        let piece = piece.get_mut(..length).unwrap_or_default();
        nvx_host::read_exact_at(file, piece, position)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(Some(position));
        }
    }
    Ok(None)
}

/// Gives a file its length, and with it all clusters: a file is dense unless it was declared sparse.
pub(crate) fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    file.set_len(size_bytes)
}

/// Makes a part of a file read as zeros; the length stays. A dense file keeps its clusters. Refused by
/// file systems other than NTFS and ReFS.
pub(crate) fn punch_hole(file: &File, offset_bytes: u64, size_bytes: u64) -> io::Result<()> {
    let signed = |bytes| i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let zeroed = FILE_ZERO_DATA_INFORMATION {
        FileOffset: signed(offset_bytes)?,
        BeyondFinalZero: signed(offset_bytes.saturating_add(size_bytes))?,
    };
    let mut answered = 0;
    // SAFETY: the structure is the one that the request takes, and lives until the call returns; there
    // is no answer but its length.
    let done = unsafe {
        DeviceIoControl(
            file.as_raw_handle(),
            FSCTL_SET_ZERO_DATA,
            (&raw const zeroed).cast(),
            size_of::<FILE_ZERO_DATA_INFORMATION>() as u32,
            std::ptr::null_mut(),
            0,
            &raw mut answered,
            std::ptr::null_mut(),
        )
    };
    match done {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes bytes of a view to a file. The system copies from guest RAM itself. Returns how many bytes
/// were written, at least 1.
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
    let length = u32::try_from(size_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut position = OVERLAPPED::default();
    position.Anonymous.Anonymous.Offset = file_offset_bytes as u32;
    position.Anonymous.Anonymous.OffsetHigh = (file_offset_bytes >> 32) as u32;
    let mut written = 0;
    // SAFETY: `pointer` has checked the part; the system only reads it, copes with bytes that change
    // meanwhile, and answers with an error where a page cannot be had. The handle is not for overlapped
    // use, so the call is over when it returns.
    let done = unsafe {
        WriteFile(
            file.as_raw_handle(),
            start.cast_const(),
            length,
            &raw mut written,
            &raw mut position,
        )
    };
    match (done, written) {
        (0, _) => Err(io::Error::last_os_error()),
        (_, 0) => Err(io::ErrorKind::WriteZero.into()),
        (_, written) => Ok(written as usize),
    }
}

/// Whether the error says that the memory to be written from could not be read.
pub(crate) fn is_unreadable_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_NOACCESS.cast_signed())
}
