//! A local APIC in xAPIC mode (Intel SDM volume 3, chapter 12), as far as the tests' guests use it: fixed
//! interrupts, their priority and end, and the timer.

use std::time::Instant;

use crate::refuse;

/// Length of a local APIC's register page as WHP gives it.
pub const PAGE_BYTES: usize = 4096;
/// Where it is in guest memory.
pub const ADDRESS: u64 = 0xfee0_0000;

/// Registers by their offset in the page.
const ID: usize = 0x20;
const VERSION: usize = 0x30;
const TASK_PRIORITY: usize = 0x80;
const END: usize = 0xb0;
const LOGICAL_DESTINATION: usize = 0xd0;
const DESTINATION_FORMAT: usize = 0xe0;
const SPURIOUS: usize = 0xf0;
const IN_SERVICE: usize = 0x100;
const TRIGGER: usize = 0x180;
const REQUESTS: usize = 0x200;
const COMMAND: usize = 0x300;
const LVT_TIMER: usize = 0x320;
const LVT_LINT0: usize = 0x350;
const LVT_ERROR: usize = 0x370;
const TIMER_INITIAL: usize = 0x380;
const TIMER_CURRENT: usize = 0x390;
const TIMER_DIVIDE: usize = 0x3e0;

const SPURIOUS_ENABLED: u32 = 1 << 8;
const LVT_MASKED: u32 = 1 << 16;
const LVT_PERIODIC: u32 = 1 << 17;
const LVT_DEADLINE: u32 = 1 << 18;

/// What came of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Nothing,
    /// A level-triggered interrupt has ended: the hypervisor tells the monitor.
    LevelEnded(u8),
}

pub struct Apic {
    page: Vec<u8>,
    /// When the timer was set, and for how long; its input counts nanoseconds.
    timer: Option<(Instant, u64)>,
}

impl Apic {
    pub fn new(index: u32) -> Self {
        let mut apic = Self {
            page: vec![0; PAGE_BYTES],
            timer: None,
        };
        for (offset, value) in [
            (ID, index << 24),
            (VERSION, 0x0005_0014),
            (DESTINATION_FORMAT, u32::MAX),
            (SPURIOUS, 0xff),
        ] {
            apic.put(offset, value);
        }
        for offset in (LVT_TIMER..=LVT_ERROR).step_by(16) {
            apic.put(offset, LVT_MASKED);
        }
        apic
    }

    fn word(&self, offset: usize) -> u32 {
        let bytes = self.page.get(offset..offset + 4);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    }

    fn put(&mut self, offset: usize, value: u32) {
        if let Some(bytes) = self.page.get_mut(offset..offset + 4) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// A register that WHP has by name, which are those of x2APIC mode from 0x3000 on.
    pub fn named(&self, number: u32) -> u64 {
        u64::from(self.word(number as usize * 16))
    }

    fn set_bit(&mut self, set: usize, vector: u8, value: bool) {
        let (offset, bit) = (set + usize::from(vector / 32) * 16, 1 << (vector % 32));
        let word = self.word(offset);
        self.put(offset, if value { word | bit } else { word & !bit });
    }

    fn has_bit(&self, set: usize, vector: u8) -> bool {
        self.word(set + usize::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
    }

    fn highest(&self, set: usize) -> Option<u8> {
        (0..=255).rev().find(|vector| self.has_bit(set, *vector))
    }

    pub fn request(&mut self, vector: u8, is_level: bool) {
        if vector < 16 {
            refuse("WHvRequestInterrupt", &format!("vector {vector}"));
        }
        self.set_bit(REQUESTS, vector, true);
        self.set_bit(TRIGGER, vector, is_level);
    }

    /// The interrupt that the processor takes next.
    pub fn deliverable(&self) -> Option<u8> {
        if self.word(SPURIOUS) & SPURIOUS_ENABLED == 0 {
            return None;
        }
        let class = |vector: u8| vector >> 4;
        let in_service = self.highest(IN_SERVICE).map_or(0, class);
        let priority = in_service.max(class(self.word(TASK_PRIORITY) as u8));
        self.highest(REQUESTS)
            .filter(|vector| class(*vector) > priority)
    }

    pub fn accept(&mut self, vector: u8) {
        self.set_bit(REQUESTS, vector, false);
        self.set_bit(IN_SERVICE, vector, true);
    }

    /// Serves a load of the guest.
    pub fn load(&self, offset: usize) -> u32 {
        match offset {
            TIMER_CURRENT => self.timer_left(),
            _ => self.word(offset),
        }
    }

    /// Serves a store of the guest.
    pub fn store(&mut self, offset: usize, value: u32) -> Stored {
        match offset {
            END => {
                let Some(vector) = self.highest(IN_SERVICE) else {
                    return Stored::Nothing;
                };
                self.set_bit(IN_SERVICE, vector, false);
                if self.has_bit(TRIGGER, vector) {
                    return Stored::LevelEnded(vector);
                }
            }
            TIMER_INITIAL => {
                self.put(offset, value);
                let length_ns = u64::from(value) * self.divisor();
                self.timer = (value != 0).then(|| (Instant::now(), length_ns));
            }
            TASK_PRIORITY | LOGICAL_DESTINATION | DESTINATION_FORMAT | SPURIOUS | LVT_LINT0
            | TIMER_DIVIDE => {
                self.put(offset, value);
            }
            LVT_TIMER if value & LVT_DEADLINE == 0 => self.put(offset, value),
            COMMAND | LVT_TIMER => refuse("a local APIC", &format!("store to {offset:#x}")),
            _ => refuse("a local APIC", &format!("store to register {offset:#x}")),
        }
        Stored::Nothing
    }

    /// Bits 0, 1 and 3: 2 to 128, and last 1.
    fn divisor(&self) -> u64 {
        let bits = self.word(TIMER_DIVIDE);
        let power = (bits & 3 | bits >> 1 & 4) + 1;
        1 << (power % 8)
    }

    fn timer_left(&self) -> u32 {
        let Some((set, length_ns)) = self.timer else {
            return 0;
        };
        let passed_ns = set.elapsed().as_nanos() as u64;
        (length_ns.saturating_sub(passed_ns) / self.divisor()) as u32
    }

    /// When the timer ends, if it runs.
    pub fn timer_end(&self) -> Option<Instant> {
        self.timer
            .map(|(set, length_ns)| set + std::time::Duration::from_nanos(length_ns))
    }

    /// Lets the timer interrupt, if it has ended.
    pub fn look_at_timer(&mut self) {
        if self.timer_end().is_none_or(|end| end > Instant::now()) {
            return;
        }
        let entry = self.word(LVT_TIMER);
        self.timer = match entry & LVT_PERIODIC {
            0 => None,
            _ => self.timer.map(|(_, length_ns)| (Instant::now(), length_ns)),
        };
        if entry & LVT_MASKED == 0 {
            self.request(entry as u8, false);
        }
    }

    pub fn save(&self) -> Vec<u8> {
        let mut copy = Self {
            page: self.page.clone(),
            timer: None,
        };
        copy.put(TIMER_CURRENT, self.timer_left());
        copy.page
    }

    pub fn restore(&mut self, call: &str, page: &[u8]) {
        if page.len() != PAGE_BYTES {
            refuse(call, &format!("{} bytes of local APIC", page.len()));
        }
        self.page.copy_from_slice(page);
        let left = u64::from(self.word(TIMER_CURRENT)) * self.divisor();
        self.timer = (left != 0).then(|| (Instant::now(), left));
    }
}
