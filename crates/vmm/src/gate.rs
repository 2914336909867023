//! Where vCPU threads stand still.
//!
//! The monitor's main thread stops all vCPUs, looks at or saves their state, and lets them go on;
//! vCPU threads also come here by themselves when what they met needs the main thread's decision.
//! A thread that stands at the gate has left its vCPU with no unfinished exit and unlocked, so
//! the main thread may use it directly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvx_host::Waker;

/// What a thread at the gate is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Run the vCPU again.
    Resume,
    /// End: the vCPU never runs again.
    End,
}

#[derive(Debug, Default)]
struct State {
    standing: usize,
    /// Counts resumptions, so that a thread knows that one happened while it stood.
    resumptions: u64,
    ending: bool,
    /// Raised when something happened that an idle vCPU waits for.
    attention: bool,
}

/// The gate of one VM.
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    stop_wanted: AtomicBool,
    /// Up while a stop is wanted, for threads that wait for a descriptor.
    stop_waker: Waker,
}

impl Gate {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop_wanted: AtomicBool::new(false),
            stop_waker: Waker::new()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A vCPU thread's check before each entry into the guest.
    pub(crate) fn stop_wanted(&self) -> bool {
        self.stop_wanted.load(Ordering::SeqCst)
    }

    /// Readable while a stop is wanted.
    pub(crate) fn stop_waker(&self) -> &Waker {
        &self.stop_waker
    }

    /// Stands at the gate until told what to do. To be called without the vCPU's lock.
    pub(crate) fn stand(&self) -> Leave {
        let mut state = self.lock();
        state.standing += 1;
        self.changed.notify_all();
        let arrived_at = state.resumptions;
        while state.resumptions == arrived_at && !state.ending {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.standing -= 1;
        if state.ending {
            Leave::End
        } else {
            Leave::Resume
        }
    }

    /// Asks for a stop. The caller then kicks every vCPU and calls [`Gate::wait_for_all`].
    pub(crate) fn ask_for_stop(&self) {
        self.stop_wanted.store(true, Ordering::SeqCst);
        self.stop_waker.raise();
        self.changed.notify_all();
    }

    /// Waits until `threads` threads stand at the gate; false if `timeout` passed before.
    pub(crate) fn wait_for_all(&self, threads: usize, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.standing < threads {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Lets every thread run its vCPU again.
    pub(crate) fn resume(&self) {
        let mut state = self.lock();
        self.stop_wanted.store(false, Ordering::SeqCst);
        self.stop_waker.lower();
        state.resumptions += 1;
        self.changed.notify_all();
    }

    /// Makes every thread end: those that stand here now, the others when they come.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ending = true;
        self.changed.notify_all();
    }

    /// Waits until [`Gate::attract_attention`] is called, a stop is wanted, or `timeout` passed.
    pub(crate) fn idle(&self, timeout: Duration) {
        let mut state = self.lock();
        if !state.attention && !state.ending && !self.stop_wanted() {
            (state, _) = self
                .changed
                .wait_timeout(state, timeout)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.attention = false;
    }

    /// Ends an idle wait, or the next one if there is none.
    pub(crate) fn attract_attention(&self) {
        self.lock().attention = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn threads_stand_until_resumed_and_end_when_told() {
        let gate = Arc::new(Gate::new().expect("a descriptor"));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let mut resumed = 0;
                    while gate.stand() == Leave::Resume {
                        resumed += 1;
                    }
                    resumed
                })
            })
            .collect();
        for _ in 0..10 {
            gate.ask_for_stop();
            assert!(gate.wait_for_all(3, LONG));
            gate.resume();
        }
        gate.end();
        let resumed: Vec<i32> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        assert!(
            resumed.iter().all(|count| (1..=10).contains(count)),
            "{resumed:?}"
        );
    }

    #[test]
    fn a_thread_that_does_not_come_is_noticed() {
        let gate = Gate::new().expect("a descriptor");
        gate.ask_for_stop();
        assert!(!gate.wait_for_all(1, Duration::from_millis(5)));
    }

    #[test]
    fn attention_ends_the_next_idle_wait() {
        let gate = Gate::new().expect("a descriptor");
        gate.attract_attention();
        gate.idle(LONG);
        gate.ask_for_stop();
        gate.idle(LONG);
    }
}
