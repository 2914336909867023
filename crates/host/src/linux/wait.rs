//! Waiting for several things at once, and waking a waiter from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// A flag that another thread can raise and that a waiter sees as readable until it is lowered.
pub struct Waker {
    descriptor: OwnedFd,
}

impl Waker {
    /// A flag that is down.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// Raises the flag. Never blocks.
    pub fn raise(&self) {
        // The only failure is a counter about to overflow: then the flag is up already.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }

    /// Lowers the flag. Never blocks.
    pub fn lower(&self) {
        // The only failure is a flag that is down already.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What to wait for on one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to read, the end of the stream, or an error.
    Readable,
    /// Room to write, or an error.
    Writable,
}

/// Waits until at least one source is ready or `timeout` (none: for ever) has passed, and says
/// which are.
///
/// # Errors
/// The system refuses to wait. An interruption by a signal is no error: then nothing is ready.
pub fn wait_any<const N: usize>(
    sources: [(BorrowedFd<'_>, Interest); N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut entries = sources.map(|(descriptor, interest)| {
        let flags = match interest {
            Interest::Readable => PollFlags::IN,
            Interest::Writable => PollFlags::OUT,
        };
        PollFd::from_borrowed_fd(descriptor, flags)
    });
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()) as _,
    });
    match poll(&mut entries, timeout.as_ref()) {
        Ok(_) => Ok(entries.map(|entry| !entry.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_is_seen_until_lowered() {
        let waker = Waker::new().expect("a descriptor");
        let poll = || {
            let [ready] = wait_any([(waker.as_fd(), Interest::Readable)], Some(Duration::ZERO))
                .expect("poll");
            ready
        };
        assert!(!poll());
        waker.raise();
        waker.raise();
        assert!(poll());
        assert!(poll());
        waker.lower();
        assert!(!poll());
    }

    #[test]
    fn raising_from_another_thread_ends_the_wait() {
        let waker = Waker::new().expect("a descriptor");
        std::thread::scope(|scope| {
            scope.spawn(|| waker.raise());
            let [ready] = wait_any(
                [(waker.as_fd(), Interest::Readable)],
                Some(Duration::from_secs(30)),
            )
            .expect("poll");
            assert!(ready);
        });
    }
}
