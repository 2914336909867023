//! Stopping a vCPU: a flag that it looks at between batches of instructions, and a condition
//! variable for one that waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::traits::StopHandle;

/// The stop handle of one vCPU.
#[derive(Default)]
pub(super) struct SoftStop {
    requested: AtomicBool,
    /// Held while the flag is raised, so that a waiting vCPU cannot miss it.
    lock: Mutex<()>,
    raised: Condvar,
}

impl SoftStop {
    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    pub(super) fn clear(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }

    /// Waits until a stop is asked for.
    pub(super) fn wait(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_requested() {
            guard = self
                .raised
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl StopHandle for SoftStop {
    fn request_stop(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.requested.store(true, Ordering::SeqCst);
        self.raised.notify_all();
    }
}
