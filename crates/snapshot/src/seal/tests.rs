//! Tests of sealing.

use std::fs;

use super::*;
use crate::sample::{self, MEMORY_BYTES, names_in};
use crate::{MEMORY_FILE, Manifest, STATE_FILE};

#[cfg(unix)]
mod unix;

const FILES: [&str; 3] = [MANIFEST_FILE, MEMORY_FILE, STATE_FILE];

fn published() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snap");
    sample::publish(&path);
    sample::write_at(&path.join(MEMORY_FILE), b"content", 70_000);
    (directory, path)
}

#[test]
fn a_sealed_snapshot_has_digests_and_nothing_else_is_changed() {
    let (_directory, path) = published();
    let read = || Manifest::decode(&fs::read(path.join(MANIFEST_FILE)).unwrap()).unwrap();
    let before = read();
    let state = fs::read(path.join(STATE_FILE)).unwrap();
    let opened_before = Snapshot::open(&path).unwrap();
    let sealed = seal(&path).unwrap();
    assert!(!sealed.was_sealed);
    let mut after = read();
    let digests = after.memory[0].digests.take().unwrap();
    assert_eq!(after, before);
    assert_eq!(digests.chunks.len(), sealed.report.chunks);
    assert_eq!(fs::read(path.join(STATE_FILE)).unwrap(), state);
    assert_eq!(names_in(&path), FILES);
    Snapshot::open(&path).unwrap().verify_memory().unwrap();
    assert_eq!(*opened_before.manifest(), before);
}

#[test]
fn sealing_twice_checks_and_blesses_nothing() {
    let (_directory, path) = published();
    seal(&path).unwrap();
    let manifest = fs::read(path.join(MANIFEST_FILE)).unwrap();
    assert!(seal(&path).unwrap().was_sealed);
    sample::write_at(&path.join(MEMORY_FILE), b"C", MEMORY_BYTES - 1);
    let error = seal(&path).unwrap_err();
    assert!(
        matches!(error, SealError::Memory(MemoryError::Mismatch { .. })),
        "{error}"
    );
    assert_eq!(fs::read(path.join(MANIFEST_FILE)).unwrap(), manifest);
}

#[test]
fn what_a_killed_seal_left_is_removed_by_the_next() {
    let (_directory, path) = published();
    fs::write(path.join(".nvx-new-0123456789abcdef"), "half a mani").unwrap();
    let held = path.join(".nvx-new-fedcba9876543210");
    let alive = fs::File::create(&held).unwrap();
    assert_eq!(try_lock_exclusive(&alive).unwrap(), FileLock::Taken);
    seal(&path).unwrap();
    let mut expected: Vec<String> = FILES.map(str::to_owned).into();
    expected.insert(0, ".nvx-new-fedcba9876543210".to_owned());
    assert_eq!(names_in(&path), expected);
}
