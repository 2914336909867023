//! How a device interrupts.

/// One input of an interrupt controller, as the device that drives it sees it.
pub trait InterruptLine: Send {
    /// Sets the line's level. An edge-triggered input takes each change from low to high.
    fn set(&self, asserted: bool);
}

/// A line that leads nowhere, for a machine without an interrupt controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnconnectedLine;

impl InterruptLine for UnconnectedLine {
    fn set(&self, _asserted: bool) {}
}

/// A line whose level a test looks at.
#[cfg(test)]
pub(crate) mod recorded {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::InterruptLine;

    #[derive(Clone, Debug, Default)]
    pub(crate) struct RecordedLine {
        level: Arc<AtomicBool>,
        rises: Arc<AtomicU32>,
    }

    impl RecordedLine {
        pub(crate) fn level(&self) -> bool {
            self.level.load(Ordering::Relaxed)
        }

        pub(crate) fn rises(&self) -> u32 {
            self.rises.load(Ordering::Relaxed)
        }
    }

    impl InterruptLine for RecordedLine {
        fn set(&self, asserted: bool) {
            if asserted && !self.level() {
                self.rises.fetch_add(1, Ordering::Relaxed);
            }
            self.level.store(asserted, Ordering::Relaxed);
        }
    }
}
