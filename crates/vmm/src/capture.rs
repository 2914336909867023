//! Capture: from a running machine to a published snapshot.
//!
//! [`capture`] is the protocol; it reads as doc/capture.md lists its phases. Every phase is a
//! profile record. Until the commit nothing exists for anybody else, and a failure or a request to
//! end leaves nothing behind; the commit is one rename that never replaces.
//!
//! The phases that create files come before those that sync: with everything created and its
//! writeback started, the file system's journal commits as few times as possible.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvx_host::{ReflinkError, Termination, TerminationSignals, check_reflink, reflink, sync_data};
use nvx_hypervisor::FeatureRegister;
use nvx_memory::{GuestMemory, RamFileKind, ViewKind};
use nvx_profile::{Counters, Profile};
use nvx_snapshot::{
    CaptureFacts, ChunkDigester, ChunkDigests, Cpu, CpuFeatureWord, CpuRegister, Destination,
    MEMORY_FILE, Manifest, MemoryLayer, Publication, Published, SCHEMA_VERSION, SavedRamRange,
    Staging, StateFile,
};

use crate::error::{CaptureError, chain};
use crate::ram::VmRam;
use crate::state_file::{self, SavedMachine};
use crate::vm::Vm;

/// The operation's name in profile records.
const OPERATION: &str = "capture";

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct CaptureRequest {
    pub(crate) destination: Destination,
    /// The guest goes on afterwards, so its RAM file cannot be the snapshot's.
    pub(crate) continue_after: bool,
}

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The snapshot directory.
    pub path: PathBuf,
    /// How guest RAM got there.
    pub publication: Publication,
    /// Why so, as a clause.
    pub reason: String,
    /// From the start of the input gate to the end of the commit, on the monitor's clock.
    pub generation: Duration,
    /// Console input that the guest had not taken; it is in no snapshot.
    pub untaken_input_bytes: usize,
}

/// A failed capture, with the request to end that interrupted it, if one did.
pub(crate) type Failed = (CaptureError, Option<Termination>);

/// Captures the machine. The vCPUs stay stopped afterwards; the caller resumes them or not.
pub(crate) fn capture(
    vm: &mut Vm,
    request: &CaptureRequest,
    signals: &TerminationSignals,
) -> Result<Captured, Failed> {
    let mut profile = std::mem::replace(&mut vm.profile, Profile::start(false));
    let before = profile.records().len();
    let mut interruption = Interruption {
        signals,
        termination: None,
    };
    let result = run_protocol(vm, request, &mut profile, &mut interruption);
    let generation = nvx_profile::interval(
        &profile.records()[before..],
        "input_gate",
        "publication_commit",
    );
    vm.profile = profile;
    let (published, facts) = result.map_err(|error| (error, interruption.termination))?;
    vm.captures += 1;
    Ok(Captured {
        path: published.path().to_owned(),
        publication: facts.publication,
        reason: facts.publication_reason,
        generation: generation.unwrap_or_default(),
        untaken_input_bytes: vm.shared.input.queued_bytes(),
    })
}

fn run_protocol(
    vm: &mut Vm,
    request: &CaptureRequest,
    profile: &mut Profile,
    interruption: &mut Interruption<'_>,
) -> Result<(Published, CaptureFacts), CaptureError> {
    // Host input is read by the thread that is here now, so the gate is closed by being here.
    profile.phase(OPERATION, "input_gate", |_| {
        request.destination.check_free()
    })?;
    profile.phase(OPERATION, "vcpu_stop", |_| vm.stop_vcpus())?;
    profile.phase(OPERATION, "quiesce", |_| {
        // No device of this machine works by itself: with the vCPUs stopped, all stand still.
        // But one may have met its end on the way here.
        if vm.shared.is_ending() {
            return Err(CaptureError::Superseded);
        }
        interruption.check()
    })?;
    let saved = profile.phase(OPERATION, "save_state", |counters| {
        let saved = state_file::save(vm)?;
        counters.logical_bytes = Some(saved.state.len() as u64);
        Ok::<_, CaptureError>(saved)
    })?;
    interruption.check()?;

    let (mut staging, memory, mut facts) =
        profile.phase(OPERATION, "publication_memory", |_| {
            stage_memory(vm, request)
        })?;
    let digests = profile.phase(OPERATION, "mapped_memory_flush", |counters| {
        bring_memory_to_its_file(vm, &memory, &request.destination, &mut facts, counters)
    })?;
    interruption.check()?;
    let state = profile.phase(OPERATION, "publication_state", |_| {
        staging.write_state(&saved.state)
    })?;
    profile.phase(OPERATION, "publication_manifest", |_| {
        facts.fallbacks.extend(staging.fallbacks());
        staging.write_manifest(&manifest(vm, saved, state, facts.clone(), digests))?;
        staging.start_writeback();
        Ok::<_, CaptureError>(())
    })?;
    profile.phase(OPERATION, "memory_handle_flush", |_| {
        sync_data(&memory, MEMORY_FILE).map_err(|source| {
            // If it is the RAM file: what it lost must not be missing in the next snapshot.
            vm.ram.memory.expect_unstored_pages();
            CaptureError::Sync(source)
        })
    })?;
    profile.phase(OPERATION, "publication_staging_sync", |_| staging.sync())?;
    interruption.check()?;
    // Windows renames no directory while a file in it is open.
    drop(memory);
    let published = profile.phase(OPERATION, "publication_commit", |_| staging.commit())?;
    // The snapshot is complete and has its name; a directory that cannot be synced only means
    // that the name may not survive a power cut, which is no reason to call the capture failed.
    let _ = profile.phase(OPERATION, "publication_parent_sync", |_| {
        published.sync_parent()
    });
    Ok((published, facts))
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

/// Makes the staging directory and puts `memory.bin` into it: the RAM file itself, by a link, if
/// this VM owns it, the guest does not go on writing to it, and the file system lets it be
/// linked; else an empty file, for a reflink of the RAM file or for a copy.
fn stage_memory(
    vm: &mut Vm,
    request: &CaptureRequest,
) -> Result<(Staging, File, CaptureFacts), CaptureError> {
    let mut staging = Staging::create(&request.destination)?;
    let mut facts = CaptureFacts {
        publication: Publication::Copy,
        publication_reason: String::new(),
        ram_backing: vm.ram.place.name().to_owned(),
        ram_backing_reason: vm.ram.place.reason().to_owned(),
        strategy: "copy".to_owned(),
        pages: None,
        bytes: None,
        calls: 0,
        background_bytes: None,
        fallbacks: Vec::new(),
    };
    let not_linked = match link_memory(vm, request, &mut staging) {
        Ok(file) => {
            facts.publication = Publication::Link;
            facts.publication_reason =
                "the RAM file is on the destination's file system".to_owned();
            facts.fallbacks.extend(vm.ram.fallback());
            return Ok((staging, file, facts));
        }
        Err(reason) => reason,
    };
    let file = staging.create_memory()?;
    (facts.publication, facts.publication_reason) = match may_reflink(vm, request, &file) {
        None => (Publication::Copy, not_linked),
        // Asked now and not when it is done: a copy needs no writeback before it.
        Some(Err(error)) => (
            Publication::Copy,
            format!("{not_linked}; {}", chain(&error)),
        ),
        Some(Ok(())) => {
            facts.fallbacks.extend(vm.ram.fallback());
            let reason = format!("{not_linked}; its file system shares blocks between files");
            (Publication::Reflink, reason)
        }
    };
    Ok((staging, file, facts))
}

/// Whether `empty`, a new file beside the destination, can become a reflink of the RAM file; `None`
/// if there is no RAM file on its file system.
fn may_reflink(
    vm: &Vm,
    request: &CaptureRequest,
    empty: &File,
) -> Option<Result<(), ReflinkError>> {
    let ram = vm.ram.file.as_ref()?;
    let on_one_file_system = request.destination.same_file_system(ram.file());
    on_one_file_system.then(|| check_reflink(empty))
}

/// Links the RAM file, or says why it cannot be.
fn link_memory(
    vm: &mut Vm,
    request: &CaptureRequest,
    staging: &mut Staging,
) -> Result<File, String> {
    let VmRam {
        memory,
        file,
        link_spent,
        ..
    } = &mut vm.ram;
    let Some(file) = file else {
        return Err(match memory.view_kind() {
            ViewKind::PrivateFile => "guest RAM is a private view of another snapshot",
            _ => "guest RAM is anonymous memory",
        }
        .to_owned());
    };
    if request.continue_after {
        return Err("the guest goes on and keeps its RAM file".to_owned());
    }
    if *link_spent {
        return Err(
            "the nameless RAM file was linked by an earlier capture that failed".to_owned(),
        );
    }
    if !request.destination.same_file_system(file.file()) {
        return Err("the RAM file is on another file system".to_owned());
    }
    staging
        .link_memory(file.file())
        .map_err(|error| format!("the RAM file cannot be linked: {}", root_cause(&error)))?;
    *link_spent = file.kind() == RamFileKind::Nameless;
    file.try_clone_file()
        .map_err(|error| format!("the RAM file cannot be shared: {error}"))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => root_cause(cause),
        None => error.to_string(),
    }
}

/// Writes the RAM file back, and reflinks it if it is not linked; or copies RAM. Afterwards `file`
/// has guest RAM's content. Of a copy the digests, if they are wanted.
fn bring_memory_to_its_file(
    vm: &mut Vm,
    file: &File,
    destination: &Destination,
    facts: &mut CaptureFacts,
    counters: &mut Counters,
) -> Result<Option<ChunkDigests>, CaptureError> {
    counters.logical_bytes = Some(vm.ram.memory.layout().total_bytes());
    if facts.publication != Publication::Copy {
        vm.ram.write_back(facts)?;
    }
    if facts.publication == Publication::Reflink
        && let Some(ram) = &vm.ram.file
        && let Err(error) = reflink(ram.file(), file)
    {
        // The file is as empty as before.
        facts.publication = Publication::Copy;
        facts.publication_reason = format!("no reflink: {}", chain(&error));
        facts.strategy = "copy".to_owned();
    }
    let mut digests = None;
    if facts.publication == Publication::Copy {
        merge_dirty_log(vm)?;
        let memory = &vm.ram.memory;
        let name = destination.path().join(MEMORY_FILE);
        let report = if vm.policy.digests {
            let mut digester = ChunkDigester::new(memory.layout().file_len_bytes());
            let report = memory.copy_to_observed(file, &name, &mut |offset, bytes| {
                digester.update(offset, bytes);
            })?;
            digests = Some(digester.finish());
            report
        } else {
            memory.copy_to(file, &name)?
        };
        (facts.pages, facts.bytes) = (Some(report.pages), Some(report.bytes));
        (facts.calls, facts.background_bytes) = (report.calls, None);
        check_ram_file(memory)?;
    }
    (counters.pages, counters.allocated_bytes) = (facts.pages, facts.bytes);
    counters.calls = Some(facts.calls);
    Ok(digests)
}

/// A file that somebody cut short lost pages that the guest has not looked at yet; the copy took
/// them for holes. Checked after the copy, so that it covers all of it.
fn check_ram_file(memory: &GuestMemory) -> Result<(), CaptureError> {
    match VmRam::truncated_length_bytes(memory) {
        None => Ok(()),
        Some(length_bytes) => Err(CaptureError::RamFileTruncated {
            file: memory.name().map(Path::to_owned).unwrap_or_default(),
            length_bytes,
            needed_bytes: memory.layout().file_len_bytes(),
        }),
    }
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
    facts: CaptureFacts,
    digests: Option<ChunkDigests>,
) -> Manifest {
    let layout = vm.ram.memory.layout();
    Manifest {
        schema_version: SCHEMA_VERSION,
        producer: concat!("nvx ", env!("CARGO_PKG_VERSION")).to_owned(),
        created_unix_ms: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
        machine_contract: nvx_machine::CONTRACT_VERSION,
        backend: vm.backend.name().to_owned(),
        cpu: cpu(
            &saved.cpu,
            vm.shared.host_identity.get().and_then(Option::as_deref),
        ),
        vcpus: vm.vcpus(),
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
        memory: vec![MemoryLayer {
            digests,
            ..MemoryLayer::whole(layout.file_len_bytes())
        }],
        state,
        capture: facts,
    }
}

fn cpu(model: &nvx_hypervisor::CpuModel, host_identity: Option<&[u8]>) -> Cpu {
    let mut cpu = Cpu {
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
        captured_on: None,
    };
    // The guest was given what this host offers, or what was compared with it at restore.
    cpu.captured_on = host_identity.map(|identity| cpu.mark_of_host(identity));
    cpu
}
