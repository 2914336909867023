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

/// ACPI sleep control register, one byte.
pub const SLEEP_CONTROL: u16 = 0x600;
/// ACPI sleep status register, one byte.
pub const SLEEP_STATUS: u16 = 0x601;
/// ACPI reset register, one byte.
pub const RESET_CONTROL: u16 = 0x602;
/// The byte that resets the machine when written to [`RESET_CONTROL`].
pub const RESET_VALUE: u8 = 1;
/// The sleep type of soft off, as `\_S5` names it.
pub const SLEEP_TYPE_OFF: u8 = 5;
/// Command and status port of the keyboard controller, of which only the reset line is there.
pub const KEYBOARD_COMMAND: u16 = 0x64;
/// The command that pulses the reset line.
pub const KEYBOARD_COMMAND_RESET: u8 = 0xfe;

/// First port of the serial port that is the console.
pub const SERIAL_CONSOLE: u16 = 0x3f8;
/// First port of the serial port that is the control line.
pub const SERIAL_CONTROL_LINE: u16 = 0x2f8;
/// Ports of one serial port.
pub const SERIAL_PORTS: u16 = 8;
