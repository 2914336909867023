//! The format on disk, held fast by files that earlier builds wrote.
//!
//! `goldens/v<schema version>` has a manifest and a state from fixed inputs. Whatever this build makes
//! of the code around them, it must read them to the same values and write the same bytes again.

#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

use std::fs;
use std::path::PathBuf;

use nvx_snapshot::{
    CaptureFacts, ChunkDigests, Cpu, CpuFeatureWord, CpuRegister, Device, Digest, Extent,
    MANIFEST_FILE, MEMORY_FILE, Manifest, MemoryLayer, Publication, SCHEMA_VERSION, STATE_FILE,
    STATE_HEADER_VERSION, SavedRamRange, Snapshot, StateFile, StateReader, StateWriter,
};

/// What to say when a golden does not match.
const SEE: &str =
    "the snapshot format changed: see 'Changing the format' in doc/design/snapshot.md";

const MEMORY_BYTES: u64 = 192 << 10;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/goldens")
        .join(format!("v{SCHEMA_VERSION}"))
        .join(name)
}

/// Unit names, kinds, versions and payloads: an empty one, a short one, and one of every byte value.
fn units() -> [(&'static str, &'static str, u32, Vec<u8>); 3] {
    [
        ("vcpu.0", "nvx.vcpu", 1, (0..=255).collect()),
        ("device.shutdown", "nvx.shutdown", 1, Vec::new()),
        (
            "device.snapshot-port",
            "nvx.snapshot-port",
            u32::MAX,
            vec![8, 3, 16, 1],
        ),
    ]
}

fn state() -> Vec<u8> {
    let mut writer = StateWriter::new();
    for (unit, kind, version, payload) in units() {
        writer.put(unit, kind, version, &payload).unwrap();
    }
    writer.finish()
}

/// A manifest in which every optional member is there that this version allows, and every word of
/// every enumeration that fits.
fn manifest() -> Manifest {
    let state = state();
    let word = |leaf, register, bits| CpuFeatureWord {
        leaf,
        subleaf: 0,
        register,
        bits,
    };
    let range = |start, size_bytes, file_offset_bytes| SavedRamRange {
        start,
        size_bytes,
        file_offset_bytes,
    };
    Manifest {
        schema_version: SCHEMA_VERSION,
        producer: "nvx 0.1.0".to_owned(),
        created_unix_ms: 1_764_000_000_123,
        machine_contract: 1,
        backend: "kvm".to_owned(),
        cpu: Cpu {
            vendor: "AuthenticAMD".to_owned(),
            features: vec![
                word(1, CpuRegister::Ecx, 0xfed8_3203),
                word(1, CpuRegister::Edx, 0x178b_fbff),
                word(7, CpuRegister::Ebx, u32::MAX),
                word(0x8000_0001, CpuRegister::Eax, 0),
            ],
            captured_on: None,
        },
        vcpus: 2,
        ram: vec![range(0, 128 << 10, 0), range(4 << 30, 64 << 10, 128 << 10)],
        devices: vec![
            Device {
                name: "shutdown".to_owned(),
                kind: "nvx.shutdown".to_owned(),
                version: 1,
            },
            Device {
                name: "snapshot-port".to_owned(),
                kind: "nvx.snapshot-port".to_owned(),
                version: u32::MAX,
            },
        ],
        memory: vec![MemoryLayer {
            file: MEMORY_FILE.to_owned(),
            length_bytes: MEMORY_BYTES,
            extents: Some(vec![Extent {
                offset_bytes: 4096,
                length_bytes: 8192,
            }]),
            parent: None,
            digests: Some(ChunkDigests {
                chunk_bytes: 128 << 10,
                chunks: vec![Digest::of(b"first"), Digest::of(b"second")],
            }),
        }],
        state: StateFile {
            length_bytes: state.len() as u64,
            digest: Digest::of(&state),
        },
        capture: CaptureFacts {
            publication: Publication::Copy,
            publication_reason: "guest RAM is anonymous memory".to_owned(),
            ram_backing: "anonymous".to_owned(),
            ram_backing_reason: "no place for \"RAM\": \u{e4}\u{f6}\u{fc}".to_owned(),
            strategy: "ranges:8".to_owned(),
            pages: Some(2),
            bytes: Some(8192),
            calls: 1,
            background_bytes: Some(u64::MAX),
            fallbacks: vec!["RAM file has a name".to_owned()],
        },
    }
}

#[test]
fn a_golden_manifest_is_read_and_written_as_ever() {
    let bytes = fs::read(golden(MANIFEST_FILE)).expect(SEE);
    let decoded = Manifest::decode(&bytes).expect(SEE);
    assert_eq!(decoded, manifest(), "{SEE}");
    let text = String::from_utf8(bytes).unwrap();
    let encoded = String::from_utf8(decoded.encode().unwrap()).unwrap();
    assert_eq!(encoded, text, "{SEE}");
}

#[test]
fn every_word_of_an_enumeration_is_as_ever() {
    for (publication, word) in [
        (Publication::Link, "\"link\""),
        (Publication::Reflink, "\"reflink\""),
        (Publication::Copy, "\"copy\""),
    ] {
        let mut changed = manifest();
        changed.capture.publication = publication;
        let text = String::from_utf8(changed.encode().unwrap()).unwrap();
        let member = format!("\"publication\": {word}");
        assert!(text.contains(&member), "{member}: {SEE}");
    }
}

#[test]
fn a_golden_state_is_read_and_written_as_ever() {
    let bytes = fs::read(golden(STATE_FILE)).expect(SEE);
    assert_eq!(STATE_HEADER_VERSION, 1, "{SEE}");
    let reader = StateReader::parse(&bytes).expect(SEE);
    let mut writer = StateWriter::new();
    assert_eq!(reader.payloads().len(), units().len(), "{SEE}");
    for (payload, (unit, kind, version, content)) in reader.payloads().iter().zip(units()) {
        assert_eq!((payload.unit, payload.kind), (unit, kind), "{SEE}");
        assert_eq!(payload.version, version, "{SEE}");
        assert_eq!(payload.bytes, content, "{SEE}");
        writer.put(unit, kind, version, payload.bytes).unwrap();
    }
    assert!(writer.finish() == bytes, "{SEE}");
}

#[test]
fn a_golden_snapshot_opens() {
    let directory = tempfile::tempdir().unwrap();
    for name in [MANIFEST_FILE, STATE_FILE] {
        fs::copy(golden(name), directory.path().join(name)).expect(SEE);
    }
    let memory = fs::File::create(directory.path().join(MEMORY_FILE)).unwrap();
    memory.set_len(MEMORY_BYTES).unwrap();
    drop(memory);
    let snapshot = Snapshot::open(directory.path()).expect(SEE);
    snapshot.verify_state().expect(SEE);
    assert_eq!(
        snapshot.manifest().ram_layout().unwrap().total_bytes(),
        MEMORY_BYTES
    );
}

/// Writes the goldens of this build's schema version, which must not be there yet: those of a
/// released version are never written again.
#[test]
#[ignore = "makes the goldens of a new schema version; see doc/design/snapshot.md"]
fn regenerate() {
    for (name, bytes) in [
        (MANIFEST_FILE, manifest().encode().unwrap()),
        (STATE_FILE, state()),
    ] {
        let path = golden(name);
        assert!(!path.exists(), "{} exists: {SEE}", path.display());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}
