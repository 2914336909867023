//! A changing set of sources that one thread waits for while another one changes it.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::event::{Event, MAX_EVENTS, WeakEvent, wait_for_any};
use super::wait::WaitSource;
use crate::{Interest, Waiting};

/// A set of sources. What is ready stays ready for every wait until it is dealt with. A source that is
/// dropped leaves the set by itself.
#[derive(Debug)]
pub struct WaitSet {
    entries: Mutex<Vec<Entry>>,
    /// Raised when the set has changed, so that a waiter looks at it anew.
    changed: Event,
    /// Stands for what is always ready.
    always: Event,
}

#[derive(Debug)]
struct Entry {
    key: WeakEvent,
    awaited: WeakEvent,
}

impl WaitSet {
    /// An empty set.
    ///
    /// # Errors
    /// The system has no handle left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            entries: Mutex::default(),
            changed: Event::new(false)?,
            always: Event::new(true)?,
        })
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `interest` on `source` from now on; replaces what was waited for on it before.
    ///
    /// # Errors
    /// There are more sources than Windows waits for at once (64 with the set's own event).
    pub fn watch(&self, source: WaitSource<'_>, interest: Interest) -> io::Result<Waiting> {
        let awaited = source.event(interest).unwrap_or(&self.always);
        let mut entries = self.entries();
        entries.retain(|entry| entry.key.upgrade().is_some());
        let is_full = entries.len() + 1 >= MAX_EVENTS;
        match entries.iter_mut().find(|entry| source.key().is(&entry.key)) {
            Some(entry) if awaited.is(&entry.awaited) => return Ok(Waiting::Yes),
            Some(entry) => entry.awaited = awaited.downgrade(),
            None if is_full => {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            None => entries.push(Entry {
                key: source.key().downgrade(),
                awaited: awaited.downgrade(),
            }),
        }
        self.changed.raise();
        Ok(Waiting::Yes)
    }

    /// Waits for `source` no more.
    pub fn forget(&self, source: WaitSource<'_>) {
        self.entries().retain(|entry| !source.key().is(&entry.key));
        self.changed.raise();
    }

    /// Waits until at least one source is ready.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let awaited = self.awaited();
            let mut events: Vec<&Event> = awaited.iter().collect();
            events.push(&self.changed);
            wait_for_any(&events, None)?;
            if awaited.iter().any(Event::is_raised) {
                return Ok(());
            }
        }
    }

    /// What is to be waited for now. The events are held, so that none is closed during a wait.
    fn awaited(&self) -> Vec<Event> {
        let mut entries = self.entries();
        // Under the lock: a change that comes later raises it again.
        self.changed.lower();
        entries.retain(|entry| entry.key.upgrade().is_some());
        entries
            .iter()
            .filter_map(|entry| entry.awaited.upgrade())
            .collect()
    }
}
