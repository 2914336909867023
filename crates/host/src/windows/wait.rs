//! Waiting for several things at once, and waking a waiter from another thread.
//!
//! What can be waited for gives a [`WaitSource`]; what stands behind it (events here) is this module's
//! own business, so that whoever waits knows no operating system.

use std::io;
use std::time::Duration;

use super::event::{Event, wait_for_any};
use crate::Interest;

/// A flag that another thread can raise and that a waiter sees as readable until it is lowered.
pub struct Waker {
    event: Event,
}

impl Waker {
    /// A flag that is down.
    ///
    /// # Errors
    /// The system has no handle left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            event: Event::new(false)?,
        })
    }

    /// Raises the flag. Never blocks.
    pub fn raise(&self) {
        self.event.raise();
    }

    /// Lowers the flag. Never blocks.
    pub fn lower(&self) {
        self.event.lower();
    }
}

impl Waitable for Waker {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.event)
    }
}

/// One thing that can be waited for, borrowed from its owner.
#[derive(Clone, Copy, Debug)]
pub struct WaitSource<'a> {
    readable: &'a Event,
    /// `None`: always writable.
    writable: Option<&'a Event>,
}

impl<'a> WaitSource<'a> {
    /// What is readable while the event is raised.
    pub(super) fn of(readable: &'a Event) -> Self {
        Self {
            readable,
            writable: None,
        }
    }

    /// What is readable while the one event is raised, and writable while the other is.
    pub(super) fn of_both(readable: &'a Event, writable: &'a Event) -> Self {
        Self {
            readable,
            writable: Some(writable),
        }
    }

    /// The event by which the source is recognised.
    pub(super) fn key(self) -> &'a Event {
        self.readable
    }

    /// The event to wait for; `None` if it need not be waited for.
    pub(super) fn event(self, interest: Interest) -> Option<&'a Event> {
        match interest {
            Interest::Readable => Some(self.readable),
            Interest::Writable => self.writable,
        }
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
/// The system refuses to wait.
pub fn wait_any<const N: usize>(
    sources: [(WaitSource<'_>, Interest); N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let events = sources.map(|(source, interest)| source.event(interest));
    if events.iter().all(Option::is_some) {
        let waited: Vec<&Event> = events.iter().copied().flatten().collect();
        wait_for_any(&waited, timeout)?;
    }
    Ok(events.map(|event| event.is_none_or(Event::is_raised)))
}
