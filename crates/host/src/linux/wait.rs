//! Waiting for several things at once, and waking a waiter from another thread.
//!
//! What can be waited for gives a [`WaitSource`]; what stands behind it (a descriptor here) is this
//! module's own business, so that whoever waits knows no operating system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::Interest;

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

impl Waitable for Waker {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.descriptor)
    }
}

/// One thing that can be waited for, borrowed from its owner.
#[derive(Clone, Copy, Debug)]
pub struct WaitSource<'a>(BorrowedFd<'a>);

impl<'a> WaitSource<'a> {
    /// For the types of this crate that own a descriptor.
    pub(super) fn of(descriptor: &'a OwnedFd) -> Self {
        Self(descriptor.as_fd())
    }

    pub(super) fn descriptor(self) -> BorrowedFd<'a> {
        self.0
    }
}

/// What can be waited for.
pub trait Waitable {
    /// What to hand to [`wait_any`] or a [`WaitSet`](super::wait_set::WaitSet).
    fn source(&self) -> WaitSource<'_>;
}

impl<T: Waitable + ?Sized> Waitable for &T {
    fn source(&self) -> WaitSource<'_> {
        (**self).source()
    }
}

impl Waitable for WaitSource<'_> {
    fn source(&self) -> WaitSource<'_> {
        *self
    }
}

/// Waits until at least one source is ready or `timeout` (none: for ever) has passed, and says
/// which are.
///
/// # Errors
/// The system refuses to wait. An interruption by a signal is no error: then nothing is ready.
pub fn wait_any<const N: usize>(
    sources: [(WaitSource<'_>, Interest); N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut entries = sources.map(|(source, interest)| poll_entry(source, interest));
    poll_all(&mut entries, timeout)?;
    Ok(entries.map(|entry| is_ready(&entry)))
}

fn poll_entry(source: WaitSource<'_>, interest: Interest) -> PollFd<'_> {
    let flags = match interest {
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
    };
    PollFd::from_borrowed_fd(source.0, flags)
}

fn is_ready(entry: &PollFd<'_>) -> bool {
    !entry.revents().is_empty()
}

/// Waits and leaves the answers in `entries`; after an interruption they are all "not ready".
fn poll_all(entries: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()) as _,
    });
    match poll(entries, timeout.as_ref()) {
        Ok(_) => Ok(()),
        Err(Errno::INTR) => {
            entries.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
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
            let [ready] = wait_any([(waker.source(), Interest::Readable)], Some(Duration::ZERO))
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
                [(waker.source(), Interest::Readable)],
                Some(Duration::from_secs(30)),
            )
            .expect("poll");
            assert!(ready);
        });
    }
}
