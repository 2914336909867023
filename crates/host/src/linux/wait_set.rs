//! A changing set of sources that one thread waits for while another one changes it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::wait::WaitSource;
use crate::{Interest, Waiting};

/// A set of sources. What is ready stays ready for every wait until it is dealt with.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
}

impl WaitSet {
    /// An empty set.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    /// Waits for `interest` on `source` from now on; replaces what was waited for on it before.
    ///
    /// # Errors
    /// The system refuses.
    pub fn watch(&self, source: WaitSource<'_>, interest: Interest) -> io::Result<Waiting> {
        let flags = match interest {
            Interest::Readable => EventFlags::IN,
            Interest::Writable => EventFlags::OUT,
        };
        let data = EventData::new_u64(0);
        // Asked and not remembered: a number that was closed and given out anew is another source.
        let outcome = match epoll::modify(&self.epoll, source.descriptor(), data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, source.descriptor(), data, flags),
            other => other,
        };
        match outcome {
            Ok(()) => Ok(Waiting::Yes),
            // How epoll refuses what has no state of readiness (epoll_ctl(2)).
            Err(Errno::PERM) => Ok(Waiting::AlwaysReady),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for `source` no more. To be called before it is closed if another descriptor of the same
    /// open file stays, as that of standard input does.
    pub fn forget(&self, source: WaitSource<'_>) {
        // The only failure is that it is not in the set.
        let _ = epoll::delete(&self.epoll, source.descriptor());
    }

    /// Waits until at least one source is ready. An interruption by a signal ends the wait as well.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self) -> io::Result<()> {
        let mut event = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }];
        match epoll::wait(&self.epoll, &mut event, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stdio::ConsoleInput;
    use super::super::wait::{Waitable as _, Waker};
    use super::*;

    #[test]
    fn a_source_added_or_raised_by_another_thread_ends_the_wait() {
        let set = WaitSet::new().expect("a descriptor");
        let (one, other) = (Waker::new().expect("one"), Waker::new().expect("one"));
        set.watch(one.source(), Interest::Readable)
            .expect("watched");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                other.raise();
                set.watch(other.source(), Interest::Readable)
                    .expect("watched");
            });
            set.wait().expect("ready");
        });
        set.forget(other.source());
        one.raise();
        set.wait().expect("ready");
    }

    #[test]
    fn what_is_always_ready_is_told_so() {
        let set = WaitSet::new().expect("a descriptor");
        let file = tempfile::tempfile().expect("a file");
        let input = ConsoleInput::from_descriptor(file.into());
        let waiting = set.watch(input.source(), Interest::Readable);
        assert_eq!(waiting.expect("an answer"), Waiting::AlwaysReady);
        set.forget(input.source());
    }

    #[test]
    fn an_interest_can_be_changed() {
        let set = WaitSet::new().expect("a descriptor");
        let waker = Waker::new().expect("a descriptor");
        set.watch(waker.source(), Interest::Readable)
            .expect("watched");
        set.watch(waker.source(), Interest::Writable)
            .expect("changed");
        set.wait().expect("writable at once");
    }
}
