//! I/O ports that the probe guest uses.

/// Console data.
pub(crate) const CONSOLE: u32 = 0xe9;
/// Console status: bit 0 input pending, bit 1 restored and not told yet.
pub(crate) const CONSOLE_STATUS: u32 = 0xea;
/// Shutdown: the first byte is the exit status.
pub(crate) const SHUTDOWN: u32 = 0x604;
/// Snapshot request and its outcome.
pub(crate) const SNAPSHOT: u32 = 0x605;
/// First serial line (16550), for monitors that have no port console.
pub(crate) const SERIAL: u32 = 0x3f8;
/// Index port of the CMOS clock; its data port follows.
pub(crate) const RTC: u32 = 0x70;
