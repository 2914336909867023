//! Tests of opening: a snapshot opens, and nothing else does.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;

use tempfile::TempDir;

use super::*;
use crate::manifest::SCHEMA_VERSION;
use crate::sample::{self, MEMORY_BYTES, UNITS};

#[cfg(unix)]
mod unix;

const FILES: [&str; 3] = [MANIFEST_FILE, STATE_FILE, MEMORY_FILE];

/// A directory with a snapshot in it, and the snapshot's path.
fn published() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("snapshot");
    sample::publish(&path);
    (temporary, path)
}

/// Opens what must not open, and checks that the text starts with the path of `file`.
#[track_caller]
fn refusal(path: &Path, file: &str) -> OpenError {
    let error = Snapshot::open(path).unwrap_err();
    let start = format!("{}: ", path.join(file).display());
    assert!(error.to_string().starts_with(&start), "{error}");
    error
}

#[test]
fn a_published_snapshot_opens() {
    let (_temporary, path) = published();
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(snapshot.path(), path);
    assert_eq!(snapshot.memory_path(), path.join("memory.bin"));
    assert_eq!(*snapshot.manifest(), sample::manifest(&sample::state()));
    assert_eq!(snapshot.memory().metadata().unwrap().len(), MEMORY_BYTES);
    assert!(snapshot.memory().write(b"x").is_err());
    let mut state = snapshot.state().unwrap();
    for (unit, kind, version, bytes) in UNITS {
        let payload = state.take(unit).unwrap();
        assert_eq!(payload.require(kind, version..=version).unwrap(), bytes);
    }
    state.finish().unwrap();
    assert_eq!(
        snapshot.into_memory().metadata().unwrap().len(),
        MEMORY_BYTES
    );
}

#[test]
fn what_is_no_snapshot_directory_is_named() {
    let (temporary, path) = published();
    let root = temporary.path();
    let missing = Snapshot::open(&root.join("missing")).unwrap_err();
    assert!(matches!(missing, OpenError::NotFound { path } if path == root.join("missing")));
    let empty = root.join("empty");
    fs::create_dir(&empty).unwrap();
    let error = Snapshot::open(&empty).unwrap_err();
    assert!(matches!(&error, OpenError::NoSnapshot { path } if *path == empty));
    let error = Snapshot::open(&path.join(STATE_FILE)).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::NotDirectory {
                found: FileKind::Regular,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_named() {
    for name in FILES {
        let (_temporary, path) = published();
        fs::remove_file(path.join(name)).unwrap();
        let error = refusal(&path, name);
        assert!(matches!(error, OpenError::Missing { file, .. } if file == name));
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_named() {
    for name in FILES {
        let (_temporary, path) = published();
        let target = path.join(name);
        fs::rename(&target, path.join("moved")).unwrap();
        fs::create_dir(&target).unwrap();
        let error = refusal(&path, name);
        assert!(
            matches!(error, OpenError::NotRegular { file, found: FileKind::Directory, .. }
                if file == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn an_altered_byte_of_manifest_or_state_is_found_at_every_offset() {
    let (_temporary, path) = published();
    for name in [MANIFEST_FILE, STATE_FILE] {
        let target = path.join(name);
        let good = fs::read(&target).unwrap();
        for (offset, &byte) in good.iter().enumerate() {
            sample::write_at(&target, &[byte ^ 0x10], offset as u64);
            let error = refusal(&path, name);
            if name == STATE_FILE {
                assert!(matches!(error, OpenError::StateDigest { .. }));
            }
            sample::write_at(&target, &[byte], offset as u64);
        }
        Snapshot::open(&path).unwrap();
    }
}

#[test]
fn a_file_of_another_length_is_named() {
    let (_temporary, path) = published();
    for name in FILES {
        let target = path.join(name);
        let good = fs::read(&target).unwrap();
        let length = good.len() as u64;
        let shorter = (0..length).step_by(if name == MEMORY_FILE { 8191 } else { 1 });
        for wrong in shorter.chain([length + 1, length + 4096]) {
            let file = OpenOptions::new().write(true).open(&target).unwrap();
            file.set_len(wrong).unwrap();
            drop(file);
            let error = refusal(&path, name);
            if name != MANIFEST_FILE {
                assert!(
                    matches!(error, OpenError::Length { length_bytes, recorded_bytes, .. }
                        if length_bytes == wrong && recorded_bytes == length)
                );
            }
        }
        fs::write(&target, &good).unwrap();
    }
    OpenOptions::new()
        .write(true)
        .open(path.join(MEMORY_FILE))
        .unwrap()
        .set_len(4096)
        .unwrap();
    let text = refusal(&path, MEMORY_FILE).to_string();
    assert!(
        text.ends_with("memory.bin: 4096 bytes, manifest says 131072"),
        "{text}"
    );
}

#[test]
fn oversized_files_are_refused_before_they_are_read() {
    for (name, limit) in [(MANIFEST_FILE, 1u64 << 20), (STATE_FILE, 16 << 20)] {
        let (_temporary, path) = published();
        // Far more than could be read into memory; sparse, so it costs nothing.
        OpenOptions::new()
            .write(true)
            .open(path.join(name))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let error = refusal(&path, name);
        assert!(
            matches!(error, OpenError::TooLarge { file, length_bytes, limit_bytes, .. }
            if file == name && length_bytes == 1 << 40 && limit_bytes == limit)
        );
    }
}

#[test]
fn a_newer_schema_version_is_named() {
    let (_temporary, path) = published();
    let target = path.join(MANIFEST_FILE);
    let newer = fs::read_to_string(&target)
        .unwrap()
        .replace("\"schema_version\": 1", "\"schema_version\": 2")
        .replace("nvx 0.1.0", "nvx 7.0.0");
    fs::write(&target, newer).unwrap();
    let error = refusal(&path, MANIFEST_FILE);
    assert!(
        matches!(&error, OpenError::VersionMismatch { found: 2, supported, producer, .. }
        if *supported == SCHEMA_VERSION && producer == "nvx 7.0.0")
    );
    assert!(error.source().is_none());
}

#[test]
fn files_of_two_snapshots_do_not_mix() {
    let (temporary, path) = published();
    let other = temporary.path().join("other");
    let mut writer = crate::StateWriter::new();
    // As long as the sample's state, so that only the digest can tell.
    for (unit, kind, version, payload) in UNITS {
        writer
            .put(unit, kind, version, &vec![7; payload.len()])
            .unwrap();
    }
    let state = writer.finish();
    let mut staging =
        crate::Staging::create(&crate::Destination::declare(&other).unwrap()).unwrap();
    staging.write_state(&state).unwrap();
    staging
        .create_memory()
        .unwrap()
        .set_len(MEMORY_BYTES)
        .unwrap();
    staging.write_manifest(&sample::manifest(&state)).unwrap();
    staging.sync().unwrap();
    staging.commit().unwrap();
    fs::copy(other.join(STATE_FILE), path.join(STATE_FILE)).unwrap();
    assert!(matches!(
        refusal(&path, STATE_FILE),
        OpenError::StateDigest { .. }
    ));
    fs::copy(other.join(MANIFEST_FILE), path.join(MANIFEST_FILE)).unwrap();
    Snapshot::open(&path).unwrap();
}

#[test]
fn a_state_that_the_manifest_means_must_still_be_one() {
    let (_temporary, path) = published();
    let not_state = b"no state at all".to_vec();
    fs::write(path.join(STATE_FILE), &not_state).unwrap();
    let manifest = sample::manifest(&not_state).encode().unwrap();
    fs::write(path.join(MANIFEST_FILE), manifest).unwrap();
    let error = refusal(&path, STATE_FILE);
    assert!(matches!(
        error,
        OpenError::State {
            source: StateError::Magic,
            ..
        }
    ));
}

#[test]
fn a_payload_that_was_wrong_from_the_start_is_found_by_verification() {
    let (_temporary, path) = published();
    Snapshot::open(&path).unwrap().verify_state().unwrap();
    let mut state = sample::state();
    *state.last_mut().unwrap() ^= 1;
    fs::write(path.join(STATE_FILE), &state).unwrap();
    let manifest = sample::manifest(&state).encode().unwrap();
    fs::write(path.join(MANIFEST_FILE), manifest).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(
        snapshot.verify_state().unwrap_err(),
        StateError::PayloadDigest {
            unit: "serial0".to_owned()
        }
    );
}

#[test]
fn memory_content_is_not_looked_at() {
    let (_temporary, path) = published();
    let mut memory = OpenOptions::new()
        .write(true)
        .open(path.join(MEMORY_FILE))
        .unwrap();
    memory.write_all(&[0xff; 4096]).unwrap();
    drop(memory);
    Snapshot::open(&path).unwrap();
}
