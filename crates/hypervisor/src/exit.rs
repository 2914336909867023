//! Why a vCPU stopped running.

use nvx_memory::GuestAddress;

/// One reason to leave the guest. Slices point into the back end's own exchange buffer: what a
/// read leaves there reaches the guest when the vCPU runs next.
#[derive(Debug)]
pub enum VcpuExit<'a> {
    /// The guest reads a port; `data` holds `data.len() / width` elements of `width` bytes
    /// (more than one for a string instruction).
    PortRead {
        /// The port's address.
        port: u16,
        /// Bytes of one element: 1, 2 or 4.
        width: u8,
        /// To be filled in by the caller.
        data: &'a mut [u8],
    },
    /// The guest writes a port; the shape of `data` is that of [`VcpuExit::PortRead`].
    PortWrite {
        /// The port's address.
        port: u16,
        /// Bytes of one element: 1, 2 or 4.
        width: u8,
        /// What the guest wrote.
        data: &'a [u8],
    },
    /// The guest reads memory that no slot backs.
    MmioRead {
        /// Guest physical address.
        address: GuestAddress,
        /// To be filled in by the caller; 1 to 8 bytes.
        data: &'a mut [u8],
    },
    /// The guest writes memory that no slot backs.
    MmioWrite {
        /// Guest physical address.
        address: GuestAddress,
        /// What the guest wrote; 1 to 8 bytes.
        data: &'a [u8],
    },
    /// The vCPU executed HLT. Only back ends without an interrupt chip of their own say so; one
    /// that has a chip waits inside [`crate::Vcpu::run`].
    Halted,
    /// A stop was asked for: no exit is unfinished and no guest instruction is half done.
    Canceled,
    /// Triple fault, or another event after which the vCPU cannot go on.
    Shutdown,
    /// The hypervisor could not reach a page of guest RAM.
    MemoryFault {
        /// The page, where the hypervisor tells.
        address: Option<GuestAddress>,
    },
    /// The hypervisor cannot execute what the guest does; the text says what it reported.
    Unsupported(String),
}
