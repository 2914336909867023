//! What one history file is about: a platform, a microVM ABI and a number of processors.
//!
//! The three stand in every row and in the file's name,
//! `<platform>-microvm-v<abi>-<n>vcpu.csv`, and all of them must agree.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// microVM ABI versions that a history may be of, each with the processor counts that it defines.
///
/// ABI 1 is the one of files with the legacy header; it knew one processor only.
pub const KNOWN_ABIS: &[(u32, &[u32])] = &[(1, &[1]), (2, &[1, 2, 4, 8])];

/// The last word of a platform's name: on what the measured machine ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostKind {
    /// The hypervisor ran on the hardware.
    BareMetal,
    /// The hypervisor ran inside of a virtual machine.
    VirtualMachine,
    /// Instructions were emulated, or it could not be told that they were not.
    Emulated,
}

impl HostKind {
    /// The word in a platform's name.
    pub fn word(self) -> &'static str {
        match self {
            HostKind::BareMetal => "bare-metal",
            HostKind::VirtualMachine => "virtual-machine",
            HostKind::Emulated => "emulated",
        }
    }

    /// The kind that a platform's name ends with; `None` where the name has not the form
    /// `<os>-<backend>-<kind>`.
    pub fn of_platform(platform: &str) -> Option<Self> {
        [Self::BareMetal, Self::VirtualMachine, Self::Emulated]
            .into_iter()
            .find(|kind| {
                platform
                    .strip_suffix(kind.word())
                    .and_then(|rest| rest.strip_suffix('-'))
                    .and_then(|rest| rest.split_once('-'))
                    .is_some_and(|(os, backend)| is_word(os) && is_word(backend))
            })
    }
}

/// Platform, ABI and processors of one history file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// `<os>-<backend>-<bare-metal|virtual-machine|emulated>`.
    pub platform: String,
    /// Version of the microVM ABI.
    pub microvm_abi_version: u32,
    /// How many virtual processors the guest had.
    pub processors: u32,
}

impl Identity {
    /// The name of the file that holds this history.
    pub fn file_name(&self) -> String {
        format!(
            "{}-microvm-v{}-{}vcpu.csv",
            self.platform, self.microvm_abi_version, self.processors
        )
    }

    /// What a file's name says; `None` where it has not the form that [`Identity::file_name`] gives.
    pub fn of_file_name(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".csv")?;
        let (platform, rest) = stem.rsplit_once("-microvm-v")?;
        let (abi, processors) = rest.strip_suffix("vcpu")?.split_once('-')?;
        let identity = Self {
            platform: platform.to_owned(),
            microvm_abi_version: plain_number(abi)?,
            processors: plain_number(processors)?,
        };
        HostKind::of_platform(platform).map(|_| identity)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}, microVM ABI {}, {} vCPU",
            self.platform, self.microvm_abi_version, self.processors
        )
    }
}

/// A number as the format writes it: digits only, no leading zero.
pub(crate) fn plain_number(text: &str) -> Option<u32> {
    let plain = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text.len() == 1 || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// Whether the text is a non-empty word of lower-case letters and digits.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_says_what_it_holds() {
        let path = Path::new("data/linux-kvm-virtual-machine-microvm-v2-4vcpu.csv");
        let identity = Identity::of_file_name(path).expect("a history's name");
        assert_eq!(identity.platform, "linux-kvm-virtual-machine");
        assert_eq!((identity.microvm_abi_version, identity.processors), (2, 4));
        assert_eq!(
            Some(identity.file_name().as_str()),
            path.file_name().and_then(|n| n.to_str())
        );
    }

    #[test]
    fn other_names_say_nothing() {
        for name in [
            "rows.csv",
            "linux-kvm-microvm-v2-1vcpu.csv",
            "linux-kvm-bare-metal-microvm-v02-1vcpu.csv",
            "linux-kvm-bare-metal-microvm-v2-1vcpu.txt",
            "linux-kvm-bare-metal-microvm-v2-vcpu.csv",
            "-kvm-bare-metal-microvm-v2-1vcpu.csv",
        ] {
            assert_eq!(Identity::of_file_name(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn the_host_kind_ends_a_platform() {
        assert_eq!(
            HostKind::of_platform("linux-kvm-emulated"),
            Some(HostKind::Emulated)
        );
        assert_eq!(
            HostKind::of_platform("windows-whp-bare-metal"),
            Some(HostKind::BareMetal)
        );
        assert_eq!(HostKind::of_platform("linux-emulated"), None);
        assert_eq!(HostKind::of_platform("Linux-kvm-emulated"), None);
    }
}
