//! The monitor's end of the control line, by which it and `nvx` inside a guest talk.
//!
//! The guest is not trusted: what it says is bounded, what is no message is dropped, and what nobody
//! has taken yet is bounded as well. Nothing is sent to a guest that has not said that it listens.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvx_devices::SerialIo;
use nvx_host::Waker;
use nvx_hypervisor::{SavedState, StateError};
use nvx_machine::control_line::{FromGuest, LineBuffer, MAX_LINE_BYTES, ToGuest};

use crate::vcpu_thread::Shared;

/// Bytes that are kept for a guest that does not take them; a message that does not fit is dropped.
const OUTBOUND_MAX_BYTES: usize = 64 << 10;
/// Messages of the guest that are kept until the main thread takes them; more are dropped.
const INBOUND_MAX_MESSAGES: usize = 64;

/// Saved state of kind `nvx.control-line`, version 1. What was on its way to the guest is not kept: a
/// copy is told anew.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ControlLineState {
    /// What the guest has written of a line that is not complete.
    #[prost(bytes = "vec", tag = "1")]
    unfinished: Vec<u8>,
    /// The guest has said that it listens.
    #[prost(bool, tag = "2")]
    listens: bool,
    /// The exit status that the guest has told.
    #[prost(uint32, optional, tag = "3")]
    status: Option<u32>,
}

impl SavedState for ControlLineState {
    const KIND: &'static str = "nvx.control-line";
    const VERSION: u32 = 1;
}

#[derive(Debug, Default)]
struct State {
    /// On its way to the guest.
    outbound: VecDeque<u8>,
    /// The guest's unfinished line.
    line: LineBuffer,
    /// What the guest has said.
    inbound: VecDeque<FromGuest>,
    /// The guest has said that it listens.
    listens: bool,
    /// The exit status that the guest has told.
    status: Option<u8>,
}

/// The line of one VM.
pub(crate) struct ControlLine {
    state: Mutex<State>,
    /// Raised when the guest has said something.
    heard: Arc<Waker>,
}

impl ControlLine {
    pub(crate) fn new(heard: Arc<Waker>) -> Self {
        Self {
            state: Mutex::default(),
            heard,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exit status that the guest has told, if it did.
    pub(crate) fn declared_status(&self) -> Option<u8> {
        self.lock().status
    }

    /// The oldest message that was not taken yet.
    pub(crate) fn take_message(&self) -> Option<FromGuest> {
        self.lock().inbound.pop_front()
    }

    pub(crate) fn save(&self) -> ControlLineState {
        let state = self.lock();
        let State {
            outbound: _,
            line,
            inbound: _,
            listens,
            status,
        } = &*state;
        ControlLineState {
            unfinished: line.unfinished().to_vec(),
            listens: *listens,
            status: status.map(u32::from),
        }
    }

    pub(crate) fn restore(&self, saved: &ControlLineState) -> Result<(), StateError> {
        let ControlLineState {
            unfinished,
            listens,
            status,
        } = saved;
        let incompatible = |what: String| StateError::Incompatible {
            element: "control line",
            what,
        };
        if unfinished.len() > MAX_LINE_BYTES || unfinished.contains(&b'\n') {
            return Err(incompatible("the unfinished line is none".to_owned()));
        }
        let status = status
            .map(|status| {
                u8::try_from(status).map_err(|_| incompatible(format!("status {status}")))
            })
            .transpose()?;
        let mut line = LineBuffer::default();
        for byte in unfinished {
            let _ = line.push(*byte);
        }
        *self.lock() = State {
            line,
            listens: *listens,
            status,
            ..State::default()
        };
        Ok(())
    }

    /// Tells a guest that listens that it is a copy. It may have taken a part of an earlier line, which
    /// the newline ends.
    pub(crate) fn tell_of_restore(&self, message: &ToGuest) {
        let mut state = self.lock();
        if state.listens {
            state.outbound.clear();
            state.outbound.extend(format!("\n{message}").bytes());
        }
    }

    /// Queues a message for a guest that listens; false if it does not, or has not taken what was sent
    /// before.
    fn queue(&self, message: &ToGuest) -> bool {
        let text = message.to_string();
        let mut state = self.lock();
        let fits = state.outbound.len() + text.len() <= OUTBOUND_MAX_BYTES;
        if !state.listens || !fits {
            return false;
        }
        state.outbound.extend(text.bytes());
        true
    }

    fn hear(&self, bytes: &[u8]) {
        let mut state = self.lock();
        for byte in bytes {
            let Some(line) = state.line.push(*byte) else {
                continue;
            };
            let Ok(message) = FromGuest::parse(&line) else {
                continue;
            };
            match message {
                FromGuest::Ready { .. } => state.listens = true,
                FromGuest::Exit { status } => state.status = Some(status),
                FromGuest::Snapshot
                | FromGuest::Repaired { .. }
                | FromGuest::Failed { .. }
                | FromGuest::Notice { .. } => {}
            }
            if state.inbound.len() < INBOUND_MAX_MESSAGES {
                state.inbound.push_back(message);
                self.heard.raise();
            }
        }
    }
}

/// The line as the serial port sees it.
pub(crate) struct ControlLineEnd {
    line: Arc<ControlLine>,
}

impl ControlLineEnd {
    pub(crate) fn new(line: Arc<ControlLine>) -> Self {
        Self { line }
    }
}

impl SerialIo for ControlLineEnd {
    fn input_pending(&mut self) -> bool {
        !self.line.lock().outbound.is_empty()
    }

    fn take_input(&mut self) -> Option<u8> {
        self.line.lock().outbound.pop_front()
    }

    fn write_output(&mut self, bytes: &[u8]) {
        self.line.hear(bytes);
    }

    fn output_pauses(&mut self) {}
}

/// A way to talk to the guest from any thread, as long as its VM lives.
#[derive(Clone)]
pub struct GuestLine {
    shared: Arc<Shared>,
}

impl GuestLine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Sends a message; false if the guest does not listen, or has not taken earlier ones.
    pub fn send(&self, message: &ToGuest) -> bool {
        let queued = self
            .shared
            .control_line
            .as_ref()
            .is_some_and(|line| line.queue(message));
        if queued {
            self.shared.input_arrived();
        }
        queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvx_host::{Interest, Waitable as _, wait_any};
    use std::time::Duration;

    fn line() -> ControlLine {
        ControlLine::new(Arc::new(Waker::new().unwrap()))
    }

    fn state(unfinished: &[u8], status: Option<u32>) -> ControlLineState {
        ControlLineState {
            unfinished: unfinished.to_vec(),
            listens: true,
            status,
        }
    }

    #[test]
    fn a_saved_state_is_taken_whole_or_refused() {
        let half = line();
        half.hear(b"ready mode=stream\nexit stat");
        let saved = half.save();
        assert_eq!(saved, state(b"exit stat", None));
        let copy = line();
        copy.restore(&saved).unwrap();
        assert_eq!(copy.save(), saved);
        copy.hear(b"us=3\n");
        assert_eq!(copy.declared_status(), Some(3));

        let before = copy.save();
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        for impossible in [
            state(&long, None),
            state(b"two\nlines", None),
            state(b"", Some(256)),
        ] {
            copy.restore(&impossible).unwrap_err();
            assert_eq!(copy.save(), before, "{impossible:?}");
        }
        copy.restore(&state(b"", Some(255))).unwrap();
        assert_eq!(copy.declared_status(), Some(255));
    }

    fn read(line: &Arc<ControlLine>) -> String {
        let mut end = ControlLineEnd::new(Arc::clone(line));
        let mut bytes = Vec::new();
        while end.input_pending() {
            bytes.extend(end.take_input());
        }
        assert_eq!(end.take_input(), None);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn nothing_is_sent_to_a_guest_that_does_not_listen() {
        let line = Arc::new(line());
        let message = ToGuest::Snapshot { taken: false };
        assert!(!line.queue(&message));
        line.tell_of_restore(&message);
        assert_eq!(read(&line), "");
        ControlLineEnd::new(Arc::clone(&line)).write_output(b"ready mode=stream\n");
        assert!(line.queue(&message));
        assert_eq!(read(&line), message.to_string());
    }

    #[test]
    fn a_copy_hears_of_its_restore_before_anything_else() {
        let line = Arc::new(line());
        line.hear(b"ready mode=stream\n");
        assert!(line.queue(&ToGuest::Size {
            columns: 80,
            rows: 25
        }));
        let told = ToGuest::Snapshot { taken: true };
        line.tell_of_restore(&told);
        assert_eq!(read(&line), format!("\n{told}"));
    }

    #[test]
    fn a_guest_that_reads_nothing_is_sent_no_more_than_fits() {
        let line = Arc::new(line());
        line.hear(b"ready mode=stream\n");
        let message = ToGuest::Signal { number: 2 };
        let fit = OUTBOUND_MAX_BYTES / message.to_string().len();
        for _ in 0..fit {
            assert!(line.queue(&message));
        }
        assert!(!line.queue(&message));
        assert_eq!(read(&line), message.to_string().repeat(fit));
        assert!(line.queue(&message));
    }

    #[test]
    fn what_the_guest_says_is_taken_in_order_and_raises_the_waker() {
        let heard = Arc::new(Waker::new().unwrap());
        let line = ControlLine::new(Arc::clone(&heard));
        let is_raised = || {
            let sources = [(heard.source(), Interest::Readable)];
            wait_any(sources, Some(Duration::ZERO)).unwrap() == [true]
        };
        assert!(!is_raised());
        line.hear(b"snapshot\nexit status=3\n");
        assert!(is_raised());
        assert_eq!(line.take_message(), Some(FromGuest::Snapshot));
        assert_eq!(line.take_message(), Some(FromGuest::Exit { status: 3 }));
        assert_eq!(line.take_message(), None);
        assert_eq!(line.declared_status(), Some(3));
    }

    #[test]
    fn a_guest_that_talks_without_end_fills_nothing() {
        let line = line();
        for _ in 0..10_000 {
            line.hear(b"notice text=again\n");
            line.hear(&[b"no message ", &[0xff; 20][..], b"\n"].concat());
        }
        line.hear(&[b'x'; 100_000]);
        let state = line.lock();
        assert_eq!(state.inbound.len(), INBOUND_MAX_MESSAGES);
        assert!(state.line.unfinished().len() < MAX_LINE_BYTES);
    }
}
