//! Any sequence of accesses that a guest can make, through the public interface: nothing panics, an effect
//! comes from the documented writes only, output is what was written, and every state on the way can be
//! saved and restored.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nvx_devices::{
    ConsoleIo, Effect, EntropySource, Outcome, Platform, PlatformWiring, Ports, SerialIo,
    SystemClock, UnconnectedLine, VIRTIO_MMIO_WINDOW_BYTES, numbers,
};
use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};
use proptest::prelude::*;

const RAM_BYTES: u64 = 64 << 10;
const WINDOW: u64 = 0xd000_0000;

#[derive(Clone, Default)]
struct Host {
    input: Arc<Mutex<Vec<u8>>>,
    written_bytes: Arc<AtomicUsize>,
}

impl ConsoleIo for Host {
    fn input_pending(&mut self) -> bool {
        !self.input.lock().unwrap().is_empty()
    }
    fn take_input(&mut self) -> Option<u8> {
        self.input.lock().unwrap().pop()
    }
    fn write_output(&mut self, bytes: &[u8]) {
        self.written_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
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

fn machine(host: &Host, memory: &Arc<GuestMemory>) -> Ports {
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
        memory: Arc::clone(memory),
    });
    Ports::new(io(), Box::new(SystemClock)).with_platform(platform)
}

fn memory() -> Arc<GuestMemory> {
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: RAM_BYTES,
        file_offset_bytes: 0,
    }]);
    Arc::new(GuestMemory::anonymous(layout.unwrap()).unwrap())
}

/// What a guest or its host does.
#[derive(Clone, Debug)]
enum Access {
    PortRead(u16, usize),
    PortWrite(u16, Vec<u8>),
    MmioRead(u64, usize),
    MmioWrite(u64, Vec<u8>),
    /// The guest writes its own RAM, where queues may lie.
    Ram(u16, Vec<u8>),
    Input(Vec<u8>),
    Decide(u8),
    Move,
}

fn port() -> impl Strategy<Value = u16> {
    let near = |port: u16| (0..8u16).prop_map(move |offset| port + offset).boxed();
    prop_oneof![
        1 => any::<u16>(),
        2 => near(numbers::CONSOLE),
        4 => near(numbers::SLEEP_CONTROL),
        2 => near(numbers::RTC_INDEX),
        1 => near(numbers::KEYBOARD_COMMAND),
        4 => near(numbers::SERIAL_CONSOLE),
        4 => near(numbers::SERIAL_CONTROL_LINE),
    ]
}

fn register() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..64u64).prop_map(|word| WINDOW + 4 * word),
        2 => (0..VIRTIO_MMIO_WINDOW_BYTES + 16).prop_map(|offset| WINDOW - 8 + offset),
        1 => any::<u64>(),
    ]
}

/// Values that mean something to a queue as often as not.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        0..16u32,
        (0..16u32).prop_map(|page| page << 12),
        any::<u32>(),
    ];
    value.prop_map(|value| value.to_le_bytes().to_vec())
}

fn access() -> impl Strategy<Value = Access> {
    let width = prop_oneof![Just(1usize), Just(2), Just(4), Just(8)];
    prop_oneof![
        4 => (port(), 1..5usize).prop_map(|(port, width)| Access::PortRead(port, width)),
        6 => (port(), prop::collection::vec(any::<u8>(), 1..5))
            .prop_map(|(port, data)| Access::PortWrite(port, data)),
        3 => (register(), width).prop_map(|(address, width)| Access::MmioRead(address, width)),
        8 => (register(), word()).prop_map(|(address, data)| Access::MmioWrite(address, data)),
        1 => (register(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(address, data)| Access::MmioWrite(address, data)),
        4 => (any::<u16>(), prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(address, data)| Access::Ram(address, data)),
        4 => ((0..16u16).prop_map(|page| page << 12), word())
            .prop_map(|(address, data)| Access::Ram(address, data)),
        1 => prop::collection::vec(any::<u8>(), 1..32).prop_map(Access::Input),
        1 => (0..4u8).prop_map(Access::Decide),
        1 => Just(Access::Move),
    ]
}

/// The effect that the machine contract gives a write of `value` to `port`.
fn documented(port: u16, value: u8) -> Effect {
    match port {
        numbers::SHUTDOWN => Effect::Exit { status: value },
        numbers::SNAPSHOT => Effect::SnapshotRequested,
        numbers::RESET_CONTROL if value == numbers::RESET_VALUE => Effect::Reset,
        numbers::KEYBOARD_COMMAND if value == numbers::KEYBOARD_COMMAND_RESET => Effect::Reset,
        // Bit 5 begins the sleep state of bits 2 to 4.
        numbers::SLEEP_CONTROL if value & 0x3c == 0x20 | numbers::SLEEP_TYPE_OFF << 2 => {
            Effect::PowerOff
        }
        _ => Effect::None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_sequence_of_accesses_does_harm(accesses in prop::collection::vec(access(), 1..200)) {
        let host = Host::default();
        let memory = memory();
        let mut ports = machine(&host, &memory);
        let mut writes = 0;
        for access in accesses {
            match access {
                Access::PortRead(port, width) => {
                    let mut data = [0; 4];
                    ports.read(port, &mut data[..width]);
                    // Every port is one byte wide; the rest floats.
                    prop_assert!(data[1..width].iter().all(|byte| *byte == numbers::FLOATING));
                }
                Access::PortWrite(port, data) => {
                    writes += 1;
                    prop_assert_eq!(ports.write(port, &data), documented(port, data[0]));
                }
                Access::MmioRead(address, width) => {
                    let mut data = [0; 8];
                    ports.read_mmio(address, &mut data[..width]);
                }
                Access::MmioWrite(address, data) => ports.write_mmio(address, &data),
                Access::Ram(address, data) => {
                    let _ = memory.write(GuestAddress(u64::from(address)), &data);
                }
                Access::Input(bytes) => {
                    *host.input.lock().unwrap() = bytes;
                    ports.platform().unwrap().input_arrived();
                }
                Access::Decide(outcome) => ports.set_snapshot_outcome(
                    [Outcome::None, Outcome::Refused, Outcome::Source, Outcome::Restored]
                        [usize::from(outcome)],
                ),
                Access::Move => {
                    let saved = ports.save();
                    let mut copy = machine(&host, &memory);
                    for (name, unit) in &saved {
                        copy.restore(name, unit.kind, unit.version, &unit.bytes).unwrap();
                    }
                    prop_assert_eq!(copy.save(), saved);
                    ports = copy;
                    ports.platform().unwrap().assert_lines_again();
                }
            }
        }
        prop_assert!(host.written_bytes.load(Ordering::Relaxed) <= writes);
    }
}
