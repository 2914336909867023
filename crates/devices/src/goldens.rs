//! Saved states as earlier builds wrote them, byte by byte.
//!
//! Each golden sets every field to something else than its default, as a field at its default is not
//! written at all. A new field needs a golden of its own in which it is set.

use crate::device::restore;
use crate::numbers::{RTC_DATA, RTC_INDEX, SNAPSHOT};
use crate::{
    ConsoleIo, Device, PortConsole, PortDevice, RestoreNotice, Rtc, SavedUnit, Shutdown,
    SnapshotPort, SystemClock,
};

/// What to say when a golden does not match.
const SEE: &str =
    "a device's saved state changed: see 'Changing the format' in doc/design/snapshot.md";

struct NoConsole;

impl ConsoleIo for NoConsole {
    fn input_pending(&mut self) -> bool {
        false
    }

    fn take_input(&mut self) -> Option<u8> {
        None
    }

    fn write_output(&mut self, _bytes: &[u8]) {}
}

fn console() -> PortConsole {
    PortConsole::new(Box::new(NoConsole), RestoreNotice::default())
}

/// Restores the golden bytes, and checks that they are saved again as they were.
#[track_caller]
fn check(device: &mut dyn Device, kind: &'static str, version: u32, bytes: &[u8]) {
    let golden = SavedUnit {
        kind,
        version,
        bytes: bytes.to_vec(),
    };
    restore(device, &golden).expect(SEE);
    assert_eq!(device.save(), golden, "{SEE}");
}

#[test]
fn devices_without_state_save_nothing() {
    check(&mut console(), "nvx.port-console", 1, &[]);
    check(&mut Shutdown::default(), "nvx.shutdown", 1, &[]);
}

#[test]
fn the_snapshot_port_is_as_ever() {
    let notice = RestoreNotice::default();
    let mut port = SnapshotPort::new(notice.clone());
    // Field 1: outcome 3. Field 2: the notice is pending.
    check(&mut port, "nvx.snapshot-port", 1, &[0x08, 3, 0x10, 1]);
    assert!(notice.is_pending(), "{SEE}");
    assert_eq!(port.read(SNAPSHOT), 3, "{SEE}");
    check(&mut port, "nvx.snapshot-port", 1, &[0x08, 2]);
    assert_eq!(port.read(SNAPSHOT), 2, "{SEE}");
}

#[test]
fn the_clock_is_as_ever() {
    // Field 1: index 0xd0, a varint of two bytes. Field 2: status B 0x86, likewise. Field 3: 128
    // bytes of memory, whose length is a varint of two bytes.
    let mut bytes = vec![0x08, 0xd0, 0x01, 0x10, 0x86, 0x01, 0x1a, 0x80, 0x01];
    bytes.extend((0..128).map(|register: u8| match register {
        // Time and status registers.
        0..=0x0d => 0,
        _ => register ^ 0x55,
    }));
    let mut rtc = Rtc::new(Box::new(SystemClock));
    check(&mut rtc, "nvx.cmos-rtc", 1, &bytes);
    assert_eq!(rtc.read(RTC_DATA), 0x50 ^ 0x55, "{SEE}");
    let _ = rtc.write(RTC_INDEX, 0x0b);
    assert_eq!(rtc.read(RTC_DATA), 0x86, "{SEE}");
}
