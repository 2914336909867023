//! Events: flags of the system that a thread raises and others wait for.
#![expect(
    unsafe_code,
    reason = "events are made, set and waited for by raw handles"
)]

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::sync::{Arc, Weak};
use std::time::Duration;

use windows_sys::Win32::Foundation::{HANDLE, WAIT_FAILED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, ResetEvent, SetEvent, WaitForMultipleObjects, WaitForSingleObject,
};

/// How many events one wait takes (`MAXIMUM_WAIT_OBJECTS`).
pub(super) const MAX_EVENTS: usize = 64;

/// A flag that stays raised until it is lowered. Clones are the same flag.
#[derive(Clone, Debug)]
pub(super) struct Event(Arc<OwnedHandle>);

/// A flag that goes away with its owner.
#[derive(Debug)]
pub(super) struct WeakEvent(Weak<OwnedHandle>);

impl Event {
    /// A new flag.
    pub(super) fn new(raised: bool) -> io::Result<Self> {
        // SAFETY: the pointers may be null: default security, no name.
        let handle =
            unsafe { CreateEventW(std::ptr::null(), 1, i32::from(raised), std::ptr::null()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the handle is open and nobody else owns it.
        Ok(Self(Arc::new(unsafe {
            OwnedHandle::from_raw_handle(handle)
        })))
    }

    pub(super) fn raise(&self) {
        // SAFETY: the handle is an open event. The call cannot fail for one.
        unsafe { SetEvent(self.handle()) };
    }

    pub(super) fn lower(&self) {
        // SAFETY: as above.
        unsafe { ResetEvent(self.handle()) };
    }

    pub(super) fn is_raised(&self) -> bool {
        // SAFETY: as above; with no time limit left the call does not wait.
        unsafe { WaitForSingleObject(self.handle(), 0) == 0 }
    }

    pub(super) fn handle(&self) -> HANDLE {
        self.0.as_raw_handle()
    }

    pub(super) fn downgrade(&self) -> WeakEvent {
        WeakEvent(Arc::downgrade(&self.0))
    }

    /// Whether the other one is the same flag.
    pub(super) fn is(&self, other: &WeakEvent) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0), other.0.as_ptr())
    }
}

impl WeakEvent {
    /// The flag, unless its owner is gone.
    pub(super) fn upgrade(&self) -> Option<Event> {
        self.0.upgrade().map(Event)
    }
}

/// Waits until one of the events is raised or the time is over; no limit: for ever.
pub(super) fn wait_for_any(events: &[&Event], timeout: Option<Duration>) -> io::Result<()> {
    let handles: Vec<HANDLE> = events.iter().map(|event| event.handle()).collect();
    if handles.is_empty() || handles.len() > MAX_EVENTS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let limit_ms = timeout.map_or(INFINITE, |timeout| {
        // Rounded up, so that a short time is not none at all.
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        u32::try_from(ms).unwrap_or(INFINITE - 1)
    });
    // SAFETY: the handles are open events, at most as many as the call takes, and live through it.
    let outcome =
        unsafe { WaitForMultipleObjects(handles.len() as u32, handles.as_ptr(), 0, limit_ms) };
    match outcome {
        WAIT_FAILED => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
