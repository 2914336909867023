//! Tests of the manifest: its bytes, its bounds, and its refusals.

use std::error::Error;

use serde_json::Value;

use super::limits::*;
use super::*;
use crate::sample;

fn good() -> Manifest {
    sample::manifest(&sample::state())
}

/// Gives a document, without its checksum, the checksum that makes it whole.
fn sealed(document: &str) -> Vec<u8> {
    let members = document.trim_end().strip_suffix('}').unwrap().trim_end();
    let digest = Digest::of(members.as_bytes());
    format!("{members},\n  \"checksum\": \"{digest}\"\n}}\n").into_bytes()
}

/// The sample as JSON, without its checksum, for a test to change.
fn as_json() -> Value {
    serde_json::to_value(good()).unwrap()
}

fn decode_json(document: &Value) -> Result<Manifest, ManifestError> {
    Manifest::decode(&sealed(&serde_json::to_string_pretty(document).unwrap()))
}

#[track_caller]
fn assert_refused(member: &str, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = good();
    change(&mut manifest);
    for error in [
        manifest.encode().unwrap_err(),
        decode_json(&serde_json::to_value(&manifest).unwrap()).unwrap_err(),
    ] {
        match &error {
            ManifestError::Value { member: found, .. } => {
                assert_eq!(found, member);
                assert!(error.to_string().starts_with(&format!("{member}: ")));
            }
            other => panic!("{member}: {other}"),
        }
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    let mut manifest = good();
    let round_trip = |manifest: &Manifest| Manifest::decode(&manifest.encode().unwrap()).unwrap();
    assert_eq!(round_trip(&manifest), manifest);

    manifest.capture.pages = None;
    manifest.capture.bytes = None;
    manifest.capture.background_bytes = Some(u64::MAX);
    manifest.capture.publication = Publication::Link;
    manifest.capture.publication_reason = "the file \"ä\" \\ is ours".to_owned();
    manifest.memory[0].extents = Some(vec![
        Extent {
            offset_bytes: 0,
            length_bytes: 4096,
        },
        Extent {
            offset_bytes: 4096,
            length_bytes: sample::MEMORY_BYTES - 4096,
        },
    ]);
    manifest.memory[0].digests = Some(ChunkDigests {
        chunk_bytes: MIN_CHUNK_BYTES,
        chunks: vec![Digest::of(b"a"), Digest::of(b"b")],
    });
    assert_eq!(round_trip(&manifest), manifest);
}

#[test]
fn the_bytes_have_the_described_form() {
    let bytes = good().encode().unwrap();
    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.starts_with("{\n  \"schema_version\": 1,\n  \"producer\": \"nvx 0.1.0\",\n"));
    let (members, rest) = text.rsplit_once(",\n  \"checksum\": \"").unwrap();
    assert_eq!(rest, format!("{}\"\n}}\n", Digest::of(members.as_bytes())));
    let json: Value = serde_json::from_str(text).unwrap();
    assert_eq!(json["cpu"]["features"][0]["register"], "ebx");
    assert_eq!(json["capture"]["publication"], "copy");
    assert_eq!(json["memory"][0]["file"], "memory.bin");
    assert_eq!(
        sealed(&serde_json::to_string_pretty(&good()).unwrap()),
        bytes
    );
}

#[test]
fn an_altered_byte_is_found_at_every_offset() {
    let good = good().encode().unwrap();
    for offset in 0..good.len() {
        for flip in [0x01, 0x20, 0xff] {
            let mut bytes = good.clone();
            bytes[offset] ^= flip;
            let error = Manifest::decode(&bytes).unwrap_err();
            assert!(
                matches!(
                    error,
                    ManifestError::Checksum
                        | ManifestError::NoChecksum
                        | ManifestError::VersionMismatch { .. }
                ),
                "offset {offset}: {error}"
            );
        }
    }
}

#[test]
fn a_truncated_or_extended_file_is_refused_at_every_length() {
    let good = good().encode().unwrap();
    for length in 0..good.len() {
        assert!(Manifest::decode(&good[..length]).is_err(), "{length}");
    }
    for extra in [" ", "\n", "\0", "{}"] {
        let mut bytes = good.clone();
        bytes.extend_from_slice(extra.as_bytes());
        assert!(matches!(
            Manifest::decode(&bytes),
            Err(ManifestError::NoChecksum)
        ));
    }
}

#[test]
fn another_schema_version_is_named_before_anything_else() {
    let mut json = as_json();
    json["schema_version"] = 2.into();
    json["producer"] = "nvx 9.9\u{1b}[31m".into();
    json["something_new"] = Value::Array(vec![1.into()]);
    for bytes in [
        sealed(&json.to_string()),
        json.to_string().into_bytes(),
        serde_json::to_vec_pretty(&json).unwrap(),
    ] {
        let error = Manifest::decode(&bytes).unwrap_err();
        let ManifestError::VersionMismatch {
            found,
            supported,
            producer,
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*found, *supported), (2, 1));
        assert_eq!(producer, "nvx 9.9?[31m");
        assert_eq!(
            error.to_string(),
            "schema_version 2, this build reads 1; the snapshot was written by nvx 9.9?[31m"
        );
    }
    for (producer, shown) in [
        (Value::Null, "an unnamed program".to_owned()),
        (Value::Array(vec![]), "an unnamed program".to_owned()),
        ("x".repeat(100).into(), "x".repeat(64) + "..."),
    ] {
        json["producer"] = producer;
        json["schema_version"] = u64::MAX.into();
        assert!(matches!(
            decode_json(&json),
            Err(ManifestError::VersionMismatch { found: u64::MAX, producer, .. })
                if producer == shown
        ));
    }
    json["schema_version"] = 0.into();
    assert!(matches!(
        decode_json(&json),
        Err(ManifestError::VersionMismatch { found: 0, .. })
    ));
}

#[test]
fn only_known_members_once_each_and_all_of_them() {
    let syntax = |result: Result<Manifest, ManifestError>| match result {
        Err(error @ ManifestError::Syntax(_)) => error.source().unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    for pointer in [
        "",
        "/cpu",
        "/ram/0",
        "/devices/0",
        "/memory/0",
        "/state",
        "/capture",
    ] {
        let mut json = as_json();
        let object = json.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        object.insert("extra".to_owned(), 1.into());
        assert!(
            syntax(decode_json(&json)).contains("unknown field `extra`"),
            "{pointer}"
        );
    }
    for member in as_json().as_object().unwrap().keys() {
        let mut json = as_json();
        json.as_object_mut().unwrap().remove(member);
        assert!(
            syntax(decode_json(&json)).contains(&format!("missing field `{member}`")),
            "{member}"
        );
    }
    let twice = serde_json::to_string_pretty(&good()).unwrap().replacen(
        "\"vcpus\": 1,",
        "\"vcpus\": 1, \"vcpus\": 1,",
        1,
    );
    assert!(syntax(Manifest::decode(&sealed(&twice))).contains("duplicate field `vcpus`"));
    let checksum_twice = serde_json::to_string_pretty(&good()).unwrap().replacen(
        "\"vcpus\": 1,",
        "\"vcpus\": 1, \"checksum\": \"\",",
        1,
    );
    assert!(syntax(Manifest::decode(&sealed(&checksum_twice))).contains("unknown field"));
    for (pointer, wrong) in [
        ("/vcpus", Value::from(256)),
        ("/vcpus", Value::from(-1)),
        ("/vcpus", Value::from(1.0)),
        ("/vcpus", Value::from("1")),
        ("/machine_contract", Value::from(1u64 << 32)),
        ("/state/digest", Value::from("blake3:00")),
        ("/capture/publication", Value::from("move")),
        ("/cpu/features/0/register", Value::from("EBX")),
    ] {
        let mut json = as_json();
        *json.pointer_mut(pointer).unwrap() = wrong;
        syntax(decode_json(&json));
    }
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let depth = MAX_MANIFEST_BYTES / 8;
        let deep = open.repeat(depth) + "0" + &close.repeat(depth);
        for document in [
            deep.clone(),
            format!("{{\"schema_version\": 1, \"producer\": {deep}}}"),
            format!("{{\"schema_version\": 1, \"x\": {deep}}}"),
            format!("{{\"schema_version\": {deep}}}"),
            open.repeat(depth),
        ] {
            assert!(Manifest::decode(document.as_bytes()).is_err());
            if document.ends_with('}') {
                assert!(Manifest::decode(&sealed(&document)).is_err());
            }
        }
    }
}

#[test]
fn the_size_is_bounded() {
    let bytes = vec![b' '; MAX_MANIFEST_BYTES + 1];
    assert!(matches!(
        Manifest::decode(&bytes),
        Err(ManifestError::TooLarge {
            length_bytes: 1_048_577
        })
    ));
    // Whitespace inside is not forbidden, so a file of exactly the limit is still read.
    let text = serde_json::to_string_pretty(&good()).unwrap();
    let room = MAX_MANIFEST_BYTES - sealed(&text).len();
    let padded = sealed(&text.replacen('{', &format!("{{{}", " ".repeat(room)), 1));
    assert_eq!(padded.len(), MAX_MANIFEST_BYTES);
    assert_eq!(Manifest::decode(&padded).unwrap(), good());
}

#[test]
fn the_fullest_manifest_fits_its_limit() {
    let mut manifest = good();
    let text = "x".repeat(MAX_TEXT_BYTES);
    let bytes = MIN_CHUNK_BYTES * MAX_CHUNKS as u64;
    manifest.cpu.features = (0..MAX_FEATURE_WORDS as u32)
        .map(|leaf| CpuFeatureWord {
            leaf: u32::MAX - leaf,
            subleaf: u32::MAX,
            register: CpuRegister::Ecx,
            bits: u32::MAX,
        })
        .collect();
    manifest.devices = (0..MAX_DEVICES)
        .map(|index| Device {
            name: format!("{index:064}"),
            kind: "k".repeat(64),
            version: u32::MAX,
        })
        .collect();
    manifest.ram = vec![SavedRamRange {
        start: 0,
        size_bytes: bytes,
        file_offset_bytes: 0,
    }];
    manifest.memory[0].length_bytes = bytes;
    manifest.memory[0].extents = Some(
        (0..MAX_EXTENTS as u64)
            .map(|index| Extent {
                offset_bytes: index * MIN_CHUNK_BYTES,
                length_bytes: 4096,
            })
            .collect(),
    );
    manifest.memory[0].digests = Some(ChunkDigests {
        chunk_bytes: MIN_CHUNK_BYTES,
        chunks: vec![Digest::of(b""); MAX_CHUNKS],
    });
    manifest.capture.publication_reason = text.clone();
    manifest.capture.ram_backing_reason = text.clone();
    manifest.capture.fallbacks = vec![text; MAX_FALLBACKS];
    let encoded = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&encoded).unwrap(), manifest);
}

#[test]
fn every_bound_is_checked_by_name() {
    assert_refused("producer", |m| m.producer.clear());
    assert_refused("producer", |m| m.producer = "x".repeat(65));
    assert_refused("producer", |m| m.producer = "nvx\n".to_owned());
    assert_refused("created_unix_ms", |m| m.created_unix_ms = MAX_UNIX_MS + 1);
    assert_refused("machine_contract", |m| m.machine_contract = 0);
    assert_refused("backend", |m| m.backend = "KVM".to_owned());
    assert_refused("cpu.vendor", |m| m.cpu.vendor.clear());
    assert_refused("cpu.features[1]", |m| {
        let word = m.cpu.features[0];
        m.cpu.features.push(CpuFeatureWord { bits: 0, ..word });
    });
    assert_refused("cpu.features", |m| {
        m.cpu.features = vec![m.cpu.features[0]; MAX_FEATURE_WORDS + 1];
    });
    assert_refused("vcpus", |m| m.vcpus = 0);
    assert_refused("vcpus", |m| m.vcpus = 9);
    assert_refused("ram", |m| m.ram.clear());
    assert_refused("ram", |m| m.ram = vec![m.ram[0]; MAX_RAM_RANGES + 1]);
    assert_refused("devices", |m| {
        m.devices = vec![m.devices[0].clone(); MAX_DEVICES + 1];
    });
    assert_refused("devices[0].name", |m| m.devices[0].name = "../x".to_owned());
    assert_refused("devices[0].kind", |m| m.devices[0].kind.clear());
    assert_refused("devices[1].name", |m| m.devices.push(m.devices[0].clone()));
    assert_refused("state.length_bytes", |m| m.state.length_bytes = 0);
    assert_refused("state.length_bytes", |m| {
        m.state.length_bytes = MAX_STATE as u64 + 1;
    });
    let long = || "x".repeat(MAX_TEXT_BYTES + 1);
    assert_refused("capture.publication_reason", |m| {
        m.capture.publication_reason = long();
    });
    assert_refused("capture.ram_backing", |m| m.capture.ram_backing.clear());
    assert_refused("capture.ram_backing_reason", |m| {
        m.capture.ram_backing_reason = "\u{1b}[2J".to_owned();
    });
    assert_refused("capture.strategy", |m| m.capture.strategy.clear());
    assert_refused("capture.fallbacks", |m| {
        m.capture.fallbacks = vec![String::new(); MAX_FALLBACKS + 1];
    });
    assert_refused("capture.fallbacks[1]", |m| m.capture.fallbacks.push(long()));
}

const MAX_STATE: usize = crate::MAX_STATE_BYTES;

#[test]
fn memory_is_one_layer_without_a_parent() {
    assert_refused("memory", |m| m.memory.clear());
    assert_refused("memory", |m| m.memory.push(m.memory[0].clone()));
    for file in ["", "memory", "../memory.bin", "/dev/mem", "memory.bin\0"] {
        assert_refused("memory[0].file", |m| m.memory[0].file = file.to_owned());
    }
    assert_refused("memory[0].parent", |m| {
        m.memory[0].parent = Some("base".to_owned());
    });
    for length in [
        0,
        1,
        sample::MEMORY_BYTES - 1,
        sample::MEMORY_BYTES + 1,
        u64::MAX,
    ] {
        assert_refused("memory[0].length_bytes", |m| {
            m.memory[0].length_bytes = length;
        });
    }
    let extent = |offset_bytes, length_bytes| Extent {
        offset_bytes,
        length_bytes,
    };
    for bad in [
        extent(0, 1),
        extent(4095, 1),
        extent(8192, 0),
        extent(8192, sample::MEMORY_BYTES),
        extent(u64::MAX, 2),
    ] {
        assert_refused("memory[0].extents[1]", |m| {
            m.memory[0].extents = Some(vec![extent(0, 4096), bad]);
        });
    }
    let chunks = |chunk_bytes, count| {
        Some(ChunkDigests {
            chunk_bytes,
            chunks: vec![Digest::of(b""); count],
        })
    };
    assert_refused("memory[0].digests.chunk_bytes", |m| {
        m.memory[0].digests = chunks(4096, 32);
    });
    assert_refused("memory[0].digests.chunk_bytes", |m| {
        m.memory[0].digests = chunks(MIN_CHUNK_BYTES + 1, 2);
    });
    assert_refused("memory[0].digests.chunks", |m| {
        m.memory[0].digests = chunks(MIN_CHUNK_BYTES, 3);
    });
    assert_refused("memory[0].digests.chunks", |m| {
        m.memory[0].digests = chunks(MIN_CHUNK_BYTES, 0);
    });
}

#[test]
fn ram_must_be_a_layout() {
    let changes: [fn(&mut Manifest); 7] = [
        |m| m.ram[0].size_bytes = 0,
        |m| m.ram[0].size_bytes += 1,
        |m| m.ram.swap(0, 1),
        |m| m.ram[1].start = 0,
        |m| m.ram[1].file_offset_bytes = 0,
        |m| m.ram[1].file_offset_bytes += 4096,
        |m| m.ram[1].size_bytes = u64::MAX - 4095,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut manifest = good();
        change(&mut manifest);
        let error = manifest.encode().unwrap_err();
        assert!(matches!(error, ManifestError::Ram(_)), "{index}: {error}");
        assert!(error.source().is_some());
    }
    let layout = good().ram_layout().unwrap();
    assert_eq!(layout.file_len_bytes(), sample::MEMORY_BYTES);
    let saved: Vec<SavedRamRange> = layout.ranges().iter().map(|&r| r.into()).collect();
    assert_eq!(saved, good().ram);
}
