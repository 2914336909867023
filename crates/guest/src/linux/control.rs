//! The guest's end of the control line.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::sync::mpsc::Sender;

use nvx_machine::control_line::{FromGuest, LineBuffer, ToGuest};

use super::init::Event;
use super::terminal;

/// The line, if the machine has one.
pub(super) struct ControlLine {
    line: Option<File>,
}

impl ControlLine {
    /// Opens the line. Under another monitor there may be none, and then nothing is said.
    pub(super) fn open() -> Self {
        let line = terminal::open(terminal::CONTROL).and_then(|line| {
            terminal::make_raw(&line)?;
            Ok(line)
        });
        Self { line: line.ok() }
    }

    /// Whether there is somebody to talk to.
    pub(super) fn is_open(&self) -> bool {
        self.line.is_some()
    }

    /// Tells the monitor. A line that takes nothing is as good as none.
    pub(super) fn send(&self, message: &FromGuest) {
        if let Some(mut line) = self.line.as_ref() {
            let _ = line.write_all(message.to_string().as_bytes());
        }
    }

    /// Waits until the monitor has everything.
    pub(super) fn drain(&self) {
        if let Some(line) = &self.line {
            terminal::drain(line);
        }
    }

    /// A thread that posts what the monitor says.
    pub(super) fn listen(&self, events: Sender<Event>) -> io::Result<()> {
        let Some(line) = &self.line else {
            return Ok(());
        };
        let line = line.try_clone()?;
        std::thread::Builder::new()
            .name("control line".to_owned())
            .spawn(move || {
                let _ =
                    for_each_message(&line, |message| events.send(Event::Told(message)).is_ok());
            })?;
        Ok(())
    }
}

/// Reads messages until `take` wants no more. What is no message is passed over.
pub(super) fn for_each_message(
    mut line: &File,
    mut take: impl FnMut(ToGuest) -> bool,
) -> io::Result<()> {
    let mut buffer = LineBuffer::default();
    let mut bytes = [0; 512];
    loop {
        let length = match line.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for byte in &bytes[..length] {
            if let Some(line) = buffer.push(*byte)
                && let Ok(message) = ToGuest::parse(&line)
                && !take(message)
            {
                return Ok(());
            }
        }
    }
}
