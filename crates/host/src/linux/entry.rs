//! Where the program begins, without the standard library's start-up.
//!
//! Before `main` the standard library reads and parses `/proc/self/maps` for the bounds of the stack, maps an
//! alternate signal stack and installs handlers whose only use is to word a stack overflow. A sandbox
//! waits for that at every start. [`prepare`] does the two things of it that matter to a monitor: a closed
//! standard descriptor must not become the number of a file that is opened later, and a reader that went
//! away is an error of the write, not a signal.
#![expect(
    unsafe_code,
    reason = "the allocator's settings have no safe wrapper in the libraries in use"
)]

use std::io;
use std::os::fd::IntoRawFd as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

/// Makes the given function, `fn() -> u8`, the program's; what it returns is the exit status. The crate root
/// must say `#![no_main]`.
#[macro_export]
macro_rules! program {
    ($start:path) => {
        /// The entry point that the C library calls.
        // SAFETY: the C library asks for exactly one symbol of this name and type, and a crate root that has
        // no other entry point is the only place that this macro fits.
        #[unsafe(no_mangle)]
        pub extern "C" fn main() -> i32 {
            let status = match $crate::entry::prepare() {
                Ok(()) => $start(),
                Err(_) => $crate::entry::NOT_PREPARED,
            };
            // Unlike a return to the C library this writes what standard output still holds.
            ::std::process::exit(i32::from(status))
        }
    };
}

/// The exit status where not even the standard descriptors can be had: the monitor itself failed.
pub const NOT_PREPARED: u8 = 125;

/// Brings the process into the state that the rest of the program expects. To be called first and once.
///
/// # Errors
/// A standard descriptor is closed and `/dev/null` cannot be opened in its place.
pub fn prepare() -> io::Result<()> {
    fill_standard_descriptors()?;
    share_one_heap();
    super::signals::let_writes_fail()
}

/// Opens `/dev/null` for each standard descriptor that is closed; a new descriptor has the lowest free number.
fn fill_standard_descriptors() -> io::Result<()> {
    let mut standard = [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ]
    .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::empty()));
    poll(&mut standard, Some(&Timespec::default()))?;
    for descriptor in standard {
        if descriptor.revents().contains(PollFlags::NVAL) {
            let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
            // Stays open for as long as the process runs, as the one that it stands for would.
            let _ = null.into_raw_fd();
        }
    }
    Ok(())
}

/// Lets all threads allocate from one heap: the few that a monitor has hardly ever allocate, and a heap for each
/// would be mapped and touched while the guest waits to start.
fn share_one_heap() {
    // SAFETY: mallopt takes two numbers; no other thread exists yet.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}
