//! Partitions: configured, set up, given RAM and vCPUs, in this order.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvx_hypervisor::{Hypervisor as _, Partition as SoftPartition, PartitionOptions, soft::Soft};
use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES, RamLayout, RamRange};
use windows_sys::Win32::System::Hypervisor::{
    WHV_MAP_GPA_RANGE_FLAGS, WHV_PARTITION_PROPERTY_CODE, WHvMapGpaRangeFlagExecute,
    WHvMapGpaRangeFlagRead, WHvMapGpaRangeFlagTrackDirtyPages, WHvMapGpaRangeFlagWrite,
    WHvPartitionPropertyCodeExtendedVmExits, WHvPartitionPropertyCodeLocalApicEmulationMode,
    WHvPartitionPropertyCodeProcessorCount, WHvX64LocalApicEmulationModeXApic,
};

use crate::refuse;
use crate::vcpu::VirtualProcessor;

static PARTITIONS: Mutex<BTreeMap<isize, Arc<Partition>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapped range of guest memory.
pub struct Range {
    pub guest: u64,
    /// Address in this process.
    pub host: usize,
    pub size_bytes: u64,
    pub flags: WHV_MAP_GPA_RANGE_FLAGS,
}

/// A partition. Its locks are taken in the order of the fields.
#[derive(Default)]
pub struct Partition {
    configuration: Mutex<Configuration>,
    machine: Mutex<Option<Machine>>,
    vcpus: Mutex<BTreeMap<u32, Arc<VirtualProcessor>>>,
}

#[derive(Default)]
struct Configuration {
    processor_count: Option<u32>,
    has_apic: bool,
    has_exits: bool,
    is_set_up: bool,
    ranges: Vec<Range>,
}

/// The software machine, made when the first vCPU is.
struct Machine {
    partition: Box<dyn SoftPartition>,
    memory: Arc<GuestMemory>,
}

pub fn create() -> isize {
    let mut partitions = lock(&PARTITIONS);
    let handle = partitions.keys().last().map_or(0x1000, |last| last + 8);
    partitions.insert(handle, Arc::default());
    handle
}

pub fn find(call: &str, handle: isize) -> Arc<Partition> {
    match lock(&PARTITIONS).get(&handle) {
        Some(partition) => Arc::clone(partition),
        None => refuse(call, &format!("no partition {handle:#x}")),
    }
}

pub fn delete(handle: isize) {
    const CALL: &str = "WHvDeletePartition";
    let partition = lock(&PARTITIONS).remove(&handle);
    match partition {
        Some(partition) if lock(&partition.vcpus).is_empty() => {}
        Some(_) => refuse(CALL, "there are vCPUs left"),
        None => refuse(CALL, &format!("no partition {handle:#x}")),
    }
}

impl Partition {
    pub fn set_property(&self, code: WHV_PARTITION_PROPERTY_CODE, bytes: &[u8]) {
        const CALL: &str = "WHvSetPartitionProperty";
        let mut configuration = lock(&self.configuration);
        if configuration.is_set_up {
            refuse(CALL, "after WHvSetupPartition");
        }
        let number = match bytes.len() {
            4 => bytes.try_into().map(u32::from_le_bytes).map(u64::from),
            8 => bytes.try_into().map(u64::from_le_bytes),
            length => refuse(CALL, &format!("property {code:#x} of {length} bytes")),
        }
        .unwrap_or_default();
        match (code, bytes.len(), number) {
            (WHvPartitionPropertyCodeProcessorCount, 4, 1..=64) => {
                configuration.processor_count = Some(number as u32);
            }
            (WHvPartitionPropertyCodeLocalApicEmulationMode, 4, mode)
                if mode == WHvX64LocalApicEmulationModeXApic as u64 =>
            {
                configuration.has_apic = true;
            }
            // CPUID and MSRs that the hypervisor does not know; the double always reports them.
            (WHvPartitionPropertyCodeExtendedVmExits, 8, 0b11) => configuration.has_exits = true,
            _ => refuse(CALL, &format!("property {code:#x} = {bytes:02x?}")),
        }
    }

    pub fn set_up(&self) {
        let mut configuration = lock(&self.configuration);
        if configuration.is_set_up || configuration.processor_count.is_none() {
            refuse("WHvSetupPartition", "twice, or without a processor count");
        }
        configuration.is_set_up = true;
    }

    pub fn map(&self, range: Range) {
        const CALL: &str = "WHvMapGpaRange";
        let mut configuration = lock(&self.configuration);
        if !configuration.is_set_up {
            refuse(CALL, "before WHvSetupPartition");
        }
        let aligned = [range.guest, range.host as u64, range.size_bytes]
            .iter()
            .all(|number| number.is_multiple_of(PAGE_SIZE_BYTES));
        if !aligned || range.size_bytes == 0 {
            refuse(CALL, "not page aligned, or empty");
        }
        let all = WHvMapGpaRangeFlagRead | WHvMapGpaRangeFlagWrite | WHvMapGpaRangeFlagExecute;
        if range.flags & !WHvMapGpaRangeFlagTrackDirtyPages != all {
            refuse(CALL, &format!("flags {:#x}", range.flags));
        }
        if lock(&self.machine).is_some() {
            refuse(CALL, "the double maps no memory once there is a vCPU");
        }
        configuration.ranges.push(range);
    }

    pub fn create_vcpu(&self, index: u32) {
        const CALL: &str = "WHvCreateVirtualProcessor";
        let configuration = lock(&self.configuration);
        if !configuration.is_set_up || !configuration.has_apic || !configuration.has_exits {
            refuse(
                CALL,
                "before WHvSetupPartition, without a local APIC, or without exits for CPUID and MSRs",
            );
        }
        if Some(index) >= configuration.processor_count {
            refuse(CALL, &format!("index {index}"));
        }
        let mut machine = lock(&self.machine);
        let machine = machine.get_or_insert_with(|| Machine::new(&configuration.ranges));
        let vcpu = u8::try_from(index)
            .ok()
            .and_then(|index| machine.partition.create_vcpu(index).ok());
        let Some(vcpu) = vcpu else {
            refuse(CALL, &format!("index {index} is taken or too high"));
        };
        let vcpu = VirtualProcessor::new(index, vcpu, Arc::clone(&machine.memory));
        lock(&self.vcpus).insert(index, Arc::new(vcpu));
    }

    pub fn delete_vcpu(&self, index: u32) {
        if lock(&self.vcpus).remove(&index).is_none() {
            refuse("WHvDeleteVirtualProcessor", &format!("no vCPU {index}"));
        }
    }

    pub fn vcpu(&self, call: &str, index: u32) -> Arc<VirtualProcessor> {
        match lock(&self.vcpus).get(&index) {
            Some(vcpu) => Arc::clone(vcpu),
            None => refuse(call, &format!("no vCPU {index}")),
        }
    }

    /// Gives an interrupt to the local APIC with the id `destination`, or to all.
    pub fn request_interrupt(&self, destination: u32, vector: u8, is_level: bool) {
        const BROADCAST: u32 = 0xff;
        for (index, vcpu) in lock(&self.vcpus).iter() {
            if destination == *index || destination == BROADCAST {
                vcpu.request_interrupt(vector, is_level);
            }
        }
    }

    /// Whether the page of guest memory that `address` is in is mapped.
    pub fn is_mapped(&self, address: u64) -> bool {
        lock(&self.configuration)
            .ranges
            .iter()
            .any(|range| address.wrapping_sub(range.guest) < range.size_bytes)
    }

    /// The pages of a mapped range that were written since it was mapped (the real one: since the last
    /// time; a page too many is no harm).
    pub fn dirty_pages(&self, guest: u64, size_bytes: u64, words: &mut [u64]) {
        const CALL: &str = "WHvQueryGpaRangeDirtyBitmap";
        let configuration = lock(&self.configuration);
        let index = configuration.ranges.iter().position(|range| {
            (range.guest, range.size_bytes) == (guest, size_bytes)
                && range.flags & WHvMapGpaRangeFlagTrackDirtyPages != 0
        });
        let Some(index) = index else {
            refuse(CALL, "no range that is mapped so with dirty pages tracked");
        };
        if words.len() as u64 != (size_bytes / PAGE_SIZE_BYTES).div_ceil(64) {
            refuse(CALL, "size of the bitmap");
        }
        words.fill(0);
        let machine = lock(&self.machine);
        let Some(machine) = machine.as_ref() else {
            return;
        };
        let start = machine.memory.layout().ranges()[index].file_offset_bytes;
        for extent in machine.memory.dirty().extents().iter() {
            for at in (extent.offset_bytes..extent.end_bytes()).step_by(PAGE_SIZE_BYTES as usize) {
                if at >= start && at - start < size_bytes {
                    let page = (at - start) / PAGE_SIZE_BYTES;
                    words[(page / 64) as usize] |= 1 << (page % 64);
                }
            }
        }
    }
}

impl Machine {
    fn new(ranges: &[Range]) -> Self {
        const CALL: &str = "WHvCreateVirtualProcessor";
        let mut file_offset_bytes = 0;
        let mut described = Vec::new();
        let mut starts = Vec::new();
        for range in ranges {
            described.push(RamRange {
                start: GuestAddress(range.guest),
                size_bytes: range.size_bytes,
                file_offset_bytes,
            });
            file_offset_bytes += range.size_bytes.next_multiple_of(64 << 10);
            let start = std::ptr::with_exposed_provenance_mut::<u8>(range.host);
            let Some(start) = NonNull::new(start) else {
                refuse(CALL, "a range at address 0");
            };
            starts.push(start);
        }
        let layout = match RamLayout::new(described) {
            Ok(layout) => layout,
            Err(error) => refuse(CALL, &error.to_string()),
        };
        // SAFETY: whoever mapped the ranges keeps them mapped as long as the partition lives, and the
        // partition holds this.
        let memory = Arc::new(unsafe { GuestMemory::borrowed(layout, &starts) });
        match Soft::new().create_partition(&memory, PartitionOptions::default()) {
            Ok(partition) => Self { partition, memory },
            Err(error) => refuse(CALL, &error.to_string()),
        }
    }
}
