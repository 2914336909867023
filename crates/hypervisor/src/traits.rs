//! The three traits a back end implements, and the optional powers beside them.

use std::sync::Arc;

use nvx_memory::GuestMemory;

use crate::cpu::CpuModel;
use crate::error::{CreateError, RunError, StateError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::{IrqChipState, VcpuState};

/// A back end that is open and usable.
pub trait Hypervisor: Send + Sync {
    /// The back end's name, as `--backend` and the manifest have it.
    fn name(&self) -> &'static str;

    /// The CPU that this host can offer to a guest.
    ///
    /// # Errors
    /// The hypervisor does not answer.
    fn cpu_model(&self) -> Result<CpuModel, SystemError>;

    /// Makes a partition whose RAM is `memory`, without vCPUs.
    ///
    /// # Errors
    /// A step of the set-up or a RAM range is refused.
    fn create_partition(
        &self,
        memory: &Arc<GuestMemory>,
        options: PartitionOptions,
    ) -> Result<Box<dyn Partition>, CreateError>;
}

/// What a partition is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionOptions {
    /// Keep a log of the pages that the guest writes, for [`Partition::dirty_log`]. It costs a
    /// fault at the first write to each page and rules out huge pages, so it is asked for only
    /// where the log is the cheapest way to know what a capture must copy.
    pub log_dirty_pages: bool,
}

/// A virtual machine: guest RAM, interrupt chip and clock, and the maker of its vCPUs.
pub trait Partition: Send + Sync {
    /// Makes vCPU `index`. Index 0 is the one that boots; the others wait for INIT.
    ///
    /// # Errors
    /// The index is beyond the contract's bound, taken, or the hypervisor refuses.
    fn create_vcpu(&self, index: u8) -> Result<Box<dyn Vcpu>, CreateError>;

    /// Whether every store of the guest goes through [`GuestMemory`]'s own accessor, which notes it:
    /// then no log and no help of the operating system is needed to know what was written.
    fn stores_through_accessor(&self) -> bool {
        false
    }

    /// The interrupt chip, where the back end has one.
    fn irq_chip(&self) -> Option<&dyn IrqChip> {
        None
    }

    /// The log of pages written by the guest, where it was asked for and is kept.
    fn dirty_log(&self) -> Option<&dyn DirtyLog> {
        None
    }

    /// The paravirtual clock, where the back end has one.
    fn clock(&self) -> Option<&dyn GuestClock> {
        None
    }
}

/// One virtual processor. It is driven by the thread that bound it; other threads hold a
/// [`StopHandle`].
///
/// Order: [`Vcpu::set_cpu_model`] or [`Vcpu::restore`] first, then [`Vcpu::bind_to_this_thread`],
/// then [`Vcpu::run`] from that same thread. While no thread runs it, the vCPU's state may be
/// saved from any thread.
pub trait Vcpu: Send {
    /// The vCPU's index, which is also its APIC id.
    fn index(&self) -> u8;

    /// Gives the vCPU its CPUID. To be called once, before the first run.
    ///
    /// # Errors
    /// The hypervisor refuses the model.
    fn set_cpu_model(&mut self, model: &CpuModel) -> Result<(), SystemError>;

    /// Reads the registers.
    ///
    /// # Errors
    /// The hypervisor does not answer.
    fn registers(&self) -> Result<(Registers, SystemRegisters), SystemError>;

    /// Sets the registers. Not to be called between an exit and the run that finishes it.
    ///
    /// # Errors
    /// The hypervisor refuses a value.
    fn set_registers(
        &mut self,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError>;

    /// Sets what firmware sets before it starts a kernel, for a kernel that is started without any:
    /// memory is write-back unless a register says otherwise. A back end that keeps no such registers
    /// has nothing to do.
    ///
    /// # Errors
    /// The hypervisor refuses a register.
    fn set_firmware_state(&mut self) -> Result<(), SystemError> {
        Ok(())
    }

    /// Makes the calling thread the one that runs this vCPU, so that a stop reaches it.
    fn bind_to_this_thread(&mut self);

    /// Finishes the last exit, then executes guest instructions until the next one.
    ///
    /// While a stop is asked for ([`StopHandle::request_stop`], until [`Vcpu::clear_stop`]) no
    /// instruction is executed: the call finishes the last exit and returns
    /// [`VcpuExit::Canceled`], or the further exit that finishing it took.
    ///
    /// # Errors
    /// The hypervisor refuses to run the vCPU.
    fn run(&mut self) -> Result<VcpuExit<'_>, RunError>;

    /// A handle by which any thread stops this vCPU.
    fn stop_handle(&self) -> Arc<dyn StopHandle>;

    /// As [`StopHandle::request_stop`], by the thread that runs this vCPU: nothing has to be
    /// interrupted.
    fn hold(&mut self);

    /// Ends a stop, so that [`Vcpu::run`] executes instructions again.
    fn clear_stop(&mut self);

    /// Tells the guest, where it has a way to hear it, that this vCPU stood still for a time that its clocks
    /// counted: a watchdog of the guest must not take it for a processor that hangs. To be called before the
    /// vCPU runs again.
    fn note_pause(&self) {}

    /// Reads all state. The vCPU must be stopped with no unfinished exit.
    ///
    /// # Errors
    /// An element of the back end's state table cannot be read; it is named.
    fn save(&mut self) -> Result<VcpuState, StateError>;

    /// Writes all state into a vCPU that has not run.
    ///
    /// # Errors
    /// An element of the back end's state table is missing or refused; it is named.
    fn restore(&mut self, state: &VcpuState) -> Result<(), StateError>;
}

/// Stops one vCPU, whatever it is doing.
pub trait StopHandle: Send + Sync {
    /// Makes the current or next [`Vcpu::run`] return without executing further instructions,
    /// and keeps it so until [`Vcpu::clear_stop`]. Never blocks.
    fn request_stop(&self);
}

/// An interrupt chip: PICs, IOAPIC and PIT.
pub trait IrqChip: Send + Sync {
    /// Sets the level of interrupt line `gsi`.
    ///
    /// # Errors
    /// The hypervisor refuses the line.
    fn set_line(&self, gsi: u32, asserted: bool) -> Result<(), SystemError>;

    /// Sends a message-signalled interrupt.
    ///
    /// # Errors
    /// The hypervisor refuses the message.
    fn msi(&self, address: u64, data: u32) -> Result<(), SystemError>;

    /// Reads the chip's state. All vCPUs must be stopped.
    ///
    /// # Errors
    /// A part cannot be read; it is named.
    fn save(&self) -> Result<IrqChipState, StateError>;

    /// Writes the chip's state. To be called after every vCPU's [`Vcpu::restore`]: setting the
    /// IOAPIC sends pending level interrupts to the local APICs again, so these must be there.
    ///
    /// # Errors
    /// A part is malformed or refused; it is named.
    fn restore(&self, state: &IrqChipState) -> Result<(), StateError>;
}

/// The pages that the guest has written since the last call.
pub trait DirtyLog: Send + Sync {
    /// Takes the log of RAM range `range` (its index in the layout): bit n of word w is page
    /// 64 w + n of the range. The log starts anew.
    ///
    /// # Errors
    /// The hypervisor does not answer.
    fn take(&self, range: usize) -> Result<Vec<u64>, SystemError>;
}

/// The clock that a guest reads through shared memory.
pub trait GuestClock: Send + Sync {
    /// Nanoseconds of guest time.
    ///
    /// # Errors
    /// The hypervisor does not answer.
    fn get(&self) -> Result<u64, SystemError>;

    /// Lets guest time go on from `guest_ns`. The last step before the vCPUs run, since time
    /// passes from here on.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn set(&self, guest_ns: u64) -> Result<(), SystemError>;
}
