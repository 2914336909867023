//! The native file interface: opening relative to a handle, and changing names by handle.
#![expect(
    unsafe_code,
    reason = "the native interface takes pointers to names and buffers"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::{AsRawHandle as _, BorrowedHandle, FromRawHandle as _, OwnedHandle};

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_CREATE, FILE_DIRECTORY_FILE, FILE_INFORMATION_CLASS, FILE_LINK_INFORMATION,
    FILE_OPEN_FOR_BACKUP_INTENT, FILE_OPEN_REPARSE_POINT, FILE_SYNCHRONOUS_IO_NONALERT,
    FileLinkInformation, FileRenameInformation, NTCREATEFILE_CREATE_DISPOSITION,
    NTCREATEFILE_CREATE_OPTIONS, NtCreateFile, NtSetInformationFile,
};
use windows_sys::Win32::Foundation::{
    HANDLE, NTSTATUS, OBJ_CASE_INSENSITIVE, RtlNtStatusToDosError, STATUS_NO_SECURITY_ON_OBJECT,
    UNICODE_STRING,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_NORMAL, FILE_DISPOSITION_FLAG_DELETE,
    FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE, FILE_DISPOSITION_FLAG_POSIX_SEMANTICS,
    FILE_DISPOSITION_INFO, FILE_DISPOSITION_INFO_EX, FILE_SHARE_MODE, FileDispositionInfo,
    FileDispositionInfoEx, GetFileInformationByHandleEx, SYNCHRONIZE, SetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::IO_STATUS_BLOCK;

use super::security::OwnerOnly;

/// Longest name of one component, in UTF-16 units, that the structures here have room for.
const MAX_NAME_UNITS: usize = 1024;

/// A name as the native interface takes it.
fn wide(name: &OsStr) -> Vec<u16> {
    name.encode_wide().collect()
}

/// The error of a native status. Its number is the Win32 one, so that [`io::Error::kind`] works.
pub(super) fn error_of(status: NTSTATUS) -> io::Error {
    // SAFETY: the call takes a number and gives a number.
    let code = unsafe { RtlNtStatusToDosError(status) };
    io::Error::from_raw_os_error(code.cast_signed())
}

/// How an entry of a directory is opened.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    /// Rights asked for.
    pub access: u32,
    /// What others may do meanwhile.
    pub share: FILE_SHARE_MODE,
    /// Whether it must exist or must not.
    pub disposition: NTCREATEFILE_CREATE_DISPOSITION,
    /// Whether it must be a directory.
    pub directory: bool,
}

impl Opening {
    /// Whether it makes something new, which then belongs to this user alone.
    fn creates(&self) -> bool {
        self.disposition == FILE_CREATE
    }
}

/// Opens or creates `name` relative to `parent`; an empty name opens `parent` itself anew. A reparse
/// point is opened itself, never followed.
pub(super) fn open_at(
    parent: BorrowedHandle<'_>,
    name: &OsStr,
    opening: Opening,
) -> Result<OwnedHandle, NTSTATUS> {
    let mut options: NTCREATEFILE_CREATE_OPTIONS =
        FILE_SYNCHRONOUS_IO_NONALERT | FILE_OPEN_REPARSE_POINT | FILE_OPEN_FOR_BACKUP_INTENT;
    if opening.directory {
        options |= FILE_DIRECTORY_FILE;
    }
    let mut wide = wide(name);
    let length_bytes = (wide.len().min(MAX_NAME_UNITS) * 2) as u16;
    let text = UNICODE_STRING {
        Length: length_bytes,
        MaximumLength: length_bytes,
        Buffer: wide.as_mut_ptr(),
    };
    let descriptor = if opening.creates() {
        OwnerOnly::descriptor_of_this_user().ok_or(STATUS_NO_SECURITY_ON_OBJECT)?
    } else {
        std::ptr::null()
    };
    let attributes = OBJECT_ATTRIBUTES {
        Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
        RootDirectory: parent.as_raw_handle(),
        ObjectName: &raw const text,
        Attributes: OBJ_CASE_INSENSITIVE,
        SecurityDescriptor: descriptor,
        SecurityQualityOfService: std::ptr::null(),
    };
    let mut handle: HANDLE = std::ptr::null_mut();
    let mut outcome = IO_STATUS_BLOCK::default();
    // SAFETY: every pointer is to a value that lives until the call returns, the name's length is that
    // of its buffer, and the handle is open.
    let status = unsafe {
        NtCreateFile(
            &raw mut handle,
            opening.access | SYNCHRONIZE,
            &raw const attributes,
            &raw mut outcome,
            std::ptr::null(),
            FILE_ATTRIBUTE_NORMAL,
            opening.share,
            opening.disposition,
            options,
            std::ptr::null(),
            0,
        )
    };
    if status < 0 {
        return Err(status);
    }
    // SAFETY: the call succeeded, so the handle is open and nobody else owns it.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// Renames what `source` is open on to `name` in `directory`, never replacing anything.
pub(super) fn rename_to(
    source: BorrowedHandle<'_>,
    directory: BorrowedHandle<'_>,
    name: &OsStr,
) -> Result<(), NTSTATUS> {
    set_name(source, directory, name, FileRenameInformation)
}

/// Gives the file that `source` is open on the further name `name` in `directory`.
pub(super) fn link_to(
    source: &File,
    directory: BorrowedHandle<'_>,
    name: &OsStr,
) -> Result<(), NTSTATUS> {
    use std::os::windows::io::AsHandle as _;
    set_name(source.as_handle(), directory, name, FileLinkInformation)
}

/// Both requests take a structure of the same form: a flag, a root, a length and the name.
fn set_name(
    source: BorrowedHandle<'_>,
    directory: BorrowedHandle<'_>,
    name: &OsStr,
    class: FILE_INFORMATION_CLASS,
) -> Result<(), NTSTATUS> {
    #[repr(C)]
    struct Named {
        header: FILE_LINK_INFORMATION,
        /// Follows the header's own first unit of the name.
        rest: [u16; MAX_NAME_UNITS],
    }
    let wide = wide(name);
    let mut request = Named {
        // All zeros: nothing is replaced.
        header: FILE_LINK_INFORMATION::default(),
        rest: [0; MAX_NAME_UNITS],
    };
    let units = wide.len().min(MAX_NAME_UNITS);
    request.header.RootDirectory = directory.as_raw_handle();
    request.header.FileNameLength = (units * 2) as u32;
    let mut outcome = IO_STATUS_BLOCK::default();
    // SAFETY: the name starts at the header's field `FileName`, behind which the structure has room
    // for MAX_NAME_UNITS more units; the copied length is at most that. The request lives until the
    // call returns, and its length is the structure's.
    let status = unsafe {
        let target = (&raw mut request.header.FileName).cast::<u16>();
        let base = (&raw mut request).cast::<u8>();
        let offset = target.cast::<u8>().offset_from(base);
        let target = base.offset(offset).cast::<u16>();
        target.copy_from_nonoverlapping(wide.as_ptr(), units);
        NtSetInformationFile(
            source.as_raw_handle(),
            &raw mut outcome,
            base.cast_const().cast(),
            size_of::<Named>() as u32,
            class,
        )
    };
    if status < 0 { Err(status) } else { Ok(()) }
}

/// Removes the name by which `entry` was opened, at once where the file system can do that although
/// the file is open elsewhere, else when its last handle is closed.
pub(super) fn delete(entry: BorrowedHandle<'_>) -> io::Result<()> {
    let at_once = FILE_DISPOSITION_INFO_EX {
        Flags: FILE_DISPOSITION_FLAG_DELETE
            | FILE_DISPOSITION_FLAG_POSIX_SEMANTICS
            | FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE,
    };
    // SAFETY: the structure is the one of this class, and lives until the call returns.
    let done = unsafe {
        SetFileInformationByHandle(
            entry.as_raw_handle(),
            FileDispositionInfoEx,
            (&raw const at_once).cast(),
            size_of::<FILE_DISPOSITION_INFO_EX>() as u32,
        )
    };
    if done != 0 {
        return Ok(());
    }
    let refused = io::Error::last_os_error();
    // What file systems without the newer request answer: invalid function, parameter, not supported.
    if !matches!(refused.raw_os_error(), Some(1 | 50 | 87 | 120)) {
        return Err(refused);
    }
    let at_close = FILE_DISPOSITION_INFO { DeleteFile: true };
    // SAFETY: as above.
    let done = unsafe {
        SetFileInformationByHandle(
            entry.as_raw_handle(),
            FileDispositionInfo,
            (&raw const at_close).cast(),
            size_of::<FILE_DISPOSITION_INFO>() as u32,
        )
    };
    if done != 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Facts about an open file that come in a plain structure.
///
/// # Safety
/// `T` is the structure that the documentation of `GetFileInformationByHandleEx` names for `class`, and
/// all zeros is a valid value of it.
pub(super) unsafe fn information<T: Default>(
    file: BorrowedHandle<'_>,
    class: i32,
) -> io::Result<T> {
    let mut facts = T::default();
    // SAFETY: the caller has promised that the class fills a `T`; it lives until the call returns.
    let done = unsafe {
        GetFileInformationByHandleEx(
            file.as_raw_handle(),
            class,
            (&raw mut facts).cast(),
            size_of::<T>() as u32,
        )
    };
    if done != 0 {
        Ok(facts)
    } else {
        Err(io::Error::last_os_error())
    }
}
