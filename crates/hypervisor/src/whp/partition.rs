//! A partition: its properties, its RAM, and the maker of its vCPUs.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nvx_memory::GuestMemory;
use windows_sys::Win32::System::Hypervisor::{
    WHV_PARTITION_HANDLE, WHV_PARTITION_PROPERTY_CODE, WHvMapGpaRangeFlagExecute,
    WHvMapGpaRangeFlagRead, WHvMapGpaRangeFlagTrackDirtyPages, WHvMapGpaRangeFlagWrite,
    WHvPartitionPropertyCodeExtendedVmExits, WHvPartitionPropertyCodeLocalApicEmulationMode,
    WHvPartitionPropertyCodeProcessorCount, WHvX64LocalApicEmulationModeXApic,
};

use super::irq_chip::WhpIrqChip;
use super::library::{Library, checked};
use super::vcpu::WhpVcpu;
use crate::MAX_VCPUS;
use crate::error::{CreateError, SystemError};
use crate::traits::{DirtyLog, IrqChip, Partition, PartitionOptions, Vcpu};

/// `WHV_EXTENDED_VM_EXITS`: CPUID, and accesses to MSRs that the hypervisor does not know, come to the
/// monitor.
const EXIT_ON_CPUID: u64 = 1;
const EXIT_ON_MSR: u64 = 1 << 1;
const PAGE_BYTES: u64 = 4096;

/// The partition itself; deleted on drop. Everything that uses it holds it.
pub(super) struct Machine {
    pub(super) library: Arc<Library>,
    pub(super) handle: WHV_PARTITION_HANDLE,
    /// The ranges that are mapped stay mapped in this process as long as the partition lives.
    pub(super) memory: Arc<GuestMemory>,
}

impl Machine {
    pub(super) fn cancel(&self, index: u32) {
        // SAFETY: the partition lives as long as this value; the call takes numbers.
        unsafe { (self.library.cancel_run)(self.handle, index, 0) };
    }

    fn set_property<T>(
        &self,
        code: WHV_PARTITION_PROPERTY_CODE,
        value: &T,
    ) -> Result<(), SystemError> {
        // SAFETY: the property's structure has the size that is given, and lives until the call
        // returns.
        let result = unsafe {
            (self.library.set_partition_property)(
                self.handle,
                code,
                (&raw const *value).cast::<c_void>(),
                size_of::<T>() as u32,
            )
        };
        checked("WHvSetPartitionProperty", result)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle any more.
        unsafe { (self.library.delete_partition)(self.handle) };
    }
}

pub(super) struct WhpPartition {
    machine: Arc<Machine>,
    irq_chip: Arc<WhpIrqChip>,
    /// Bit n: vCPU n has been made.
    taken: AtomicU8,
    dirty_log: Option<WhpDirtyLog>,
}

impl WhpPartition {
    pub(super) fn create(
        library: Arc<Library>,
        memory: &Arc<GuestMemory>,
        options: PartitionOptions,
    ) -> Result<Self, CreateError> {
        let mut handle = 0;
        // SAFETY: the pointer lives until the call returns.
        let result = unsafe { (library.create_partition)(&raw mut handle) };
        checked("WHvCreatePartition", result)?;
        let machine = Arc::new(Machine {
            library,
            handle,
            memory: Arc::clone(memory),
        });
        // As many as a machine may have: a partition's own number cannot be changed later.
        machine.set_property(
            WHvPartitionPropertyCodeProcessorCount,
            &u32::from(MAX_VCPUS),
        )?;
        machine.set_property(
            WHvPartitionPropertyCodeLocalApicEmulationMode,
            &WHvX64LocalApicEmulationModeXApic,
        )?;
        machine.set_property(
            WHvPartitionPropertyCodeExtendedVmExits,
            &(EXIT_ON_CPUID | EXIT_ON_MSR),
        )?;
        // SAFETY: the partition lives as long as `machine`.
        let result = unsafe { (machine.library.setup_partition)(handle) };
        checked("WHvSetupPartition", result)?;
        map_ram(&machine, options)?;
        let dirty_log = options.log_dirty_pages.then(|| WhpDirtyLog {
            machine: Arc::clone(&machine),
        });
        Ok(Self {
            irq_chip: Arc::new(WhpIrqChip::new(Arc::clone(&machine))),
            machine,
            taken: AtomicU8::new(0),
            dirty_log,
        })
    }
}

fn map_ram(machine: &Machine, options: PartitionOptions) -> Result<(), CreateError> {
    let mut flags = WHvMapGpaRangeFlagRead | WHvMapGpaRangeFlagWrite | WHvMapGpaRangeFlagExecute;
    if options.log_dirty_pages {
        flags |= WHvMapGpaRangeFlagTrackDirtyPages;
    }
    for region in machine.memory.host_regions() {
        // SAFETY: the region is mapped in this process, page aligned, for as long as `GuestMemory`
        // lives, which the partition holds.
        let result = unsafe {
            (machine.library.map_gpa_range)(
                machine.handle,
                region.host.as_ptr().cast_const().cast(),
                region.guest.0,
                region.size_bytes,
                flags,
            )
        };
        checked("WHvMapGpaRange", result).map_err(|source| CreateError::MapRam {
            start: region.guest.0,
            size_bytes: region.size_bytes,
            source,
        })?;
    }
    Ok(())
}

impl Partition for WhpPartition {
    fn create_vcpu(&self, index: u8) -> Result<Box<dyn Vcpu>, CreateError> {
        if index >= MAX_VCPUS {
            return Err(CreateError::TooManyVcpus {
                index,
                limit: MAX_VCPUS,
            });
        }
        let bit = 1 << index;
        if self.taken.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return Err(CreateError::System(SystemError {
                call: "creation of a second vCPU of one index",
                source: std::io::ErrorKind::AlreadyExists.into(),
            }));
        }
        Ok(Box::new(WhpVcpu::create(
            Arc::clone(&self.machine),
            Arc::clone(&self.irq_chip),
            index,
        )?))
    }

    fn irq_chip(&self) -> Option<&dyn IrqChip> {
        Some(&*self.irq_chip)
    }

    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        self.dirty_log.as_ref().map(|log| log as &dyn DirtyLog)
    }
}

struct WhpDirtyLog {
    machine: Arc<Machine>,
}

impl DirtyLog for WhpDirtyLog {
    fn take(&self, range: usize) -> Result<Vec<u64>, SystemError> {
        let call = "WHvQueryGpaRangeDirtyBitmap";
        let layout = self.machine.memory.layout();
        let range = layout.ranges().get(range).ok_or_else(|| SystemError {
            call,
            source: std::io::ErrorKind::InvalidInput.into(),
        })?;
        let mut bitmap = vec![0_u64; (range.size_bytes / PAGE_BYTES).div_ceil(64) as usize];
        // SAFETY: the bitmap has one bit for each page of the range, in words, and the size that is
        // given; it lives until the call returns. Reading it clears the hypervisor's.
        let result = unsafe {
            (self.machine.library.query_dirty_bitmap)(
                self.machine.handle,
                range.start.0,
                range.size_bytes,
                bitmap.as_mut_ptr(),
                size_of_val(bitmap.as_slice()) as u32,
            )
        };
        checked(call, result)?;
        Ok(bitmap)
    }
}
