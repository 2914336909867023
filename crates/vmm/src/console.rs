//! The guest's console between the port device and the host.
//!
//! Input is read by the main thread and queued here; the device takes it byte by byte. Output is
//! collected to lines and written by the vCPU thread that completes one, outside of every lock
//! that another vCPU needs. A reader that does not read holds the guest, not the monitor: a stop
//! always gets through, and what is kept is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvx_devices::{ConsoleIo, SerialIo};
use nvx_host::{ConsoleOutput, Waitable, Waker};

use crate::gate::Gate;
use crate::interrupt::Interrupt;

/// Input that is kept for a guest that does not take it.
const INPUT_CAPACITY_BYTES: usize = 64 << 10;
/// Output is written at the latest when this much of it is there.
const OUTPUT_CHUNK_BYTES: usize = 4096;
/// With this much unwritten output a vCPU waits until another one's write is over.
const OUTPUT_CAPACITY_BYTES: usize = 64 << 10;
/// After so many fruitless questions for input in a row a guest is taken to be waiting for it.
const IDLE_POLLS: u32 = 64;
/// How long a vCPU that waits for input sleeps at a time; input that comes ends the sleep.
pub(crate) const IDLE_SLEEP: Duration = Duration::from_millis(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both queues are valid between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

    /// How many bytes may be pushed.
    pub(crate) fn room_bytes(&self) -> usize {
        INPUT_CAPACITY_BYTES.saturating_sub(self.queued_bytes())
    }

    /// How many bytes the guest has not taken.
    pub(crate) fn queued_bytes(&self) -> usize {
        lock(&self.bytes).len()
    }

    /// Adds input for the guest.
    pub(crate) fn push(&self, input: &[u8]) {
        lock(&self.bytes).extend(input);
        self.gate.attract_attention();
    }

    fn pop(&self) -> Option<u8> {
        let mut bytes = lock(&self.bytes);
        let was_full = bytes.len() >= INPUT_CAPACITY_BYTES;
        let byte = bytes.pop_front();
        if was_full {
            self.room.raise();
        }
        byte
    }

    /// Notes that the guest asked for input and whether there was any.
    fn note_poll(&self, pending: bool) {
        let polls = if pending {
            0
        } else {
            // Kept at the threshold: past it the count says nothing more.
            let polls = self.fruitless_polls.load(Ordering::Relaxed);
            polls.saturating_add(1).min(IDLE_POLLS)
        };
        self.fruitless_polls.store(polls, Ordering::Relaxed);
    }

    /// Whether the guest seems to be waiting for input, so that its vCPU may sleep a little.
    pub(crate) fn guest_waits(&self) -> bool {
        self.fruitless_polls.load(Ordering::Relaxed) >= IDLE_POLLS
    }
}

/// Output on its way to its reader.
pub(crate) struct OutputQueue {
    unwritten: Mutex<Vec<u8>>,
    output: Mutex<ConsoleOutput>,
    /// A line is complete, or the guest waits for an answer to what it wrote.
    due: AtomicBool,
}

impl OutputQueue {
    pub(crate) fn new(output: ConsoleOutput) -> Self {
        Self {
            unwritten: Mutex::default(),
            output: Mutex::new(output),
            due: AtomicBool::new(false),
        }
    }

    fn push(&self, bytes: &[u8]) {
        let mut unwritten = lock(&self.unwritten);
        unwritten.extend_from_slice(bytes);
        if bytes.contains(&b'\n') || unwritten.len() >= OUTPUT_CHUNK_BYTES {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    fn make_due(&self) {
        if !lock(&self.unwritten).is_empty() {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Writes what is due, as far as `interrupt` allows. Called by vCPU threads without a lock.
    pub(crate) fn write_due(&self, interrupt: &Interrupt, gate: &Gate) {
        while self.due.load(Ordering::Relaxed) && !interrupt.is_wanted() {
            if let Ok(mut output) = self.output.try_lock() {
                self.write_all(&mut output, interrupt.waker());
                // Asked again without the lock: a line that another vCPU completed while this one
                // held it would else wait for the next exit.
                continue;
            }
            // Another vCPU writes already and will take this along, unless its reader is slow.
            if lock(&self.unwritten).len() < OUTPUT_CAPACITY_BYTES {
                return;
            }
            gate.idle(Duration::from_millis(1));
        }
    }

    /// Writes everything, until `stop` is ready.
    pub(crate) fn drain(&self, stop: impl Waitable + Copy) {
        self.write_all(&mut lock(&self.output), stop);
    }

    fn write_all(&self, output: &mut ConsoleOutput, stop: impl Waitable + Copy) {
        loop {
            self.due.store(false, Ordering::Relaxed);
            let mut bytes = std::mem::take(&mut *lock(&self.unwritten));
            if bytes.is_empty() {
                return;
            }
            let written = output.write_until(&bytes, stop);
            if written < bytes.len() {
                // What came meanwhile goes behind what is left.
                bytes.drain(..written);
                let mut unwritten = lock(&self.unwritten);
                bytes.append(&mut unwritten);
                *unwritten = bytes;
                self.due.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// The host side of the port console.
pub(crate) struct VmConsole {
    input: Arc<InputQueue>,
    output: Arc<OutputQueue>,
}

impl VmConsole {
    pub(crate) fn new(input: Arc<InputQueue>, output: Arc<OutputQueue>) -> Self {
        Self { input, output }
    }
}

impl ConsoleIo for VmConsole {
    fn input_pending(&mut self) -> bool {
        // A guest that asks for input wants its prompt to be seen.
        self.output.make_due();
        let pending = self.input.queued_bytes() > 0;
        self.input.note_poll(pending);
        pending
    }

    fn take_input(&mut self) -> Option<u8> {
        self.input.pop()
    }

    fn write_output(&mut self, bytes: &[u8]) {
        self.output.push(bytes);
    }
}

/// The host side of the serial port that is the console.
pub(crate) struct SerialConsole {
    input: Arc<InputQueue>,
    output: Arc<OutputQueue>,
}

impl SerialConsole {
    pub(crate) fn new(input: Arc<InputQueue>, output: Arc<OutputQueue>) -> Self {
        Self { input, output }
    }
}

impl SerialIo for SerialConsole {
    fn input_pending(&mut self) -> bool {
        // A driver is told of input by an interrupt, so that asking says nothing of waiting.
        self.input.queued_bytes() > 0
    }

    fn take_input(&mut self) -> Option<u8> {
        self.input.pop()
    }

    fn write_output(&mut self, bytes: &[u8]) {
        self.output.push(bytes);
    }

    fn output_pauses(&mut self) {
        self.output.make_due();
    }
}
