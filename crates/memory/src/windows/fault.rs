//! What happens when a page of a RAM file cannot be had.
//!
//! A device can fail, or a network volume go away, when a page of a view is read or stored. The system
//! then raises an *in-page error* in the thread that touched the page. There is no way to go on: the
//! guest's memory is gone. The handler installed here prints one line that names the file and ends the
//! process with status 125. Any other exception keeps its effect.

#![expect(
    unsafe_code,
    reason = "exception handlers are installed and run through raw interfaces"
)]

use std::path::Path;
use std::sync::Once;

use windows_sys::Win32::Foundation::{EXCEPTION_IN_PAGE_ERROR, HANDLE};
use windows_sys::Win32::Storage::FileSystem::WriteFile;
use windows_sys::Win32::System::Console::{GetStdHandle, STD_ERROR_HANDLE};
use windows_sys::Win32::System::Diagnostics::Debug::{
    AddVectoredExceptionHandler, EXCEPTION_CONTINUE_SEARCH, EXCEPTION_POINTERS,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};

use crate::fault_table::{self, RangeName, Registration};

/// The exit status of a monitor that failed itself.
const EXIT_STATUS: u32 = 125;

/// Registers `size_bytes` bytes at address `start`, and installs the handler the first time. `None` if
/// the table is full.
pub(crate) fn register(start: usize, size_bytes: usize, name: &Path) -> Option<Registration> {
    static INSTALLED: Once = Once::new();
    // Failing to install it is no reason to refuse a view: faults then end the process by the system's
    // own action.
    INSTALLED.call_once(|| {
        // SAFETY: the handler has the signature that the call asks for and is never unloaded. 1: before
        // all others.
        unsafe { AddVectoredExceptionHandler(1, Some(on_exception)) };
    });
    Registration::new(start, size_bytes, name)
}

/// Runs in the thread that met an exception.
///
/// # Safety
/// The pointers are those that the system passes to an exception handler.
unsafe extern "system" fn on_exception(pointers: *mut EXCEPTION_POINTERS) -> i32 {
    // SAFETY: the system passes pointers to a record that lives until the handler returns. Of an
    // in-page error the second parameter is the address (EXCEPTION_RECORD).
    let (code, address) = unsafe {
        let record = (*pointers).ExceptionRecord;
        ((*record).ExceptionCode, (*record).ExceptionInformation[1])
    };
    if code == EXCEPTION_IN_PAGE_ERROR
        && let Some(name) = RangeName::at(address)
    {
        report(&name);
        // SAFETY: the pseudo handle stands for this process. Without the orderly end, which would wait
        // for locks that this thread may hold.
        unsafe { TerminateProcess(GetCurrentProcess(), EXIT_STATUS) };
    }
    EXCEPTION_CONTINUE_SEARCH
}

/// Writes the line that names the file.
fn report(name: &RangeName) {
    // SAFETY: the call takes a number and gives a handle that stays open.
    let errors: HANDLE = unsafe { GetStdHandle(STD_ERROR_HANDLE) };
    for part in fault_table::line(name) {
        let mut written = 0;
        // SAFETY: the part lives until the call returns. Nothing can be done if it cannot be written.
        unsafe {
            WriteFile(
                errors,
                part.as_ptr(),
                part.len() as u32,
                &raw mut written,
                std::ptr::null_mut(),
            )
        };
    }
}
