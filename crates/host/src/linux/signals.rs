//! Signals that ask this process to end, as readable events.
#![expect(
    unsafe_code,
    reason = "signal masks and signalfd have no safe wrapper in the libraries in use"
)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals that ask for an orderly end, with the names that messages give them.
const TERMINATION_SIGNALS: [(i32, &str); 3] = [
    (libc::SIGINT, "SIGINT"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGHUP, "SIGHUP"),
];

/// A request to end that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    signal: i32,
}

impl Termination {
    /// The signal's name, such as `SIGINT`.
    pub fn name(self) -> &'static str {
        TERMINATION_SIGNALS
            .iter()
            .find(|(signal, _)| *signal == self.signal)
            .map_or("a signal", |(_, name)| name)
    }

    /// The exit code by which shells report an end by this signal: 128 plus its number.
    pub fn exit_code(self) -> u8 {
        128 + self.signal as u8
    }
}

/// Requests to end this process, kept until they are taken. While this exists the signals do not
/// end the process by themselves.
pub struct TerminationSignals {
    descriptor: OwnedFd,
}

impl TerminationSignals {
    /// Takes the signals over. To be called before any thread is started: threads inherit the
    /// mask, and a thread that does not block the signals would be ended by them.
    ///
    /// # Errors
    /// The system refuses the mask or has no descriptor left.
    pub fn take_over() -> io::Result<Self> {
        // SAFETY: `set` is initialized by sigemptyset before it is used, all pointers are to it,
        // and signalfd returns a new descriptor that nothing else owns.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for (signal, _) in TERMINATION_SIGNALS {
                libc::sigaddset(&mut set, signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let descriptor = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                descriptor: OwnedFd::from_raw_fd(descriptor),
            })
        }
    }

    /// Takes one request that has arrived, if any. Never blocks.
    pub fn take(&self) -> Option<Termination> {
        let mut record = [0u8; size_of::<libc::signalfd_siginfo>()];
        let length = rustix::io::read(&self.descriptor, &mut record).ok()?;
        // `ssi_signo` is the record's first field (signalfd(2)).
        let signal = record
            .first_chunk::<4>()
            .map(|bytes| u32::from_ne_bytes(*bytes))?;
        (length == record.len()).then_some(Termination {
            signal: signal as i32,
        })
    }
}

/// Readable while a request waits.
impl AsFd for TerminationSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
