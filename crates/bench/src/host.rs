//! On what a run was measured: the host, and the volume that its files lived on.
//!
//! Results are comparable only if their [`HostFingerprint::fingerprint`]s are equal. It covers what
//! lasts (processor, cores, memory, kernel, hypervisor, file system) and leaves out what changes from
//! run to run (names, load).

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;
#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as os;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use os::{BlockDevice, open_device};

/// How guest code is carried out, as measured by whoever starts the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionFacts {
    /// Guest instructions per millisecond of a fixed loop; absent where it could not be measured.
    pub guest_instructions_per_ms: Option<u64>,
    /// From this speed on guest code is taken to run on the processor.
    pub hardware_instructions_per_ms: u64,
}

impl ExecutionFacts {
    /// Whether guest code is emulated; what cannot be told counts as emulated.
    pub fn is_emulated(&self) -> bool {
        self.guest_instructions_per_ms
            .is_none_or(|speed| speed < self.hardware_instructions_per_ms)
    }
}

/// On what kind of machine the hypervisor ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineKind {
    /// On the hardware.
    BareMetal,
    /// Inside of a virtual machine.
    VirtualMachine,
    /// Guest code was emulated, or it could not be told that it was not.
    Emulated,
}

impl MachineKind {
    /// The last word of a platform's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::BareMetal => "bare-metal",
            Self::VirtualMachine => "virtual-machine",
            Self::Emulated => "emulated",
        }
    }
}

/// The directory that files of a run live in, and what is below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScratchVolume {
    /// The directory, canonical.
    pub directory: PathBuf,
    /// The file system's type, such as `ext4`.
    pub file_system: String,
    /// The block device, such as `vda1`; absent where there is none.
    pub device: Option<String>,
    /// Whether file contents live in memory only.
    pub in_memory: bool,
    /// Whether it is on another machine.
    pub network: bool,
}

/// The host of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostFingerprint {
    /// Version of this section.
    pub schema_version: u32,
    /// The machine's own name.
    pub machine_name: String,
    /// `linux` or `windows`.
    pub os: String,
    /// The running kernel's release.
    pub kernel: String,
    /// Such as `x86_64`.
    pub architecture: String,
    /// The processor's name.
    pub cpu_model: String,
    /// Processors that are online.
    pub logical_processors: u64,
    /// The machine's memory.
    pub memory_bytes: u64,
    /// Who made the machine, as its firmware says; absent where it does not.
    pub machine_vendor: Option<String>,
    /// Whether the processor says that a hypervisor is below.
    pub under_hypervisor: bool,
    /// What all of it comes to.
    pub kind: MachineKind,
    /// The measurement behind it.
    pub execution: ExecutionFacts,
    /// Average number of waiting tasks over the last minute when the run began.
    pub load_1min_at_start: f64,
    /// Where files lived.
    pub scratch: ScratchVolume,
    /// Equal for equal kinds of host.
    pub fingerprint: String,
}

impl HostFingerprint {
    /// Describes this host. `execution` is what a trial of the run's back end gave.
    ///
    /// # Errors
    /// The scratch directory cannot be looked at.
    pub fn of_this_host(scratch: &Path, execution: ExecutionFacts) -> std::io::Result<Self> {
        let machine = os::machine();
        let scratch = os::scratch_volume(scratch)?;
        let kind = match (execution.is_emulated(), machine.under_hypervisor) {
            (true, _) => MachineKind::Emulated,
            (false, true) => MachineKind::VirtualMachine,
            (false, false) => MachineKind::BareMetal,
        };
        let mut host = Self {
            schema_version: 1,
            machine_name: machine.name,
            os: std::env::consts::OS.to_owned(),
            kernel: machine.kernel,
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: machine.cpu_model,
            logical_processors: machine.logical_processors,
            memory_bytes: machine.memory_bytes,
            machine_vendor: machine.vendor,
            under_hypervisor: machine.under_hypervisor,
            kind,
            execution,
            load_1min_at_start: machine.load_1min,
            scratch,
            fingerprint: String::new(),
        };
        host.fingerprint = host.digest();
        Ok(host)
    }

    /// The platform's name for a back end.
    pub fn platform(&self, backend: &str) -> String {
        // The soft back end interprets, whatever the host's own hypervisor does.
        let kind = if backend == "soft" {
            MachineKind::Emulated
        } else {
            self.kind
        };
        format!("{}-{backend}-{}", self.os, kind.word())
    }

    fn digest(&self) -> String {
        // A release's memory differs by what the firmware keeps, so it is counted in GiB.
        let gib = self.memory_bytes.div_ceil(1 << 30);
        let text = [
            &self.os,
            &self.kernel,
            &self.architecture,
            &self.cpu_model,
            &self.logical_processors.to_string(),
            &gib.to_string(),
            self.machine_vendor.as_ref().unwrap_or(&String::new()),
            &self.kind.word().to_owned(),
            &self.scratch.file_system,
        ]
        .map(String::as_str)
        .join("\n");
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_emulated() {
        let fast = ExecutionFacts {
            guest_instructions_per_ms: Some(10),
            hardware_instructions_per_ms: 10,
        };
        assert!(!fast.is_emulated());
        let slow = ExecutionFacts {
            guest_instructions_per_ms: Some(9),
            ..fast
        };
        assert!(slow.is_emulated());
        assert!(
            ExecutionFacts {
                guest_instructions_per_ms: None,
                ..fast
            }
            .is_emulated()
        );
    }

    #[test]
    fn this_host_has_one_fingerprint() {
        let fast = ExecutionFacts {
            guest_instructions_per_ms: Some(10),
            hardware_instructions_per_ms: 10,
        };
        let directory = tempfile::tempdir().expect("a directory");
        let host = HostFingerprint::of_this_host(directory.path(), fast).expect("a host");
        let again = HostFingerprint::of_this_host(directory.path(), fast).expect("a host");
        assert_eq!(host.fingerprint, again.fingerprint);
        assert_eq!(host.fingerprint.len(), 32);
        assert!(host.logical_processors > 0 && host.memory_bytes > 0);
        assert!(!host.cpu_model.is_empty() && !host.scratch.file_system.is_empty());
        assert!(host.platform("soft").ends_with("-soft-emulated"));
        let slow = ExecutionFacts::default();
        let emulated = HostFingerprint::of_this_host(
            directory.path(),
            ExecutionFacts {
                hardware_instructions_per_ms: 1,
                ..slow
            },
        );
        let emulated = emulated.expect("a host");
        assert_eq!(
            emulated.platform("kvm"),
            format!("{}-kvm-emulated", host.os)
        );
        assert_ne!(emulated.fingerprint, host.fingerprint);
    }
}
