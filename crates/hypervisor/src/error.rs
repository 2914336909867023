//! Errors, one type per kind of operation. Texts name what failed; the operating system's own
//! words stay in the source.

use std::io;
use std::path::PathBuf;

/// A call to the hypervisor that the operating system refused.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct SystemError {
    /// Name of the call, as its documentation has it.
    pub call: &'static str,
    /// What the operating system said.
    #[source]
    pub source: io::Error,
}

/// The back end cannot be used on this host.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The back end is another operating system's.
    #[error("back end {backend} does not exist on this operating system")]
    NotOnThisSystem {
        /// Its name.
        backend: &'static str,
    },
    /// The device file is not there.
    #[error("{}: not present; {NOT_PRESENT_ADVICE}", device.display())]
    NotPresent {
        /// The device file.
        device: PathBuf,
    },
    /// The device file may not be opened by this user.
    #[error("{}: no permission; {}", device.display(), permission_advice(group, *group_may_open))]
    NoPermission {
        /// The device file.
        device: PathBuf,
        /// Name (or number) of the group that owns the device file.
        group: String,
        /// Whether members of that group may open it for reading and writing.
        group_may_open: bool,
    },
    /// The device file cannot be opened for another reason.
    #[error("{}: cannot be opened", device.display())]
    Open {
        /// The device file.
        device: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The interface is of a version that this build does not speak.
    #[error("{}: API version {found}, this build speaks {expected}", device.display())]
    ApiVersion {
        /// The device file.
        device: PathBuf,
        /// What the kernel offers.
        found: i32,
        /// What is needed.
        expected: i32,
    },
    /// Windows' library of the hypervisor cannot be loaded: the feature is off.
    #[error("WinHvPlatform.dll: cannot be loaded; {NO_LIBRARY_ADVICE}")]
    HypervisorLibrary {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Windows' library of the hypervisor is there, but no hypervisor runs.
    #[error("WinHvPlatform.dll: no hypervisor runs; {NOT_RUNNING_ADVICE}")]
    HypervisorNotRunning,
    /// A call on the opened device failed.
    #[error("the hypervisor does not answer as it must")]
    System(#[from] SystemError),
}

/// How to get Windows' library of the hypervisor.
const NO_LIBRARY_ADVICE: &str = "switch the Windows feature on, as administrator: \
     Enable-WindowsOptionalFeature -Online -FeatureName HypervisorPlatform, then restart";
/// How to have a hypervisor run.
const NOT_RUNNING_ADVICE: &str = "enable virtualization in the firmware (in a virtual machine: nested \
     virtualization), and the start of the hypervisor: bcdedit /set hypervisorlaunchtype auto";

const NOT_PRESENT_ADVICE: &str =
    "load the kvm module (kvm_intel or kvm_amd) and enable virtualization in the firmware";

impl OpenError {
    /// How to get what is missing, as a phrase; `None` where nothing is known to help.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NotPresent { .. } => Some(NOT_PRESENT_ADVICE.to_owned()),
            Self::NoPermission {
                group,
                group_may_open,
                ..
            } => Some(permission_advice(group, *group_may_open)),
            Self::HypervisorLibrary { .. } => Some(NO_LIBRARY_ADVICE.to_owned()),
            Self::HypervisorNotRunning => Some(NOT_RUNNING_ADVICE.to_owned()),
            Self::NotOnThisSystem { .. }
            | Self::Open { .. }
            | Self::ApiVersion { .. }
            | Self::System(_) => None,
        }
    }
}

fn permission_advice(group: &str, group_may_open: bool) -> String {
    if group_may_open {
        format!("add this user to group '{group}' (usermod -aG {group} USER, then log in again)")
    } else {
        format!(
            "only its owner may open it, not even its group '{group}'; as root give it to a group \
             (chgrp kvm and chmod 660) and add this user to that group"
        )
    }
}

/// A partition or a vCPU could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A step of the set-up failed.
    #[error("cannot set up the virtual machine")]
    System(#[from] SystemError),
    /// One RAM range could not become a memory slot.
    #[error("cannot map guest RAM at {start:#x} ({size_bytes} bytes)")]
    MapRam {
        /// First guest address of the range.
        start: u64,
        /// Its length.
        size_bytes: u64,
        /// What the hypervisor said.
        #[source]
        source: SystemError,
    },
    /// More vCPUs than the contract or the back end has.
    #[error("vCPU {index}: this machine has at most {limit}")]
    TooManyVcpus {
        /// The refused vCPU's index.
        index: u8,
        /// How many there may be.
        limit: u8,
    },
}

/// A vCPU could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The call that runs the guest failed.
    #[error("vCPU {vcpu} cannot run")]
    System {
        /// Index of the vCPU.
        vcpu: u8,
        /// What the hypervisor said.
        #[source]
        source: SystemError,
    },
    /// The hypervisor left an exit record that makes no sense.
    #[error("vCPU {vcpu}: malformed exit ({what})")]
    MalformedExit {
        /// Index of the vCPU.
        vcpu: u8,
        /// Which part is wrong.
        what: &'static str,
    },
}

/// State could not be saved or restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// One element of the table was refused.
    #[error("{operation} of {element} failed")]
    Element {
        /// `save` or `restore`.
        operation: &'static str,
        /// The element's name in the state table.
        element: &'static str,
        /// What the hypervisor said.
        #[source]
        source: SystemError,
    },
    /// The hypervisor refuses a model-specific register.
    #[error("{operation}: the hypervisor refuses MSR {index:#x}{detail}")]
    Msr {
        /// `save` or `restore`.
        operation: &'static str,
        /// Number of the MSR.
        index: u32,
        /// What is known of it, as a clause; may be empty.
        detail: String,
    },
    /// The saved state does not fit this host or this build.
    #[error("{element}: {what}")]
    Incompatible {
        /// The element's name in the state table.
        element: &'static str,
        /// What does not fit.
        what: String,
    },
    /// The snapshot has no such element, which every capture writes.
    #[error("{element} is missing from the saved state")]
    Missing {
        /// The element's name in the state table.
        element: &'static str,
    },
}
