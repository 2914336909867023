//! Signals that ask this process to end, as readable events.
#![expect(
    unsafe_code,
    reason = "signal masks and signalfd have no safe wrapper in the libraries in use"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::wait::{WaitSource, Waitable};

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
    /// Takes the signals over, except those that this process was started to ignore (`nohup`, a
    /// shell's background job): they stay ignored. To be called before any thread is started:
    /// threads inherit the mask, and a thread that does not block the signals would be ended by
    /// them.
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
                // A blocked signal is kept even if it is ignored, and would then be read.
                if !is_ignored(signal)? {
                    libc::sigaddset(&mut set, signal);
                }
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

    /// A second handle to the same requests: each is taken once.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            descriptor: self.descriptor.try_clone()?,
        })
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
impl Waitable for TerminationSignals {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.descriptor)
    }
}

/// Lets a write fail that would end this process instead: to a pipe or socket whose reader went away, and beyond the
/// largest size that files may have (RLIMIT_FSIZE), which is no reason for a guest to die of a capture.
///
/// # Errors
/// The system refuses the action.
pub fn let_writes_fail() -> io::Result<()> {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: sets a disposition, SIG_IGN, that runs no code; `signal` takes no pointers to data.
        let previous = unsafe { libc::signal(signal, libc::SIG_IGN) };
        if previous == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    // SAFETY: a null new action changes nothing; the old one is written to `action`, for which all
    // zeros is a valid value.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(action.sa_sigaction == libc::SIG_IGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in the process that the next test starts.
    const IN_CHILD: &str = "NVX_TEST_SIGNALS";

    /// Raises a signal for this thread alone, whose mask is the one that was changed.
    fn raise(signal: i32) {
        // SAFETY: raise takes no pointers.
        let result = unsafe { libc::raise(signal) };
        assert_eq!(result, 0);
    }

    #[test]
    #[ignore = "only run by another test, as its child process"]
    fn child_started_with_a_signal_ignored() {
        if std::env::var_os(IN_CHILD).is_none() {
            return;
        }
        let signals = TerminationSignals::take_over().expect("signals");
        raise(libc::SIGHUP);
        assert_eq!(signals.take(), None);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            raise(signal);
            let taken = signals.take();
            assert_eq!(taken.map(Termination::exit_code), Some(128 + signal as u8));
        }
        println!("\nthe rest was taken");
    }

    #[test]
    fn a_signal_that_was_to_be_ignored_stays_ignored() {
        let name = "linux::signals::tests::child_started_with_a_signal_ignored";
        let output = Command::new("sh")
            .args(["-c", r#"trap "" HUP; exec "$0" "$@""#])
            .arg(std::env::current_exe().expect("a path"))
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env(IN_CHILD, "1")
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("the rest was taken"), "{text}");
    }
}
