//! A wish that a vCPU leave the guest, in the two forms that its thread needs: a flag that is
//! cheap to look at before each entry, and something to wait for beside the host.

use std::sync::atomic::{AtomicBool, Ordering};

use nvx_host::Waker;

/// One such wish.
pub(crate) struct Interrupt {
    wanted: AtomicBool,
    waker: Waker,
}

impl Interrupt {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            wanted: AtomicBool::new(false),
            waker: Waker::new()?,
        })
    }

    /// The check before each entry into the guest.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Up while it is wanted.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    pub(crate) fn raise(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        self.waker.raise();
    }

    pub(crate) fn lower(&self) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            self.waker.lower();
        }
    }
}
