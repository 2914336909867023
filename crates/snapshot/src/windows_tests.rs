//! Publication and opening on Windows.

use std::fs::{self, OpenOptions};

use nvx_host::{Directory, FileKind, RenameMethod, remove_stale};

use crate::sample::{self, MEMORY_BYTES, names_in, publish, stage};
use crate::{
    Destination, MANIFEST_FILE, MEMORY_FILE, OpenError, PublishError, STATE_FILE, Snapshot, Staging,
};

#[test]
fn what_is_published_opens_and_nothing_else_is_left() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("snäp shot");
    let published = publish(&path);
    assert_eq!(published.path(), path);
    assert_eq!(published.rename_method(), RenameMethod::NoReplace);
    published.sync_parent().unwrap();
    drop(published);
    assert_eq!(names_in(root.path()), ["snäp shot"]);
    assert_eq!(names_in(&path), [MANIFEST_FILE, MEMORY_FILE, STATE_FILE]);
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!(snapshot.manifest().vcpus, 1);
    assert_eq!(snapshot.memory().metadata().unwrap().len(), MEMORY_BYTES);
    snapshot.verify_state().unwrap();
    // While it is open nobody can write to its memory, and others can open it too.
    let memory = path.join(MEMORY_FILE);
    assert!(OpenOptions::new().write(true).open(&memory).is_err());
    Snapshot::open(&path).unwrap();
    drop(snapshot);
    OpenOptions::new().write(true).open(&memory).unwrap();
}

#[test]
fn a_name_is_given_once() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("snap");
    let late = stage(&path);
    publish(&path);
    let error = late.commit().unwrap_err();
    assert!(matches!(error, PublishError::Exists { .. }), "{error}");
    let error = Destination::declare(&path).unwrap_err();
    assert!(matches!(error, PublishError::Exists { .. }), "{error}");
    assert_eq!(names_in(root.path()), ["snap"]);
    Snapshot::open(&path).unwrap();
}

#[test]
fn a_staging_that_is_dropped_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let staging = stage(&root.path().join("snap"));
    assert_eq!(names_in(root.path()).len(), 1);
    drop(staging);
    assert_eq!(names_in(root.path()), [""; 0]);
}

#[test]
fn a_ram_file_is_linked_and_not_copied() {
    let root = tempfile::tempdir().unwrap();
    let parent = Directory::open(root.path()).unwrap();
    let ram = parent.create_new("ram").unwrap();
    ram.set_len(MEMORY_BYTES).unwrap();
    let destination = Destination::declare(&root.path().join("snap")).unwrap();
    assert!(destination.same_file_system(&ram));
    let state = sample::state();
    let mut staging = Staging::create(&destination).unwrap();
    staging.write_state(&state).unwrap();
    staging.link_memory(&ram).unwrap();
    staging.write_manifest(&sample::manifest(&state)).unwrap();
    staging.sync().unwrap();
    staging.commit().unwrap();
    let published = Directory::open(&root.path().join("snap")).unwrap();
    let identity = published.identity_of(MEMORY_FILE).unwrap();
    assert_eq!(identity, parent.identity_of("ram").unwrap());
    // The source still writes to it, so that it is not yet to be opened.
    assert!(Snapshot::open(&root.path().join("snap")).is_err());
    drop(ram);
    parent.remove_file("ram").unwrap();
    Snapshot::open(&root.path().join("snap")).unwrap();
}

#[test]
fn a_clean_up_leaves_living_and_published_directories() {
    let root = tempfile::tempdir().unwrap();
    let staging = stage(&root.path().join("snap"));
    let parent = Directory::open(root.path()).unwrap();
    assert!(remove_stale(&parent).unwrap().removed.is_empty());
    let published = staging.commit().unwrap();
    assert!(remove_stale(&parent).unwrap().removed.is_empty());
    drop(published);
    Snapshot::open(&root.path().join("snap")).unwrap();
}

#[test]
fn files_that_are_wrong_are_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("snap");
    let error = Snapshot::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::NotFound { .. }), "{error}");
    fs::create_dir(&path).unwrap();
    let error = Snapshot::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::NoSnapshot { .. }), "{error}");
    fs::remove_dir(&path).unwrap();
    for file in [MANIFEST_FILE, STATE_FILE, MEMORY_FILE] {
        publish(&path);
        let name = path.join(file);
        let content = fs::read(&name).unwrap();
        fs::write(&name, &content[1..]).unwrap();
        let error = Snapshot::open(&path).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        fs::remove_file(&name).unwrap();
        let error = Snapshot::open(&path).unwrap_err();
        let OpenError::Missing { file: missing, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(missing, file);
        fs::create_dir(&name).unwrap();
        let error = Snapshot::open(&path).unwrap_err();
        let OpenError::NotRegular { found, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(found, FileKind::Directory);
        fs::remove_dir_all(&path).unwrap();
    }
    fs::write(&path, "a file").unwrap();
    let error = Snapshot::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::NotDirectory { .. }), "{error}");
}
