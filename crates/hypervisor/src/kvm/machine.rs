//! A KVM machine together with the memory that the kernel writes for it.

use std::ops::Deref;
use std::sync::Arc;

use kvm_bindings::{KVM_SYNC_X86_EVENTS, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS};
use kvm_ioctls::{Cap, VmFd};
use nvx_memory::GuestMemory;

/// The VM's descriptor, shared by the partition, its vCPUs and its interrupt chip. Whoever can
/// run the guest or change its slots holds one, and with it guest RAM.
pub(super) struct Machine {
    fd: VmFd,
    /// The kernel writes to these mappings as long as the machine exists; declared last so that
    /// it is dropped last.
    _memory: Arc<GuestMemory>,
}

impl Machine {
    pub(super) fn new(fd: VmFd, memory: Arc<GuestMemory>) -> Self {
        Self {
            fd,
            _memory: memory,
        }
    }

    /// Whether KVM_RUN can copy a vCPU's registers and pending events to the shared page.
    pub(super) fn syncs_registers(&self) -> bool {
        let wanted = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS;
        let offered = self.fd.check_extension_int(Cap::SyncRegs);
        u32::try_from(offered).is_ok_and(|offered| offered & wanted == wanted)
    }
}

impl Deref for Machine {
    type Target = VmFd;

    fn deref(&self) -> &VmFd {
        &self.fd
    }
}
