//! The page that the kernel shares with each vCPU: why it left the guest, and what the guest
//! wants.
//!
//! This is a mapping of its own (the vCPU's descriptor may be mapped any number of times), so
//! that a stop handle can outlive the vCPU, and all access is through raw pointers: the kernel
//! writes to the page whenever the vCPU runs.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_HLT, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_IO, KVM_EXIT_IO_IN,
    KVM_EXIT_MEMORY_FAULT, KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN, KVM_EXIT_SYSTEM_EVENT, kvm_run,
};
use nvx_memory::GuestAddress;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::exit::VcpuExit;

pub(super) struct RunArea {
    run: NonNull<kvm_run>,
    size_bytes: usize,
}

// SAFETY: the mapping is plain shared memory. Other threads than the vCPU's own only touch
// `immediate_exit`, and that atomically.
unsafe impl Send for RunArea {}
// SAFETY: as above.
unsafe impl Sync for RunArea {}

impl RunArea {
    /// Maps the shared page of the vCPU behind `vcpu`; `size_bytes` is what
    /// KVM_GET_VCPU_MMAP_SIZE says.
    pub(super) fn map(vcpu: impl AsFd, size_bytes: usize) -> io::Result<Self> {
        if size_bytes < size_of::<kvm_run>() {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                size_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                vcpu,
                0,
            )
        }?;
        let run = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { run, size_bytes })
    }

    /// While set, KVM_RUN finishes the last exit and returns without entering the guest.
    pub(super) fn set_immediate_exit(&self, on: bool) {
        self.immediate_exit().store(u8::from(on), Ordering::SeqCst);
    }

    /// Whether KVM_RUN would return without entering the guest.
    pub(super) fn is_immediate_exit_set(&self) -> bool {
        self.immediate_exit().load(Ordering::SeqCst) != 0
    }

    fn immediate_exit(&self) -> &AtomicU8 {
        // SAFETY: the field lies inside the mapping, which lives as long as `self`; it is one
        // byte, and all threads reach it by atomics.
        unsafe { AtomicU8::from_ptr(&raw mut (*self.run.as_ptr()).immediate_exit) }
    }

    /// Reads the exit record. The slices of the result point into the mapping.
    ///
    /// # Safety
    /// As long as the result lives the vCPU does not run, so that the kernel leaves the page
    /// alone, and no other result of this function is alive.
    pub(super) unsafe fn exit(&self) -> Result<VcpuExit<'_>, &'static str> {
        let run = self.run.as_ptr();
        // SAFETY: the field lies inside the mapping and is a plain integer.
        let reason = unsafe { (&raw const (*run).exit_reason).read_volatile() };
        match reason {
            KVM_EXIT_IO => self.port_exit(),
            KVM_EXIT_MMIO => self.mmio_exit(),
            KVM_EXIT_HLT => Ok(VcpuExit::Halted),
            KVM_EXIT_SHUTDOWN | KVM_EXIT_SYSTEM_EVENT => Ok(VcpuExit::Shutdown),
            KVM_EXIT_MEMORY_FAULT => Ok(VcpuExit::MemoryFault {
                address: self.memory_fault_address(),
            }),
            KVM_EXIT_INTERNAL_ERROR => Ok(VcpuExit::Unsupported(self.internal_error())),
            KVM_EXIT_FAIL_ENTRY => {
                // SAFETY: for this exit reason the kernel fills this member of the union.
                let reason = unsafe {
                    (&raw const (*run)
                        .__bindgen_anon_1
                        .fail_entry
                        .hardware_entry_failure_reason)
                        .read_volatile()
                };
                Ok(VcpuExit::Unsupported(format!(
                    "the processor refuses to enter the guest, reason {reason:#x}"
                )))
            }
            other => Ok(VcpuExit::Unsupported(format!("KVM exit reason {other}"))),
        }
    }

    /// The address of a KVM_EXIT_MEMORY_FAULT, if that is what the record holds.
    pub(super) fn memory_fault_address(&self) -> Option<GuestAddress> {
        let run = self.run.as_ptr();
        // SAFETY: both fields lie inside the mapping; the union member is read only for the exit
        // reason that fills it.
        unsafe {
            if (&raw const (*run).exit_reason).read_volatile() != KVM_EXIT_MEMORY_FAULT {
                return None;
            }
            Some(GuestAddress(
                (&raw const (*run).__bindgen_anon_1.memory_fault.gpa).read_volatile(),
            ))
        }
    }

    fn port_exit(&self) -> Result<VcpuExit<'_>, &'static str> {
        // SAFETY: for this exit reason the kernel fills this member of the union.
        let io = unsafe { (&raw const (*self.run.as_ptr()).__bindgen_anon_1.io).read_volatile() };
        let length = usize::from(io.size)
            .checked_mul(io.count as usize)
            .filter(|length| *length > 0)
            .ok_or("port exit without data")?;
        let offset = usize::try_from(io.data_offset).map_err(|_| "port data offset")?;
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.size_bytes)
        {
            return Err("port data outside the shared page");
        }
        // SAFETY: the range was checked to lie inside the mapping, and the caller keeps the vCPU
        // from running (and so the kernel from writing) while the slice lives.
        let data = unsafe {
            std::slice::from_raw_parts_mut(self.run.as_ptr().cast::<u8>().add(offset), length)
        };
        Ok(if u32::from(io.direction) == KVM_EXIT_IO_IN {
            VcpuExit::PortRead {
                port: io.port,
                width: io.size,
                data,
            }
        } else {
            VcpuExit::PortWrite {
                port: io.port,
                width: io.size,
                data,
            }
        })
    }

    fn mmio_exit(&self) -> Result<VcpuExit<'_>, &'static str> {
        // SAFETY: for this exit reason the kernel fills this member of the union.
        let mmio = unsafe { &raw mut (*self.run.as_ptr()).__bindgen_anon_1.mmio };
        // SAFETY: as above; the fields are plain integers inside the mapping.
        let (address, length, is_write) = unsafe {
            (
                (&raw const (*mmio).phys_addr).read_volatile(),
                (&raw const (*mmio).len).read_volatile() as usize,
                (&raw const (*mmio).is_write).read_volatile() != 0,
            )
        };
        if !(1..=8).contains(&length) {
            return Err("MMIO length");
        }
        // SAFETY: the array has eight bytes, the length was checked, and the caller keeps the
        // vCPU from running while the slice lives.
        let data =
            unsafe { std::slice::from_raw_parts_mut((&raw mut (*mmio).data).cast::<u8>(), length) };
        let address = GuestAddress(address);
        Ok(if is_write {
            VcpuExit::MmioWrite { address, data }
        } else {
            VcpuExit::MmioRead { address, data }
        })
    }

    fn internal_error(&self) -> String {
        // SAFETY: for this exit reason the kernel fills this member of the union.
        let internal =
            unsafe { (&raw const (*self.run.as_ptr()).__bindgen_anon_1.internal).read_volatile() };
        let kind = match internal.suberror {
            1 => "an instruction that KVM cannot emulate",
            2 => "an event that came up while another was delivered",
            3 => "an event that could not be delivered",
            4 => "an exit that KVM does not know",
            _ => "an internal error",
        };
        let details: Vec<String> = internal
            .data
            .iter()
            .take(internal.ndata as usize)
            .map(|word| format!("{word:#x}"))
            .collect();
        format!(
            "KVM reports {kind} (suberror {}, data [{}])",
            internal.suberror,
            details.join(", ")
        )
    }
}

impl Drop for RunArea {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this size and nothing refers to it any more:
        // exits borrow the vCPU, which holds this area.
        let _ = unsafe { munmap(self.run.as_ptr().cast(), self.size_bytes) };
    }
}
