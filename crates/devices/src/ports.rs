//! The devices of a machine, and which ports and addresses lead to each.
//!
//! Every machine has the paravirtual ports and the clock. One that runs a stock kernel has the
//! [`Platform`] besides; a machine without it does not pay for it.

use crate::console::{ConsoleIo, PortConsole};
use crate::device::{Device, Effect, MmioDevice, PortDevice, RestoreError, SavedUnit};
use crate::numbers;
use crate::platform::Platform;
use crate::rtc::{Rtc, WallClock};
use crate::shutdown::Shutdown;
use crate::snapshot_port::{Outcome, RestoreNotice, SnapshotPort};

/// The devices of one machine, in the order of the inventory.
pub struct Ports {
    console: PortConsole,
    shutdown: Shutdown,
    snapshot: SnapshotPort,
    rtc: Rtc,
    platform: Option<Box<Platform>>,
}

impl Ports {
    /// Names of the devices of a machine without a platform, in the order of the inventory. One with a
    /// platform has [`Platform::NAMES`] after them.
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
            platform: None,
        }
    }

    /// The same devices and `platform`.
    #[must_use]
    pub fn with_platform(self, platform: Platform) -> Self {
        Self {
            platform: Some(Box::new(platform)),
            ..self
        }
    }

    /// What a stock kernel needs, if this machine has it.
    pub fn platform(&mut self) -> Option<&mut Platform> {
        self.platform.as_deref_mut()
    }

    /// Names of this machine's devices in the order of the inventory.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let platform = self.platform.iter().flat_map(|_| Platform::NAMES);
        Self::NAMES.into_iter().chain(platform)
    }

    fn inventory(&self) -> Vec<&dyn Device> {
        let Self {
            console,
            shutdown,
            snapshot,
            rtc,
            platform,
        } = self;
        let mut devices: Vec<&dyn Device> = vec![console, shutdown, snapshot, rtc];
        devices.extend(platform.iter().flat_map(|platform| platform.inventory()));
        devices
    }

    fn device_named(&mut self, name: &str) -> Option<&mut dyn Device> {
        let Self {
            console,
            shutdown,
            snapshot,
            rtc,
            platform,
        } = self;
        match name {
            PortConsole::NAME => Some(console),
            Shutdown::NAME => Some(shutdown),
            SnapshotPort::NAME => Some(snapshot),
            Rtc::NAME => Some(rtc),
            _ => platform.as_mut()?.device_named(name),
        }
    }

    fn device_at(&mut self, port: u16) -> Option<&mut dyn PortDevice> {
        match port {
            numbers::CONSOLE | numbers::CONSOLE_STATUS => Some(&mut self.console),
            numbers::SHUTDOWN => Some(&mut self.shutdown),
            numbers::SNAPSHOT => Some(&mut self.snapshot),
            numbers::RTC_INDEX | numbers::RTC_DATA => Some(&mut self.rtc),
            _ => self.platform.as_mut()?.device_at(port),
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

    /// Serves a guest's read of memory that is no RAM.
    pub fn read_mmio(&mut self, address: u64, data: &mut [u8]) {
        match self.mmio_device_at(address, data.len()) {
            Some((device, offset)) => device.read(offset, data),
            None => data.fill(numbers::FLOATING),
        }
    }

    /// Serves a guest's write to memory that is no RAM.
    pub fn write_mmio(&mut self, address: u64, data: &[u8]) {
        if let Some((device, offset)) = self.mmio_device_at(address, data.len()) {
            device.write(offset, data);
        }
    }

    fn mmio_device_at(
        &mut self,
        address: u64,
        size_bytes: usize,
    ) -> Option<(&mut dyn MmioDevice, u64)> {
        self.platform.as_mut()?.mmio_device_at(address, size_bytes)
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
        self.device_named(name)
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
