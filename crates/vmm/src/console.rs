//! The guest's console between the port device and the host.
//!
//! Input is read by the main thread and queued here; the device takes it byte by byte. Output is
//! collected to lines and written by the vCPU thread that completes one, so a reader that does not
//! read holds the guest, not the monitor: a stop always gets through.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvx_devices::ConsoleIo;
use nvx_host::{ConsoleOutput, Waker};

use crate::gate::Gate;

/// Input that is kept for a guest that does not take it.
const INPUT_CAPACITY_BYTES: usize = 64 << 10;
/// Output is written at the latest when this much of it is there.
const OUTPUT_CHUNK_BYTES: usize = 4096;
/// After so many fruitless questions for input in a row a guest is taken to be waiting for it.
const IDLE_POLLS: u32 = 64;
/// How long a vCPU that waits for input sleeps at a time; input that comes ends the sleep.
pub(crate) const IDLE_SLEEP: Duration = Duration::from_millis(10);

/// The queue that the main thread fills.
pub(crate) struct InputQueue {
    bytes: Mutex<VecDeque<u8>>,
    fruitless_polls: AtomicU32,
    gate: Arc<Gate>,
    /// Raised when a full queue has room again.
    room: Arc<Waker>,
}

impl InputQueue {
    pub(crate) fn new(gate: Arc<Gate>, room: Arc<Waker>) -> Self {
        Self {
            bytes: Mutex::default(),
            fruitless_polls: AtomicU32::new(0),
            gate,
            room,
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes may be pushed.
    pub(crate) fn room_bytes(&self) -> usize {
        INPUT_CAPACITY_BYTES.saturating_sub(self.lock().len())
    }

    /// Adds input for the guest.
    pub(crate) fn push(&self, input: &[u8]) {
        self.lock().extend(input);
        self.gate.attract_attention();
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn pop(&self) -> Option<u8> {
        let mut bytes = self.lock();
        let was_full = bytes.len() >= INPUT_CAPACITY_BYTES;
        let byte = bytes.pop_front();
        if was_full {
            self.room.raise();
        }
        byte
    }

    /// Whether the guest seems to be waiting for input, so that its vCPU may sleep a little.
    pub(crate) fn guest_waits(&self) -> bool {
        self.fruitless_polls.load(Ordering::Relaxed) >= IDLE_POLLS
    }
}

/// Output that has not reached its reader yet.
pub(crate) struct OutputBuffer {
    output: ConsoleOutput,
    unwritten: Vec<u8>,
}

impl OutputBuffer {
    pub(crate) fn new(output: ConsoleOutput) -> Self {
        Self {
            output,
            unwritten: Vec::new(),
        }
    }

    /// Writes what is there, until `stop` is readable.
    pub(crate) fn flush(&mut self, stop: impl AsFd) {
        if !self.unwritten.is_empty() {
            let written = self.output.write_until(&self.unwritten, stop);
            self.unwritten.drain(..written);
        }
    }
}

/// The host side of the port console.
pub(crate) struct VmConsole {
    input: Arc<InputQueue>,
    output: Arc<Mutex<OutputBuffer>>,
    gate: Arc<Gate>,
}

impl VmConsole {
    pub(crate) fn new(
        input: Arc<InputQueue>,
        output: Arc<Mutex<OutputBuffer>>,
        gate: Arc<Gate>,
    ) -> Self {
        Self {
            input,
            output,
            gate,
        }
    }

    fn output(&self) -> MutexGuard<'_, OutputBuffer> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConsoleIo for VmConsole {
    fn input_pending(&mut self) -> bool {
        // A guest that asks for input wants its prompt to be seen.
        self.output().flush(self.gate.stop_waker());
        let pending = !self.input.is_empty();
        if pending {
            self.input.fruitless_polls.store(0, Ordering::Relaxed);
        } else {
            // Kept at the threshold: past it the count says nothing more.
            let polls = self.input.fruitless_polls.load(Ordering::Relaxed);
            let polls = polls.saturating_add(1).min(IDLE_POLLS);
            self.input.fruitless_polls.store(polls, Ordering::Relaxed);
        }
        pending
    }

    fn take_input(&mut self) -> Option<u8> {
        self.input.pop()
    }

    fn write_output(&mut self, bytes: &[u8]) {
        let mut output = self.output();
        output.unwritten.extend_from_slice(bytes);
        if bytes.contains(&b'\n') || output.unwritten.len() >= OUTPUT_CHUNK_BYTES {
            output.flush(self.gate.stop_waker());
        }
    }
}
