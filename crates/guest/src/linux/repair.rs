//! Repairing a restored copy: what two copies of one memory must not share.

use std::io;
use std::time::Duration;

use nvx_machine::control_line::{Clock, ENTROPY_BYTES};
use rustix::time::{ClockId, Timespec, clock_settime};

/// Sets the wall clock as `clock` says and makes the kernel's random numbers the copy's own.
pub(super) fn repair(entropy: &[u8; ENTROPY_BYTES], clock: Clock) -> io::Result<()> {
    // First, since the time in the message grows old.
    let clock_set = match clock {
        Clock::Advance { realtime_ns } => set_clock(Duration::from_nanos(realtime_ns)),
        Clock::Freeze => Ok(()),
    };
    // In any case: equal random numbers are worse than a wrong clock.
    nvx_host::reseed_random_generator(entropy)?;
    clock_set
}

fn set_clock(since_epoch: Duration) -> io::Result<()> {
    let time = Timespec::try_from(since_epoch).map_err(io::Error::other)?;
    Ok(clock_settime(ClockId::Realtime, time)?)
}
