//! A small, valid snapshot for the tests of this crate.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crate::{
    CaptureFacts, Cpu, CpuFeatureWord, CpuRegister, Device, Digest, Manifest, MemoryLayer,
    Publication, Published, SCHEMA_VERSION, SavedRamRange, Staging, StateFile, StateWriter,
};

/// Length of the sample's memory file, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 128 << 10;

/// Units, kinds, versions and payloads of [`state`].
pub(crate) const UNITS: [(&str, &str, u32, &[u8]); 3] = [
    ("vcpu0", "kvm-x86-64", 1, b"registers"),
    ("serial0", "uart16550", 2, b"\x01\x02\x03"),
    ("empty", "nothing", 0, b""),
];

/// A state file of three units.
pub(crate) fn state() -> Vec<u8> {
    let mut writer = StateWriter::new();
    for (unit, kind, version, payload) in UNITS {
        writer.put(unit, kind, version, payload).unwrap();
    }
    writer.finish()
}

/// A manifest that fits `state` and a memory file of [`MEMORY_BYTES`].
pub(crate) fn manifest(state: &[u8]) -> Manifest {
    Manifest {
        schema_version: SCHEMA_VERSION,
        producer: "nvx 0.1.0".to_owned(),
        created_unix_ms: 1_764_000_000_123,
        machine_contract: 1,
        backend: "kvm".to_owned(),
        cpu: Cpu {
            vendor: "AuthenticAMD".to_owned(),
            features: vec![CpuFeatureWord {
                leaf: 7,
                subleaf: 0,
                register: CpuRegister::Ebx,
                bits: 0xffff_ffff,
            }],
            captured_on: None,
        },
        vcpus: 1,
        ram: vec![
            SavedRamRange {
                start: 0,
                size_bytes: 64 << 10,
                file_offset_bytes: 0,
            },
            SavedRamRange {
                start: 4 << 30,
                size_bytes: 64 << 10,
                file_offset_bytes: 64 << 10,
            },
        ],
        devices: vec![Device {
            name: "serial0".to_owned(),
            kind: "uart16550".to_owned(),
            version: 2,
        }],
        memory: vec![MemoryLayer::whole(MEMORY_BYTES)],
        state: StateFile {
            length_bytes: state.len() as u64,
            digest: Digest::of(state),
        },
        capture: CaptureFacts {
            publication: Publication::Copy,
            publication_reason: "RAM is anonymous".to_owned(),
            ram_backing: "anonymous".to_owned(),
            ram_backing_reason: "no snapshot was asked for at start".to_owned(),
            strategy: "ascending".to_owned(),
            pages: Some(2),
            bytes: Some(8192),
            calls: 1,
            background_bytes: None,
            fallbacks: vec!["RAM file: no O_TMPFILE".to_owned()],
        },
    }
}

/// Stages the sample for `destination`, synced and ready to commit.
pub(crate) fn stage(destination: &Path) -> Staging {
    let state = state();
    let mut staging = Staging::create(&crate::Destination::declare(destination).unwrap()).unwrap();
    let described = staging.write_state(&state).unwrap();
    let manifest = manifest(&state);
    assert_eq!(described, manifest.state);
    let memory = staging.create_memory().unwrap();
    memory.set_len(MEMORY_BYTES).unwrap();
    staging.write_manifest(&manifest).unwrap();
    staging.start_writeback();
    staging.sync().unwrap();
    staging
}

/// Publishes the sample at `destination`.
pub(crate) fn publish(destination: &Path) -> Published {
    stage(destination).commit().unwrap()
}

/// Names in a directory, sorted.
pub(crate) fn names_in(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Writes at a place of a file, as another process may do before or after a snapshot is opened: nobody has
/// the file open for writing meanwhile, which Windows would not allow.
pub(crate) fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.write_all(bytes).unwrap();
}
