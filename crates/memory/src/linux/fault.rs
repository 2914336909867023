//! What happens when a page of a RAM file cannot be had.
//!
//! A RAM file can be truncated behind our back, or its file system can be full when a store needs
//! a new block. The kernel then sends SIGBUS to the thread that touched the page. There is no way
//! to go on: the guest's memory is gone. The handler installed here prints one line that names the
//! file and ends the process with status 125. Any other SIGBUS keeps its effect.
//!
//! The handler may run at any point of the program, so it takes no lock and allocates nothing: the
//! ranges stand in a static table of atomics.

#![expect(
    unsafe_code,
    reason = "signal handlers are installed and run through raw interfaces"
)]

use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use crate::fault_table::{self, RangeName, Registration};

/// The exit status of a monitor that failed itself.
const EXIT_STATUS: i32 = 125;
/// The action before ours: Rust's run-time library has one, for stack overflow.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Registers `size_bytes` bytes at address `start`, and installs the handler the first time. `None` if
/// the table is full.
pub(crate) fn register(start: usize, size_bytes: usize, name: &Path) -> Option<Registration> {
    install();
    Registration::new(start, size_bytes, name)
}

/// Installs the handler once. Failing to is no reason to refuse a mapping: faults then end the
/// process by the system's own action.
fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction`: the default action with an empty mask.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
        action.sa_sigaction = handler as *const () as usize;
        // On the alternate stack, since the previous handler expects to be there for stack overflow.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures live through the call, and the handler has the signature that
        // SA_SIGINFO asks for and does only what signal safety allows.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) };
        previous
    });
}

extern "C" fn on_sigbus(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid pointer; the address field is meaningful
    // for signals that the kernel itself raised, which have a positive code.
    let (by_kernel, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    if by_kernel && let Some(name) = RangeName::at(address) {
        report(&name);
        // SAFETY: `_exit` is async-signal-safe and does not return.
        unsafe { libc::_exit(EXIT_STATUS) };
    }
    pass_on(by_kernel);
}

/// Writes the line that names the file.
fn report(name: &RangeName) {
    let parts = fault_table::line(name).map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: `writev` is async-signal-safe, only reads the parts, and they outlive the call.
    // Nothing can be done if the line cannot be written.
    unsafe { libc::writev(2, parts.as_ptr(), parts.len() as i32) };
}

/// Lets a signal that is not about RAM have the effect that it would have had. A fault repeats
/// itself when the handler returns, and then meets the previous action. A signal that a process
/// sent does not, and ends the process as it does by default.
fn pass_on(by_kernel: bool) {
    // SAFETY: all-zero bytes are the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    let action = match PREVIOUS.get() {
        Some(previous) if by_kernel => previous,
        _ => &default,
    };
    // SAFETY: `sigaction` and `raise` are async-signal-safe; the structure outlives the call.
    unsafe {
        libc::sigaction(libc::SIGBUS, action, ptr::null_mut());
        if !by_kernel {
            libc::raise(libc::SIGBUS);
        }
    }
}
