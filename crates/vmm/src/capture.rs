//! Capture: from a running machine to a published snapshot.
//!
//! [`capture`] is the protocol; it reads as doc/capture.md lists its phases. Every phase is a
//! profile record. Until the commit nothing exists for anybody else, and a failure or a request to
//! end leaves nothing behind; the commit is one rename that never replaces.
//!
//! The phases that create files come before those that sync: with everything created and its
//! writeback started, the file system's journal commits as few times as possible.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvx_host::{Directory, Termination, TerminationSignals};
use nvx_hypervisor::FeatureRegister;
use nvx_memory::{RamFileKind, Strategy, ViewKind};
use nvx_profile::{Counters, Profile};
use nvx_snapshot::{
    CaptureFacts, Cpu, CpuFeatureWord, CpuRegister, Manifest, MemoryLayer, Publication, Published,
    SCHEMA_VERSION, SavedRamRange, Staging, StateFile, destination_checks,
};

use crate::error::CaptureError;
use crate::ram::{Ram, parent_directory};
use crate::state_file::{self, SavedMachine};
use crate::vm::Vm;

/// The operation's name in profile records.
const OPERATION: &str = "capture";

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The snapshot directory.
    pub path: PathBuf,
    /// How guest RAM got there.
    pub publication: Publication,
    /// Why so, as a clause.
    pub reason: &'static str,
    /// From the start of the input gate to the end of the commit, on the monitor's clock.
    pub generation: Duration,
}

/// How guest RAM becomes `memory.bin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    publication: Publication,
    reason: &'static str,
}

/// A failed capture, with the request to end that interrupted it, if one did.
pub(crate) type Failed = (CaptureError, Option<Termination>);

/// Captures the machine to its declared destination. The vCPUs stay stopped; on failure the
/// caller resumes them.
pub(crate) fn capture(vm: &mut Vm, signals: &TerminationSignals) -> Result<Captured, Failed> {
    let mut profile = std::mem::replace(&mut vm.profile, Profile::start(false));
    let before = profile.records().len();
    let mut interruption = Interruption {
        signals,
        termination: None,
    };
    let result = run_protocol(vm, &mut profile, &mut interruption);
    let generation = nvx_profile::interval(
        &profile.records()[before..],
        "input_gate",
        "publication_commit",
    );
    vm.profile = profile;
    match result {
        Ok((published, choice)) => Ok(Captured {
            path: published.path().to_owned(),
            publication: choice.publication,
            reason: choice.reason,
            generation: generation.unwrap_or_default(),
        }),
        Err(error) => Err((error, interruption.termination)),
    }
}

fn run_protocol(
    vm: &mut Vm,
    profile: &mut Profile,
    interruption: &mut Interruption<'_>,
) -> Result<(Published, Choice), CaptureError> {
    let destination = vm.policy.destination.clone().unwrap_or_default();
    // Host input is read by the thread that is here now, so the gate is closed already; what has
    // been queued for the guest and not taken by it stays with this process.
    profile.phase(OPERATION, "input_gate", |_| {
        destination_checks(&destination)
    })?;
    profile.phase(OPERATION, "vcpu_stop", |_| vm.stop_vcpus())?;
    // No device of this machine works by itself: with the vCPUs stopped, all stand still.
    profile.phase(OPERATION, "quiesce", |_| interruption.check())?;
    let saved = profile.phase(OPERATION, "save_state", |counters| {
        let saved = state_file::save(vm)?;
        counters.logical_bytes = Some(saved.state.len() as u64);
        Ok::<_, CaptureError>(saved)
    })?;
    interruption.check()?;

    let choice = choose_publication(vm, &destination);
    let (mut staging, memory, facts) =
        profile.phase(OPERATION, "mapped_memory_flush", |counters| {
            bring_memory_to_its_file(vm, &destination, choice, counters)
        })?;
    interruption.check()?;
    let state = profile.phase(OPERATION, "publication_state", |_| {
        staging.write_state(&saved.state)
    })?;
    profile.phase(OPERATION, "publication_memory", |_| match &vm.ram.file {
        Some(file) if choice.publication == Publication::Link => {
            vm.ram.link_spent = file.kind() == RamFileKind::Nameless;
            staging.link_memory(file.file())
        }
        _ => Ok(()),
    })?;
    profile.phase(OPERATION, "publication_manifest", |_| {
        staging.write_manifest(&manifest(vm, saved, state, facts, &staging))?;
        staging.start_writeback();
        Ok::<_, CaptureError>(())
    })?;
    profile.phase(OPERATION, "memory_handle_flush", |_| {
        rustix::fs::fdatasync(memory.as_fd()).map_err(|errno| CaptureError::Sync(errno.into()))
    })?;
    profile.phase(OPERATION, "publication_staging_sync", |_| staging.sync())?;
    interruption.check()?;
    let published = profile.phase(OPERATION, "publication_commit", |_| staging.commit())?;
    // The snapshot is complete and has its name; a directory that cannot be synced only means
    // that the name may not survive a power cut, which is no reason to call the capture failed.
    let _ = profile.phase(OPERATION, "publication_parent_sync", |_| {
        published.sync_parent()
    });
    Ok((published, choice))
}

/// Notices requests to end between phases.
struct Interruption<'a> {
    signals: &'a TerminationSignals,
    termination: Option<Termination>,
}

impl Interruption<'_> {
    fn check(&mut self) -> Result<(), CaptureError> {
        match self.signals.take() {
            None => Ok(()),
            Some(termination) => {
                self.termination = Some(termination);
                Err(CaptureError::Interrupted {
                    signal: termination.name(),
                })
            }
        }
    }
}

/// A RAM file can be linked if this VM owns it, it is on the destination's file system, and the
/// guest does not go on writing to it.
fn choose_publication(vm: &Vm, destination: &Path) -> Choice {
    let copy = |reason| Choice {
        publication: Publication::Copy,
        reason,
    };
    let Some(file) = &vm.ram.file else {
        return copy(match vm.ram.memory.view_kind() {
            ViewKind::PrivateFile => "guest RAM is a private view of another snapshot",
            _ => "guest RAM is anonymous memory",
        });
    };
    if vm.policy.continue_after {
        return copy("the guest goes on and keeps its RAM file");
    }
    if vm.ram.link_spent {
        return copy("the nameless RAM file was linked by an earlier capture that failed");
    }
    let same_file_system = Directory::open(&parent_directory(destination))
        .is_ok_and(|parent| parent.same_file_system(file.file()).unwrap_or(false));
    if same_file_system {
        Choice {
            publication: Publication::Link,
            reason: "the RAM file is on the destination's file system",
        }
    } else {
        copy("the RAM file is on another file system")
    }
}

/// Writes the RAM file back, or copies RAM; afterwards the returned file has guest RAM's content.
fn bring_memory_to_its_file(
    vm: &Vm,
    destination: &Path,
    choice: Choice,
    counters: &mut Counters,
) -> Result<(Staging, File, CaptureFacts), CaptureError> {
    let mut staging = Staging::create(destination)?;
    counters.logical_bytes = Some(vm.ram.memory.layout().total_bytes());
    let mut facts = CaptureFacts {
        publication: choice.publication,
        publication_reason: choice.reason.to_owned(),
        ram_backing: vm.ram.place.name().to_owned(),
        ram_backing_reason: vm.ram.place.reason().to_owned(),
        strategy: "copy".to_owned(),
        pages: None,
        bytes: None,
        calls: 0,
        background_bytes: None,
        fallbacks: Vec::new(),
    };
    let file = match &vm.ram.file {
        Some(file) if choice.publication == Publication::Link => {
            let strategy = Strategy::default();
            let report = vm.ram.memory.writeback(strategy)?;
            facts.strategy = strategy.to_string();
            (facts.pages, facts.bytes, facts.calls) = (report.pages, report.bytes, report.calls);
            file.file().try_clone().map_err(CaptureError::Sync)?
        }
        _ => {
            let file = staging.create_memory()?;
            merge_dirty_log(vm)?;
            let report = vm
                .ram
                .memory
                .copy_to(&file, &destination.join(nvx_snapshot::MEMORY_FILE))?;
            (facts.pages, facts.bytes) = (Some(report.pages), Some(report.bytes));
            facts.calls = report.calls;
            file
        }
    };
    (counters.pages, counters.allocated_bytes) = (facts.pages, facts.bytes);
    counters.calls = Some(facts.calls);
    Ok((staging, file, facts))
}

/// Adds the pages that the guest wrote to those that the monitor wrote.
fn merge_dirty_log(vm: &Vm) -> Result<(), CaptureError> {
    let Some(log) = vm.partition.dirty_log() else {
        return Ok(());
    };
    for range in 0..vm.ram.memory.layout().ranges().len() {
        let bitmap = log.take(range).map_err(CaptureError::DirtyLog)?;
        vm.ram
            .memory
            .merge_dirty(range, &bitmap)
            .map_err(CaptureError::MergeDirtyLog)?;
    }
    Ok(())
}

fn manifest(
    vm: &Vm,
    saved: SavedMachine,
    state: StateFile,
    mut facts: CaptureFacts,
    staging: &Staging,
) -> Manifest {
    let layout = vm.ram.memory.layout();
    facts.fallbacks = staging.fallbacks();
    facts.fallbacks.extend(Ram::fallbacks(vm.ram.file.as_ref()));
    Manifest {
        schema_version: SCHEMA_VERSION,
        producer: concat!("nvx ", env!("CARGO_PKG_VERSION")).to_owned(),
        created_unix_ms: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
        machine_contract: nvx_machine::CONTRACT_VERSION,
        backend: vm.backend.name().to_owned(),
        cpu: cpu(&saved.cpu),
        vcpus: vm.cells.len() as u8,
        ram: layout
            .ranges()
            .iter()
            .map(|range| SavedRamRange {
                start: range.start.0,
                size_bytes: range.size_bytes,
                file_offset_bytes: range.file_offset_bytes,
            })
            .collect(),
        devices: saved.devices,
        memory: vec![MemoryLayer::whole(layout.file_len_bytes())],
        state,
        capture: facts,
    }
}

fn cpu(model: &nvx_hypervisor::CpuModel) -> Cpu {
    Cpu {
        vendor: model.vendor(),
        features: model
            .features()
            .iter()
            .map(|word| CpuFeatureWord {
                leaf: word.leaf,
                subleaf: word.subleaf,
                register: match word.register {
                    FeatureRegister::Eax => CpuRegister::Eax,
                    FeatureRegister::Ebx => CpuRegister::Ebx,
                    FeatureRegister::Ecx => CpuRegister::Ecx,
                    FeatureRegister::Edx => CpuRegister::Edx,
                },
                bits: word.bits,
            })
            .collect(),
    }
}
