//! Publication under faults: at every step refused or cut off by the process's death, and after a power
//! cut that loses what was not synced. What is then at the destination is a whole snapshot or nothing.

#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]
#![allow(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nvx_host::faults::{Fault, Step, StepKind, record, run_with_fault};
use nvx_host::{Directory, remove_stale, sync_data, write_all};
use nvx_snapshot::{
    Destination, MANIFEST_FILE, MEMORY_FILE, Manifest, OpenError, STATE_FILE, Snapshot, Staging,
};

const FILES: [&str; 3] = [MANIFEST_FILE, STATE_FILE, MEMORY_FILE];
const SNAPSHOT: &str = "snap";

/// How memory gets into the snapshot.
#[derive(Clone, Copy, Debug)]
enum Way {
    Link,
    Copy,
}

/// The golden state, its manifest, and a memory of the length that this gives.
struct Content {
    state: Vec<u8>,
    manifest: Manifest,
    memory: Vec<u8>,
}

fn content() -> Content {
    let goldens = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/v1"));
    let manifest = Manifest::decode(&fs::read(goldens.join(MANIFEST_FILE)).unwrap()).unwrap();
    let length = manifest.memory[0].length_bytes as usize;
    let mut memory = vec![0; length];
    memory[..8192].fill(0x5a);
    memory[length - 4096..].fill(0xa5);
    Content {
        state: fs::read(goldens.join(STATE_FILE)).unwrap(),
        manifest,
        memory,
    }
}

/// The steps of a capture that concern files, in its order. A file that cannot be linked is copied.
fn publish(parent: &Path, way: Way, ram: &File, content: &Content) -> Result<(), Box<dyn Error>> {
    let destination = Destination::declare(&parent.join(SNAPSHOT))?;
    let mut staging = Staging::create(&destination)?;
    let linked = matches!(way, Way::Link) && staging.link_memory(ram).is_ok();
    let memory = if linked {
        ram.try_clone()?
    } else {
        let file = staging.create_memory()?;
        write_all(&file, MEMORY_FILE, &content.memory)?;
        file
    };
    staging.write_state(&content.state)?;
    staging.write_manifest(&content.manifest)?;
    staging.start_writeback();
    sync_data(&memory, MEMORY_FILE)?;
    staging.sync()?;
    let published = staging.commit()?;
    published.sync_parent()?;
    Ok(())
}

/// A directory with a nameless RAM file on its file system, in memory so that thousands of turns take
/// no time.
fn scene(content: &Content) -> (tempfile::TempDir, File) {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = Directory::open(parent.path()).unwrap();
    let ram = directory.create_nameless().unwrap().unwrap();
    ram.write_all_at(&content.memory, 0).unwrap();
    (parent, ram)
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// True for a whole snapshot, false for none; anything else fails the test.
#[track_caller]
fn is_published(parent: &Path, content: &Content, what: &str) -> bool {
    let path = parent.join(SNAPSHOT);
    match Snapshot::open(&path) {
        Ok(snapshot) => {
            assert_eq!(*snapshot.manifest(), content.manifest, "{what}");
            snapshot.verify_state().unwrap();
            assert!(
                fs::read(path.join(MEMORY_FILE)).unwrap() == content.memory,
                "{what}"
            );
            true
        }
        Err(OpenError::NotFound { .. } | OpenError::NoSnapshot { .. }) => false,
        Err(error) => panic!("{what}: {error}: {:?}", error.source()),
    }
}

#[test]
fn a_fault_at_any_step_leaves_a_whole_snapshot_or_none() {
    let content = content();
    for way in [Way::Link, Way::Copy] {
        let (parent, ram) = scene(&content);
        let (done, steps) = record(|| publish(parent.path(), way, &ram, &content));
        done.unwrap();
        assert!(is_published(parent.path(), &content, "no fault"));
        // Or this tests less than it says.
        let kinds: Vec<StepKind> = steps.iter().map(|step| step.kind).collect();
        for kind in [
            StepKind::CreateDirectory,
            StepKind::CreateFile,
            StepKind::Write,
            StepKind::SyncFile,
            StepKind::SyncDirectory,
            StepKind::Rename,
        ] {
            assert!(kinds.contains(&kind), "{way:?}: no {kind:?} in {kinds:?}");
        }
        assert_eq!(kinds.contains(&StepKind::Link), matches!(way, Way::Link));

        for fault in [Fault::Error, Fault::Kill] {
            for index in 0..steps.len() {
                let what = format!("{way:?}, {fault:?} at {:?}", steps[index]);
                let (parent, ram) = scene(&content);
                let (done, tried) =
                    run_with_fault(index, fault, || publish(parent.path(), way, &ram, &content));
                let published = is_published(parent.path(), &content, &what);
                // Only the last step may fail with the snapshot in its place; a refused link is copied.
                let last = index == steps.len() - 1;
                let copied = done.is_ok();
                assert_eq!(published, last || copied, "{what}: {done:?}");
                assert!(tried.len() > index, "{what}");
                let mut left = names(parent.path());
                left.remove(SNAPSHOT);
                if fault == Fault::Error {
                    assert!(left.is_empty(), "{what}: {left:?}");
                }
                remove_stale(&Directory::open(parent.path()).unwrap()).unwrap();
                let mut left = names(parent.path());
                left.remove(SNAPSHOT);
                assert!(left.is_empty(), "{what}: {left:?}");
                // The guest goes on and may be captured again.
                if !published {
                    publish(parent.path(), way, &ram, &content).unwrap();
                    assert!(is_published(parent.path(), &content, &what));
                }
            }
        }
    }
}

#[test]
fn a_refused_clean_up_is_made_good_by_the_next_start() {
    let content = content();
    let (parent, ram) = scene(&content);
    let (_, steps) = record(|| publish(parent.path(), Way::Copy, &ram, &content));
    for (index, step) in steps.iter().enumerate().skip(1) {
        if index == steps.len() - 1 {
            // Committed by then, and synced or not: no staging directory.
            break;
        }
        let (parent, ram) = scene(&content);
        // While a living process holds its staging directory, nobody else removes that.
        let destination = Destination::declare(&parent.path().join("other")).unwrap();
        let alive = Staging::create(&destination).unwrap();
        let (_, _) = run_with_fault(index, Fault::Kill, || {
            publish(parent.path(), Way::Copy, &ram, &content)
        });
        let directory = Directory::open(parent.path()).unwrap();
        remove_stale(&directory).unwrap();
        assert_eq!(names(parent.path()).len(), 1, "{step:?}");
        drop(alive);
        assert!(names(parent.path()).is_empty());
    }
}

/// What a directory has on the device: entries by name, each with the thing it stands for.
type Entries = BTreeMap<String, String>;

/// What a power cut left of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kept {
    Nothing,
    Half,
    All,
}

/// One state of the device after a power cut.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Survivor {
    parent: Entries,
    staging: Entries,
    content: BTreeMap<String, Kept>,
}

/// Every state that a power cut after `steps` may leave. The rules are weaker than ext4's: a change of a
/// directory is there for certain once that directory was synced, else it may be lost by itself, in any order;
/// content is there for certain once its file was synced, else any part of it may be. A rename happens or does not.
fn survivors(steps: &[Step], parent: &Path) -> BTreeSet<Survivor> {
    let is_entry_change = |step: &&Step| {
        !matches!(
            step.kind,
            StepKind::Write | StepKind::SyncFile | StepKind::SyncDirectory
        )
    };
    let synced_later = |index: usize| {
        let directory = &steps[index].directory;
        let mut later = steps[index + 1..].iter();
        later.any(|step| step.kind == StepKind::SyncDirectory && step.directory == *directory)
    };
    let changes: Vec<usize> = (0..steps.len())
        .filter(|&index| is_entry_change(&&steps[index]))
        .collect();
    let unsure: Vec<usize> = changes
        .iter()
        .copied()
        .filter(|&index| !synced_later(index))
        .collect();
    let synced = |file: &str| {
        let mut of_file = steps.iter().filter(|step| step.name == file);
        of_file.any(|step| step.kind == StepKind::SyncFile)
    };
    let kept: Vec<Vec<(String, Kept)>> = FILES
        .iter()
        .map(|file| match synced(file) {
            true => vec![(file.to_string(), Kept::All)],
            false => [Kept::Nothing, Kept::Half, Kept::All]
                .map(|kept| (file.to_string(), kept))
                .into(),
        })
        .collect();
    let mut all = BTreeSet::new();
    for lost in 0_u32..1 << unsure.len() {
        let is_lost = |index: usize| {
            let place = unsure.iter().position(|&unsure| unsure == index);
            place.is_some_and(|place| lost >> place & 1 == 1)
        };
        let (mut above, mut below) = (Entries::new(), Entries::new());
        for &index in changes.iter().filter(|&&index| !is_lost(index)) {
            let step = &steps[index];
            let entries = match step.directory == parent {
                true => &mut above,
                false => &mut below,
            };
            match (&step.new_name, step.kind) {
                (_, StepKind::Remove) => drop(entries.remove(&step.name)),
                // The one directory that is renamed here is the staging directory.
                (Some(new_name), _) => {
                    entries.remove(&step.name);
                    entries.insert(new_name.clone(), "staging".to_owned());
                }
                (None, StepKind::CreateDirectory) => {
                    entries.insert(step.name.clone(), "staging".to_owned());
                }
                (None, _) => {
                    entries.insert(step.name.clone(), step.name.clone());
                }
            }
        }
        for manifest in &kept[0] {
            for state in &kept[1] {
                for memory in &kept[2] {
                    all.insert(Survivor {
                        parent: above.clone(),
                        staging: below.clone(),
                        content: [manifest, state, memory].map(Clone::clone).into(),
                    });
                }
            }
        }
    }
    all
}

/// Puts a state of the device into a directory.
fn materialize(survivor: &Survivor, into: &Path, content: &Content, manifest: &[u8]) {
    for name in survivor.parent.keys() {
        let directory = into.join(name);
        fs::create_dir(&directory).unwrap();
        for file in survivor.staging.keys() {
            let whole = match file.as_str() {
                MANIFEST_FILE => manifest,
                STATE_FILE => &content.state,
                _ => &content.memory,
            };
            let kept = match survivor.content[file] {
                Kept::Nothing => 0,
                Kept::Half => whole.len() / 2,
                Kept::All => whole.len(),
            };
            fs::write(directory.join(file), &whole[..kept]).unwrap();
        }
    }
}

fn is_whole(survivor: &Survivor) -> bool {
    FILES.iter().all(|file| {
        survivor.staging.contains_key(*file) && survivor.content.get(*file) == Some(&Kept::All)
    })
}

#[test]
fn a_power_cut_leaves_a_whole_snapshot_or_none() {
    let content = content();
    let manifest = content.manifest.encode().unwrap();
    for way in [Way::Link, Way::Copy] {
        let (parent, ram) = scene(&content);
        let (done, steps) = record(|| publish(parent.path(), way, &ram, &content));
        done.unwrap();
        let mut all = BTreeSet::new();
        for length in 0..=steps.len() {
            let after = survivors(&steps[..length], parent.path());
            if length == steps.len() {
                // Everything was synced: nothing can be lost any more.
                assert!(
                    after
                        .iter()
                        .all(|survivor| survivor.parent.contains_key(SNAPSHOT))
                );
            }
            all.extend(after);
        }
        let (mut published, mut none) = (0, 0);
        for survivor in &all {
            let device = tempfile::tempdir_in("/dev/shm").unwrap();
            materialize(survivor, device.path(), &content, &manifest);
            match is_published(device.path(), &content, &format!("{way:?}: {survivor:?}")) {
                true => published += 1,
                false => none += 1,
            }
            remove_stale(&Directory::open(device.path()).unwrap()).unwrap();
            let mut left = names(device.path());
            left.remove(SNAPSHOT);
            assert!(left.is_empty(), "{survivor:?}: {left:?}");
        }
        assert!(published > 0 && none > 50, "{published} {none}");
    }
}

/// Were a sync left out, the model would find it; so that it finds nothing means something.
#[test]
fn each_sync_before_the_commit_is_needed() {
    let content = content();
    let (parent, ram) = scene(&content);
    let (done, steps) = record(|| publish(parent.path(), Way::Copy, &ram, &content));
    done.unwrap();
    let is_sync = |step: &Step| matches!(step.kind, StepKind::SyncFile | StepKind::SyncDirectory);
    let commit = steps
        .iter()
        .position(|step| step.new_name.as_deref() == Some(SNAPSHOT))
        .unwrap();
    let syncs: Vec<usize> = (0..commit)
        .filter(|&index| is_sync(&steps[index]))
        .collect();
    assert_eq!(syncs.len(), 4, "three files and their directory: {steps:?}");
    for without in syncs {
        let mut fewer = steps[..=commit].to_vec();
        let left_out = fewer.remove(without);
        let broken = survivors(&fewer, parent.path())
            .into_iter()
            .any(|survivor| survivor.parent.contains_key(SNAPSHOT) && !is_whole(&survivor));
        assert!(broken, "{left_out:?}");
    }
}
