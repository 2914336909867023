use proptest::prelude::*;

use super::*;

/// Endless input, output forgotten.
struct Endless(u8);

impl ConsoleIo for Endless {
    fn input_pending(&mut self) -> bool {
        true
    }
    fn take_input(&mut self) -> Option<u8> {
        self.0 = self.0.wrapping_add(1);
        Some(self.0)
    }
    fn write_output(&mut self, _bytes: &[u8]) {}
}

struct Stopped;

impl WallClock for Stopped {
    fn unix_seconds(&mut self) -> i64 {
        1_700_000_000
    }
}

fn ports() -> Ports {
    Ports::new(Box::new(Endless(0)), Box::new(Stopped))
}

type Saved = Vec<(&'static str, SavedUnit)>;

fn restore_all(ports: &mut Ports, saved: &Saved) -> Result<(), RestoreError> {
    saved
        .iter()
        .try_for_each(|(name, unit)| ports.restore(name, unit.kind, unit.version, &unit.bytes))
}

#[test]
fn names_are_distinct_and_fit_a_snapshot() {
    let saved = ports().save();
    let mut names: Vec<_> = saved.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        ["port-console", "shutdown", "snapshot-port", "cmos-rtc"]
    );
    assert_eq!(names, Ports::NAMES);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 4);
}

#[test]
fn unclaimed_ports_float_and_wide_accesses_take_the_first_byte() {
    let mut ports = ports();
    let mut data = [0; 4];
    ports.read(0x3f8, &mut data);
    assert_eq!(data, [0xff; 4]);
    assert_eq!(ports.write(0x3f8, &[1, 2, 3, 4]), Effect::None);
    ports.read(numbers::CONSOLE_STATUS, &mut data);
    assert_eq!(data, [1, 0xff, 0xff, 0xff]);
    assert_eq!(
        ports.write(numbers::SHUTDOWN, &[7, 8]),
        Effect::Exit { status: 7 }
    );
    assert_eq!(
        ports.write(numbers::SNAPSHOT - 1, &[9, 9, 9, 9]),
        Effect::Exit { status: 9 },
        "a wide write to 0x604 requests no snapshot"
    );
    assert_eq!(ports.write(numbers::SHUTDOWN, &[]), Effect::None);
    ports.read(numbers::CONSOLE, &mut []);
}

#[test]
fn the_console_shows_a_restore_until_it_is_read() {
    let mut ports = ports();
    ports.set_snapshot_outcome(Outcome::Restored);
    let mut read = |port| {
        let mut byte = [0];
        ports.read(port, &mut byte);
        byte[0]
    };
    assert_eq!(read(numbers::CONSOLE_STATUS), 3);
    assert_eq!(read(numbers::SNAPSHOT), 3);
    assert_eq!(read(numbers::CONSOLE_STATUS), 1);
}

#[test]
fn state_of_another_kind_version_or_device_is_refused_by_name() {
    let refused = |name: &str, kind: &str, version, bytes: &[u8]| {
        let error = ports().restore(name, kind, version, bytes).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        refused("serial", "nvx.serial", 1, &[]),
        "this machine has no device 'serial'"
    );
    for (name, unit) in ports().save() {
        let SavedUnit {
            kind,
            version,
            bytes,
        } = unit;
        for (error, words) in [
            (
                refused(name, "nvx.other", version, &bytes),
                "kind 'nvx.other'",
            ),
            (refused(name, kind, version + 1, &bytes), "version 2"),
            (
                refused(name, kind, version, &[0; 4096]),
                "4096 bytes of state",
            ),
            (refused(name, kind, version, &[0xff; 3]), "does not decode"),
        ] {
            assert!(error.contains(words) && error.contains(name), "{error}");
        }
    }
}

/// Any access of a guest, mostly to ports that exist.
fn accesses() -> impl Strategy<Value = Vec<(u16, bool, Vec<u8>)>> {
    let port = prop_oneof![
        Just(0xe9u16),
        Just(0xea),
        Just(0x604),
        Just(0x605),
        Just(0x70),
        Just(0x71),
        any::<u16>()
    ];
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 1),
        prop::collection::vec(any::<u8>(), 2),
        prop::collection::vec(any::<u8>(), 4)
    ];
    prop::collection::vec((port, any::<bool>(), data), 0..200)
}

proptest! {
    #[test]
    fn any_traffic_leaves_a_state_that_restores_to_the_same(traffic in accesses()) {
        let mut ports = ports();
        for (port, is_write, mut data) in traffic {
            if is_write {
                let effect = ports.write(port, &data);
                match effect {
                    Effect::Exit { status } => prop_assert!(port == 0x604 && status == data[0]),
                    Effect::SnapshotRequested => {
                        prop_assert_eq!(port, 0x605);
                        ports.set_snapshot_outcome(Outcome::Restored);
                    }
                    Effect::PowerOff | Effect::Reset => prop_assert!(false, "no such device"),
                    Effect::None => prop_assert!(port != 0x604 && port != 0x605),
                }
            } else {
                ports.read(port, &mut data);
                prop_assert!(data[1..].iter().all(|byte| *byte == 0xff));
            }
        }
        let saved = ports.save();
        let mut copy = self::ports();
        restore_all(&mut copy, &saved).unwrap();
        prop_assert_eq!(copy.save(), saved);
        for port in [0xea, 0x605, 0xea, 0x71] {
            let (mut ours, mut theirs) = ([0], [0]);
            ports.read(port, &mut ours);
            copy.read(port, &mut theirs);
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn any_bytes_restore_or_are_refused(index in 0usize..4, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut saved = ports().save();
        saved[index].1.bytes = bytes;
        let mut ports = ports();
        if restore_all(&mut ports, &saved).is_ok() {
            restore_all(&mut self::ports(), &ports.save()).unwrap();
        }
    }
}
