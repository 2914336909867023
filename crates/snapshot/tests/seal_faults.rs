//! Sealing under faults: at every step refused or cut off by the process's death, and after a power cut that
//! loses what was not synced. The manifest is then the old one or the new one, whole, and the snapshot opens.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]
#![allow(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nvx_host::faults::{Fault, Step, StepKind, record, run_with_fault};
use nvx_snapshot::{MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE, Snapshot, seal};

/// Before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Old,
    New,
}

/// The golden snapshot in a directory in memory, so that thousands of turns take no time.
fn scene() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let snapshot = parent.path().join("snap");
    fs::create_dir(&snapshot).unwrap();
    let goldens = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/v1"));
    let mut manifest = Manifest::decode(&fs::read(goldens.join(MANIFEST_FILE)).unwrap()).unwrap();
    manifest.memory[0].digests = None;
    fs::copy(goldens.join(STATE_FILE), snapshot.join(STATE_FILE)).unwrap();
    fs::write(snapshot.join(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
    let mut memory = vec![0; manifest.memory[0].length_bytes as usize];
    memory[..8192].fill(0x5a);
    fs::write(snapshot.join(MEMORY_FILE), memory).unwrap();
    (parent, snapshot)
}

/// What the snapshot is now; anything but a whole one fails the test.
#[track_caller]
fn state_of(snapshot: &Path, what: &str) -> Which {
    let opened = Snapshot::open(snapshot).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    match &opened.manifest().memory[0].digests {
        None => Which::Old,
        Some(_) => {
            opened.verify_memory().unwrap();
            Which::New
        }
    }
}

/// Names beside the snapshot's own files.
fn leftovers(snapshot: &Path) -> Vec<String> {
    fs::read_dir(snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ![MANIFEST_FILE, STATE_FILE, MEMORY_FILE].contains(&name.as_str()))
        .collect()
}

/// The steps of a seal that nobody disturbs, with the manifests before and after.
fn undisturbed() -> (Vec<Step>, Vec<u8>, Vec<u8>) {
    let (_parent, snapshot) = scene();
    let old = fs::read(snapshot.join(MANIFEST_FILE)).unwrap();
    let (done, steps) = record(|| seal(&snapshot));
    assert!(!done.unwrap().was_sealed);
    let kinds: Vec<StepKind> = steps.iter().map(|step| step.kind).collect();
    // Or the tests test less than they say.
    assert_eq!(
        kinds,
        [
            StepKind::CreateFile,
            StepKind::Write,
            StepKind::SyncFile,
            StepKind::Rename,
            StepKind::SyncDirectory
        ]
    );
    (steps, old, fs::read(snapshot.join(MANIFEST_FILE)).unwrap())
}

#[test]
fn a_fault_at_any_step_leaves_the_old_manifest_or_the_new() {
    let (steps, _, _) = undisturbed();
    for fault in [Fault::Error, Fault::Kill] {
        for (index, step) in steps.iter().enumerate() {
            let what = format!("{fault:?} at {step:?}");
            let (_parent, snapshot) = scene();
            let (done, tried) = run_with_fault(index, fault, || seal(&snapshot));
            assert!(tried.len() > index, "{what}");
            assert!(done.is_err(), "{what}: a step that fails is told");
            let renamed = step.kind == StepKind::SyncDirectory;
            let expected = if renamed { Which::New } else { Which::Old };
            assert_eq!(state_of(&snapshot, &what), expected, "{what}");
            if fault == Fault::Error {
                assert_eq!(leftovers(&snapshot), [""; 0], "{what}");
            }
            assert_eq!(seal(&snapshot).unwrap().was_sealed, renamed, "{what}");
            assert_eq!(state_of(&snapshot, &what), Which::New, "{what}");
            assert_eq!(leftovers(&snapshot), [""; 0], "{what}");
        }
    }
}

/// What the directory has on the device after a power cut: for each name the bytes that its file has.
type Survivor = BTreeMap<String, Vec<u8>>;

/// Every state that a power cut after `steps` may leave, by rules that are weaker than ext4's: a change of an
/// entry is certain once the directory was synced, content once its file was; else each may be lost by itself, and
/// of content any part. A rename happens or does not.
fn survivors(steps: &[Step], old: &[u8], new: &[u8]) -> BTreeSet<Survivor> {
    let at = |kind| steps.iter().position(|step| step.kind == kind);
    let is_certain = |index: usize| {
        let mut later = steps[index..].iter();
        later.any(|step| step.kind == StepKind::SyncDirectory)
    };
    let may_happen = |index: Option<usize>| match index {
        None => vec![false],
        Some(index) if is_certain(index) => vec![true],
        Some(_) => vec![false, true],
    };
    let contents: Vec<&[u8]> = match at(StepKind::SyncFile) {
        Some(_) => vec![new],
        None => vec![&[], &new[..new.len() / 2], new],
    };
    let (created, renamed) = (at(StepKind::CreateFile), at(StepKind::Rename));
    let mut all = BTreeSet::new();
    for is_created in may_happen(created) {
        for is_renamed in may_happen(renamed) {
            for &content in &contents {
                let mut entries = Survivor::from([(MANIFEST_FILE.to_owned(), old.to_vec())]);
                if is_created && let Some(index) = created {
                    entries.insert(steps[index].name.clone(), content.to_vec());
                }
                // The new name may be there without the old one's end, and the other way round.
                if is_renamed && let Some(index) = renamed {
                    entries.remove(&steps[index].name);
                    entries.insert(MANIFEST_FILE.to_owned(), content.to_vec());
                }
                all.insert(entries);
            }
        }
    }
    all
}

fn materialize(survivor: &Survivor) -> (tempfile::TempDir, PathBuf) {
    let (parent, snapshot) = scene();
    for (name, content) in survivor {
        fs::write(snapshot.join(name), content).unwrap();
    }
    (parent, snapshot)
}

#[test]
fn a_power_cut_leaves_the_old_manifest_or_the_new() {
    let (steps, old, new) = undisturbed();
    let (mut olds, mut news, mut with_leftovers) = (0, 0, 0);
    for length in 0..=steps.len() {
        for survivor in survivors(&steps[..length], &old, &new) {
            let what = format!("after {length} steps");
            let (_parent, snapshot) = materialize(&survivor);
            match state_of(&snapshot, &what) {
                Which::Old => olds += 1,
                Which::New => news += 1,
            }
            with_leftovers += leftovers(&snapshot).len();
            if length == steps.len() {
                assert_eq!(state_of(&snapshot, &what), Which::New, "all is synced");
            }
            seal(&snapshot).unwrap();
            assert_eq!(state_of(&snapshot, &what), Which::New, "{what}");
        }
    }
    assert!(
        olds > 5 && news > 1 && with_leftovers > 3,
        "{olds} {news} {with_leftovers}"
    );
}

/// Were the sync of the new manifest left out, the model would find it.
#[test]
fn the_sync_before_the_rename_is_needed() {
    let (mut steps, old, new) = undisturbed();
    steps.retain(|step| step.kind != StepKind::SyncFile);
    let commit = steps
        .iter()
        .position(|step| step.kind == StepKind::Rename)
        .unwrap();
    let broken = survivors(&steps[..=commit], &old, &new)
        .iter()
        .any(|survivor| ![&old, &new].contains(&&survivor[MANIFEST_FILE]));
    assert!(broken);
}
