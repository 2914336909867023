//! What processes and files take of the machine.
#![expect(
    unsafe_code,
    reason = "processes are opened by number and asked through a structure"
)]

use std::fs::File;
use std::io;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;

use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION};

use super::facts;

/// The largest working set that the process `pid` has had so far, in bytes; `None` if there is no such
/// process or the system does not tell.
pub fn process_peak_rss_bytes(pid: u32) -> Option<u64> {
    // SAFETY: the call takes numbers; a result that is not null is a new handle that nobody else owns.
    let process = unsafe {
        let handle = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid);
        if handle.is_null() {
            return None;
        }
        OwnedHandle::from_raw_handle(handle)
    };
    let mut counters = PROCESS_MEMORY_COUNTERS {
        cb: size_of::<PROCESS_MEMORY_COUNTERS>() as u32,
        ..Default::default()
    };
    // SAFETY: the structure has the length that is given, and lives until the call returns.
    let done =
        unsafe { K32GetProcessMemoryInfo(process.as_raw_handle(), &raw mut counters, counters.cb) };
    (done != 0).then_some(counters.PeakWorkingSetSize as u64)
}

/// The space that a file takes on its volume, in bytes: less than its length if it has holes.
///
/// # Errors
///
/// The operating system's.
pub fn allocated_bytes(file: &File) -> io::Result<u64> {
    Ok(facts::standard(file.as_handle())?
        .AllocationSize
        .cast_unsigned())
}

/// Bytes of files' pages that this process has modified; always `None`: Windows does not count stores
/// to views.
pub fn modified_file_bytes() -> Option<u64> {
    None
}

/// Bytes that this user may still write to the volume of a directory.
///
/// # Errors
///
/// The operating system's.
pub fn available_bytes(directory: &Path) -> io::Result<u64> {
    let wide: Vec<u16> = directory.as_os_str().encode_wide().chain([0]).collect();
    let mut free = 0;
    // SAFETY: the path ends with a zero and the number lives until the call returns.
    let done = unsafe {
        GetDiskFreeSpaceExW(
            wide.as_ptr(),
            &raw mut free,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if done != 0 {
        Ok(free)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether the program can be read; Windows has no right of its own to execute that could be asked for.
///
/// # Errors
///
/// The operating system's reason why not.
pub fn check_executable(program: &Path) -> io::Result<()> {
    File::open(program).map(drop)
}
