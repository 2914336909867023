//! Bounds that crates state on their own because they may not depend on each other, and that must
//! agree.

use nvx_devices::Ports;
use nvx_snapshot::{MAX_NAME_BYTES, MAX_STATE_UNITS, limits};

#[test]
fn a_snapshot_has_room_for_the_largest_machine() {
    assert_eq!(limits::MAX_VCPUS, nvx_hypervisor::MAX_VCPUS);
    assert_eq!(limits::MAX_RAM_RANGES, nvx_memory::MAX_RANGES);
    assert!(Ports::NAMES.len() <= limits::MAX_DEVICES);
    // Beside devices and vCPUs: the interrupt chip and the guest clock.
    let units = Ports::NAMES.len() + usize::from(nvx_hypervisor::MAX_VCPUS) + 2;
    assert!(units <= MAX_STATE_UNITS);
}

#[test]
fn a_device_can_be_named_in_a_snapshot() {
    for name in Ports::NAMES {
        let unit = format!("device.{name}");
        assert!(unit.len() <= MAX_NAME_BYTES, "{unit}");
        let mut writer = nvx_snapshot::StateWriter::new();
        assert_eq!(writer.put(&unit, name, 1, &[]), Ok(()), "{unit}");
    }
}
