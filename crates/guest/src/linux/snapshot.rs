//! `nvx guest snapshot`.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nvx_devices::Outcome;
use nvx_devices::numbers::SNAPSHOT;
use nvx_host::IoPort;
use nvx_machine::control_line::{FromGuest, ToGuest};

use super::control::for_each_message;
use super::rendezvous::Connection;
use super::{repair, terminal};
use crate::{SnapshotError, SnapshotOutcome};

/// What a port gives that nothing drives.
const FLOATING: u8 = 0xff;
/// How long the monitor may take, on the guest's clock, which stands still during a capture.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the port is read.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long the message of a restore may take where this process takes it itself.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the monitor for a snapshot of this guest, and says on which side of it this process is. In the
/// restored copy it returns once the copy's clock and random numbers are its own.
///
/// # Errors
/// The snapshot cannot be asked for, or the copy is not repaired.
pub fn request_snapshot() -> Result<SnapshotOutcome, SnapshotError> {
    let port = IoPort::open(SNAPSHOT).map_err(SnapshotError::Port)?;
    if port.read() == FLOATING {
        return Err(SnapshotError::NoPort);
    }
    // Both before the request: afterwards the copy's message could already have gone by.
    let init = Connection::open().map_err(SnapshotError::NotRepaired)?;
    let own = match init {
        Some(_) => None,
        None => Some(OwnRepair::prepare().map_err(SnapshotError::NotRepaired)?),
    };
    // The value means nothing.
    port.write(1);
    match wait_for_outcome(&port)? {
        Outcome::Restored => {
            let repaired = match (init, own) {
                (Some(init), _) => init.wait_for_repair(),
                (None, Some(own)) => own.wait(),
                (None, None) => Ok(()),
            };
            repaired.map_err(SnapshotError::NotRepaired)?;
            Ok(SnapshotOutcome::Restored)
        }
        Outcome::Source => Ok(SnapshotOutcome::Source),
        Outcome::Refused | Outcome::None => Ok(SnapshotOutcome::Refused),
    }
}

fn wait_for_outcome(port: &IoPort) -> Result<Outcome, SnapshotError> {
    let begin = Instant::now();
    loop {
        let value = port.read();
        let outcomes = [Outcome::Refused, Outcome::Source, Outcome::Restored];
        if let Some(outcome) = outcomes.into_iter().find(|outcome| *outcome as u8 == value) {
            return Ok(outcome);
        }
        if begin.elapsed() > ANSWER_TIMEOUT {
            return Err(SnapshotError::NoAnswer {
                seconds: ANSWER_TIMEOUT.as_secs(),
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The repair where the guest's init is not ours: this process listens to the control line itself.
struct OwnRepair {
    repaired: mpsc::Receiver<io::Result<()>>,
}

impl OwnRepair {
    fn prepare() -> io::Result<Self> {
        let line = terminal::open(terminal::CONTROL)?;
        terminal::make_raw(&line)?;
        let (sender, repaired) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("control line".to_owned())
            .spawn(move || {
                let listened = for_each_message(&line, |message| {
                    let ToGuest::Restored { entropy, clock, .. } = message else {
                        return true;
                    };
                    let begin = Instant::now();
                    let result = repair::repair(&entropy, clock);
                    if result.is_ok() {
                        let elapsed_us = begin.elapsed().as_micros() as u64;
                        let answer = FromGuest::Repaired { elapsed_us }.to_string();
                        let _ = io::Write::write_all(&mut &line, answer.as_bytes());
                    }
                    let _ = sender.try_send(result);
                    false
                });
                if let Err(error) = listened {
                    let _ = sender.try_send(Err(error));
                }
            })?;
        Ok(Self { repaired })
    }

    fn wait(self) -> io::Result<()> {
        match self.repaired.recv_timeout(MESSAGE_TIMEOUT) {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no message of the monitor on /dev/ttyS1",
            )),
        }
    }
}
