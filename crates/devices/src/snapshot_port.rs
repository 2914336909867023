//! Snapshot port: the guest requests a capture and learns what became of it.
//!
//! A write forgets the previous outcome and asks the monitor for a capture. The guest then polls until it reads
//! something else than [`Outcome::None`]: the source of the capture and its restored copies read different
//! values, which is how a guest tells which of them it is. An outcome stays until the next request.
//!
//! A guest that was captured without having asked learns of its restore through a [`RestoreNotice`]: a bit in
//! the console's status that stands until the outcome is read.

mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::numbers::{FLOATING, SNAPSHOT};
use state::SnapshotPortState;

const FORMAT: UnitFormat = UnitFormat {
    name: SnapshotPort::NAME,
    kind: "nvx.snapshot-port",
    version: 1,
    max_bytes: 256,
};

/// What a read of the snapshot port gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// No request was made, or it is not decided yet.
    #[default]
    None = 0,
    /// The last request was refused or failed; nothing was captured.
    Refused = 1,
    /// Captured, and this machine is the source.
    Source = 2,
    /// This machine was restored from a snapshot.
    Restored = 3,
}

impl Outcome {
    fn from_saved(value: u32) -> Option<Self> {
        [Self::None, Self::Refused, Self::Source, Self::Restored]
            .into_iter()
            .find(|outcome| *outcome as u32 == value)
    }
}

/// The news that the machine was restored, until the guest has heard it. Clones share the news.
#[derive(Clone, Debug, Default)]
pub struct RestoreNotice(Arc<AtomicBool>);

impl RestoreNotice {
    /// Whether the guest still has to hear it.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, pending: bool) {
        self.0.store(pending, Ordering::Release);
    }
}

/// The snapshot request device.
#[derive(Debug)]
pub struct SnapshotPort {
    outcome: Outcome,
    notice: RestoreNotice,
}

impl SnapshotPort {
    /// Name in the device inventory.
    pub const NAME: &'static str = "snapshot-port";

    /// A port without a request; `notice` is what the console's status shows.
    #[must_use]
    pub fn new(notice: RestoreNotice) -> Self {
        Self {
            outcome: Outcome::None,
            notice,
        }
    }

    /// What the guest reads at present.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Decides what the guest reads. [`Outcome::Restored`] also posts the notice; any other outcome takes a
    /// notice back that the guest has not heard.
    pub fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
        self.notice.set(outcome == Outcome::Restored);
    }
}

impl Device for SnapshotPort {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        let Self { outcome, notice } = self;
        FORMAT.encode(&SnapshotPortState {
            outcome: *outcome as u32,
            notice_pending: notice.is_pending(),
        })
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let SnapshotPortState {
            outcome,
            notice_pending,
        } = FORMAT.decode(kind, version, bytes)?;
        let outcome = Outcome::from_saved(outcome)
            .ok_or_else(|| FORMAT.impossible("outcome", u64::from(outcome)))?;
        if notice_pending && outcome != Outcome::Restored {
            return Err(FORMAT.impossible("notice_pending", u64::from(notice_pending)));
        }
        self.outcome = outcome;
        self.notice.set(notice_pending);
        Ok(())
    }
}

impl PortDevice for SnapshotPort {
    fn read(&mut self, port: u16) -> u8 {
        if port != SNAPSHOT {
            return FLOATING;
        }
        if self.outcome == Outcome::Restored {
            self.notice.set(false);
        }
        self.outcome as u8
    }

    fn write(&mut self, port: u16, _value: u8) -> Effect {
        if port != SNAPSHOT {
            return Effect::None;
        }
        self.set_outcome(Outcome::None);
        Effect::SnapshotRequested
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::restore;

    #[test]
    fn a_request_forgets_the_last_outcome() {
        let mut port = SnapshotPort::new(RestoreNotice::default());
        assert_eq!(port.read(SNAPSHOT), 0);
        for (outcome, value) in [
            (Outcome::Refused, 1),
            (Outcome::Source, 2),
            (Outcome::Restored, 3),
        ] {
            assert_eq!(port.write(SNAPSHOT, 0), Effect::SnapshotRequested);
            assert_eq!(port.read(SNAPSHOT), 0);
            port.set_outcome(outcome);
            assert_eq!(port.read(SNAPSHOT), value);
            assert_eq!(port.read(SNAPSHOT), value, "an outcome stays");
        }
    }

    #[test]
    fn the_notice_stands_until_the_outcome_is_read() {
        let notice = RestoreNotice::default();
        let mut port = SnapshotPort::new(notice.clone());
        port.set_outcome(Outcome::Source);
        assert!(!notice.is_pending());
        port.set_outcome(Outcome::Restored);
        assert!(notice.is_pending());
        let saved = port.save();
        assert_eq!(port.read(SNAPSHOT), 3);
        assert!(!notice.is_pending());

        let notice = RestoreNotice::default();
        let mut copy = SnapshotPort::new(notice.clone());
        restore(&mut copy, &saved).unwrap();
        assert!(notice.is_pending());
        assert_eq!(copy.outcome(), Outcome::Restored);
        restore(&mut copy, &port.save()).unwrap();
        assert!(!notice.is_pending());
    }

    #[test]
    fn impossible_states_are_refused_and_change_nothing() {
        let mut port = SnapshotPort::new(RestoreNotice::default());
        port.set_outcome(Outcome::Source);
        for (state, field) in [
            (
                SnapshotPortState {
                    outcome: 4,
                    notice_pending: false,
                },
                "outcome",
            ),
            (
                SnapshotPortState {
                    outcome: 2,
                    notice_pending: true,
                },
                "notice_pending",
            ),
        ] {
            let error = restore(&mut port, &FORMAT.encode(&state)).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
            assert_eq!(port.outcome(), Outcome::Source);
        }
    }
}
