//! The time-stamp counter: host time at a fixed rate.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Rate of the counter in kHz: one tick each nanosecond. The same everywhere, so that a snapshot
/// goes on at the same rate on any host.
pub(super) const RATE_KHZ: u32 = 1_000_000;

/// A counter that never goes backwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeStampCounter {
    base: u64,
    started: Instant,
}

impl TimeStampCounter {
    /// A counter that begins with the time of day in nanoseconds. Real ones begin at 0; this one
    /// must tell boots apart, since the guest has nothing else to draw a random number from.
    pub(super) fn at_power_on() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::from_value(since_epoch.as_nanos() as u64)
    }

    /// A counter that has `value` now.
    pub(super) fn from_value(value: u64) -> Self {
        Self {
            base: value,
            started: Instant::now(),
        }
    }

    /// The counter's value.
    pub(super) fn now(&self) -> u64 {
        self.base
            .wrapping_add(self.started.elapsed().as_nanos() as u64)
    }
}
