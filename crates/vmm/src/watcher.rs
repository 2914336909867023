//! The thread that waits for the host, so that the main thread can run the first vCPU.
//!
//! When a source is ready, it makes the main thread leave the guest, and waits until that has
//! looked and asks to be woken again. It deals with a source itself in one case only: if the main
//! thread is stuck in the kernel and the process is asked to end, the watcher ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nvx_host::{TerminationSignals, WaitSet};
use nvx_hypervisor::StopHandle;

use crate::gate::Gate;
use crate::interrupt::Interrupt;

/// A main thread that has not left the guest after this long is stuck in the kernel.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// What the watcher shares with the main thread.
pub(crate) struct Watch {
    /// What is waited for.
    pub(crate) sources: WaitSet,
    /// Wanted when the main thread is to look at the sources.
    pub(crate) host: Interrupt,
    /// The main thread runs the first vCPU.
    pub(crate) in_guest: AtomicBool,
    armed: Mutex<bool>,
    rearmed: Condvar,
    ending: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            sources: WaitSet::new()?,
            host: Interrupt::new()?,
            in_guest: AtomicBool::new(false),
            armed: Mutex::new(true),
            rearmed: Condvar::new(),
            ending: AtomicBool::new(false),
        })
    }

    /// Asks to be interrupted again. What became ready meanwhile interrupts at once.
    pub(crate) fn arm(&self) {
        self.host.lower();
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*armed {
            *armed = true;
            self.rearmed.notify_one();
        }
    }

    /// Ends the thread; a source must be ready for it to notice.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.arm();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn disarm(&self) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Waits until the main thread has looked; false if it has not after [`STUCK_AFTER`].
    fn wait_until_armed(&self) -> bool {
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let still_waiting = |armed: &mut bool| !*armed && !self.is_ending();
        self.rearmed
            .wait_timeout_while(armed, STUCK_AFTER, still_waiting)
            .is_ok_and(|(_, waited)| !waited.timed_out())
    }
}

/// The thread's body. `signals` are the main thread's.
pub(crate) fn run(
    watch: &Watch,
    gate: &Gate,
    first_vcpu: &dyn StopHandle,
    signals: &TerminationSignals,
) {
    while !watch.is_ending() {
        // A wait that fails would fail again at once; the main thread finds out why when it looks.
        let _ = watch.sources.wait();
        // First, since the main thread may arm again as soon as it is interrupted.
        watch.disarm();
        watch.host.raise();
        first_vcpu.request_stop();
        gate.attract_attention();
        while !watch.wait_until_armed() {
            if !watch.in_guest.load(Ordering::SeqCst) {
                // It is capturing, which may take long and looks at requests to end by itself.
                continue;
            }
            if let Some(termination) = signals.take() {
                // No thread can do it in order; the next start removes what is left behind.
                std::process::exit(i32::from(termination.exit_code()));
            }
        }
    }
}
