//! What every port device can do, and what its saved state looks like from outside.

use prost::Message;

/// What a write asks of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an effect that is dropped is a request of the guest that is lost"]
pub enum Effect {
    /// Nothing: the device has dealt with it.
    None,
    /// End the machine with this exit status.
    Exit {
        /// Exit status of the guest.
        status: u8,
    },
    /// Capture the machine, then set the outcome at the snapshot port.
    SnapshotRequested,
    /// The guest switched the machine off.
    PowerOff,
    /// The guest asked for a reset of the machine.
    Reset,
}

/// A device of the inventory, whatever bus it is on.
pub trait Device: Send {
    /// Name in the device inventory: characters a-z, 0-9 and `-`.
    fn name(&self) -> &'static str;

    /// The state that a restored machine needs. Called while no vCPU runs.
    fn save(&self) -> SavedUnit;

    /// Takes over a saved state. Called on a new device, before any vCPU has run.
    ///
    /// # Errors
    /// [`RestoreError`] when the state is of another kind or version, or does not decode to a possible one; the
    /// device is then unchanged.
    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError>;
}

/// A device behind I/O ports, one byte wide.
pub trait PortDevice: Device {
    /// Reads a port that [`Ports`](crate::Ports) assigns to this device.
    fn read(&mut self, port: u16) -> u8;

    /// Writes a port that [`Ports`](crate::Ports) assigns to this device.
    fn write(&mut self, port: u16, value: u8) -> Effect;
}

/// A device behind a window of memory addresses.
pub trait MmioDevice: Device {
    /// Reads `data.len()` bytes (1 to 8) at `offset` into the window.
    fn read(&mut self, offset: u64, data: &mut [u8]);

    /// Writes `data` (1 to 8 bytes) at `offset` into the window.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// The saved state of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedUnit {
    /// What the bytes are, independent of where the device stands.
    pub kind: &'static str,
    /// Version of the kind; a higher one means something that an older reader must not ignore.
    pub version: u32,
    /// A protobuf message.
    pub bytes: Vec<u8>,
}

/// Why device state cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// This machine has no such device.
    #[error("this machine has no device '{found}'")]
    UnknownDevice {
        /// The name as it was given.
        found: String,
    },
    /// The state is of a kind that the device does not know.
    #[error("device '{name}': kind '{found}' is unknown (known: '{known}')")]
    UnknownKind {
        /// Name of the device.
        name: &'static str,
        /// Kind that the device reads.
        known: &'static str,
        /// Kind of the state.
        found: String,
    },
    /// The state is of a version that the device does not know.
    #[error("device '{name}': version {found} of kind '{kind}' is unknown (known: {known})")]
    UnknownVersion {
        /// Name of the device.
        name: &'static str,
        /// Kind of the state.
        kind: &'static str,
        /// Version that the device reads.
        known: u32,
        /// Version of the state.
        found: u32,
    },
    /// The payload is larger than any state of this device.
    #[error("device '{name}': {found} bytes of state, at most {max} are possible")]
    TooLarge {
        /// Name of the device.
        name: &'static str,
        /// Bytes given.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// The payload is no message of its kind.
    #[error("device '{name}': the state does not decode")]
    Decode {
        /// Name of the device.
        name: &'static str,
        /// What the decoder found.
        #[source]
        source: prost::DecodeError,
    },
    /// A field has a value that the device cannot be in.
    #[error("device '{name}': field '{field}' has the impossible value {found}")]
    Field {
        /// Name of the device.
        name: &'static str,
        /// Field of the saved state.
        field: &'static str,
        /// Its value, or its length where it is a list.
        found: u64,
    },
}

impl RestoreError {
    /// The device that refuses; `None` if there is none.
    #[must_use]
    pub fn device(&self) -> Option<&'static str> {
        match self {
            Self::UnknownDevice { .. } => None,
            Self::UnknownKind { name, .. }
            | Self::UnknownVersion { name, .. }
            | Self::TooLarge { name, .. }
            | Self::Decode { name, .. }
            | Self::Field { name, .. } => Some(name),
        }
    }
}

/// Kind, version and bound of one device's saved state.
pub(crate) struct UnitFormat {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) version: u32,
    pub(crate) max_bytes: usize,
}

impl UnitFormat {
    pub(crate) fn encode(&self, state: &impl Message) -> SavedUnit {
        SavedUnit {
            kind: self.kind,
            version: self.version,
            bytes: state.encode_to_vec(),
        }
    }

    pub(crate) fn decode<S: Message + Default>(
        &self,
        kind: &str,
        version: u32,
        bytes: &[u8],
    ) -> Result<S, RestoreError> {
        let name = self.name;
        if kind != self.kind {
            return Err(RestoreError::UnknownKind {
                name,
                known: self.kind,
                found: kind.to_owned(),
            });
        }
        if version != self.version {
            return Err(RestoreError::UnknownVersion {
                name,
                kind: self.kind,
                known: self.version,
                found: version,
            });
        }
        if bytes.len() > self.max_bytes {
            return Err(RestoreError::TooLarge {
                name,
                found: bytes.len(),
                max: self.max_bytes,
            });
        }
        S::decode(bytes).map_err(|source| RestoreError::Decode { name, source })
    }

    pub(crate) fn byte(&self, field: &'static str, value: u32) -> Result<u8, RestoreError> {
        u8::try_from(value).map_err(|_| self.impossible(field, u64::from(value)))
    }

    /// A byte in which only `allowed` bits may be set.
    pub(crate) fn bits(
        &self,
        field: &'static str,
        value: u32,
        allowed: u8,
    ) -> Result<u8, RestoreError> {
        if value & !u32::from(allowed) != 0 {
            return Err(self.impossible(field, u64::from(value)));
        }
        self.byte(field, value)
    }

    pub(crate) fn impossible(&self, field: &'static str, found: u64) -> RestoreError {
        RestoreError::Field {
            name: self.name,
            field,
            found,
        }
    }
}

/// Restores what `saved` says of itself.
#[cfg(test)]
pub(crate) fn restore(device: &mut dyn Device, saved: &SavedUnit) -> Result<(), RestoreError> {
    device.restore(saved.kind, saved.version, &saved.bytes)
}
