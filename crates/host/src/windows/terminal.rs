//! The user's terminal. Only Linux guests want it raw, and those do not run on Windows.

use std::io;

use super::wait::Waitable;

/// The user's terminal.
pub struct UserTerminal {
    never: std::convert::Infallible,
}

impl UserTerminal {
    /// `None`.
    ///
    /// # Errors
    /// None here.
    pub fn attach() -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Gives every key to whoever reads standard input, and shows nothing by itself.
    ///
    /// # Errors
    /// None here.
    pub fn make_raw(&self) -> io::Result<()> {
        match self.never {}
    }

    /// Makes the terminal what it was before it was raw.
    pub fn restore(&self) {
        match self.never {}
    }

    /// Whether it is raw.
    pub fn is_raw(&self) -> bool {
        match self.never {}
    }

    /// Columns and rows.
    pub fn size(&self) -> Option<(u16, u16)> {
        match self.never {}
    }

    /// Waits until the size may have changed; false if `stop` is readable first.
    pub fn wait_for_size_change(&self, _stop: impl Waitable) -> bool {
        match self.never {}
    }
}
