//! The `soft` back end: a CPU in software, so that the built-in guest runs where there is no
//! hypervisor.
//!
//! It is for that guest only ([`PURPOSE`]): 32-bit protected mode with flat segments and no
//! paging, the few instructions that the guest consists of, no interrupts, no devices of its own.
//! Whatever else a guest tries ends in [`VcpuExit::Unsupported`](crate::VcpuExit::Unsupported)
//! with the address, the bytes and the disassembly. Other vCPUs than the first exist, are saved
//! and restored, and wait for an INIT that never comes.
//!
//! Machine code is decoded once per address into the form in which it is executed, and kept with
//! its bytes (`code_cache`). Guest RAM is reached through [`GuestMemory`]'s checked accessors
//! alone, so its dirty set needs no log beside it; what they refuse becomes an MMIO exit.
//!
//! Nothing that the guest sees depends on the host's processor: a snapshot of this back end
//! continues on this back end of any machine.

#![forbid(unsafe_code)]

mod alu;
mod code_cache;
mod cpu;
mod instruction;
mod mode;
mod state;
mod stop;
mod time_stamp;
mod vcpu;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nvx_memory::GuestMemory;

use crate::MAX_VCPUS;
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, SystemError};
use crate::traits::{Hypervisor, Partition, PartitionOptions, Vcpu};

/// The back end's name, as `--backend` and the manifest have it.
pub const NAME: &str = "soft";

/// What the back end is good for, as a phrase to be shown wherever it is used.
pub const PURPOSE: &str = "software CPU for the built-in guest only: 32-bit protected mode, no \
                           interrupts, one running vCPU";

/// CPUID leaf 1 EDX: the time-stamp counter, the only feature there is.
const FEATURE_TSC: u32 = 1 << 4;

/// The software back end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Soft;

impl Soft {
    /// The back end; it is there on every host.
    pub fn new() -> Self {
        Self
    }
}

impl Hypervisor for Soft {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_model(&self) -> Result<CpuModel, SystemError> {
        let vendor = |text: &[u8; 4]| u32::from_le_bytes(*text);
        let leaf = |leaf| CpuidEntry {
            leaf,
            ..Default::default()
        };
        Ok(CpuModel {
            entries: vec![
                CpuidEntry {
                    eax: 1,
                    ebx: vendor(b"NVX-"),
                    edx: vendor(b"Soft"),
                    ecx: vendor(b"ware"),
                    ..leaf(0)
                },
                CpuidEntry {
                    edx: FEATURE_TSC,
                    ..leaf(1)
                },
            ],
        })
    }

    fn create_partition(
        &self,
        memory: &Arc<GuestMemory>,
        _options: PartitionOptions,
    ) -> Result<Box<dyn Partition>, CreateError> {
        Ok(Box::new(SoftPartition {
            memory: Arc::clone(memory),
            taken: AtomicU8::new(0),
        }))
    }
}

struct SoftPartition {
    memory: Arc<GuestMemory>,
    /// Bit n: vCPU n has been made.
    taken: AtomicU8,
}

impl Partition for SoftPartition {
    fn stores_through_accessor(&self) -> bool {
        true
    }

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
                call: "creation of a software vCPU",
                source: io::ErrorKind::AlreadyExists.into(),
            }));
        }
        Ok(Box::new(vcpu::SoftVcpu::new(
            index,
            Arc::clone(&self.memory),
        )))
    }
}
