//! Directories, publication and clean-up on Windows.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::windows::fs::OpenOptionsExt as _;
use std::time::Duration;

use super::files::{Directory, FileIdentity, FileSystem};
use super::lock::try_lock_exclusive;
use super::publish::{link_open_file, rename_no_replace};
use super::stale::{create_locked_directory, random_name, remove_stale};
use super::wait::{Waitable as _, Waker, wait_any};
use super::wait_set::WaitSet;
use crate::{
    CreateError, FileKind, FileLock, Interest, LeftReason, LinkError, OpenError, RAM_FILE_PREFIX,
    RenameError, STAGING_PREFIX,
};

fn new_directory() -> (tempfile::TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::open(temporary.path()).unwrap();
    (temporary, directory)
}

#[test]
fn what_is_created_is_found_by_its_kind_and_identity() {
    let (temporary, directory) = new_directory();
    assert!(directory.is_empty().unwrap());
    let mut file = directory.create_new("file").unwrap();
    file.write_all(b"content").unwrap();
    directory.create_subdirectory("inner").unwrap();
    assert_eq!(directory.kind("file").unwrap(), Some(FileKind::Regular));
    assert_eq!(directory.kind("inner").unwrap(), Some(FileKind::Directory));
    assert_eq!(directory.kind("none").unwrap(), None);
    assert_eq!(directory.length_bytes_of("file").unwrap(), Some(7));
    let named = directory.identity_of("file").unwrap();
    assert_eq!(named, Some(FileIdentity::of(&file).unwrap()));
    assert!(directory.same_file_system(&file).unwrap());
    assert!(!directory.is_empty().unwrap());
    assert!(FileSystem::of(&file).is_ok());
    directory.check_writable().unwrap();
    drop(file);
    let mut text = String::new();
    let mut again = directory.open_regular("file").unwrap();
    again.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    drop(again);
    directory.remove_file("file").unwrap();
    directory.remove_empty_subdirectory("inner").unwrap();
    assert!(directory.is_empty().unwrap());
    assert!(temporary.path().exists());
}

#[test]
fn wrong_kinds_and_absent_names_are_told() {
    let (temporary, directory) = new_directory();
    directory.create_new("file").unwrap();
    directory.create_subdirectory("inner").unwrap();
    for (error, found) in [
        (
            directory.open_regular("inner").map(drop),
            FileKind::Directory,
        ),
        (
            directory.open_subdirectory("file").map(drop),
            FileKind::Regular,
        ),
        (
            Directory::open(&temporary.path().join("file")).map(drop),
            FileKind::Regular,
        ),
    ] {
        let error = error.unwrap_err();
        let OpenError::WrongKind { found: told, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(told, found);
    }
    let absent = [
        directory.open_regular("none").map(drop),
        directory.open_subdirectory("none").map(drop),
        Directory::open(&temporary.path().join("none/deeper")).map(drop),
    ];
    for result in absent {
        let error = result.unwrap_err();
        assert!(matches!(error, OpenError::NotFound { .. }), "{error}");
    }
    let error = directory.create_new("file").unwrap_err();
    assert!(matches!(error, CreateError::Exists { .. }), "{error}");
    assert!(directory.remove_file("inner").is_err());
    assert!(directory.remove_empty_subdirectory("file").is_err());
    assert_eq!(directory.kind("file").unwrap(), Some(FileKind::Regular));
}

#[test]
fn names_that_lead_elsewhere_or_mean_something_else_are_refused() {
    let (_temporary, directory) = new_directory();
    for name in [
        "", ".", "..", "a/b", "a\\b", "a:b", "a.", "a ", "a*", "nul", "COM1.txt", "a\0",
    ] {
        let error = directory.create_new(name).unwrap_err();
        assert!(
            matches!(error, CreateError::InvalidName { .. }),
            "{name:?}: {error}"
        );
        assert!(directory.kind(name).is_err(), "{name:?}");
        assert!(directory.remove_file(name).is_err(), "{name:?}");
    }
    directory.create_new("COM.txt").unwrap();
    directory.create_new("ünïcödé 名前").unwrap();
}

#[test]
fn a_file_being_written_cannot_be_opened_as_content() {
    let (temporary, directory) = new_directory();
    let writer = directory.create_new("file").unwrap();
    assert!(directory.open_regular("file").is_err());
    drop(writer);
    let reader = directory.open_regular("file").unwrap();
    let path = temporary.path().join("file");
    let error = OpenOptions::new().write(true).open(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(32), "{error}");
    // Other readers are welcome.
    File::open(&path).unwrap();
    drop(reader);
    OpenOptions::new().write(true).open(&path).unwrap();
}

#[test]
fn an_open_file_gets_further_names() {
    let (_temporary, directory) = new_directory();
    let inner = directory.create_subdirectory("inner").unwrap();
    let mut file = directory.create_new("file").unwrap();
    link_open_file(&file, &inner, "linked").unwrap();
    file.write_all(b"later").unwrap();
    assert_eq!(inner.length_bytes_of("linked").unwrap(), Some(5));
    let error = link_open_file(&file, &inner, "linked").unwrap_err();
    assert!(matches!(error, LinkError::Exists { .. }), "{error}");
    directory.remove_file("file").unwrap();
    assert_eq!(inner.kind("linked").unwrap(), Some(FileKind::Regular));
}

#[test]
fn a_rename_never_replaces() {
    let (_temporary, directory) = new_directory();
    directory.create_subdirectory("from").unwrap();
    directory.create_subdirectory("taken").unwrap();
    directory.create_new("file").unwrap();
    for taken in ["taken", "file"] {
        let error = rename_no_replace(&directory, "from", taken).unwrap_err();
        assert!(matches!(error, RenameError::Exists { .. }), "{error}");
    }
    rename_no_replace(&directory, "from", "to").unwrap();
    assert_eq!(directory.kind("from").unwrap(), None);
    assert_eq!(directory.kind("to").unwrap(), Some(FileKind::Directory));
    assert!(rename_no_replace(&directory, "from", "x").is_err());
}

#[test]
fn a_directory_stays_the_same_when_its_path_changes() {
    let temporary = tempfile::tempdir().unwrap();
    let before = temporary.path().join("before");
    std::fs::create_dir(&before).unwrap();
    let directory = Directory::open(&before).unwrap();
    std::fs::rename(&before, temporary.path().join("after")).unwrap();
    std::fs::create_dir(&before).unwrap();
    directory.create_new("file").unwrap();
    assert!(temporary.path().join("after/file").exists());
    assert!(!before.join("file").exists());
}

#[test]
fn what_has_an_owner_stays_and_what_has_none_goes() {
    let (_temporary, directory) = new_directory();
    let staging = create_locked_directory(&directory, STAGING_PREFIX).unwrap();
    staging.directory.create_new("manifest.json").unwrap();
    let ram = random_name(RAM_FILE_PREFIX).unwrap();
    let ram_file = directory.create_new(&ram).unwrap();
    let other = directory.create_new(format!("{RAM_FILE_PREFIX}x")).unwrap();
    let report = remove_stale(&directory).unwrap();
    assert!(report.removed.is_empty(), "{report:?}");
    assert_eq!(report.left.len(), 2);
    assert!(
        report
            .left
            .iter()
            .all(|left| matches!(left.reason, LeftReason::InUse))
    );

    let name = staging.name.clone();
    drop((staging, ram_file, other));
    let mut removed = remove_stale(&directory).unwrap().removed;
    removed.sort();
    assert_eq!(removed, [ram, name]);
    // Not of the exact form, so not ours.
    assert!(!directory.is_empty().unwrap());
}

#[test]
fn an_owned_directory_is_published_by_its_owner() {
    let (_temporary, directory) = new_directory();
    let staging = create_locked_directory(&directory, STAGING_PREFIX).unwrap();
    rename_no_replace(&directory, &staging.name, "published").unwrap();
    assert_eq!(
        directory.identity_of("published").unwrap(),
        Some(staging.identity)
    );
    drop(staging);
    assert!(remove_stale(&directory).unwrap().removed.is_empty());
    assert_eq!(
        directory.kind("published").unwrap(),
        Some(FileKind::Directory)
    );
}

#[test]
fn staging_with_unexpected_content_stays() {
    let (_temporary, directory) = new_directory();
    let staging = create_locked_directory(&directory, STAGING_PREFIX).unwrap();
    staging.directory.create_subdirectory("inner").unwrap();
    drop(staging);
    let report = remove_stale(&directory).unwrap();
    assert!(report.removed.is_empty());
    assert!(
        matches!(&report.left[0].reason, LeftReason::UnexpectedContent(text) if text.contains("inner"))
    );
}

#[test]
fn a_lock_is_held_by_one_opening_at_a_time() {
    let (_temporary, directory) = new_directory();
    drop(directory.create_new("file").unwrap());
    let open = || directory.open_for_update("file").unwrap();
    let first = open();
    assert_eq!(try_lock_exclusive(&first).unwrap(), FileLock::Taken);
    let mut second = open();
    assert_eq!(
        try_lock_exclusive(&second).unwrap(),
        FileLock::HeldElsewhere
    );
    // The locked byte is none of the content.
    second.write_all(b"content").unwrap();
    drop(first);
    assert_eq!(try_lock_exclusive(&second).unwrap(), FileLock::Taken);
}

#[test]
fn a_directory_is_locked_by_one_opening_at_a_time() {
    let (temporary, first) = new_directory();
    let second = Directory::open(temporary.path()).unwrap();
    assert_eq!(try_lock_exclusive(&first).unwrap(), FileLock::Taken);
    assert_eq!(
        try_lock_exclusive(&second).unwrap(),
        FileLock::HeldElsewhere
    );
    drop(first);
    assert_eq!(try_lock_exclusive(&second).unwrap(), FileLock::Taken);
}

#[test]
fn a_junction_in_the_way_is_not_followed() {
    let (temporary, directory) = new_directory();
    std::fs::create_dir(temporary.path().join("target")).unwrap();
    let link = temporary.path().join("link");
    if std::os::windows::fs::symlink_dir(temporary.path().join("target"), &link).is_err() {
        println!("skipped: this user may not make symbolic links");
        return;
    }
    let is_reparse_point =
        std::fs::symlink_metadata(&link).is_ok_and(|facts| facts.file_type().is_symlink());
    if !is_reparse_point {
        println!("skipped: symbolic links are no reparse points here (Wine)");
        return;
    }
    for result in [directory.open_subdirectory("link"), Directory::open(&link)] {
        let error = result.unwrap_err();
        let OpenError::WrongKind { found, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(found, FileKind::Symlink);
    }
    Directory::open_following(&link).unwrap();
}

#[test]
fn a_file_that_excludes_everybody_is_an_error_that_says_so() {
    let (temporary, directory) = new_directory();
    let path = temporary.path().join("file");
    let _exclusive = OpenOptions::new()
        .write(true)
        .create_new(true)
        .share_mode(0)
        .open(&path)
        .unwrap();
    let error = directory.open_regular("file").unwrap_err();
    let OpenError::System { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(32));
}

#[test]
fn a_source_added_or_raised_by_another_thread_ends_the_wait() {
    let set = WaitSet::new().unwrap();
    let (one, other) = (Waker::new().unwrap(), Waker::new().unwrap());
    set.watch(one.source(), Interest::Readable).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            other.raise();
            set.watch(other.source(), Interest::Readable).unwrap();
        });
        set.wait().unwrap();
    });
    set.forget(other.source());
    one.raise();
    set.wait().unwrap();
    // A source that is gone is waited for no more, though it was never forgotten.
    drop(one);
    let last = Waker::new().unwrap();
    set.watch(last.source(), Interest::Readable).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| last.raise());
        set.wait().unwrap();
    });
    // What is always writable is always ready.
    last.lower();
    set.watch(last.source(), Interest::Writable).unwrap();
    set.wait().unwrap();
}

#[test]
fn a_raised_flag_is_seen_until_lowered() {
    let waker = Waker::new().unwrap();
    let poll = || wait_any([(waker.source(), Interest::Readable)], Some(Duration::ZERO)).unwrap();
    assert_eq!(poll(), [false]);
    waker.raise();
    waker.raise();
    assert_eq!(poll(), [true]);
    assert_eq!(poll(), [true]);
    waker.lower();
    assert_eq!(poll(), [false]);
}
