//! A KVM virtual machine: memory slots, interrupt chip, timer, clock.

use std::sync::Arc;

use kvm_bindings::{
    KVM_MEM_LOG_DIRTY_PAGES, KVM_PIT_SPEAKER_DUMMY, kvm_clock_data, kvm_pit_config,
    kvm_userspace_memory_region,
};
use kvm_ioctls::VmFd;
use nvx_memory::GuestMemory;

use super::failed;
use super::irq_chip::KvmIrqChip;
use super::machine::Machine;
use super::vcpu::KvmVcpu;
use crate::MAX_VCPUS;
use crate::error::{CreateError, SystemError};
use crate::traits::{DirtyLog, GuestClock, IrqChip, Partition, PartitionOptions, Vcpu};

/// Where KVM puts the task-state segment (three pages) that Intel processors without
/// unrestricted guest need to run real mode: in the MMIO gap, below the firmware's place, so
/// that no RAM range and no device is there.
const TSS_ADDRESS: usize = 0xfffb_d000;

pub(super) struct KvmPartition {
    kvm: Arc<kvm_ioctls::Kvm>,
    vm: Arc<Machine>,
    irq_chip: KvmIrqChip,
    /// Each RAM range's size; its index is the slot's number.
    slot_sizes_bytes: Vec<usize>,
    logs_dirty_pages: bool,
}

impl KvmPartition {
    pub(super) fn new(
        kvm: Arc<kvm_ioctls::Kvm>,
        memory: Arc<GuestMemory>,
        options: PartitionOptions,
    ) -> Result<Self, CreateError> {
        let vm = Machine::new(create_vm(&kvm)?, Arc::clone(&memory));
        let mut slot_sizes_bytes = Vec::new();
        for (slot, region) in memory.host_regions().enumerate() {
            let region_descriptor = kvm_userspace_memory_region {
                slot: slot as u32,
                flags: if options.log_dirty_pages {
                    KVM_MEM_LOG_DIRTY_PAGES
                } else {
                    0
                },
                guest_phys_addr: region.guest.0,
                memory_size: region.size_bytes,
                userspace_addr: region.host_address(),
            };
            // SAFETY: the range is one mapping owned by `memory`, which the machine keeps
            // alive for longer than its descriptor; guest RAM is only ever reached by volatile access,
            // so the guest writing to it breaks no reference.
            unsafe { vm.set_user_memory_region(region_descriptor) }.map_err(|errno| {
                CreateError::MapRam {
                    start: region.guest.0,
                    size_bytes: region.size_bytes,
                    source: failed("KVM_SET_USER_MEMORY_REGION")(errno),
                }
            })?;
            slot_sizes_bytes.push(region.size_bytes as usize);
        }
        vm.set_tss_address(TSS_ADDRESS)
            .map_err(failed("KVM_SET_TSS_ADDR"))?;
        vm.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
        vm.create_pit2(kvm_pit_config {
            flags: KVM_PIT_SPEAKER_DUMMY,
            ..Default::default()
        })
        .map_err(failed("KVM_CREATE_PIT2"))?;
        let vm = Arc::new(vm);
        Ok(Self {
            kvm,
            irq_chip: KvmIrqChip::new(Arc::clone(&vm)),
            vm,
            slot_sizes_bytes,
            logs_dirty_pages: options.log_dirty_pages,
        })
    }

    pub(super) fn new_vcpu(&self, index: u8) -> Result<KvmVcpu, CreateError> {
        if index >= MAX_VCPUS {
            return Err(CreateError::TooManyVcpus {
                index,
                limit: MAX_VCPUS,
            });
        }
        let fd = self
            .vm
            .create_vcpu(u64::from(index))
            .map_err(failed("KVM_CREATE_VCPU"))?;
        KvmVcpu::new(Arc::clone(&self.kvm), Arc::clone(&self.vm), fd, index)
    }
}

/// KVM_CREATE_VM, again as long as a signal interrupts it: the kernel starts a worker for the
/// machine and gives up when a signal is pending.
fn create_vm(kvm: &kvm_ioctls::Kvm) -> Result<VmFd, SystemError> {
    loop {
        match kvm.create_vm() {
            Err(errno) if errno.errno() == libc::EINTR => {}
            other => return other.map_err(failed("KVM_CREATE_VM")),
        }
    }
}

impl Partition for KvmPartition {
    fn create_vcpu(&self, index: u8) -> Result<Box<dyn Vcpu>, CreateError> {
        Ok(Box::new(self.new_vcpu(index)?))
    }

    fn irq_chip(&self) -> Option<&dyn IrqChip> {
        Some(&self.irq_chip)
    }

    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        self.logs_dirty_pages.then_some(self)
    }

    fn clock(&self) -> Option<&dyn GuestClock> {
        Some(self)
    }
}

impl DirtyLog for KvmPartition {
    fn take(&self, range: usize) -> Result<Vec<u64>, SystemError> {
        let size_bytes = self.slot_sizes_bytes.get(range).copied().unwrap_or(0);
        self.vm
            .get_dirty_log(range as u32, size_bytes)
            .map_err(failed("KVM_GET_DIRTY_LOG"))
    }
}

impl GuestClock for KvmPartition {
    fn get(&self) -> Result<u64, SystemError> {
        Ok(self.vm.get_clock().map_err(failed("KVM_GET_CLOCK"))?.clock)
    }

    fn set(&self, guest_ns: u64) -> Result<(), SystemError> {
        // Without KVM_CLOCK_REALTIME the kernel takes the value as it is; with the flag it would
        // add the time since capture, and guest time would jump.
        let clock = kvm_clock_data {
            clock: guest_ns,
            flags: 0,
            ..Default::default()
        };
        self.vm.set_clock(&clock).map_err(failed("KVM_SET_CLOCK"))
    }
}
