//! What the system knows about open files, directories and volumes.
#![expect(
    unsafe_code,
    reason = "facts come in buffers whose layout the class of the question decides"
)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::windows::ffi::OsStringExt as _;
use std::os::windows::io::{AsRawHandle as _, BorrowedHandle};

use windows_sys::Wdk::Storage::FileSystem::FILE_OPEN;
use windows_sys::Win32::Foundation::ERROR_NO_MORE_FILES;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_REPARSE_POINT, FILE_ATTRIBUTE_TAG_INFO,
    FILE_ID_BOTH_DIR_INFO, FILE_ID_INFO, FILE_LIST_DIRECTORY, FILE_STANDARD_INFO, FILE_TYPE_CHAR,
    FILE_TYPE_DISK, FILE_TYPE_PIPE, FileAttributeTagInfo, FileIdBothDirectoryInfo,
    FileIdBothDirectoryRestartInfo, FileIdInfo, FileStandardInfo, GetFileInformationByHandleEx,
    GetFileType, GetVolumeInformationByHandleW,
};

use super::files::{FileIdentity, SHARE_ALL};
use super::nt::{self, Opening};
use crate::FileKind;

/// Entries are read in pieces of this length.
const LISTING_BYTES: usize = 64 << 10;
/// Longest name of a file system: `MAX_PATH` and a zero.
const NAME_UNITS: usize = 261;

/// What an open file is. Every reparse point counts as a symbolic link: none is ever followed.
pub(super) fn kind_of(file: BorrowedHandle<'_>) -> io::Result<FileKind> {
    // SAFETY: the call takes an open handle and gives a number.
    let device = unsafe { GetFileType(file.as_raw_handle()) };
    if device != FILE_TYPE_DISK {
        return Ok(match device {
            FILE_TYPE_CHAR => FileKind::CharacterDevice,
            FILE_TYPE_PIPE => FileKind::Fifo,
            _ => FileKind::Unknown,
        });
    }
    // SAFETY: the class and its structure, FILE_ATTRIBUTE_TAG_INFO, belong together.
    let facts: FILE_ATTRIBUTE_TAG_INFO = unsafe { nt::information(file, FileAttributeTagInfo)? };
    Ok(
        if facts.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
            FileKind::Symlink
        } else if facts.FileAttributes & FILE_ATTRIBUTE_DIRECTORY != 0 {
            FileKind::Directory
        } else {
            FileKind::Regular
        },
    )
}

/// The identity of an open file.
pub(super) fn identity_of(file: BorrowedHandle<'_>) -> io::Result<FileIdentity> {
    // SAFETY: the class and its structure, FILE_ID_INFO, belong together.
    let facts: FILE_ID_INFO = unsafe { nt::information(file, FileIdInfo)? };
    Ok(FileIdentity {
        volume: facts.VolumeSerialNumber,
        file: u128::from_le_bytes(facts.FileId.Identifier),
    })
}

/// Length, allocation and number of names of an open file.
pub(super) fn standard(file: BorrowedHandle<'_>) -> io::Result<FILE_STANDARD_INFO> {
    // SAFETY: the class and its structure, FILE_STANDARD_INFO, belong together.
    unsafe { nt::information(file, FileStandardInfo) }
}

/// The name of the file system of an open file's volume, such as `NTFS`.
pub(super) fn file_system_name(file: BorrowedHandle<'_>) -> io::Result<String> {
    let mut name = [0_u16; NAME_UNITS];
    // SAFETY: the buffer lives until the call returns and has the length that is given; what is not
    // asked for is null.
    let done = unsafe {
        GetVolumeInformationByHandleW(
            file.as_raw_handle(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            name.as_mut_ptr(),
            NAME_UNITS as u32,
        )
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let length = name.iter().position(|unit| *unit == 0);
    let text = name.get(..length.unwrap_or(NAME_UNITS)).unwrap_or_default();
    Ok(String::from_utf16_lossy(text))
}

/// Names in a directory.
pub(super) struct Listing {
    /// The names, without those of the directory itself and of its parent.
    pub names: Vec<OsString>,
    /// There are more names than were asked for.
    pub truncated: bool,
}

/// At most `limit` names of the open directory.
pub(super) fn entries(directory: BorrowedHandle<'_>, limit: usize) -> io::Result<Listing> {
    // Opened anew: a handle has one position, and may go on showing what it once saw.
    let opening = Opening {
        access: FILE_LIST_DIRECTORY,
        share: SHARE_ALL,
        disposition: FILE_OPEN,
        directory: true,
    };
    let directory = nt::open_at(directory, OsStr::new(""), opening).map_err(nt::error_of)?;
    let mut listing = Listing {
        names: Vec::new(),
        truncated: false,
    };
    // Of u64 for the alignment that the entries need.
    let mut buffer = vec![0_u64; LISTING_BYTES / 8];
    let mut class = FileIdBothDirectoryRestartInfo;
    loop {
        // SAFETY: the buffer lives until the call returns and has the length that is given.
        let done = unsafe {
            GetFileInformationByHandleEx(
                directory.as_raw_handle(),
                class,
                buffer.as_mut_ptr().cast(),
                LISTING_BYTES as u32,
            )
        };
        if done == 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error().map(i32::cast_unsigned) {
                Some(ERROR_NO_MORE_FILES) => Ok(listing),
                _ => Err(error),
            };
        }
        class = FileIdBothDirectoryInfo;
        for name in names_in(&buffer) {
            if name == "." || name == ".." {
                continue;
            }
            if listing.names.len() >= limit {
                listing.truncated = true;
                return Ok(listing);
            }
            listing.names.push(name);
        }
    }
}

/// The names in a buffer of `FILE_ID_BOTH_DIR_INFO` entries, each of which says where the next begins.
fn names_in(buffer: &[u64]) -> Vec<OsString> {
    const NAME_OFFSET: usize = std::mem::offset_of!(FILE_ID_BOTH_DIR_INFO, FileName);
    const LENGTH_OFFSET: usize = std::mem::offset_of!(FILE_ID_BOTH_DIR_INFO, FileNameLength);
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let number = |at: usize| -> Option<usize> {
        let field = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(field.try_into().ok()?) as usize)
    };
    let mut names = Vec::new();
    let mut entry = 0;
    while let (Some(next), Some(length)) = (number(entry), number(entry + LENGTH_OFFSET)) {
        let start = entry + NAME_OFFSET;
        let Some(name) = bytes.get(start..start + length) else {
            break;
        };
        let (units, _) = name.as_chunks::<2>();
        let units: Vec<u16> = units.iter().map(|unit| u16::from_ne_bytes(*unit)).collect();
        names.push(OsString::from_wide(&units));
        if next == 0 {
            break;
        }
        entry += next;
    }
    names
}
