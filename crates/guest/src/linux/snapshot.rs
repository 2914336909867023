//! `nvx guest snapshot`.
//!
//! The request goes over the control line and not by an I/O port, although the machine has one for it: a
//! kernel may be built without `ioperm`, and a copy must hear of its repair by the line anyway.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use nvx_machine::control_line::{ConsoleMode, FromGuest, ToGuest};

use super::control::for_each_message;
use super::rendezvous::{ANSWER_TIMEOUT, ask_init};
use super::{repair, terminal};
use crate::{SnapshotError, SnapshotOutcome};

/// A table that every machine of nvx has, as Linux shows it.
const ACPI_TABLE: &str = "/sys/firmware/acpi/tables/APIC";
/// Where a table has its maker's name (ACPI 6.5, section 5.2.6, "System Description Table Header").
const OEM_ID_OFFSET: u64 = 10;

/// Asks the monitor for a snapshot of this guest, and says on which side of it this process is. In the
/// restored copy it returns once the copy's clock and random numbers are its own.
///
/// # Errors
/// The snapshot cannot be asked for, or the copy is not repaired.
pub fn request_snapshot() -> Result<SnapshotOutcome, SnapshotError> {
    match ask_init() {
        Ok(Some(outcome)) => return Ok(outcome),
        Ok(None) => {}
        Err(error) if is_timeout(&error) => {
            return Err(SnapshotError::NoAnswer {
                seconds: ANSWER_TIMEOUT.as_secs(),
            });
        }
        Err(error) => return Err(SnapshotError::Line(error)),
    }
    // A host's second serial port may lead anywhere.
    if !is_guest_of_nvx().map_err(SnapshotError::NoGuest)? {
        return Err(SnapshotError::NoGuest(io::ErrorKind::NotFound.into()));
    }
    let line = terminal::open(terminal::CONTROL).map_err(SnapshotError::Line)?;
    terminal::make_raw(&line).map_err(SnapshotError::Line)?;
    ask_monitor(&line)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn is_guest_of_nvx() -> io::Result<bool> {
    let mut table = File::open(ACPI_TABLE)?;
    table.seek(SeekFrom::Start(OEM_ID_OFFSET))?;
    let mut oem_id = [0; 6];
    table.read_exact(&mut oem_id)?;
    Ok(oem_id == nvx_machine::ACPI_OEM_ID)
}

/// Where the guest's init is not ours: this process is at the line itself.
fn ask_monitor(line: &File) -> Result<SnapshotOutcome, SnapshotError> {
    let (sender, outcome) = mpsc::sync_channel(1);
    let reader = line.try_clone().map_err(SnapshotError::Line)?;
    std::thread::Builder::new()
        .name("control line".to_owned())
        .spawn(move || {
            let mut decided = None;
            let listened = for_each_message(&reader, |message| {
                decided = outcome_of(message, &reader);
                decided.is_none()
            });
            let failed = listened.err().map(|error| Err(SnapshotError::Line(error)));
            if let Some(outcome) = decided.or(failed) {
                let _ = sender.try_send(outcome);
            }
        })
        .map_err(SnapshotError::Line)?;
    let mode = ConsoleMode::Stream;
    for message in [FromGuest::Ready { mode }, FromGuest::Snapshot] {
        let mut line = line;
        line.write_all(message.to_string().as_bytes())
            .map_err(SnapshotError::Line)?;
    }
    match outcome.recv_timeout(ANSWER_TIMEOUT) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(SnapshotError::NoAnswer {
                seconds: ANSWER_TIMEOUT.as_secs(),
            })
        }
    }
}

/// What a message decides; none if it is about something else.
fn outcome_of(message: ToGuest, mut line: &File) -> Option<Result<SnapshotOutcome, SnapshotError>> {
    match message {
        ToGuest::Snapshot { taken: true } => Some(Ok(SnapshotOutcome::Source)),
        ToGuest::Snapshot { taken: false } => Some(Ok(SnapshotOutcome::Refused)),
        ToGuest::Restored { entropy, clock, .. } => {
            let begin = Instant::now();
            if let Err(error) = repair::repair(&entropy, clock) {
                return Some(Err(SnapshotError::NotRepaired(error)));
            }
            let elapsed_us = begin.elapsed().as_micros() as u64;
            let answer = FromGuest::Repaired { elapsed_us }.to_string();
            // The copy is repaired, whether the monitor hears it or not.
            let _ = line.write_all(answer.as_bytes());
            Some(Ok(SnapshotOutcome::Restored))
        }
        _ => None,
    }
}
