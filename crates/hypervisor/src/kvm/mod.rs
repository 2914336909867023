//! The KVM back end (Linux, x86-64).
//!
//! Set-up order matters for time as well as for correctness: memory slots are registered before
//! the interrupt chip and the timer exist, because once they do every change of a slot waits for
//! a grace period of the kernel (milliseconds). The rest of the order is in
//! [`state_table`].
#![allow(
    unsafe_code,
    reason = "KVM shares memory with this process: RAM slots, the kvm_run page, and state structures of variable length"
)]

mod events;
mod irq_chip;
mod machine;
mod msrs;
mod partition;
pub(crate) mod probe;
mod registers;
mod run_area;
mod save_restore;
pub mod state_table;
mod stop;
mod vcpu;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Cap;
use nvx_memory::GuestMemory;

use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, OpenError, SystemError};
use crate::traits::{Hypervisor, Partition, PartitionOptions};

/// The device file through which KVM is reached.
pub const DEVICE: &str = "/dev/kvm";

/// The API version that every kernel since 2.6.22 has (Linux `Documentation/virt/kvm/api.rst`,
/// KVM_GET_API_VERSION).
const API_VERSION: i32 = 12;

/// CPUID leaf 1 ECX: the local APIC's timer takes a TSC deadline (Intel SDM volume 2, table 3-10).
const LEAF_1_ECX_TSC_DEADLINE: u32 = 1 << 24;

/// CPUID leaf 1 ECX: a hypervisor is present, so that leaf 0x40000000 says which (Linux
/// `Documentation/virt/kvm/x86/cpuid.rst`).
const LEAF_1_ECX_HYPERVISOR: u32 = 1 << 31;
/// CPUID leaf 1 ECX: VMX (Intel SDM volume 2, table 3-10).
const LEAF_1_ECX_VMX: u32 = 1 << 5;
/// CPUID leaf 0x80000001 ECX: SVM (AMD APM volume 3, appendix E.4.2).
const LEAF_8000_0001_ECX_SVM: u32 = 1 << 2;

/// KVM, opened.
pub struct Kvm {
    shared: Arc<kvm_ioctls::Kvm>,
}

impl Kvm {
    /// Opens `/dev/kvm`.
    ///
    /// # Errors
    /// The device is missing, not permitted (the group that may open it is named), or of another
    /// API version.
    pub fn open() -> Result<Self, OpenError> {
        Self::open_device(Path::new(DEVICE))
    }

    fn open_device(device: &Path) -> Result<Self, OpenError> {
        let path = std::ffi::CString::new(device.as_os_str().as_encoded_bytes())
            .map_err(|source| open_error(device, source.into()))?;
        let kvm = kvm_ioctls::Kvm::new_with_path(&path)
            .map_err(|errno| open_error(device, errno.into()))?;
        let found = kvm.get_api_version();
        if found != API_VERSION {
            return Err(OpenError::ApiVersion {
                device: device.to_owned(),
                found,
                expected: API_VERSION,
            });
        }
        stop::install_kick_handler().map_err(|source| SystemError {
            call: "sigaction",
            source,
        })?;
        Ok(Self {
            shared: Arc::new(kvm),
        })
    }
}

impl Hypervisor for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn cpu_model(&self) -> Result<CpuModel, SystemError> {
        let cpuid = self
            .shared
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
        let mut entries: Vec<_> = cpuid.as_slice().iter().map(CpuidEntry::from).collect();
        if self.shared.check_extension(Cap::TscDeadlineTimer) {
            offer_tsc_deadline(&mut entries);
        }
        say_hypervisor(&mut entries);
        withhold_nested_virtualization(&mut entries);
        Ok(CpuModel { entries })
    }

    fn create_partition(
        &self,
        memory: &Arc<GuestMemory>,
        options: PartitionOptions,
    ) -> Result<Box<dyn Partition>, CreateError> {
        Ok(Box::new(partition::KvmPartition::new(
            Arc::clone(&self.shared),
            Arc::clone(memory),
            options,
        )?))
    }
}

/// Sets the bit of the local APIC's deadline timer. Older kernels leave it out of what they
/// support, since it depends on the interrupt chip being theirs, which every partition here has
/// (Linux `Documentation/virt/kvm/api.rst`, KVM_GET_SUPPORTED_CPUID).
fn offer_tsc_deadline(entries: &mut [CpuidEntry]) {
    for entry in entries.iter_mut().filter(|entry| entry.leaf == 1) {
        entry.ecx |= LEAF_1_ECX_TSC_DEADLINE;
    }
}

/// Sets the bit without which no guest looks for KVM's own leaves. Kernels leave it to the monitor.
fn say_hypervisor(entries: &mut [CpuidEntry]) {
    for entry in entries.iter_mut().filter(|entry| entry.leaf == 1) {
        entry.ecx |= LEAF_1_ECX_HYPERVISOR;
    }
}

/// Clears the bits of VMX and SVM: a nested guest's state is not saved, so a guest must not have
/// one.
fn withhold_nested_virtualization(entries: &mut [CpuidEntry]) {
    for entry in entries {
        match entry.leaf {
            1 => entry.ecx &= !LEAF_1_ECX_VMX,
            0x8000_0001 => entry.ecx &= !LEAF_8000_0001_ECX_SVM,
            _ => {}
        }
    }
}

/// Makes an error constructor for the KVM call named `call`.
fn failed(call: &'static str) -> impl Fn(kvm_ioctls::Error) -> SystemError {
    move |errno| SystemError {
        call,
        source: errno.into(),
    }
}

fn open_error(device: &Path, source: io::Error) -> OpenError {
    let device = device.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => OpenError::NotPresent { device },
        io::ErrorKind::PermissionDenied => {
            let metadata = std::fs::metadata(&device).ok();
            OpenError::NoPermission {
                group: owning_group(metadata.as_ref()),
                group_may_open: metadata.is_none_or(|found| found.mode() & 0o060 == 0o060),
                device,
            }
        }
        _ => OpenError::Open { device, source },
    }
}

/// Name of the group that owns the device: its number where the group file does not tell, and
/// `kvm`, as distributions name it, where not even the device tells.
fn owning_group(metadata: Option<&std::fs::Metadata>) -> String {
    let Some(metadata) = metadata else {
        return "kvm".to_owned();
    };
    let id = metadata.gid();
    std::fs::read_to_string("/etc/group")
        .ok()
        .and_then(|text| group_name(&text, id))
        .unwrap_or_else(|| id.to_string())
}

fn group_name(group_file: &str, id: u32) -> Option<String> {
    group_file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let found: u32 = fields.nth(1)?.parse().ok()?;
        (found == id).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn group_is_found_by_number() {
        let file = "root:x:0:\nkvm:x:108:ann,bob\nbroken line\n";
        assert_eq!(group_name(file, 108).as_deref(), Some("kvm"));
        assert_eq!(group_name(file, 7), None);
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = Kvm::open_device(Path::new("/dev/no-such-device"))
            .err()
            .expect("nothing to open");
        assert!(
            error
                .to_string()
                .starts_with("/dev/no-such-device: not present")
        );
    }

    #[test]
    fn a_device_without_permission_names_its_group() {
        let error = open_error(
            Path::new("/dev/null"),
            io::Error::from(io::ErrorKind::PermissionDenied),
        );
        let text = error.to_string();
        assert!(text.contains("/dev/null: no permission"), "{text}");
        assert!(text.contains("add this user to group 'root'"), "{text}");
    }

    #[test]
    fn a_device_of_its_owner_only_gets_no_advice_that_would_not_help() {
        let error = OpenError::NoPermission {
            device: PathBuf::from("/dev/kvm"),
            group: "root".to_owned(),
            group_may_open: false,
        };
        let text = error.to_string();
        assert!(text.contains("not even its group 'root'"), "{text}");
        assert!(!text.contains("usermod"), "{text}");
    }

    #[test]
    fn the_deadline_timer_is_offered_in_its_leaf_only() {
        let mut entries = [0, 1, 7].map(|leaf| CpuidEntry {
            leaf,
            ecx: 1,
            ..Default::default()
        });
        offer_tsc_deadline(&mut entries);
        assert_eq!(entries.map(|entry| entry.ecx), [1, 0x0100_0001, 1]);
    }

    #[test]
    fn a_guest_is_told_of_the_hypervisor_in_leaf_1_only() {
        let mut entries = [0, 1, 0x4000_0000].map(|leaf| CpuidEntry {
            leaf,
            ecx: 1,
            ..Default::default()
        });
        say_hypervisor(&mut entries);
        assert_eq!(entries.map(|entry| entry.ecx), [1, 0x8000_0001, 1]);
    }

    #[test]
    fn nested_virtualization_is_not_offered() {
        let mut entries = [1, 0x8000_0001, 7].map(|leaf| CpuidEntry {
            leaf,
            ecx: 0xff,
            ..Default::default()
        });
        withhold_nested_virtualization(&mut entries);
        assert_eq!(entries.map(|entry| entry.ecx), [0xdf, 0xfb, 0xff]);
    }

    #[test]
    fn a_file_that_is_no_hypervisor_is_an_error() {
        assert!(Kvm::open_device(Path::new("/dev/null")).is_err());
    }
}
