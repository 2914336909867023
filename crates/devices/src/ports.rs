//! The port space of a machine.

use crate::console::{ConsoleIo, PortConsole};
use crate::device::{Effect, PortDevice, RestoreError, SavedUnit};
use crate::numbers;
use crate::rtc::{Rtc, WallClock};
use crate::shutdown::Shutdown;
use crate::snapshot_port::{Outcome, RestoreNotice, SnapshotPort};

/// The devices behind I/O ports, in the order of the inventory.
pub struct Ports {
    console: PortConsole,
    shutdown: Shutdown,
    snapshot: SnapshotPort,
    rtc: Rtc,
}

impl Ports {
    /// Names of the devices in the order of the inventory.
    pub const NAMES: [&'static str; 4] = [
        PortConsole::NAME,
        Shutdown::NAME,
        SnapshotPort::NAME,
        Rtc::NAME,
    ];

    /// The devices as they are after power-on.
    #[must_use]
    pub fn new(console: Box<dyn ConsoleIo>, clock: Box<dyn WallClock>) -> Self {
        let notice = RestoreNotice::default();
        Self {
            console: PortConsole::new(console, notice.clone()),
            shutdown: Shutdown::default(),
            snapshot: SnapshotPort::new(notice),
            rtc: Rtc::new(clock),
        }
    }

    fn inventory(&self) -> [&dyn PortDevice; 4] {
        let Self {
            console,
            shutdown,
            snapshot,
            rtc,
        } = self;
        [console, shutdown, snapshot, rtc]
    }

    fn inventory_mut(&mut self) -> [&mut dyn PortDevice; 4] {
        let Self {
            console,
            shutdown,
            snapshot,
            rtc,
        } = self;
        [console, shutdown, snapshot, rtc]
    }

    fn device_at(&mut self, port: u16) -> Option<&mut dyn PortDevice> {
        match port {
            numbers::CONSOLE | numbers::CONSOLE_STATUS => Some(&mut self.console),
            numbers::SHUTDOWN => Some(&mut self.shutdown),
            numbers::SNAPSHOT => Some(&mut self.snapshot),
            numbers::RTC_INDEX | numbers::RTC_DATA => Some(&mut self.rtc),
            _ => None,
        }
    }

    /// Serves a guest's read of `data.len()` bytes at `port`.
    pub fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(numbers::FLOATING);
        if let (Some(first), Some(device)) = (data.first_mut(), self.device_at(port)) {
            *first = device.read(port);
        }
    }

    /// Serves a guest's write of `data` to `port` and says what the monitor has to do now.
    pub fn write(&mut self, port: u16, data: &[u8]) -> Effect {
        match (data.first(), self.device_at(port)) {
            (Some(first), Some(device)) => device.write(port, *first),
            _ => Effect::None,
        }
    }

    /// Name and state of every device, in the order of the inventory. Called while no vCPU runs.
    #[must_use]
    pub fn save(&self) -> Vec<(&'static str, SavedUnit)> {
        self.inventory()
            .into_iter()
            .map(|device| (device.name(), device.save()))
            .collect()
    }

    /// Restores the device `name`. Called before any vCPU has run, for each device in the order of the inventory.
    ///
    /// # Errors
    /// [`RestoreError`] when there is no such device or it refuses the state.
    pub fn restore(
        &mut self,
        name: &str,
        kind: &str,
        version: u32,
        bytes: &[u8],
    ) -> Result<(), RestoreError> {
        self.inventory_mut()
            .into_iter()
            .find(|device| device.name() == name)
            .ok_or_else(|| RestoreError::UnknownDevice {
                found: name.to_owned(),
            })?
            .restore(kind, version, bytes)
    }

    /// Decides what the guest reads at the snapshot port; see [`SnapshotPort::set_outcome`].
    pub fn set_snapshot_outcome(&mut self, outcome: Outcome) {
        self.snapshot.set_outcome(outcome);
    }
}

#[cfg(test)]
mod tests;
