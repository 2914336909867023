use nvx_memory::{GuestAddress, RamLayout, RamRange};
use proptest::prelude::*;

use super::*;
use crate::device::restore;
use crate::interrupt::recorded::RecordedLine;
use crate::virtio::{Entropy, EntropySource};

const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const BUFFER: u64 = 0x4000;
const RAM_BYTES: u64 = 0x8000;

/// Gives the bytes 1, 2, 3, ...
struct Counting(u8);

impl EntropySource for Counting {
    fn fill(&mut self, target: &mut [u8]) -> usize {
        for byte in &mut *target {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
        target.len()
    }
}

struct Bench {
    device: VirtioMmio,
    memory: Arc<GuestMemory>,
    line: RecordedLine,
}

impl Bench {
    fn new() -> Self {
        let layout = RamLayout::new(vec![RamRange {
            start: GuestAddress(0),
            size_bytes: RAM_BYTES,
            file_offset_bytes: 0,
        }]);
        let memory = Arc::new(GuestMemory::anonymous(layout.unwrap()).unwrap());
        let line = RecordedLine::default();
        let model = Entropy::new(Box::new(Counting(0)));
        Self {
            device: VirtioMmio::new(
                "virtio-rng",
                Box::new(model),
                Arc::clone(&memory),
                Box::new(line.clone()),
            ),
            memory,
            line,
        }
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut word = [0xee; 4];
        self.device.read(offset, &mut word);
        u32::from_le_bytes(word)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.device.write(offset, &value.to_le_bytes());
    }

    /// As a driver does it, section 3.1.1.
    fn initialize(&mut self) {
        for status in [1, 3] {
            self.write(register::STATUS, status);
        }
        self.write(register::DRIVER_FEATURES_WORD, 1);
        self.write(register::DRIVER_FEATURES, 1);
        self.write(register::STATUS, 11);
        assert_eq!(self.read(register::STATUS), 11);
        self.write(register::QUEUE_SELECT, 0);
        self.write(register::QUEUE_SIZE, 4);
        self.write(register::QUEUE_DESCRIPTORS_LOW, TABLE as u32);
        self.write(register::QUEUE_AVAILABLE_LOW, AVAILABLE as u32);
        self.write(register::QUEUE_USED_LOW, USED as u32);
        self.write(register::QUEUE_READY, 1);
        self.write(register::STATUS, 15);
    }

    fn describe(&self, index: u64, address: u64, length: u32, flags: u16, next: u16) {
        let mut raw = address.to_le_bytes().to_vec();
        raw.extend(length.to_le_bytes());
        raw.extend(flags.to_le_bytes());
        raw.extend(next.to_le_bytes());
        let place = GuestAddress(TABLE + 16 * index);
        self.memory.write(place, &raw).unwrap();
    }

    fn offer(&self, index: u16, head: u16) {
        let slot = AVAILABLE + 4 + 2 * u64::from(index % 4);
        self.memory.store_u16(GuestAddress(slot), head).unwrap();
        let next = index.wrapping_add(1);
        self.memory
            .store_u16(GuestAddress(AVAILABLE + 2), next)
            .unwrap();
    }

    fn used(&self) -> (u16, u32, u32) {
        let index = self.memory.load_u16(GuestAddress(USED + 2)).unwrap();
        let entry = USED + 4 + 8 * u64::from(index.wrapping_sub(1) % 4);
        (
            index,
            self.memory.read_u32(GuestAddress(entry)).unwrap(),
            self.memory.read_u32(GuestAddress(entry + 4)).unwrap(),
        )
    }
}

#[test]
fn a_driver_finds_and_uses_the_device() {
    let mut bench = Bench::new();
    assert_eq!(bench.read(register::MAGIC), 0x7472_6976);
    assert_eq!(
        (
            bench.read(register::VERSION),
            bench.read(register::DEVICE_ID)
        ),
        (2, 4)
    );
    bench.write(register::DEVICE_FEATURES_WORD, 1);
    assert_eq!(bench.read(register::DEVICE_FEATURES), 1);
    bench.initialize();
    // Two buffers to fill, and one between them that is not the device's to write.
    bench.describe(0, BUFFER, 3, 3, 1);
    bench.describe(1, BUFFER + 0x100, 8, 1, 2);
    bench.describe(2, BUFFER + 0x200, 2, 2, 0);
    bench.offer(0, 0);
    bench.write(register::QUEUE_NOTIFY, 0);
    assert_eq!(bench.used(), (1, 0, 5));
    assert_eq!(
        (bench.read(register::INTERRUPT_STATUS), bench.line.level()),
        (1, true)
    );
    bench.write(register::INTERRUPT_ACKNOWLEDGE, 1);
    assert!(!bench.line.level());
    let mut found = [0; 3];
    bench.memory.read(GuestAddress(BUFFER), &mut found).unwrap();
    assert_eq!(found, [1, 2, 3]);
    assert_eq!(
        bench.memory.read_u32(GuestAddress(BUFFER + 0x200)).unwrap(),
        0x0504
    );

    // The driver may ask for silence.
    bench.memory.store_u16(GuestAddress(AVAILABLE), 1).unwrap();
    bench.offer(1, 2);
    bench.write(register::QUEUE_NOTIFY, 0);
    assert_eq!((bench.used(), bench.line.level()), ((2, 2, 2), false));
}

#[test]
fn features_that_are_not_there_are_not_agreed_on() {
    let mut bench = Bench::new();
    bench.write(register::STATUS, 3);
    bench.write(register::DRIVER_FEATURES_WORD, 0);
    bench.write(register::DRIVER_FEATURES, 1);
    bench.write(register::DRIVER_FEATURES_WORD, 1);
    bench.write(register::DRIVER_FEATURES, 1);
    bench.write(register::STATUS, 11);
    assert_eq!(bench.read(register::STATUS), 3);
}

#[test]
fn a_broken_queue_needs_a_reset_and_harms_nothing_else() {
    let breaks: [fn(&Bench); 5] = [
        // A chain that goes in circles.
        |bench| {
            bench.describe(0, BUFFER, 1, 3, 0);
            bench.offer(0, 0);
        },
        // A descriptor beyond the table.
        |bench| bench.offer(0, 4),
        // A buffer that is no RAM.
        |bench| {
            bench.describe(0, RAM_BYTES, 8, 2, 0);
            bench.offer(0, 0);
        },
        // A buffer whose end wraps around.
        |bench| {
            bench.describe(0, u64::MAX - 2, 8, 2, 0);
            bench.offer(0, 0);
        },
        // More entries than the queue has.
        |bench| bench.offer(4, 0),
    ];
    for break_it in breaks {
        let mut bench = Bench::new();
        bench.initialize();
        break_it(&bench);
        bench.write(register::QUEUE_NOTIFY, 0);
        assert_eq!(bench.read(register::STATUS), 15 | 64);
        assert_eq!(bench.read(register::INTERRUPT_STATUS), 2);
        bench.write(register::QUEUE_NOTIFY, 0);
        bench.write(register::STATUS, 0);
        assert_eq!(
            (bench.read(register::STATUS), bench.line.level()),
            (0, false)
        );
        bench
            .memory
            .store_u16(GuestAddress(AVAILABLE + 2), 0)
            .unwrap();
        bench.initialize();
        bench.describe(1, BUFFER, 8, 2, 0);
        bench.offer(0, 1);
        bench.write(register::QUEUE_NOTIFY, 0);
        assert_eq!(bench.used(), (1, 1, 8), "it works again");
    }
}

#[test]
fn a_restored_device_goes_on_where_it_was() {
    let mut bench = Bench::new();
    bench.initialize();
    bench.describe(0, BUFFER, 8, 2, 0);
    bench.offer(0, 0);
    bench.write(register::QUEUE_NOTIFY, 0);
    bench.offer(1, 0);
    let saved = bench.device.save();

    let mut copy = Bench::new();
    copy.memory = Arc::clone(&bench.memory);
    copy.device.memory = Arc::clone(&bench.memory);
    restore(&mut copy.device, &saved).unwrap();
    copy.device.assert_line_again();
    assert!(copy.line.level(), "the interrupt was not taken yet");
    copy.write(register::QUEUE_NOTIFY, 0);
    assert_eq!(copy.used(), (2, 0, 8));
    assert_eq!(saved.kind, "nvx.virtio-rng");
}

#[test]
fn impossible_states_are_refused_by_field() {
    let mut bench = Bench::new();
    bench.initialize();
    let good = TransportState::decode_for_test(&bench.device.save());
    let with = |change: fn(&mut TransportState)| {
        let mut state = good.clone();
        change(&mut state);
        bench.device.format.encode(&state)
    };
    let states = [
        (with(|state| state.status = 0x100), "status"),
        (with(|state| state.interrupt_status = 4), "interrupt_status"),
        (with(|state| state.driver_features = 1), "driver_features"),
        (with(|state| state.queues.clear()), "queues"),
        (with(|state| state.queues[0].size = 3), "queue.size"),
        (with(|state| state.queues[0].size = 128), "queue.size"),
        (
            with(|state| state.queues[0].next_used = 1 << 16),
            "queue.next_used",
        ),
    ];
    for (state, field) in states {
        let error = restore(&mut bench.device, &state).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}

impl TransportState {
    fn decode_for_test(saved: &SavedUnit) -> Self {
        prost::Message::decode(saved.bytes.as_slice()).unwrap()
    }
}

proptest! {
    /// Nothing that a driver writes, in whatever width, is more than its own problem.
    #[test]
    fn any_driver_is_survived(
        writes in proptest::collection::vec((0u64..0x140, any::<u32>(), 1usize..=8), 0..200),
        ram in proptest::collection::vec(any::<u8>(), 256),
    ) {
        let mut bench = Bench::new();
        bench.memory.write(GuestAddress(TABLE), &ram).unwrap();
        bench.memory.write(GuestAddress(AVAILABLE), &ram).unwrap();
        for (offset, value, width) in writes {
            let mut data = [0; 8];
            data[..4].copy_from_slice(&value.to_le_bytes());
            bench.device.write(offset, &data[..width]);
            bench.device.read(offset, &mut data[..width]);
        }
    }
}

#[test]
fn a_queue_that_makes_chains_of_its_own_answers_keeps_no_vcpu() {
    let mut bench = Bench::new();
    bench.initialize();
    // The used index is the available index, and in a state that no guest could bring about, but a file
    // can, it is one ahead: each chain that is given back makes another one available.
    bench.write(register::QUEUE_READY, 0);
    bench.write(register::QUEUE_USED_LOW, AVAILABLE as u32);
    bench.write(register::QUEUE_READY, 1);
    let mut saved = bench.device.save();
    let mut state: TransportState = prost::Message::decode(&saved.bytes[..]).unwrap();
    state.queues[0].next_used = 1;
    saved.bytes = prost::Message::encode_to_vec(&state);
    restore(&mut bench.device, &saved).unwrap();
    for index in 0..4 {
        bench.describe(index, BUFFER, 3, 2, 0);
    }
    bench.offer(0, 0);
    bench.write(register::QUEUE_NOTIFY, 0);
    let index = bench.memory.load_u16(GuestAddress(AVAILABLE + 2)).unwrap();
    assert_eq!(index, 5, "as many chains as the queue has entries");
}
