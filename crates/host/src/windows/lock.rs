//! Locks that say "the owner lives".
//!
//! A lock belongs to the opening of a file: it ends when the last handle of that opening is closed, at
//! the latest when the system closes those of a dead process. The locked byte lies where no file
//! reaches, since locks on Windows are enforced. A directory has no bytes: its lock is the right to
//! delete it, held without sharing it.
#![expect(
    unsafe_code,
    reason = "LockFileEx takes a pointer to where the lock begins"
)]

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle as _;

use windows_sys::Win32::Foundation::{
    ERROR_INVALID_FUNCTION, ERROR_LOCK_VIOLATION, ERROR_NOT_SUPPORTED,
};
use windows_sys::Win32::Storage::FileSystem::{
    LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::files::Directory;
use crate::FileLock;

/// The high half of the locked byte's position: 2^62, beyond the longest file of any file system.
const POSITION_HIGH: u32 = 1 << 30;

/// What can be locked.
pub trait Lockable {
    /// See [`try_lock_exclusive`].
    ///
    /// # Errors
    ///
    /// As [`try_lock_exclusive`].
    fn try_lock(&self) -> io::Result<FileLock>;
}

/// Tries to take the exclusive lock of an open file or directory, without waiting.
///
/// # Errors
///
/// The operating system's, except that a held lock and a file system without locks are answers.
pub fn try_lock_exclusive(file: &impl Lockable) -> io::Result<FileLock> {
    file.try_lock()
}

impl Lockable for Directory {
    fn try_lock(&self) -> io::Result<FileLock> {
        self.claim()
    }
}

impl Lockable for File {
    fn try_lock(&self) -> io::Result<FileLock> {
        lock_file(self)
    }
}

fn lock_file(file: &File) -> io::Result<FileLock> {
    let mut position = OVERLAPPED::default();
    position.Anonymous.Anonymous.OffsetHigh = POSITION_HIGH;
    // SAFETY: the handle is open and not for overlapped use, so that the call is over when it returns;
    // the structure lives until then.
    let done = unsafe {
        LockFileEx(
            file.as_raw_handle(),
            LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY,
            0,
            1,
            0,
            &raw mut position,
        )
    };
    if done != 0 {
        return Ok(FileLock::Taken);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(ERROR_LOCK_VIOLATION) => Ok(FileLock::HeldElsewhere),
        Some(ERROR_NOT_SUPPORTED | ERROR_INVALID_FUNCTION) => Ok(FileLock::Unsupported),
        _ => Err(error),
    }
}
