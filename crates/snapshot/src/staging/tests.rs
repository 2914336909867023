//! Tests of staging and publication.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::Snapshot;
use crate::sample::{self, MEMORY_BYTES, names_in, stage};

#[cfg(unix)]
mod unix;

fn scratch() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let destination = temporary.path().join("snapshot");
    (temporary, destination)
}

fn declare(path: &Path) -> Result<(), PublishError> {
    Destination::declare(path).map(drop)
}

fn create(path: &Path) -> Result<Staging, PublishError> {
    Staging::create(&Destination::declare(path)?)
}

#[test]
fn a_copied_memory_is_published() {
    let (temporary, destination) = scratch();
    let staging = stage(&destination);
    assert_eq!(staging.destination(), destination);
    let expected = staging.staged.rename_method;
    assert_eq!(
        staging.fallbacks().is_empty(),
        expected == RenameMethod::NoReplace
    );
    assert!(!destination.exists(), "nothing before the commit");
    let published = staging.commit().unwrap();
    assert_eq!(published.path(), destination);
    assert_eq!(published.rename_method(), expected);
    published.sync_parent().unwrap();
    drop(published);
    assert_eq!(names_in(temporary.path()), ["snapshot"]);
    assert_eq!(
        names_in(&destination),
        ["manifest.json", "memory.bin", "state.bin"]
    );
}

#[test]
fn a_name_that_was_taken_meanwhile_is_kept() {
    for method in [RenameMethod::NoReplace, RenameMethod::ClaimedDirectory] {
        let makers: [fn(&Path); 3] = [
            |path| fs::create_dir(path).unwrap(),
            |path| {
                fs::create_dir(path).unwrap();
                fs::write(path.join("kept"), b"x").unwrap();
            },
            |path| fs::write(path, b"x").unwrap(),
        ];
        for (index, make) in makers.iter().enumerate() {
            let (temporary, destination) = scratch();
            let staging = stage(&destination);
            make(&destination);
            let names = || destination.is_dir().then(|| names_in(&destination));
            let before = names();
            let error = staging.commit_by(method).unwrap_err();
            assert!(
                matches!(&error, PublishError::Exists { destination: d } if *d == destination),
                "{index}: {error}"
            );
            assert_eq!(names(), before);
            assert_eq!(names_in(temporary.path()), ["snapshot"]);
        }
    }
}

#[test]
fn the_fallback_publishes_too_and_never_replaces() {
    let (temporary, destination) = scratch();
    stage(&destination)
        .commit_by(RenameMethod::ClaimedDirectory)
        .unwrap();
    Snapshot::open(&destination).unwrap();
    let other = temporary.path().join("other");
    let staging = stage(&other);
    fs::create_dir(&other).unwrap();
    assert!(matches!(
        staging.commit_by(RenameMethod::ClaimedDirectory),
        Err(PublishError::Exists { .. })
    ));
    assert_eq!(names_in(temporary.path()), ["other", "snapshot"]);
}

#[test]
fn the_fallback_is_told_before_the_manifest_is_written() {
    let (_temporary, destination) = scratch();
    let mut staging = create(&destination).unwrap();
    staging.staged.rename_method = RenameMethod::ClaimedDirectory;
    assert_eq!(staging.fallbacks().len(), 1);
    assert!(staging.fallbacks()[0].contains("RENAME_NOREPLACE"));
}

#[test]
fn dropped_staging_leaves_nothing_after_any_step() {
    let (temporary, destination) = scratch();
    let state = sample::state();
    type Step<'a> = Box<dyn Fn(&mut Staging) + 'a>;
    let steps: Vec<Step<'_>> = vec![
        Box::new(|_| {}),
        Box::new(|staging| assert!(staging.write_state(&state).is_ok())),
        Box::new(|staging| {
            let memory = staging.create_memory().unwrap();
            memory.set_len(MEMORY_BYTES).unwrap();
        }),
        Box::new(|staging| staging.write_manifest(&sample::manifest(&state)).unwrap()),
        Box::new(|staging| staging.start_writeback()),
        Box::new(|staging| staging.sync().unwrap()),
    ];
    for last in 0..steps.len() {
        let mut staging = create(&destination).unwrap();
        for step in &steps[..=last] {
            step(&mut staging);
        }
        assert_eq!(names_in(temporary.path()).len(), 1);
        drop(staging);
        assert!(names_in(temporary.path()).is_empty(), "after step {last}");
    }
}

#[test]
fn a_bad_destination_is_told_early() {
    let (temporary, destination) = scratch();
    let root = temporary.path();
    declare(&destination).unwrap();
    declare(&root.join("trailing/")).unwrap();
    fs::write(root.join("file"), b"x").unwrap();

    let refused = |path: &Path| {
        let early = declare(path).unwrap_err();
        let late = create(path).unwrap_err();
        assert_eq!(early.to_string(), late.to_string());
        early
    };
    for path in ["", "/", "..", "a/.."] {
        let error = refused(Path::new(path));
        assert!(matches!(error, PublishError::NoName { .. }), "{path}");
    }
    let error = refused(&root.join("missing/new"));
    assert!(
        matches!(&error, PublishError::MissingParent { parent, .. } if parent.ends_with("missing"))
    );
    let error = refused(&root.join("file/new"));
    assert!(matches!(
        error,
        PublishError::ParentNotDirectory {
            found: FileKind::Regular,
            ..
        }
    ));
    assert_eq!(names_in(root), ["file"], "nothing was made");
}

#[test]
fn steps_out_of_order_are_refused() {
    let (temporary, destination) = scratch();
    let state = sample::state();
    let manifest = sample::manifest(&state);
    let mut staging = create(&destination).unwrap();
    let incomplete = |result: Result<(), PublishError>, name: &str| {
        assert!(matches!(
            result,
            Err(PublishError::Incomplete { file, .. }) if file == name
        ));
    };
    incomplete(staging.write_manifest(&manifest), "state.bin");
    incomplete(staging.sync(), "state.bin");
    staging.write_state(&state).unwrap();
    assert!(matches!(
        staging.write_state(&state),
        Err(PublishError::Create {
            what: "state.bin",
            source: CreateError::Exists { .. },
            ..
        })
    ));
    incomplete(staging.write_manifest(&manifest), "memory.bin");
    let memory = staging.create_memory().unwrap();
    assert!(matches!(
        staging.write_manifest(&manifest),
        Err(PublishError::NotAsDescribed {
            file: "memory.bin",
            ..
        })
    ));
    memory.set_len(MEMORY_BYTES).unwrap();
    let other = sample::manifest(b"another state");
    assert!(matches!(
        staging.write_manifest(&other),
        Err(PublishError::NotAsDescribed {
            file: "state.bin",
            ..
        })
    ));
    let mut invalid = manifest.clone();
    invalid.vcpus = 0;
    assert!(matches!(
        staging.write_manifest(&invalid),
        Err(PublishError::Manifest { .. })
    ));
    incomplete(staging.sync(), "manifest.json");
    staging.write_manifest(&manifest).unwrap();
    drop(memory);
    assert!(matches!(
        staging.commit(),
        Err(PublishError::NotSynced { .. })
    ));
    assert!(names_in(temporary.path()).is_empty());
}
