//! A KVM machine together with the memory that the kernel writes for it.

use std::ops::Deref;
use std::sync::Arc;

use kvm_ioctls::VmFd;
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
}

impl Deref for Machine {
    type Target = VmFd;

    fn deref(&self) -> &VmFd {
        &self.fd
    }
}
