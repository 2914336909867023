//! Windows gives the counters of a volume's device to administrators only, and NVX asks for no such
//! rights: every reading is absent, which a result shows.

use std::time::Instant;

use super::StorageReading;
use crate::host::BlockDevice;

/// The time of the reading, and nothing else.
pub(super) fn read(_device: Option<&BlockDevice>, began: Instant) -> StorageReading {
    StorageReading {
        elapsed_us: began.elapsed().as_micros() as u64,
        device_read_bytes: None,
        device_written_bytes: None,
        device_busy_ms: None,
        dirty_bytes: None,
        writeback_bytes: None,
        own_written_bytes: None,
        cpu_pressure_us: None,
    }
}
