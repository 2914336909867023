//! Starting a machine anew.

use std::sync::Arc;

use nvx_hypervisor::{Hypervisor, MAX_VCPUS, PartitionOptions, Registers, SystemRegisters, Vcpu};
use nvx_machine::EntryState;
use nvx_memory::{RamLayout, ViewKind};
use nvx_profile::Profile;
use nvx_snapshot::destination_checks;

use crate::assembly::{self, Parts};
use crate::error::{BootError, MachineError};
use crate::ram::{Ram, RamPlace, RamRequest};
use crate::vm::{CapturePolicy, Console, Vm, VmRam};

/// The operation's name in profile records.
const OPERATION: &str = "startup";

/// What a new machine is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootRequest {
    /// Guest RAM.
    pub layout: RamLayout,
    /// How many vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// The guest: an ELF file with a PVH entry.
    pub image: Vec<u8>,
    /// What the guest is told.
    pub command_line: String,
    /// Where guest RAM is to live.
    pub ram: RamRequest,
    /// What a capture does.
    pub capture: CapturePolicy,
}

/// Starts a guest on the back end that `open_backend` gives.
///
/// # Errors
/// The request is refused, the guest cannot be loaded, or the machine cannot be made.
pub fn boot(
    request: BootRequest,
    console: Console,
    open_backend: impl FnOnce() -> Result<Box<dyn Hypervisor>, MachineError>,
    mut profile: Profile,
) -> Result<Vm, BootError> {
    check(&request)?;
    let backend = profile.phase(OPERATION, "backend_open", |_| open_backend())?;
    let destination = request.capture.destination.as_deref();
    let place = RamPlace::decide(&request.ram, destination);
    let ram = profile.phase(OPERATION, "memory_create", |_| {
        Ram::create(request.layout, place)
    })?;
    let entry = profile.phase(OPERATION, "guest_load", |_| {
        nvx_machine::load_pvh(&ram.memory, &request.image, &request.command_line)
    })?;
    let Ram {
        memory,
        file,
        place,
    } = ram;
    let memory = Arc::new(memory);
    let parts = profile.phase(OPERATION, "partition_create", |_| {
        let options = PartitionOptions {
            // A shared file's pages are tracked by the kernel, anonymous ones by the page map.
            log_dirty_pages: memory.view_kind() == ViewKind::PrivateFile,
        };
        let mut parts = assembly::create(&*backend, &memory, request.vcpus, options, console)?;
        set_entry_state(&*backend, &mut parts, entry)?;
        Ok::<_, MachineError>(parts)
    })?;
    let ram = VmRam {
        memory,
        file,
        link_spent: false,
        place,
    };
    Ok(parts.into_vm(backend, ram, request.capture, profile, OPERATION))
}

/// What can be refused before anything is made.
fn check(request: &BootRequest) -> Result<(), BootError> {
    if !(1..=MAX_VCPUS).contains(&request.vcpus) {
        return Err(BootError::Vcpus {
            vcpus: request.vcpus,
            limit: MAX_VCPUS,
        });
    }
    match &request.capture.destination {
        Some(destination) => destination_checks(destination).map_err(BootError::Destination),
        None => Ok(()),
    }
}

/// Every vCPU gets its CPUID; the first one the PVH entry state. The others wait for INIT.
fn set_entry_state(
    backend: &dyn Hypervisor,
    parts: &mut Parts,
    entry: EntryState,
) -> Result<(), MachineError> {
    let model = backend.cpu_model()?;
    for vcpu in &mut parts.vcpus {
        vcpu.set_cpu_model(&model.for_vcpu(vcpu.index()))?;
    }
    if let Some(first) = parts.vcpus.first_mut() {
        enter_at(&mut **first, entry)?;
    }
    Ok(())
}

fn enter_at(vcpu: &mut dyn Vcpu, entry: EntryState) -> Result<(), MachineError> {
    let (_, reset) = vcpu.registers()?;
    let registers = Registers {
        rip: entry.rip,
        rbx: entry.start_info.0,
        // Bit 1 always reads as set (Intel SDM volume 1, figure 3-8).
        rflags: 2,
        ..Default::default()
    };
    vcpu.set_registers(&registers, &SystemRegisters::protected_mode_entry(&reset))?;
    Ok(())
}
