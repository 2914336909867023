//! Starting a machine anew.

use std::borrow::Cow;

use nvx_hypervisor::{
    CpuModel, Hypervisor, MAX_VCPUS, OpenError as BackendError, PartitionOptions, Registers,
    SystemRegisters, TableRegister, Vcpu,
};
use nvx_machine::kernel::Kernel;
use nvx_machine::{InitramfsSource, LinuxEntry, LinuxGuest};
use nvx_memory::{GuestMemory, RamLayout};
use nvx_profile::Profile;
use nvx_snapshot::Destination;

use crate::assembly::{self, Parts};
use crate::error::{BootError, MachineError};
use crate::platform::PlatformKind;
use crate::ram::{RamPlace, RamRequest, VmRam};
use crate::vm::{Console, Vm, VmOptions};

/// The operation's name in profile records.
const OPERATION: &str = "startup";

/// What is to run in a new machine.
pub enum BootGuest {
    /// A guest that needs no more than the paravirtual ports.
    Plain {
        /// An ELF file with a PVH entry.
        image: Cow<'static, [u8]>,
        /// What the guest is told.
        command_line: String,
    },
    /// A stock Linux kernel, which gets the platform that it needs.
    Linux {
        /// The kernel.
        kernel: Kernel<'static>,
        /// Its initramfs.
        initramfs: Option<Box<dyn InitramfsSource>>,
        /// What the kernel is told.
        command_line: String,
    },
}

impl BootGuest {
    fn platform(&self) -> PlatformKind {
        match self {
            Self::Plain { .. } => PlatformKind::None,
            Self::Linux { .. } => PlatformKind::Linux,
        }
    }

    /// Puts the guest into new memory.
    fn load(self, memory: &GuestMemory, vcpus: u8) -> Result<LinuxEntry, BootError> {
        match self {
            Self::Plain {
                image,
                command_line,
            } => Ok(LinuxEntry::Pvh(nvx_machine::load_pvh(
                memory,
                &image,
                &command_line,
            )?)),
            Self::Linux {
                kernel,
                mut initramfs,
                command_line,
            } => Ok(nvx_machine::load_linux(
                memory,
                LinuxGuest {
                    kernel: &kernel,
                    initramfs: initramfs
                        .as_deref_mut()
                        .map(|source| source as &mut dyn InitramfsSource),
                    command_line: &command_line,
                    vcpus,
                },
            )?),
        }
    }
}

/// The CPU that a new machine's guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuChoice {
    /// All that this host can offer.
    #[default]
    Host,
    /// What every host of this vendor can offer, so that a snapshot is portable.
    Baseline,
}

/// What a new machine is asked for.
pub struct BootRequest {
    /// Guest RAM.
    pub layout: RamLayout,
    /// How many vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// The guest.
    pub guest: BootGuest,
    /// The CPU that it sees.
    pub cpu: CpuChoice,
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
    let platform = request.guest.platform();
    let entry = profile.phase(OPERATION, "guest_load", |_| {
        request.guest.load(&ram.memory, request.vcpus)
    })?;
    let parts = profile.phase(OPERATION, "partition_create", |_| {
        // Of a shared file and of anonymous memory the kernel itself knows the pages in use.
        let options = PartitionOptions {
            log_dirty_pages: false,
        };
        let mut parts = assembly::create(
            &*backend,
            &ram.memory,
            request.vcpus,
            platform,
            options,
            console,
        )?;
        let mut model = backend.cpu_model().map_err(MachineError::from)?;
        if request.cpu == CpuChoice::Baseline {
            model = model.baseline().map_err(MachineError::from)?;
        }
        set_entry_state(model, &mut parts, platform, entry)?;
        if platform == PlatformKind::Linux {
            parts.begin_generation(&ram.memory)?;
        }
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
    mut model: CpuModel,
    parts: &mut Parts,
    platform: PlatformKind,
    entry: LinuxEntry,
) -> Result<(), MachineError> {
    if platform == PlatformKind::Linux {
        model = model.with_topology(parts.vcpu_count());
    }
    for vcpu in parts.vcpus() {
        vcpu.set_cpu_model(&model.for_vcpu(vcpu.index()))?;
        if platform == PlatformKind::Linux {
            vcpu.set_firmware_state()?;
        }
    }
    enter_at(&mut *parts.first_vcpu, entry)
}

fn enter_at(vcpu: &mut dyn Vcpu, entry: LinuxEntry) -> Result<(), MachineError> {
    let (_, reset) = vcpu.registers()?;
    let mut registers = Registers {
        // Bit 1 always reads as set (Intel SDM volume 1, figure 3-8).
        rflags: 2,
        ..Default::default()
    };
    let system = match entry {
        LinuxEntry::Pvh(state) => {
            registers.rip = state.rip;
            registers.rbx = state.start_info.0;
            SystemRegisters::protected_mode_entry(&reset)
        }
        LinuxEntry::Boot64(state) => {
            registers.rip = state.rip;
            registers.rsi = state.zero_page.0;
            let descriptors = TableRegister {
                base: state.descriptors.0,
                limit: state.descriptors_limit,
            };
            SystemRegisters::long_mode_entry(&reset, state.page_tables.0, descriptors)
        }
    };
    vcpu.set_registers(&registers, &system)?;
    Ok(())
}
