//! The Windows Hypervisor Platform.
//!
//! Its library, `WinHvPlatform.dll`, is there only where the Windows feature of that name is switched
//! on, so it is loaded at run time ([`library`]). A partition is configured by properties before its
//! set-up and gets RAM by mapping ranges of this process's memory; a vCPU runs until it meets something
//! that the hypervisor leaves to the monitor. Unlike KVM, WHP finishes nothing by itself: after a port
//! access or an access to a device's memory it is the monitor that moves the instruction pointer and
//! sets the target register ([`vcpu`], [`emulate`]).
//!
//! Reference: Microsoft's "Windows Hypervisor Platform API Definitions". WHP gives a local APIC for each
//! vCPU and no other interrupt controller; the others are models ([`irq_chip`]), whose ports and memory
//! never reach the monitor, as with the kernel's chip on KVM.
#![allow(
    unsafe_code,
    reason = "the hypervisor's functions take pointers to structures"
)]
#![allow(
    non_upper_case_globals,
    reason = "Microsoft's constants have names of mixed case, also in patterns"
)]

mod emulate;
mod irq_chip;
mod library;
mod partition;
pub mod probe;
mod registers;
mod save_restore;
mod stop;
mod string_io;
mod vcpu;

use std::arch::x86_64::__cpuid_count;
use std::sync::Arc;

use nvx_memory::GuestMemory;

use self::library::Library;
use self::partition::WhpPartition;
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, OpenError, SystemError};
use crate::traits::{Hypervisor, Partition, PartitionOptions};

/// The back end's name.
pub const NAME: &str = "whp";

/// CPUID leaf 1 ECX: set by a hypervisor, which the processor itself never does; and the local APIC's
/// deadline timer, which WHP's documentation does not promise and whose deadline would have to be saved.
const LEAF_1_ECX_HYPERVISOR: u32 = 1 << 31;
const LEAF_1_ECX_DEADLINE: u32 = 1 << 24;
const LEAF_EXTENDED: u32 = 0x8000_0000;
/// Leaves whose subleaf matters, with the number of subleaves that are kept.
const LEAVES_WITH_SUBLEAVES: [(u32, u32); 2] = [(0x7, 2), (0xd, 3)];

/// The Windows Hypervisor Platform, open.
pub struct Whp {
    library: Arc<Library>,
}

impl Whp {
    /// Loads the library and asks whether the hypervisor runs.
    ///
    /// # Errors
    /// [`OpenError::HypervisorLibrary`] or [`OpenError::HypervisorNotRunning`].
    pub fn open() -> Result<Self, OpenError> {
        let library = Library::load()?;
        if !library.hypervisor_present()? {
            return Err(OpenError::HypervisorNotRunning);
        }
        Ok(Self {
            library: Arc::new(library),
        })
    }
}

impl Hypervisor for Whp {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The processor as this process sees it: what WHP offers to a guest by default.
    fn cpu_model(&self) -> Result<CpuModel, SystemError> {
        let row = |leaf, subleaf, has_subleaf| {
            let found = __cpuid_count(leaf, subleaf);
            CpuidEntry {
                leaf,
                subleaf,
                has_subleaf,
                eax: found.eax,
                ebx: found.ebx,
                ecx: match leaf {
                    1 => found.ecx & !(LEAF_1_ECX_HYPERVISOR | LEAF_1_ECX_DEADLINE),
                    _ => found.ecx,
                },
                edx: found.edx,
            }
        };
        let mut entries = Vec::new();
        for first in [0, LEAF_EXTENDED] {
            let highest = __cpuid_count(first, 0).eax;
            for leaf in first..=highest.clamp(first, first + 0x1f) {
                let subleaves = LEAVES_WITH_SUBLEAVES.iter().find(|(has, _)| *has == leaf);
                match subleaves {
                    Some((_, count)) => {
                        entries.extend((0..*count).map(|subleaf| row(leaf, subleaf, true)));
                    }
                    None => entries.push(row(leaf, 0, false)),
                }
            }
        }
        Ok(CpuModel { entries })
    }

    fn create_partition(
        &self,
        memory: &Arc<GuestMemory>,
        options: PartitionOptions,
    ) -> Result<Box<dyn Partition>, CreateError> {
        Ok(Box::new(WhpPartition::create(
            Arc::clone(&self.library),
            memory,
            options,
        )?))
    }
}
