//! Modes, identities, links and nameless files, which Unix has.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::*;

fn nameless_file(directory: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
    opened.ok().map(File::from)
}

/// As [`scratch`], with a nameless RAM file beside the destination; in memory if the file system of the
/// temporary directory has no such files.
fn scratch_with_ram_file() -> (TempDir, PathBuf, File) {
    let (mut temporary, mut destination) = scratch();
    let ram_file = nameless_file(temporary.path()).unwrap_or_else(|| {
        temporary = tempfile::tempdir_in("/dev/shm").unwrap();
        destination = temporary.path().join("snapshot");
        nameless_file(temporary.path()).unwrap()
    });
    ram_file.set_len(MEMORY_BYTES).unwrap();
    (temporary, destination, ram_file)
}

#[test]
fn a_publication_by_the_fallback_says_so() {
    let (_temporary, destination) = scratch();
    let published = stage(&destination)
        .commit_by(RenameMethod::ClaimedDirectory)
        .unwrap();
    assert_eq!(published.rename_method(), RenameMethod::ClaimedDirectory);
}

#[test]
fn a_destination_behind_a_link_is_declared() {
    let (temporary, _) = scratch();
    let root = temporary.path();
    symlink(root, root.join("link")).unwrap();
    declare(&root.join("link/new")).unwrap();
    assert_eq!(names_in(root), ["link"]);
}

#[test]
fn a_snapshot_is_its_owners_alone() {
    let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
    let destination = temporary.path().join("snapshot");
    assert_eq!(
        sample::publish(&destination).sync_parent().unwrap(),
        DirectorySync::Done
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o077;
    assert_eq!(mode(&destination), 0);
    for name in names_in(&destination) {
        assert_eq!(mode(&destination.join(name)), 0);
    }
}

#[test]
fn a_linked_memory_is_the_ram_file_itself() {
    let (_temporary, destination, ram_file) = scratch_with_ram_file();
    let state = sample::state();
    let mut staging = create(&destination).unwrap();
    staging.write_state(&state).unwrap();
    staging.link_memory(&ram_file).unwrap();
    staging.write_manifest(&sample::manifest(&state)).unwrap();
    staging.start_writeback();
    staging.sync().unwrap();
    staging.commit().unwrap();
    let (named, opened) = (
        fs::metadata(destination.join("memory.bin")).unwrap(),
        ram_file.metadata().unwrap(),
    );
    assert_eq!((named.dev(), named.ino()), (opened.dev(), opened.ino()));
    Snapshot::open(&destination).unwrap();
}

#[test]
fn dropped_staging_removes_only_what_it_made() {
    let (temporary, destination) = scratch();
    let staging = stage(&destination);
    let staged = temporary.path().join(&staging.staged.name);
    fs::write(staged.join("foreign"), b"x").unwrap();
    drop(staging);
    assert_eq!(names_in(&staged), ["foreign"]);
    fs::remove_dir_all(&staged).unwrap();

    let staging = stage(&destination);
    let staged = temporary.path().join(&staging.staged.name);
    let moved = temporary.path().join("moved");
    fs::rename(&staged, &moved).unwrap();
    fs::create_dir(&staged).unwrap();
    drop(staging);
    assert!(staged.exists(), "another directory under the old name");
    assert!(names_in(&moved).is_empty());
}

#[test]
fn a_commit_never_replaces() {
    for method in [RenameMethod::NoReplace, RenameMethod::ClaimedDirectory] {
        let makers: [fn(&Path); 5] = [
            |path| fs::create_dir(path).unwrap(),
            |path| {
                fs::create_dir(path).unwrap();
                fs::write(path.join("kept"), b"x").unwrap();
            },
            |path| fs::write(path, b"x").unwrap(),
            |path| symlink("/", path).unwrap(),
            |path| symlink("nowhere", path).unwrap(),
        ];
        for (index, make) in makers.iter().enumerate() {
            let (temporary, destination) = scratch();
            // Taken after the early check.
            let staging = stage(&destination);
            make(&destination);
            let before = fs::symlink_metadata(&destination).unwrap();
            let error = staging.commit_by(method).unwrap_err();
            assert!(
                matches!(&error, PublishError::Exists { destination: d } if *d == destination),
                "{index}: {error}"
            );
            let after = fs::symlink_metadata(&destination).unwrap();
            assert_eq!((before.ino(), before.mtime()), (after.ino(), after.mtime()));
            assert_eq!(names_in(temporary.path()), ["snapshot"]);
            // Taken before it.
            for result in [create(&destination).map(drop), declare(&destination)] {
                assert!(matches!(result, Err(PublishError::Exists { .. })));
            }
            assert_eq!(names_in(temporary.path()), ["snapshot"]);
        }
    }
}

#[test]
fn a_parent_that_cannot_be_written_is_told_early() {
    // Nobody may create entries in the directory of sysctls, not even root.
    let error = declare(Path::new("/proc/sys/new")).unwrap_err();
    assert!(matches!(
        &error,
        PublishError::Parent {
            operation: "write to",
            ..
        }
    ));
    assert!(error.source().is_some());
    assert!(create(Path::new("/proc/sys/new")).is_err());
}

#[test]
fn a_dropped_link_leaves_nothing() {
    let (temporary, destination, ram_file) = scratch_with_ram_file();
    let mut staging = create(&destination).unwrap();
    staging.link_memory(&ram_file).unwrap();
    drop(staging);
    assert!(names_in(temporary.path()).is_empty());
    // The kernel links a nameless file once only: the next capture has to copy, and is told why.
    let mut staging = create(&destination).unwrap();
    assert!(matches!(
        staging.link_memory(&ram_file),
        Err(PublishError::Link {
            source: LinkError::NotLinkable { .. },
            ..
        })
    ));
}

/// Prints the median cost of a publication; `cargo test --release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn measure_publication() {
    const ROUNDS: usize = 200;
    let mut writer = crate::StateWriter::new();
    for index in 0..12 {
        let unit = format!("unit{index}");
        writer.put(&unit, "kind", 1, &[index; 850]).unwrap();
    }
    let state = writer.finish();
    let manifest = sample::manifest(&state);
    for root in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
        let temporary = tempfile::tempdir_in(&root).unwrap();
        let mut rounds: Vec<[u128; 5]> = (0..ROUNDS)
            .map(|round| publish_once(temporary.path(), round, &state, &manifest))
            .collect();
        let mut median = |step: usize| {
            rounds.sort_by_key(|round| round[step]);
            rounds[ROUNDS / 2][step] as f64 / 1000.0
        };
        println!(
            "{}: state {} bytes: create {:.1} us, stage {:.1} us, sync {:.1} us, commit {:.1} us, \
             all {:.1} us (medians of {ROUNDS})",
            root.display(),
            state.len(),
            median(0),
            median(1),
            median(2),
            median(3),
            median(4),
        );
    }
}

/// Nanoseconds of: create, stage three files, start writeback and sync, commit; and their sum.
fn publish_once(root: &Path, round: usize, state: &[u8], manifest: &Manifest) -> [u128; 5] {
    let destination = root.join(format!("snapshot-{round}"));
    let ram_file = nameless_file(root).unwrap();
    ram_file.set_len(MEMORY_BYTES).unwrap();
    let start = Instant::now();
    let mut staging = create(&destination).unwrap();
    let created = start.elapsed();
    staging.write_state(state).unwrap();
    staging.link_memory(&ram_file).unwrap();
    staging.write_manifest(manifest).unwrap();
    let staged = start.elapsed();
    staging.start_writeback();
    staging.sync().unwrap();
    let synced = start.elapsed();
    let published = staging.commit().unwrap();
    let committed = start.elapsed();
    drop(published);
    [
        created.as_nanos(),
        (staged - created).as_nanos(),
        (synced - staged).as_nanos(),
        (committed - synced).as_nanos(),
        committed.as_nanos(),
    ]
}
