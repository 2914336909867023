//! `nvx guest snapshot`.
//!
//! The request is made at the machine's I/O port for it, so that the guest is captured at this very
//! instruction; where the port cannot be used, over the control line. What became of it comes over the line in
//! any case: a copy has to hear what to repair itself with.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use nvx_machine::control_line::{ConsoleMode, FromGuest, ToGuest};

use super::control::for_each_message;
use super::port::{self, Asked};
use super::rendezvous::{ANSWER_TIMEOUT, Waiting};
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
    let is_guest_of_nvx = is_guest_of_nvx();
    let by_port = matches!(is_guest_of_nvx, Ok(true));
    if let Some(waiting) = Waiting::begin(by_port).map_err(no_answer)? {
        return ask_beside_init(waiting, by_port);
    }
    // A host's second serial port may lead anywhere.
    if !is_guest_of_nvx.map_err(SnapshotError::NoGuest)? {
        return Err(SnapshotError::NoGuest(io::ErrorKind::NotFound.into()));
    }
    let line = terminal::open(terminal::CONTROL).map_err(SnapshotError::Line)?;
    terminal::make_raw(&line).map_err(SnapshotError::Line)?;
    ask_monitor(&line)
}

/// Where the guest's init is ours: it has the line, and hears the answer.
fn ask_beside_init(mut waiting: Waiting, by_port: bool) -> Result<SnapshotOutcome, SnapshotError> {
    if by_port {
        match port::ask() {
            Asked::Decided(outcome) => return Ok(outcome),
            Asked::Undecided => {}
            Asked::Not => {
                waiting = Waiting::begin(false)
                    .map_err(no_answer)?
                    .ok_or(SnapshotError::Line(io::ErrorKind::ConnectionRefused.into()))?;
            }
        }
    }
    waiting.outcome().map_err(no_answer)
}

fn no_answer(error: io::Error) -> SnapshotError {
    if is_timeout(&error) {
        SnapshotError::NoAnswer {
            seconds: ANSWER_TIMEOUT.as_secs(),
        }
    } else {
        SnapshotError::Line(error)
    }
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
    let send = |message: FromGuest| {
        let mut line = line;
        line.write_all(message.to_string().as_bytes())
            .map_err(SnapshotError::Line)
    };
    send(FromGuest::Ready {
        mode: ConsoleMode::Stream,
    })?;
    // The monitor must know that there is a listener when the request comes.
    terminal::drain(line);
    match port::ask() {
        Asked::Decided(outcome) => return Ok(outcome),
        Asked::Undecided => {}
        Asked::Not => send(FromGuest::Snapshot)?,
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
