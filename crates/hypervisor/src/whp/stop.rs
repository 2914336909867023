//! Stopping a vCPU: a flag that is looked at before each entry, and a call that ends a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::partition::Machine;
use crate::traits::StopHandle;

/// The stop handle of one vCPU.
pub(super) struct WhpStop {
    machine: Arc<Machine>,
    index: u32,
    requested: AtomicBool,
}

impl WhpStop {
    pub(super) fn new(machine: Arc<Machine>, index: u32) -> Self {
        Self {
            machine,
            index,
            requested: AtomicBool::new(false),
        }
    }

    pub(super) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// As a request, by the thread that runs the vCPU: nothing has to be interrupted.
    pub(super) fn hold(&self) {
        self.requested.store(true, Ordering::SeqCst);
    }

    pub(super) fn clear(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }
}

impl StopHandle for WhpStop {
    fn request_stop(&self) {
        self.requested.store(true, Ordering::SeqCst);
        // A vCPU that does not run now leaves its next run at once (WHvCancelRunVirtualProcessor), which
        // is taken for a stop that is over. The call fails only once the vCPU is gone.
        self.machine.cancel(self.index);
    }
}
