//! Restore: from a snapshot to a machine that goes on where it was captured.
//!
//! [`restore`] is the protocol: open and check, map RAM privately, build the machine from the
//! manifest alone, then state in the order vCPUs, interrupt chip, devices, clock. Everything that
//! can be refused without a machine is refused before one is built.

use std::path::{Path, PathBuf};

use nvx_devices::Outcome as SnapshotOutcome;
use nvx_hypervisor::{
    CpuModel, FeatureRegister, FeatureWord, Hypervisor, OpenError as BackendError,
    PartitionOptions, missing_features,
};
use nvx_memory::{GuestMemory, RamLayout};
use nvx_profile::Profile;
use nvx_snapshot::{CpuRegister, Manifest, Snapshot};

use crate::assembly::{self, Parts};
use crate::error::{MachineError, RestoreError};
use crate::platform::PlatformKind;
use crate::ram::{RamError, VmRam};
use crate::state_file::Units;
use crate::vm::{Console, Vm, VmOptions};

/// The operation's name in profile records.
pub(crate) const OPERATION: &str = "restore";

/// What the wall clock of a restored guest does. Its monotonic clock goes on from the captured value
/// either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockPolicy {
    /// It is set to the host's time.
    #[default]
    Advance,
    /// It goes on from the captured time.
    Freeze,
}

/// What a restore is asked for.
#[derive(Debug)]
pub struct RestoreRequest {
    /// The snapshot directory.
    pub snapshot: PathBuf,
    /// What the guest's wall clock does, of a guest that repairs itself.
    pub clock: ClockPolicy,
    /// The content of memory is checked against the manifest's digests first.
    pub verify: bool,
    /// Memory is copied and not mapped, so that nobody who writes to the snapshot reaches the VM.
    pub private_copy: bool,
    /// What the VM is given besides.
    pub options: VmOptions,
}

/// Restores a snapshot on the back end that `open_backend` gives, which is told on which one the
/// snapshot was captured.
///
/// # Errors
/// The snapshot is refused, does not fit this host, or the machine cannot be made.
pub fn restore(
    request: RestoreRequest,
    console: Console,
    open_backend: impl FnOnce(Option<&str>) -> Result<Box<dyn Hypervisor>, BackendError>,
    mut profile: Profile,
) -> Result<Vm, RestoreError> {
    let (snapshot, backend, platform) = profile.phase(OPERATION, "artifact_open", |_| {
        let snapshot = Snapshot::open(&request.snapshot)?;
        let platform = check_contract(snapshot.manifest(), &request.snapshot)?;
        let captured_on = snapshot.manifest().backend.as_str();
        let backend = open_backend(Some(captured_on)).map_err(MachineError::from)?;
        check_host(snapshot.manifest(), &*backend, &request.snapshot)?;
        Ok::<_, RestoreError>((snapshot, backend, platform))
    })?;
    let ram = take_memory(&snapshot, &request, &mut profile)?;
    // A capture copies what differs from the snapshot. The kernel's page map tells that for
    // nothing; only without it does the hypervisor have to keep a log.
    let log_dirty_pages = request.options.may_capture() && ram.memory.open_page_map().is_err();
    let mut parts = profile.phase(OPERATION, "partition_create", |_| {
        assembly::create(
            &*backend,
            &ram.memory,
            snapshot.manifest().vcpus,
            platform,
            PartitionOptions { log_dirty_pages },
            console,
        )
    })?;
    profile.phase(OPERATION, "saved_state_restore", |_| {
        restore_state(&snapshot, &mut parts, request.clock)
    })?;
    Ok(parts.into_vm(backend, ram, request.options, profile, OPERATION))
}

/// What this build's machine must have in common with the snapshot's.
fn check_contract(manifest: &Manifest, snapshot: &Path) -> Result<PlatformKind, RestoreError> {
    let incompatible = |why: String| RestoreError::Incompatible {
        snapshot: snapshot.to_owned(),
        why,
    };
    if manifest.machine_contract != nvx_machine::CONTRACT_VERSION {
        return Err(incompatible(format!(
            "made by machine contract {}, this build has contract {}",
            manifest.machine_contract,
            nvx_machine::CONTRACT_VERSION
        )));
    }
    let there: Vec<&str> = manifest
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    check_ram(manifest).map_err(incompatible)?;
    PlatformKind::of_inventory(&there).ok_or_else(|| {
        let inventories = PlatformKind::ALL.map(|kind| format!("[{}]", kind.names().join(", ")));
        incompatible(format!(
            "its devices are [{}], this build has {}",
            there.join(", "),
            inventories.join(" or ")
        ))
    })
}

/// RAM must lie where this machine has it: ranges over the place of a device would hide the device, or
/// be refused by the hypervisor in words of its own.
fn check_ram(manifest: &Manifest) -> Result<(), String> {
    let total_bytes = manifest
        .ram
        .iter()
        .fold(0_u64, |sum, range| sum.saturating_add(range.size_bytes));
    let machine = nvx_machine::ram_layout(total_bytes).map_err(|error| format!("ram: {error}"))?;
    match manifest.ram_layout() {
        Ok(saved) if saved == machine => Ok(()),
        _ => Err(format!(
            "ram: its ranges are not those of a machine with {total_bytes} bytes"
        )),
    }
}

/// What this host must offer that the snapshot's did.
fn check_host(
    manifest: &Manifest,
    backend: &dyn Hypervisor,
    snapshot: &Path,
) -> Result<(), RestoreError> {
    let incompatible = |why: String| RestoreError::Incompatible {
        snapshot: snapshot.to_owned(),
        why,
    };
    if manifest.backend != backend.name() {
        return Err(incompatible(format!(
            "captured on back end '{}', this is '{}'",
            manifest.backend,
            backend.name()
        )));
    }
    // On the host that captured, since its last boot, nothing can be missing. Asking a hypervisor
    // what it offers is slow where this host is itself a guest: each CPUID leaf is an exit.
    let mark = nvx_host::boot_identity().map(|identity| manifest.cpu.mark_of_host(&identity));
    if mark.is_some() && mark == manifest.cpu.captured_on {
        return Ok(());
    }
    let here: CpuModel = backend.cpu_model().map_err(MachineError::from)?;
    if manifest.cpu.vendor != here.vendor() {
        return Err(incompatible(format!(
            "captured on a CPU of vendor '{}', this host's is '{}'",
            manifest.cpu.vendor,
            here.vendor()
        )));
    }
    let missing = missing_features(&saved_features(manifest), &here.features());
    if missing.is_empty() {
        Ok(())
    } else {
        Err(incompatible(format!(
            "the guest uses CPU features that this host lacks: {}",
            missing.join(", ")
        )))
    }
}

fn saved_features(manifest: &Manifest) -> Vec<FeatureWord> {
    manifest
        .cpu
        .features
        .iter()
        .map(|word| FeatureWord {
            leaf: word.leaf,
            subleaf: word.subleaf,
            register: match word.register {
                CpuRegister::Eax => FeatureRegister::Eax,
                CpuRegister::Ebx => FeatureRegister::Ebx,
                CpuRegister::Ecx => FeatureRegister::Ecx,
                CpuRegister::Edx => FeatureRegister::Edx,
            },
            bits: word.bits,
        })
        .collect()
}

/// Guest RAM from the snapshot's memory, checked first if that was asked for.
fn take_memory(
    snapshot: &Snapshot,
    request: &RestoreRequest,
    profile: &mut Profile,
) -> Result<VmRam, RestoreError> {
    if request.private_copy {
        return profile.phase(OPERATION, "memory_copy", |_| {
            VmRam::private_copy(layout(snapshot)?, snapshot, request.verify)
        });
    }
    if request.verify {
        profile.phase(OPERATION, "memory_verify", |counters| {
            let report = snapshot.verify_memory()?;
            counters.logical_bytes = Some(report.bytes_read);
            Ok::<_, RestoreError>(())
        })?;
    }
    profile.phase(OPERATION, "memory_map", |_| map_memory(snapshot))
}

fn layout(snapshot: &Snapshot) -> Result<RamLayout, RestoreError> {
    snapshot
        .manifest()
        .ram_layout()
        .map_err(|error| RestoreError::Incompatible {
            snapshot: snapshot.path().to_owned(),
            why: error.to_string(),
        })
}

fn map_memory(snapshot: &Snapshot) -> Result<VmRam, RestoreError> {
    let layout = layout(snapshot)?;
    let file = snapshot
        .memory()
        .try_clone()
        .map_err(|source| MachineError::Host {
            what: "file descriptor",
            source,
        })?;
    let memory =
        GuestMemory::private_file(layout, file, &snapshot.memory_path()).map_err(RamError::from)?;
    Ok(VmRam::private_view(memory))
}

fn restore_state(
    snapshot: &Snapshot,
    parts: &mut Parts,
    clock: ClockPolicy,
) -> Result<(), RestoreError> {
    let reader = snapshot.state().map_err(|source| RestoreError::State {
        snapshot: snapshot.path().to_owned(),
        source,
    })?;
    let mut units = Units::new(snapshot.path(), reader);
    for (index, vcpu) in parts.vcpus().enumerate() {
        units.restore_vcpu(index, &mut **vcpu)?;
    }
    units.restore_irq_chip(&*parts.partition)?;
    let mut ports = parts.shared.ports();
    units.restore_devices(&mut ports)?;
    ports.set_snapshot_outcome(SnapshotOutcome::Restored);
    drop(ports);
    if let Some(line) = &parts.shared.control_line {
        units.restore_control_line(line)?;
        parts.become_a_copy(clock)?;
    }
    units.restore_clock(&*parts.partition)
}
