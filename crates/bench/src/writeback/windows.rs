//! What Windows tells of a directory's volume.

use std::fs::File;
use std::io;

pub(super) use nvx_host::available_bytes;

/// What a block device has written so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceCounts {
    /// Write requests completed.
    pub(super) requests: u64,
    /// Bytes of them.
    pub(super) bytes: u64,
}

/// The counter of a block device; there is none here.
#[derive(Debug)]
pub(super) struct DeviceCounter {
    /// The device's name.
    pub(super) name: String,
}

impl DeviceCounter {
    /// Says why there is none.
    ///
    /// # Errors
    /// Always.
    pub(super) fn of(_file: &File) -> Result<Self, String> {
        Err("Windows shows a disk's counters to administrators only".to_owned())
    }

    pub(super) fn read(&self) -> io::Result<DeviceCounts> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Nothing to do: a file's sync reaches the device.
pub(super) fn sync_server(_file: &File) -> io::Result<()> {
    Ok(())
}
