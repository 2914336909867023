//! CMOS clock and memory, after the Motorola MC146818 as PCs have it.
//!
//! An index port chooses one of 128 registers, a data port reads or writes it. The time registers always show
//! the host's clock: writing them changes nothing, because a guest that sets its hardware clock must not
//! move what the monitor calls the time. There are no interrupts; alarms are remembered and never fire.

mod calendar;
mod state;

use std::time::{SystemTime, UNIX_EPOCH};

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::numbers::{FLOATING, RTC_DATA, RTC_INDEX};
use calendar::DateTime;
use state::RtcState;

const FORMAT: UnitFormat = UnitFormat {
    name: Rtc::NAME,
    kind: "nvx.cmos-rtc",
    version: 1,
    max_bytes: 256,
};

const REGISTERS: usize = 128;
/// Bits of the index port that choose a register; the other one masks NMI and is only kept.
const INDEX_REGISTER: u8 = 0x7f;

const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const DAY_OF_WEEK: u8 = 0x06;
const DAY_OF_MONTH: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
const STATUS_C: u8 = 0x0c;
const STATUS_D: u8 = 0x0d;
/// Where PCs keep the century; ACPI's FADT names it.
const CENTURY: u8 = 0x32;

/// 32768 Hz time base, periodic rate 1024 Hz, no update in progress.
const STATUS_A_VALUE: u8 = 0x26;
/// The time does not advance while the guest sets it: kept, without effect.
const STATUS_B_SET: u8 = 0x80;
const STATUS_B_BINARY: u8 = 0x04;
const STATUS_B_24_HOURS: u8 = 0x02;
const STATUS_B_WRITABLE: u8 = STATUS_B_SET | STATUS_B_BINARY;
/// The battery is good.
const STATUS_D_VALUE: u8 = 0x80;

/// The host's clock.
pub trait WallClock: Send {
    /// Seconds since 1970-01-01 00:00:00 UTC, without leap seconds.
    fn unix_seconds(&mut self) -> i64;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn unix_seconds(&mut self) -> i64 {
        // A host clock before 1970 is taken as 1970.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |passed| {
                i64::try_from(passed.as_secs()).unwrap_or(i64::MAX)
            })
    }
}

/// The CMOS clock device.
pub struct Rtc {
    clock: Box<dyn WallClock>,
    index: u8,
    status_b: u8,
    memory: [u8; REGISTERS],
}

impl Rtc {
    /// Name in the device inventory.
    pub const NAME: &'static str = "cmos-rtc";

    /// A clock that shows `clock` in UTC, in BCD and 24-hour form until the guest chooses binary.
    #[must_use]
    pub fn new(clock: Box<dyn WallClock>) -> Self {
        Self {
            clock,
            index: 0,
            status_b: STATUS_B_24_HOURS,
            memory: [0; REGISTERS],
        }
    }

    fn register(&self) -> u8 {
        self.index & INDEX_REGISTER
    }

    fn read_register(&mut self) -> u8 {
        let register = self.register();
        match register {
            STATUS_A => STATUS_A_VALUE,
            STATUS_B => self.status_b,
            STATUS_C => 0,
            STATUS_D => STATUS_D_VALUE,
            _ if is_time(register) => self.read_time(register),
            _ => self.memory[usize::from(register)],
        }
    }

    fn read_time(&mut self, register: u8) -> u8 {
        let now = DateTime::from_unix_seconds(self.clock.unix_seconds());
        let value = match register {
            SECONDS => now.second,
            MINUTES => now.minute,
            HOURS => now.hour,
            DAY_OF_WEEK => now.day_of_week,
            DAY_OF_MONTH => now.day,
            MONTH => now.month,
            YEAR => now.year_of_century,
            _ => now.century,
        };
        if self.status_b & STATUS_B_BINARY != 0 {
            value
        } else {
            ((value / 10) << 4) | (value % 10)
        }
    }

    fn write_register(&mut self, value: u8) {
        let register = self.register();
        match register {
            STATUS_B => self.status_b = (value & STATUS_B_WRITABLE) | STATUS_B_24_HOURS,
            STATUS_A | STATUS_C | STATUS_D => {}
            _ if is_time(register) => {}
            _ => self.memory[usize::from(register)] = value,
        }
    }
}

fn is_time(register: u8) -> bool {
    matches!(
        register,
        SECONDS | MINUTES | HOURS | DAY_OF_WEEK..=YEAR | CENTURY
    )
}

impl Device for Rtc {
    fn name(&self) -> &'static str {
        FORMAT.name
    }

    fn save(&self) -> SavedUnit {
        let Self {
            clock: _,
            index,
            status_b,
            memory,
        } = self;
        FORMAT.encode(&RtcState {
            index: u32::from(*index),
            status_b: u32::from(*status_b),
            memory: memory.to_vec(),
        })
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let RtcState {
            index,
            status_b,
            memory,
        } = FORMAT.decode(kind, version, bytes)?;
        let index = FORMAT.byte("index", index)?;
        let status_b = FORMAT.byte("status_b", status_b)?;
        if status_b & !STATUS_B_WRITABLE != STATUS_B_24_HOURS {
            return Err(FORMAT.impossible("status_b", u64::from(status_b)));
        }
        let memory: [u8; REGISTERS] = memory
            .try_into()
            .map_err(|memory: Vec<u8>| FORMAT.impossible("memory", memory.len() as u64))?;
        self.index = index;
        self.status_b = status_b;
        self.memory = memory;
        Ok(())
    }
}

impl PortDevice for Rtc {
    fn read(&mut self, port: u16) -> u8 {
        if port == RTC_DATA {
            self.read_register()
        } else {
            // PCs cannot read the index back.
            FLOATING
        }
    }

    fn write(&mut self, port: u16, value: u8) -> Effect {
        match port {
            RTC_INDEX => self.index = value,
            RTC_DATA => self.write_register(value),
            _ => {}
        }
        Effect::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::restore;

    struct Fixed(i64);

    impl WallClock for Fixed {
        fn unix_seconds(&mut self) -> i64 {
            self.0
        }
    }

    /// 2024-02-29 23:58:47 UTC, a Thursday.
    fn leap_day() -> Rtc {
        Rtc::new(Box::new(Fixed(1_709_251_127)))
    }

    fn read(rtc: &mut Rtc, register: u8) -> u8 {
        assert_eq!(rtc.write(RTC_INDEX, register), Effect::None);
        rtc.read(RTC_DATA)
    }

    fn write(rtc: &mut Rtc, register: u8, value: u8) {
        assert_eq!(rtc.write(RTC_INDEX, register), Effect::None);
        assert_eq!(rtc.write(RTC_DATA, value), Effect::None);
    }

    const TIME: [u8; 8] = [
        CENTURY,
        YEAR,
        MONTH,
        DAY_OF_MONTH,
        DAY_OF_WEEK,
        HOURS,
        MINUTES,
        SECONDS,
    ];

    #[test]
    fn the_time_is_shown_in_bcd_or_binary() {
        let mut rtc = leap_day();
        assert_eq!(read(&mut rtc, STATUS_B), 0x02);
        let bcd = TIME.map(|register| read(&mut rtc, register));
        assert_eq!(bcd, [0x20, 0x24, 0x02, 0x29, 0x05, 0x23, 0x58, 0x47]);
        write(&mut rtc, STATUS_B, 0x04);
        assert_eq!(read(&mut rtc, STATUS_B), 0x06, "always 24 hours");
        let binary = TIME.map(|register| read(&mut rtc, register));
        assert_eq!(binary, [20, 24, 2, 29, 5, 23, 58, 47]);
    }

    #[test]
    fn only_memory_and_the_form_can_be_written() {
        let mut rtc = leap_day();
        let before = TIME.map(|register| read(&mut rtc, register));
        for register in 0..128 {
            write(&mut rtc, register, 0x5a);
        }
        assert_eq!(read(&mut rtc, STATUS_A), 0x26);
        assert_eq!(read(&mut rtc, STATUS_B), 0x02);
        assert_eq!(read(&mut rtc, STATUS_C), 0);
        assert_eq!(read(&mut rtc, STATUS_D), 0x80);
        assert_eq!(TIME.map(|register| read(&mut rtc, register)), before);
        // Alarms and the rest are memory.
        for register in [0x01, 0x03, 0x05, 0x0e, 0x31, 0x33, 0x7f] {
            assert_eq!(read(&mut rtc, register), 0x5a);
        }
    }

    #[test]
    fn the_index_and_its_nmi_bit_survive_a_restore() {
        let mut rtc = leap_day();
        write(&mut rtc, 0x40, 9);
        write(&mut rtc, STATUS_B, 0x84);
        assert_eq!(read(&mut rtc, 0xc0), 9, "bit 7 chooses no register");
        assert_eq!(rtc.read(RTC_INDEX), FLOATING);
        let mut copy = Rtc::new(Box::new(Fixed(0)));
        restore(&mut copy, &rtc.save()).unwrap();
        assert_eq!((copy.index, copy.read(RTC_DATA)), (0xc0, 9));
        assert_eq!(copy.status_b, 0x86);
        assert_eq!(copy.memory, rtc.memory);
    }

    #[test]
    fn impossible_states_are_refused_by_field() {
        let good = RtcState {
            index: 0,
            status_b: 2,
            memory: vec![0; REGISTERS],
        };
        let mut rtc = leap_day();
        restore(&mut rtc, &FORMAT.encode(&good)).unwrap();
        for (state, field) in [
            (
                RtcState {
                    index: 256,
                    ..good.clone()
                },
                "index",
            ),
            (
                RtcState {
                    status_b: 0x42,
                    ..good.clone()
                },
                "status_b",
            ),
            (
                RtcState {
                    memory: vec![0; REGISTERS - 1],
                    ..good.clone()
                },
                "memory",
            ),
        ] {
            let error = restore(&mut rtc, &FORMAT.encode(&state)).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
