//! Saved state of vCPUs and of the interrupt chip, as neutral protobuf messages.

use crate::cpu::CpuidEntry;
use crate::error::StateError;
use crate::registers::{Registers, SystemRegisters};

/// A message that is one payload of a snapshot's state file.
pub trait SavedState: prost::Message + Default {
    /// The payload's kind.
    const KIND: &'static str;
    /// The payload's version. A field that older builds may ignore needs no new version; a change
    /// of meaning does.
    const VERSION: u32;

    /// The payload's bytes.
    fn to_payload(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads a payload back.
    ///
    /// # Errors
    /// The bytes are no message of this kind.
    fn from_payload(bytes: &[u8]) -> Result<Self, StateError> {
        Self::decode(bytes).map_err(|error| StateError::Incompatible {
            element: Self::KIND,
            what: error.to_string(),
        })
    }
}

impl SavedState for VcpuState {
    const KIND: &'static str = "vcpu.x86-64";
    const VERSION: u32 = 1;
}

impl SavedState for IrqChipState {
    const KIND: &'static str = "irq-chip";
    const VERSION: u32 = 1;
}

impl SavedState for ClockState {
    const KIND: &'static str = "guest-clock";
    const VERSION: u32 = 1;
}

/// The guest's paravirtual clock.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClockState {
    /// Nanoseconds of guest time.
    #[prost(uint64, tag = "1")]
    pub guest_ns: u64,
}

/// Everything of one vCPU that a capture keeps.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VcpuState {
    /// CPUID as the guest sees it.
    #[prost(message, repeated, tag = "1")]
    pub cpuid: Vec<CpuidEntry>,
    /// General registers.
    #[prost(message, optional, tag = "2")]
    pub registers: Option<Registers>,
    /// Segment, table and control registers.
    #[prost(message, optional, tag = "3")]
    pub system_registers: Option<SystemRegisters>,
    /// Extended control registers (XCR0).
    #[prost(message, repeated, tag = "4")]
    pub extended_control_registers: Vec<ExtendedControlRegister>,
    /// The XSAVE area in the processor's standard (not compacted) format.
    #[prost(bytes = "vec", tag = "5")]
    pub xsave: Vec<u8>,
    /// Debug registers.
    #[prost(message, optional, tag = "6")]
    pub debug_registers: Option<DebugRegisters>,
    /// Whether the vCPU runs, is halted, or waits for INIT or SIPI.
    #[prost(enumeration = "RunState", tag = "7")]
    pub run_state: i32,
    /// The local APIC's register page (Intel SDM volume 3, table 12-1), 1 KiB.
    #[prost(bytes = "vec", tag = "8")]
    pub lapic: Vec<u8>,
    /// Model-specific registers in the order in which they are to be written.
    #[prost(message, repeated, tag = "9")]
    pub msrs: Vec<Msr>,
    /// Events on their way into the vCPU.
    #[prost(message, optional, tag = "10")]
    pub events: Option<PendingEvents>,
    /// Rate of the guest's time-stamp counter in kHz; 0 where the back end does not tell.
    #[prost(uint32, tag = "11")]
    pub tsc_khz: u32,
}

/// One XCR.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ExtendedControlRegister {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Its value.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// DR0 to DR3, DR6 and DR7.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DebugRegisters {
    /// The four address registers.
    #[prost(uint64, repeated, tag = "1")]
    pub addresses: Vec<u64>,
    /// Status.
    #[prost(uint64, tag = "2")]
    pub dr6: u64,
    /// Control.
    #[prost(uint64, tag = "3")]
    pub dr7: u64,
}

/// One model-specific register.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Msr {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub index: u32,
    /// Its value.
    #[prost(uint64, tag = "2")]
    pub value: u64,
}

/// What a vCPU does when it is let run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum RunState {
    /// Executes instructions.
    Runnable = 0,
    /// Waits for INIT, as an application processor after power-on.
    Uninitialized = 1,
    /// Has had INIT and waits for a start-up IPI.
    InitReceived = 2,
    /// Executed HLT and waits for an interrupt.
    Halted = 3,
    /// Has been sent a start-up IPI that it has not acted on.
    SipiReceived = 4,
}

/// Exceptions, interrupts, NMIs and SMIs that are being delivered or wait for delivery.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PendingEvents {
    /// An exception is being injected.
    #[prost(bool, tag = "1")]
    pub exception_injected: bool,
    /// An exception is pending but may still be intercepted.
    #[prost(bool, tag = "2")]
    pub exception_pending: bool,
    /// Its vector.
    #[prost(uint32, tag = "3")]
    pub exception_vector: u32,
    /// Its error code, if it has one.
    #[prost(uint32, optional, tag = "4")]
    pub exception_error_code: Option<u32>,
    /// Its payload (DR6 or CR2), if it has one.
    #[prost(uint64, optional, tag = "5")]
    pub exception_payload: Option<u64>,
    /// An external interrupt is being injected.
    #[prost(bool, tag = "6")]
    pub interrupt_injected: bool,
    /// Its vector.
    #[prost(uint32, tag = "7")]
    pub interrupt_vector: u32,
    /// It came from a software interrupt instruction.
    #[prost(bool, tag = "8")]
    pub interrupt_soft: bool,
    /// Interrupt shadow: bit 0 after MOV SS, bit 1 after STI.
    #[prost(uint32, tag = "9")]
    pub interrupt_shadow: u32,
    /// An NMI is being injected.
    #[prost(bool, tag = "10")]
    pub nmi_injected: bool,
    /// How many NMIs wait.
    #[prost(uint32, tag = "11")]
    pub nmi_pending: u32,
    /// NMIs are blocked until IRET.
    #[prost(bool, tag = "12")]
    pub nmi_masked: bool,
    /// Vector of the last start-up IPI.
    #[prost(uint32, tag = "13")]
    pub sipi_vector: u32,
    /// The vCPU is in system management mode.
    #[prost(bool, tag = "14")]
    pub in_smm: bool,
    /// An SMI waits.
    #[prost(bool, tag = "15")]
    pub smi_pending: bool,
    /// The SMI came while an NMI was being handled.
    #[prost(bool, tag = "16")]
    pub smm_inside_nmi: bool,
    /// INIT is latched while in system management mode.
    #[prost(uint32, tag = "17")]
    pub latched_init: u32,
    /// A triple fault waits to be reported.
    #[prost(bool, tag = "18")]
    pub triple_fault_pending: bool,
}

/// State of an interrupt chip: both PICs, the IOAPIC and the PIT.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct IrqChipState {
    /// Which layout the byte fields have: `kvm` = the structures `kvm_pic_state`,
    /// `kvm_ioapic_state` and `kvm_pit_state2` of Linux's `arch/x86/include/uapi/asm/kvm.h`.
    #[prost(string, tag = "1")]
    pub layout: String,
    /// The first PIC (IRQ 0 to 7).
    #[prost(bytes = "vec", tag = "2")]
    pub pic_primary: Vec<u8>,
    /// The second PIC (IRQ 8 to 15).
    #[prost(bytes = "vec", tag = "3")]
    pub pic_secondary: Vec<u8>,
    /// The IOAPIC with its redirection table and asserted lines.
    #[prost(bytes = "vec", tag = "4")]
    pub ioapic: Vec<u8>,
    /// The programmable interval timer.
    #[prost(bytes = "vec", tag = "5")]
    pub pit: Vec<u8>,
}
