//! Starting a machine anew.

use std::borrow::Cow;

use nvx_hypervisor::{
    Hypervisor, MAX_VCPUS, OpenError as BackendError, PartitionOptions, Registers, SystemRegisters,
    Vcpu,
};
use nvx_machine::EntryState;
use nvx_memory::RamLayout;
use nvx_profile::Profile;
use nvx_snapshot::Destination;

use crate::assembly::{self, Parts};
use crate::error::{BootError, MachineError};
use crate::ram::{RamPlace, RamRequest, VmRam};
use crate::vm::{Console, Vm, VmOptions};

/// The operation's name in profile records.
const OPERATION: &str = "startup";

/// What a new machine is asked for.
#[derive(Debug)]
pub struct BootRequest {
    /// Guest RAM.
    pub layout: RamLayout,
    /// How many vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// The guest: an ELF file with a PVH entry.
    pub image: Cow<'static, [u8]>,
    /// What the guest is told.
    pub command_line: String,
    /// Where guest RAM is to live.
    pub ram: RamRequest,
    /// What the VM is given besides.
    pub options: VmOptions,
}

/// Starts a guest on the back end that `open_backend` gives; it is asked without the name of a back
/// end that a snapshot was captured on.
///
/// # Errors
/// The request is refused, the guest cannot be loaded, or the machine cannot be made.
pub fn boot(
    request: BootRequest,
    console: Console,
    open_backend: impl FnOnce(Option<&str>) -> Result<Box<dyn Hypervisor>, BackendError>,
    mut profile: Profile,
) -> Result<Vm, BootError> {
    check_vcpus(request.vcpus)?;
    let backend = profile.phase(OPERATION, "backend_open", |_| {
        open_backend(None).map_err(MachineError::from)
    })?;
    let destination = request.options.capture.destination.as_ref();
    let place = RamPlace::decide(&request.ram, destination.map(Destination::path))?;
    let ram = profile.phase(OPERATION, "memory_create", |_| {
        VmRam::create(request.layout, place, request.ram.writeback)
    })?;
    let entry = profile.phase(OPERATION, "guest_load", |_| {
        nvx_machine::load_pvh(&ram.memory, &request.image, &request.command_line)
    })?;
    let parts = profile.phase(OPERATION, "partition_create", |_| {
        // Of a shared file and of anonymous memory the kernel itself knows the pages in use.
        let options = PartitionOptions {
            log_dirty_pages: false,
        };
        let mut parts = assembly::create(&*backend, &ram.memory, request.vcpus, options, console)?;
        set_entry_state(&*backend, &mut parts, entry)?;
        Ok::<_, MachineError>(parts)
    })?;
    Ok(parts.into_vm(backend, ram, request.options, profile, OPERATION))
}

fn check_vcpus(vcpus: u8) -> Result<(), BootError> {
    if (1..=MAX_VCPUS).contains(&vcpus) {
        Ok(())
    } else {
        Err(BootError::Vcpus {
            vcpus,
            limit: MAX_VCPUS,
        })
    }
}

/// Every vCPU gets its CPUID; the first one the PVH entry state. The others wait for INIT.
fn set_entry_state(
    backend: &dyn Hypervisor,
    parts: &mut Parts,
    entry: EntryState,
) -> Result<(), MachineError> {
    let model = backend.cpu_model()?;
    for vcpu in parts.vcpus() {
        vcpu.set_cpu_model(&model.for_vcpu(vcpu.index()))?;
    }
    enter_at(&mut *parts.first_vcpu, entry)
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
