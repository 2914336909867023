//! Port numbers of the machine contract.

/// Console data. Reading takes one pending byte (0 when there is none), writing prints one.
pub const CONSOLE: u16 = 0xe9;
/// Console status: see [`STATUS_INPUT_PENDING`] and [`STATUS_RESTORED`].
pub const CONSOLE_STATUS: u16 = 0xea;
/// Shutdown: the byte written is the exit status.
pub const SHUTDOWN: u16 = 0x604;
/// Snapshot: any write requests one, reading gives the outcome.
pub const SNAPSHOT: u16 = 0x605;
/// CMOS clock: register number in bits 0 to 6, NMI mask in bit 7.
pub const RTC_INDEX: u16 = 0x70;
/// CMOS clock: the register that was chosen.
pub const RTC_DATA: u16 = 0x71;

/// Console status bit 0: a byte of input is pending.
pub const STATUS_INPUT_PENDING: u8 = 1 << 0;
/// Console status bit 1: this machine was restored and the guest has not read so at the snapshot port yet.
pub const STATUS_RESTORED: u8 = 1 << 1;

/// What a read of a port gives that nothing drives.
pub const FLOATING: u8 = 0xff;
