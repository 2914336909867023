//! The machine's I/O port for snapshot requests.
//!
//! A program may use it once the kernel has given it the port (`ioperm`). A processor that does not follow, as
//! an emulated one may not, ends the program by a signal; so a process of its own asks, which says by a byte on its
//! standard output that it has asked, and ends with what it then read.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use nvx_machine::control_line::{SNAPSHOT_PORT, SNAPSHOT_REFUSED, SNAPSHOT_SOURCE};

use crate::SnapshotOutcome;

/// This program, whatever its name is.
const PROGRAM: &str = "/proc/self/exe";
/// How it is told to ask.
const ARGUMENTS: [&str; 3] = ["guest", "snapshot", "--ask-port"];
/// What the process that asks says when it has.
const ASKED: u8 = b'a';
/// The status of a process that may not use the port: all ones, which the port reads as where it is not there.
const NO_PORT: u8 = u8::MAX;

/// What came of asking by the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The port cannot be used here.
    Not,
    /// Asked, and this is not a copy.
    Decided(SnapshotOutcome),
    /// Asked. This may be a copy, which hears over the control line what to repair.
    Undecided,
}

/// Asks the monitor for a snapshot, if the port can be used.
pub(super) fn ask() -> Asked {
    let mut command = Command::new(PROGRAM);
    command
        .args(ARGUMENTS)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    match command.output() {
        Ok(output) => outcome(&output.stdout, output.status.code()),
        Err(_) => Asked::Not,
    }
}

fn outcome(said: &[u8], status: Option<i32>) -> Asked {
    let status = status.and_then(|status| u8::try_from(status).ok());
    match status {
        _ if said != [ASKED] => Asked::Not,
        Some(NO_PORT) => Asked::Not,
        Some(SNAPSHOT_REFUSED) => Asked::Decided(SnapshotOutcome::Refused),
        Some(SNAPSHOT_SOURCE) => Asked::Decided(SnapshotOutcome::Source),
        // A process that was ended by a signal after it had asked may be on either side.
        _ => Asked::Undecided,
    }
}

/// What the process does that `ask` starts; gives its exit status.
#[must_use]
pub fn ask_port() -> u8 {
    let asked = || {
        let mut output = io::stdout();
        // Nobody who reads it: then nobody is misled either.
        let _ = output.write_all(&[ASKED]).and_then(|()| output.flush());
    };
    nvx_host::ask_port(SNAPSHOT_PORT, 1, asked).unwrap_or(NO_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_asked_has_an_outcome() {
        let decided = |outcome| Asked::Decided(outcome);
        assert_eq!(outcome(b"", Some(1)), Asked::Not);
        assert_eq!(outcome(b"", None), Asked::Not);
        assert_eq!(outcome(b"a", Some(255)), Asked::Not, "floating");
        assert_eq!(outcome(b"a", Some(1)), decided(SnapshotOutcome::Refused));
        assert_eq!(outcome(b"a", Some(2)), decided(SnapshotOutcome::Source));
        assert_eq!(outcome(b"a", Some(3)), Asked::Undecided);
        assert_eq!(outcome(b"a", None), Asked::Undecided, "ended by a signal");
    }
}
