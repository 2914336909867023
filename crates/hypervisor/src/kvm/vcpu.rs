//! A KVM vCPU.

use std::cell::Cell;
use std::sync::Arc;

use kvm_bindings::{CpuId, kvm_sync_regs};
use kvm_ioctls::{SyncReg, VcpuFd};

use super::failed;
use super::machine::Machine;
use super::run_area::RunArea;
use super::state_table;
use super::stop::KvmStop;
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, RunError, StateError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::VcpuState;
use crate::traits::{StopHandle, Vcpu};

/// What KVM_RUN copies to the shared page if asked to (Linux `Documentation/virt/kvm/api.rst`, KVM_CAP_SYNC_REGS).
const SYNCED: [SyncReg; 3] = [
    SyncReg::Register,
    SyncReg::SystemRegister,
    SyncReg::VcpuEvents,
];

/// A vCPU of [`super::Kvm`].
pub struct KvmVcpu {
    pub(super) kvm: Arc<kvm_ioctls::Kvm>,
    pub(super) vm: Arc<Machine>,
    pub(super) fd: VcpuFd,
    /// CPUID as the guest was given it.
    pub(super) cpuid: Vec<CpuidEntry>,
    /// Rate of the guest's TSC, once it was asked or set.
    pub(super) tsc_khz: Cell<Option<u32>>,
    /// What the kernel gave in one piece while this vCPU is saved.
    synced: Option<kvm_sync_regs>,
    index: u8,
    area: Arc<RunArea>,
    stop: Arc<KvmStop>,
}

impl KvmVcpu {
    pub(super) fn new(
        kvm: Arc<kvm_ioctls::Kvm>,
        vm: Arc<Machine>,
        fd: VcpuFd,
        index: u8,
    ) -> Result<Self, CreateError> {
        let map_error = |source| SystemError {
            call: "mmap of kvm_run",
            source,
        };
        let borrowed = super::save_restore::borrow_vcpu(&fd);
        let area = Arc::new(RunArea::map(borrowed, vm.run_size()).map_err(map_error)?);
        Ok(Self {
            kvm,
            vm,
            fd,
            cpuid: Vec::new(),
            tsc_khz: Cell::new(None),
            synced: None,
            index,
            stop: Arc::new(KvmStop::new(Arc::clone(&area))),
            area,
        })
    }

    /// General registers, system registers and pending events, which one KVM_RUN that does not enter the guest copies
    /// to the shared page: each call that loads the vCPU takes 10 us of a capture's standstill, and this one stands for
    /// three. `None` unless the vCPU is held (else it might run), or on a kernel without KVM_CAP_SYNC_REGS; then
    /// they are to be asked for one by one.
    pub(super) fn synced_registers(&mut self) -> Option<&kvm_sync_regs> {
        if self.synced.is_none() && self.area.is_immediate_exit_set() && self.vm.syncs_registers() {
            for registers in SYNCED {
                self.fd.set_sync_valid_reg(registers);
            }
            let outcome = self.fd.run().map(drop);
            for registers in SYNCED {
                self.fd.clear_sync_valid_reg(registers);
            }
            if outcome.is_err_and(|errno| errno.errno() == libc::EINTR) {
                self.synced = Some(self.fd.sync_regs());
            }
        }
        self.synced.as_ref()
    }

    /// To be called when the vCPU may have changed since.
    pub(super) fn forget_synced_registers(&mut self) {
        self.synced = None;
    }

    pub(super) fn give_cpuid(&mut self, rows: &[CpuidEntry]) -> Result<(), SystemError> {
        let entries: Vec<_> = rows.iter().map(Into::into).collect();
        let cpuid = CpuId::from_entries(&entries).map_err(|_| SystemError {
            call: "KVM_SET_CPUID2",
            source: std::io::ErrorKind::ArgumentListTooLong.into(),
        })?;
        self.fd
            .set_cpuid2(&cpuid)
            .map_err(failed("KVM_SET_CPUID2"))?;
        self.cpuid = rows.to_vec();
        Ok(())
    }
}

impl Vcpu for KvmVcpu {
    fn index(&self) -> u8 {
        self.index
    }

    fn set_cpu_model(&mut self, model: &CpuModel) -> Result<(), SystemError> {
        self.give_cpuid(&model.entries)
    }

    fn registers(&self) -> Result<(Registers, SystemRegisters), SystemError> {
        let registers = self.fd.get_regs().map_err(failed("KVM_GET_REGS"))?;
        let system = self.fd.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
        Ok(((&registers).into(), (&system).into()))
    }

    fn set_registers(
        &mut self,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError> {
        self.fd
            .set_sregs(&system.into())
            .map_err(failed("KVM_SET_SREGS"))?;
        self.fd
            .set_regs(&registers.into())
            .map_err(failed("KVM_SET_REGS"))
    }

    fn set_firmware_state(&mut self) -> Result<(), SystemError> {
        super::msrs::set_firmware_msrs(self)
    }

    fn bind_to_this_thread(&mut self) {
        self.stop.bind_to_this_thread();
    }

    fn run(&mut self) -> Result<VcpuExit<'_>, RunError> {
        let vcpu = self.index;
        loop {
            // The record is read from this crate's own mapping; what kvm-ioctls made of it is
            // not needed.
            let outcome = self.fd.run().map(drop);
            let Err(errno) = outcome else { break };
            match errno.errno() {
                libc::EINTR => return Ok(VcpuExit::Canceled),
                // A vCPU that has just left the wait for INIT: the kernel wants the call again.
                libc::EAGAIN => {}
                libc::EFAULT | libc::EHWPOISON => {
                    return Ok(VcpuExit::MemoryFault {
                        address: self.area.memory_fault_address(),
                    });
                }
                _ => {
                    return Err(RunError::System {
                        vcpu,
                        source: failed("KVM_RUN")(errno),
                    });
                }
            }
        }
        // SAFETY: the result borrows this vCPU, so it does not run, and the kernel leaves the page
        // alone, while the result lives; and no other exit of this vCPU is alive here.
        unsafe { self.area.exit() }.map_err(|what| RunError::MalformedExit { vcpu, what })
    }

    fn stop_handle(&self) -> Arc<dyn StopHandle> {
        Arc::clone(&self.stop) as Arc<dyn StopHandle>
    }

    fn hold(&mut self) {
        self.area.set_immediate_exit(true);
    }

    fn clear_stop(&mut self) {
        self.area.set_immediate_exit(false);
    }

    fn note_pause(&self) {
        // Refused where the guest has no kvmclock: then it has no place to look for it either.
        let _ = self.fd.kvmclock_ctrl();
    }

    fn save(&mut self) -> Result<VcpuState, StateError> {
        state_table::save(self)
    }

    fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        state_table::restore(self, state)
    }
}
