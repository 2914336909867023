//! Where the threads of all vCPUs but the first stand still.
//!
//! The main thread, which runs the first vCPU, stops the others, looks at or saves their state, and
//! lets them go on. A vCPU thread also holds itself here when what it met needs the main thread's
//! decision. A thread that stands at the gate has left its vCPU with no unfinished exit and
//! unlocked, so the main thread may use it directly.
//!
//! A thread stands while a stop is wanted or while it is *held*. It is held from before its event
//! is posted, so a decision that comes before the thread has arrived is not lost: the thread then
//! finds that nothing keeps it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvx_hypervisor::MAX_VCPUS;

use crate::interrupt::Interrupt;

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
    standing: [bool; MAX_VCPUS as usize],
    held: [bool; MAX_VCPUS as usize],
    ending: bool,
    /// Something happened that an idle vCPU waits for.
    attention: bool,
}

impl State {
    fn standing(&self) -> usize {
        self.standing.iter().filter(|standing| **standing).count()
    }
}

/// The gate of one VM.
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Changed only under `state`'s lock; read without it before each entry into the guest.
    stop: Interrupt,
}

impl Gate {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: Interrupt::new()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wanted while the threads are to stand here.
    pub(crate) fn stop(&self) -> &Interrupt {
        &self.stop
    }

    /// Keeps vCPU `index`'s thread at the gate until the next [`Gate::resume`]. To be called by
    /// that thread before it posts the event that needs a decision.
    pub(crate) fn hold(&self, index: u8) {
        self.lock().held[usize::from(index)] = true;
    }

    /// Stands at the gate until nothing keeps the thread of vCPU `index` there. To be called
    /// without the vCPU's lock.
    pub(crate) fn stand(&self, index: u8) -> Leave {
        let index = usize::from(index);
        let mut state = self.lock();
        state.standing[index] = true;
        self.changed.notify_all();
        while (state.held[index] || self.stop.is_wanted()) && !state.ending {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.ending {
            // Goes on counting as standing: its vCPU never runs again.
            return Leave::End;
        }
        state.standing[index] = false;
        Leave::Resume
    }

    /// Asks for a stop. The caller then kicks every vCPU and calls [`Gate::wait_for_all`].
    pub(crate) fn ask_for_stop(&self) {
        let _state = self.lock();
        self.stop.raise();
        self.changed.notify_all();
    }

    /// Waits until `threads` threads stand at the gate; false if `timeout` passed before. While a
    /// stop is wanted none of them leaves.
    pub(crate) fn wait_for_all(&self, threads: usize, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.standing() < threads {
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

    /// Ends a stop and every hold.
    pub(crate) fn resume(&self) {
        let mut state = self.lock();
        self.stop.lower();
        state.held = Default::default();
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
        if !state.attention && !state.ending && !self.stop.is_wanted() {
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
    fn threads_stand_while_a_stop_is_wanted_and_end_when_told() {
        let gate = Arc::new(Gate::new().expect("a descriptor"));
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    while gate.stand(index) == Leave::Resume {
                        thread::yield_now();
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            gate.ask_for_stop();
            assert!(gate.wait_for_all(3, LONG));
            gate.resume();
        }
        gate.end();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn a_decision_before_the_thread_arrives_is_not_lost() {
        let gate = Gate::new().expect("a descriptor");
        gate.hold(1);
        gate.resume();
        assert_eq!(gate.stand(1), Leave::Resume);
    }

    #[test]
    fn a_held_thread_stands_without_a_stop() {
        let gate = Arc::new(Gate::new().expect("a descriptor"));
        gate.hold(0);
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || other.stand(0));
        assert!(gate.wait_for_all(1, LONG));
        gate.ask_for_stop();
        assert!(gate.wait_for_all(1, LONG));
        gate.resume();
        assert_eq!(thread.join().expect("no panic"), Leave::Resume);
    }

    #[test]
    fn a_thread_that_does_not_come_is_noticed() {
        let gate = Gate::new().expect("a descriptor");
        gate.ask_for_stop();
        assert!(!gate.wait_for_all(1, Duration::from_millis(5)));
    }

    #[test]
    fn attention_and_a_stop_end_an_idle_wait() {
        let gate = Arc::new(Gate::new().expect("a descriptor"));
        gate.attract_attention();
        gate.idle(LONG);
        let other = Arc::clone(&gate);
        let thread = thread::spawn(move || other.idle(LONG));
        gate.ask_for_stop();
        thread.join().expect("no panic");
    }
}
