//! The user's terminal, where standard input and output both are one.
//!
//! A guest that has the terminal edits lines and makes signals of keys itself, so the terminal is *raw*
//! then: every key goes to the guest. It must not stay so when this process ends, however that comes
//! about, so what it was like is also kept where an exit handler finds it.
#![expect(
    unsafe_code,
    reason = "exit handlers, and the mask and descriptor of a signal have no safe wrapper in the libraries in use"
)]

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios};

use super::wait::{WaitSource, Waitable, wait_any};
use crate::answers::Interest;

/// What the terminal was like before it was made raw; none while it is not raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static AT_EXIT: Once = Once::new();

/// The user's terminal.
pub struct UserTerminal {
    size_changes: SizeChanges,
}

impl UserTerminal {
    /// The terminal; `None` where standard input or output is none. To be called before any thread is
    /// started: a change of the terminal's size is a signal, which each thread must leave alone.
    ///
    /// # Errors
    /// The system refuses the signal mask or has no descriptor left.
    pub fn attach() -> io::Result<Option<Self>> {
        let is_terminal = rustix::termios::isatty(rustix::stdio::stdin())
            && rustix::termios::isatty(rustix::stdio::stdout());
        if !is_terminal {
            return Ok(None);
        }
        Ok(Some(Self {
            size_changes: SizeChanges::take_over()?,
        }))
    }

    /// Gives every key to whoever reads standard input, and shows nothing by itself. Has no effect on a
    /// terminal that is raw already.
    ///
    /// # Errors
    /// The terminal refuses. In a background job the process is stopped until it is in the foreground.
    pub fn make_raw(&self) -> io::Result<()> {
        let mut before = lock();
        if before.is_some() {
            return Ok(());
        }
        let mode = rustix::termios::tcgetattr(rustix::stdio::stdin())?;
        AT_EXIT.call_once(|| {
            // SAFETY: the handler takes and returns nothing, as atexit wants it. Should it not be
            // registered, the terminal is still set right by `drop`.
            let _ = unsafe { libc::atexit(restore_at_exit) };
        });
        let mut raw = mode.clone();
        raw.make_raw();
        *before = Some(mode);
        let made = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw);
        Ok(made?)
    }

    /// Makes the terminal what it was before it was raw.
    pub fn restore(&self) {
        restore(&mut lock());
    }

    /// Whether it is raw.
    pub fn is_raw(&self) -> bool {
        lock().is_some()
    }

    /// Columns and rows; `None` where the terminal does not know.
    pub fn size(&self) -> Option<(u16, u16)> {
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
        (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
    }

    /// Waits until the size may have changed; false if `stop` is readable first.
    pub fn wait_for_size_change(&self, stop: impl Waitable) -> bool {
        let source = WaitSource::of(&self.size_changes.descriptor);
        let sources = [
            (source, Interest::Readable),
            (stop.source(), Interest::Readable),
        ];
        match wait_any(sources, None) {
            Ok([_, true]) => false,
            Ok([true, false]) => {
                self.size_changes.take();
                true
            }
            Ok([false, false]) => true,
            Err(_) => {
                // Better seldom than in a loop that does nothing else.
                let _ = wait_any(
                    [(stop.source(), Interest::Readable)],
                    Some(Duration::from_secs(1)),
                );
                true
            }
        }
    }
}

impl Drop for UserTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore(before: &mut Option<Termios>) {
    if let Some(mode) = before.take() {
        // A terminal that is gone needs nothing.
        let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &mode);
    }
}

extern "C" fn restore_at_exit() {
    // Another thread may hold it while this one ends the process; it is then about to change the mode,
    // and waiting for it could last for ever.
    if let Ok(mut before) = BEFORE.try_lock() {
        restore(&mut before);
    }
}

/// The signal SIGWINCH as something to wait for.
struct SizeChanges {
    descriptor: OwnedFd,
}

impl SizeChanges {
    fn take_over() -> io::Result<Self> {
        // SAFETY: `set` is initialized by sigemptyset before it is used, all pointers are to it, and
        // signalfd returns a new descriptor that nothing else owns.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGWINCH);
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

    fn take(&self) {
        // Several changes are one signal.
        let _ = rustix::io::read(
            &self.descriptor,
            &mut [0u8; size_of::<libc::signalfd_siginfo>()],
        );
    }
}
