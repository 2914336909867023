//! Device models: what a snapshot says of them, and what a guest does to them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nvx_devices::{
    ConsoleIo, Effect, EntropySource, Outcome, Platform, PlatformWiring, Ports, SavedUnit,
    SerialIo, UnconnectedLine, VIRTIO_MMIO_WINDOW_BYTES, WallClock, numbers,
};
use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};

use crate::lines::Words;

/// Guest RAM in bytes; small, so that random addresses often hit it.
const RAM_BYTES: u64 = 64 << 10;
/// Where the entropy device's window is.
const WINDOW: u64 = 0xd000_0000;
/// The longest saved state of a device, in bytes; that of the entropy device.
const STATE_MAX_BYTES: usize = 4096;

thread_local! {
    /// Kept and wiped, since mapping takes longer than a whole run.
    static MEMORY: RefCell<Option<Arc<GuestMemory>>> = const { RefCell::new(None) };
}

pub(crate) fn small_memory() -> Arc<GuestMemory> {
    MEMORY.with_borrow_mut(|kept| {
        let memory = kept.get_or_insert_with(|| {
            let layout = RamLayout::new(vec![RamRange {
                start: GuestAddress(0),
                size_bytes: RAM_BYTES,
                file_offset_bytes: 0,
            }]);
            let layout = layout.expect("a layout");
            Arc::new(GuestMemory::anonymous(layout).expect("memory"))
        });
        let zeros = vec![0; RAM_BYTES as usize];
        memory
            .write(GuestAddress(0), &zeros)
            .expect("guest RAM is there");
        Arc::clone(memory)
    })
}

/// The host's side of every device.
#[derive(Clone, Default)]
struct Host {
    input: Arc<Mutex<VecDeque<u8>>>,
    output_bytes: Arc<AtomicUsize>,
}

impl Host {
    fn input(&self) -> std::sync::MutexGuard<'_, VecDeque<u8>> {
        self.input.lock().expect("nobody panicked")
    }
}

impl ConsoleIo for Host {
    fn input_pending(&mut self) -> bool {
        !self.input().is_empty()
    }
    fn take_input(&mut self) -> Option<u8> {
        self.input().pop_front()
    }
    fn write_output(&mut self, bytes: &[u8]) {
        self.output_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
    }
}

impl SerialIo for Host {
    fn input_pending(&mut self) -> bool {
        ConsoleIo::input_pending(self)
    }
    fn take_input(&mut self) -> Option<u8> {
        ConsoleIo::take_input(self)
    }
    fn write_output(&mut self, bytes: &[u8]) {
        ConsoleIo::write_output(self, bytes);
    }
    fn output_pauses(&mut self) {}
}

impl EntropySource for Host {
    fn fill(&mut self, target: &mut [u8]) -> usize {
        target.fill(0x5a);
        target.len()
    }
}

impl WallClock for Host {
    fn unix_seconds(&mut self) -> i64 {
        // Any moment, also those that no clock shows.
        let mut bytes = [0; 8];
        for (byte, input) in bytes.iter_mut().zip(self.input().iter()) {
            *byte = *input;
        }
        i64::from_le_bytes(bytes)
    }
}

/// Every device, with a host that takes all and gives what it is told.
pub(crate) struct Machine {
    pub(crate) ports: Ports,
    memory: Arc<GuestMemory>,
    host: Host,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::on(small_memory(), Host::default())
    }

    fn on(memory: Arc<GuestMemory>, host: Host) -> Self {
        let io = || Box::new(host.clone());
        let platform = Platform::new(PlatformWiring {
            console: io(),
            console_interrupt: Box::new(UnconnectedLine),
            control_line: io(),
            control_line_interrupt: Box::new(UnconnectedLine),
            generation_id_event: Box::new(UnconnectedLine),
            entropy: io(),
            entropy_interrupt: Box::new(UnconnectedLine),
            entropy_window: GuestAddress(WINDOW),
            memory: Arc::clone(&memory),
        });
        let ports = Ports::new(io(), io()).with_platform(platform);
        Self {
            ports,
            memory,
            host,
        }
    }

    /// A new machine with this one's device state, which must be the same when it is saved again.
    fn moved(self) -> Self {
        let saved = self.ports.save();
        let mut copy = Self::on(self.memory, self.host);
        for (name, unit) in &saved {
            copy.restore(name, unit)
                .unwrap_or_else(|error| panic!("{name} refuses its own state: {error}"));
        }
        assert_eq!(copy.ports.save(), saved);
        copy
    }

    fn restore(&mut self, name: &str, unit: &SavedUnit) -> Result<(), nvx_devices::RestoreError> {
        assert!(unit.bytes.len() <= STATE_MAX_BYTES, "{name}");
        self.ports
            .restore(name, unit.kind, unit.version, &unit.bytes)
    }

    /// One access of a guest, or one event of its host.
    fn act(&mut self, words: &mut Words<'_>) -> Option<()> {
        const PORTS: [u16; 11] = [
            numbers::CONSOLE,
            numbers::CONSOLE_STATUS,
            numbers::SHUTDOWN,
            numbers::SNAPSHOT,
            numbers::RTC_INDEX,
            numbers::RTC_DATA,
            numbers::SLEEP_CONTROL,
            numbers::RESET_CONTROL,
            numbers::KEYBOARD_COMMAND,
            numbers::SERIAL_CONSOLE,
            numbers::SERIAL_CONTROL_LINE,
        ];
        let what = words.byte()?;
        let width = 1usize << ((what >> 4) & 3);
        match what & 0xf {
            0 | 1 => {
                let [choice, offset] = [words.byte()?, words.byte()?];
                let base = PORTS[usize::from(choice) % PORTS.len()];
                self.port(base + u16::from(offset & 7), width.min(4), what, words)?;
            }
            2 | 3 => {
                let port = u16::from_le_bytes([words.byte()?, words.byte()?]);
                self.port(port, width.min(4), what, words)?;
            }
            4 => {
                let mut data = [0; 8];
                let address = self.address(words)?;
                self.ports.read_mmio(address, &mut data[..width]);
            }
            5..=8 => {
                let address = self.address(words)?;
                let data = words.array::<8>()?;
                self.ports.write_mmio(address, &data[..width]);
            }
            9 | 10 => {
                let place = u16::from_le_bytes([words.byte()?, words.byte()?]);
                let data = words.array::<8>()?;
                // The last bytes of RAM: a part of it is refused.
                let _ = self.memory.write(GuestAddress(u64::from(place)), &data);
            }
            11 => {
                let bytes = words.array::<8>()?;
                let mut input = self.host.input();
                if input.len() < 1024 {
                    input.extend(bytes);
                }
            }
            12 => self.platform().input_arrived(),
            13 => self.platform().assert_lines_again(),
            14 => self.ports.set_snapshot_outcome(match words.byte()? & 3 {
                0 => Outcome::None,
                1 => Outcome::Refused,
                2 => Outcome::Source,
                _ => Outcome::Restored,
            }),
            _ => {
                // Checked on the way: a state that a guest can bring about can be restored.
                let here = std::mem::replace(self, Self::on(small_memory(), Host::default()));
                *self = here.moved();
            }
        }
        Some(())
    }

    fn platform(&mut self) -> &mut Platform {
        self.ports.platform().expect("this machine has one")
    }

    fn port(&mut self, port: u16, width: usize, what: u8, words: &mut Words<'_>) -> Option<()> {
        let mut data = [0; 4];
        if what & 1 == 0 {
            self.ports.read(port, &mut data[..width]);
            return Some(());
        }
        data[..width].fill(words.byte()?);
        match self.ports.write(port, &data[..width]) {
            Effect::None
            | Effect::Exit { .. }
            | Effect::SnapshotRequested
            | Effect::PowerOff
            | Effect::Reset => Some(()),
        }
    }

    /// An address in the window, near its ends or anywhere.
    fn address(&self, words: &mut Words<'_>) -> Option<u64> {
        let offset = u16::from_le_bytes([words.byte()?, words.byte()?]);
        Some(match offset >> 14 {
            0 | 1 => (WINDOW + u64::from(offset) % VIRTIO_MMIO_WINDOW_BYTES) & !3,
            2 => WINDOW + VIRTIO_MMIO_WINDOW_BYTES - 8 + u64::from(offset & 15),
            _ => u64::from_le_bytes(words.array()?),
        })
    }
}

/// Saved state of the device that the first byte chooses.
pub(crate) fn state(bytes: &[u8]) {
    let Some((choice, state)) = bytes.split_first() else {
        return;
    };
    let mut machine = Machine::new();
    let units = machine.ports.save();
    let (name, fresh) = &units[usize::from(*choice) % units.len()];
    let restored = machine
        .ports
        .restore(name, fresh.kind, fresh.version, state);
    if restored.is_err() {
        // A refused state leaves the device as it was.
        assert_eq!(machine.ports.save(), units, "{name}");
        return;
    }
    let mut machine = machine.moved();
    // A device in that state serves a guest.
    let mut words = Words::of(state);
    while machine.act(&mut words).is_some() {}
    machine.moved();
}

/// Accesses of a guest one after the other.
pub(crate) fn access(bytes: &[u8]) {
    let mut machine = Machine::new();
    let mut words = Words::of(bytes);
    let mut accesses = 0;
    while machine.act(&mut words).is_some() {
        accesses += 1;
    }
    let output_bytes = machine.host.output_bytes.load(Ordering::Relaxed);
    // A loop-back or a FIFO never makes more of the guest's bytes than it wrote.
    assert!(output_bytes <= accesses, "{output_bytes} of {accesses}");
    machine.moved();
}
