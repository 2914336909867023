//! The two serial lines.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::OFlags;
use rustix::termios::{ControlModes, OptionalActions, Termios, Winsize};

/// The console: COM1, which the monitor connects to its standard input and output.
pub(super) const CONSOLE: &str = "/dev/ttyS0";
/// The control line: COM2.
pub(super) const CONTROL: &str = "/dev/ttyS1";

/// Opens a serial line without making it this process's terminal.
pub(super) fn open(path: &str) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits() as i32)
        .open(path)
}

/// Bytes as they are, in both directions.
pub(super) fn make_raw(line: &File) -> io::Result<()> {
    change(line, |mode| mode.make_raw())
}

/// Editing, echo and signals by keys, as a user's terminal needs it.
pub(super) fn make_terminal(line: &File) -> io::Result<()> {
    // That is what the kernel begins with.
    change(line, |_| {})
}

fn change(line: &File, change: impl FnOnce(&mut Termios)) -> io::Result<()> {
    let mut mode = rustix::termios::tcgetattr(line)?;
    change(&mut mode);
    // Without flow control the kernel drops input that it has no room for.
    mode.control_modes |= ControlModes::CRTSCTS | ControlModes::CREAD | ControlModes::CLOCAL;
    Ok(rustix::termios::tcsetattr(
        line,
        OptionalActions::Now,
        &mode,
    )?)
}

/// Tells programs, by SIGWINCH, and whoever asks, how large the user's terminal is.
pub(super) fn set_size(line: &File, columns: u16, rows: u16) -> io::Result<()> {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(line, size)?)
}

/// Waits until the line has taken everything that was written to it.
pub(super) fn drain(line: &File) {
    // A line that cannot is one that nothing more is written to.
    let _ = rustix::termios::tcdrain(line);
}
