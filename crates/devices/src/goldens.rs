//! Saved states as earlier builds wrote them, byte by byte.
//!
//! Each golden sets every field to something else than its default, as a field at its default is not
//! written at all. A new field needs a golden of its own in which it is set.

use std::sync::Arc;

use nvx_memory::{GuestAddress, GuestMemory, RamLayout, RamRange};

use crate::device::restore;
use crate::interrupt::UnconnectedLine;
use crate::numbers::{RTC_DATA, RTC_INDEX, SERIAL_CONSOLE, SNAPSHOT};
use crate::{
    ConsoleIo, Device, Entropy, EntropySource, GenerationId, PortConsole, PortDevice, PowerControl,
    RestoreNotice, Rtc, SavedUnit, SerialIo, Shutdown, SnapshotPort, SystemClock, Uart, VirtioMmio,
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

impl SerialIo for NoConsole {
    fn input_pending(&mut self) -> bool {
        false
    }

    fn take_input(&mut self) -> Option<u8> {
        None
    }

    fn write_output(&mut self, _bytes: &[u8]) {}

    fn output_pauses(&mut self) {}
}

#[test]
fn power_control_is_as_ever() {
    check(&mut PowerControl::default(), "nvx.power-control", 1, &[]);
}

#[test]
fn a_serial_port_is_as_ever() {
    let bytes = [
        0x08, 0x05, // interrupt enable
        0x10, 0x01, // FIFOs on
        0x18, 0x83, 0x01, // line control
        0x20, 0x1b, // modem control
        0x28, 0x5a, // scratch
        0x30, 0xa3, 0x02, // divisor 0x123
        0x38, 0x01, // news of the transmitter
        0x42, 0x02, 0xaa, 0xbb, // looped back
        0x48, 0xac, 0x02, // received 300 bytes
    ];
    let line = Box::new(UnconnectedLine);
    let mut uart = Uart::new("serial-console", SERIAL_CONSOLE, Box::new(NoConsole), line);
    check(&mut uart, "nvx.uart-16550", 1, &bytes);
    assert_eq!(uart.received_bytes(), 300, "{SEE}");
    // With the divisor's latch open.
    assert_eq!(uart.read(SERIAL_CONSOLE), 0x23, "{SEE}");
}

#[test]
fn the_generation_id_is_as_ever() {
    let mut bytes = vec![0x0a, 0x10];
    bytes.extend(1..=16);
    let mut device = GenerationId::new(Box::new(UnconnectedLine));
    check(&mut device, "nvx.generation-id", 1, &bytes);
    assert!(device.id().into_iter().eq(1..=16), "{SEE}");
}

struct NoEntropy;

impl EntropySource for NoEntropy {
    fn fill(&mut self, _target: &mut [u8]) -> usize {
        0
    }
}

#[test]
fn a_virtio_device_is_as_ever() {
    let bytes = [
        0x08, 0x4f, // status: needs a reset
        0x10, 0x01, // word of the device's features
        0x18, 0x01, // word of the driver's features
        0x20, 0x80, 0x80, 0x80, 0x80, 0x10, // features of the driver: version 1
        0x28, 0x01, // selected queue
        0x30, 0x01, // interrupt status
        0x3a, 0x15, // the one queue:
        0x08, 0x20, // size 32
        0x10, 0x01, // ready
        0x18, 0x80, 0x20, // descriptor table 0x1000
        0x20, 0x80, 0x40, // available ring 0x2000
        0x28, 0x80, 0x60, // used ring 0x3000
        0x30, 0xff, 0xff, 0x03, // next available 65535
        0x38, 0x80, 0x80, 0x02, // next used 32768
    ];
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: 65536,
        file_offset_bytes: 0,
    }])
    .expect("a layout");
    let mut device = VirtioMmio::new(
        "virtio-rng",
        Box::new(Entropy::new(Box::new(NoEntropy))),
        Arc::new(GuestMemory::anonymous(layout).expect("RAM")),
        Box::new(UnconnectedLine),
    );
    check(&mut device, "nvx.virtio-rng", 1, &bytes);
}
