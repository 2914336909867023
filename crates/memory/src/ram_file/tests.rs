//! Tests of RAM files.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use super::*;

const SIZE: u64 = 1 << 20;

fn named_in(directory: &Path) -> RamFile {
    RamFile::create_named(Directory::open(directory).unwrap()).unwrap()
}

fn entries(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap();
    names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_ram_file_is_sparse_private_and_leaves_nothing_behind() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let ram = RamFile::create(directory.path(), SIZE).unwrap();
        let metadata = ram.file().metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (SIZE, 0));
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
        if ram.kind() == RamFileKind::Nameless {
            assert_eq!(ram.path(), None);
            assert_eq!(metadata.nlink(), 0);
            assert_eq!(entries(directory.path()), [""; 0]);
        }
        drop(ram);
        assert_eq!(entries(directory.path()), [""; 0]);
    }
}

#[test]
fn a_nameless_file_can_be_given_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let ram = RamFile::create(directory.path(), SIZE).unwrap();
    if ram.kind() != RamFileKind::Nameless {
        println!("skipped: no O_TMPFILE in {}", directory.path().display());
        return;
    }
    let target = directory.path().join("memory.bin");
    let parent = Directory::open(directory.path()).unwrap();
    nvx_host::link_open_file(ram.file(), &parent, "memory.bin").unwrap();
    ram.file().write_all_at(b"ram", 0).unwrap();
    drop(ram);
    assert_eq!(&std::fs::read(&target).unwrap()[..3], b"ram");
}

#[test]
fn a_named_file_is_locked_while_it_lives_and_then_removed() {
    let directory = tempfile::tempdir().unwrap();
    let ram = named_in(directory.path());
    assert_eq!(ram.kind(), RamFileKind::Named);
    let path = ram.path().unwrap().to_owned();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(RAM_FILE_PREFIX));
    let mode = ram.file().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let other = File::open(&path).unwrap();
    let lock = || try_lock_exclusive(&other).unwrap();
    assert_eq!(lock(), FileLock::HeldElsewhere);
    let view = ram.try_clone_file().unwrap();
    drop(ram);
    assert!(!path.exists());
    assert_eq!(
        lock(),
        FileLock::HeldElsewhere,
        "the view's descriptor shares the lock"
    );
    drop(view);
    assert_eq!(lock(), FileLock::Taken);
}

#[test]
fn publishing_a_named_file_keeps_the_published_name_only() {
    let directory = tempfile::tempdir().unwrap();
    let linked = named_in(directory.path());
    std::fs::hard_link(linked.path().unwrap(), directory.path().join("linked")).unwrap();
    let renamed = named_in(directory.path());
    std::fs::rename(renamed.path().unwrap(), directory.path().join("renamed")).unwrap();
    // Somebody else's file under our old name stays.
    let foreign = renamed.path().unwrap().to_owned();
    std::fs::write(&foreign, b"foreign").unwrap();
    drop((linked, renamed));
    let mut left = entries(directory.path());
    left.sort();
    let foreign = foreign.file_name().unwrap().to_str().unwrap();
    assert_eq!(left, [foreign, "linked", "renamed"]);
}

#[test]
fn a_missing_directory_is_named() {
    let error = RamFile::create(Path::new("/nonexistent/ram"), SIZE).unwrap_err();
    let RamFileError::Directory { directory, source } = error else {
        panic!("{error}");
    };
    assert_eq!(directory, Path::new("/nonexistent/ram"));
    assert!(source.to_string().contains("/nonexistent/ram"));
}

fn prepared(directory: &Path) -> PathBuf {
    let path = directory.join("prepared");
    let file = File::create_new(&path).unwrap();
    file.set_len(SIZE).unwrap();
    path
}

#[test]
fn a_dense_file_has_all_its_blocks() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        match RamFile::create_dense(directory.path(), SIZE) {
            Ok(ram) => {
                let metadata = ram.file().metadata().unwrap();
                assert_eq!(metadata.len(), SIZE);
                assert!(metadata.blocks() * 512 >= SIZE);
            }
            Err(RamFileError::Allocate { source, .. }) => {
                println!("skipped: no allocation of blocks: {source}");
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(entries(directory.path()), [""; 0]);
    }
}

#[test]
fn a_prepared_file_stays_unless_it_was_published() {
    let directory = tempfile::tempdir().unwrap();
    let path = prepared(directory.path());
    let ram = RamFile::obtain(
        &RamFileChoice::Prepared(path.clone()),
        Path::new("/nonexistent"),
        SIZE,
    )
    .unwrap();
    assert_eq!(ram.kind(), RamFileKind::Prepared);
    assert_eq!(ram.path(), Some(path.as_path()));
    drop(ram);
    let ram = RamFile::open_prepared(&path, SIZE).unwrap();
    std::fs::hard_link(&path, directory.path().join("memory.bin")).unwrap();
    drop(ram);
    assert_eq!(entries(directory.path()), ["memory.bin"]);
}

#[test]
fn an_unfit_prepared_file_is_named_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = prepared(directory.path());
    let refused = |path: &Path| RamFile::open_prepared(path, SIZE).unwrap_err();
    let held = RamFile::open_prepared(&path, SIZE).unwrap();
    assert!(matches!(refused(&path), RamFileError::PreparedInUse { .. }));
    drop(held);
    assert!(matches!(
        RamFile::open_prepared(&path, SIZE + 4096),
        Err(RamFileError::PreparedLength {
            length_bytes: SIZE,
            ..
        })
    ));
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refused(&link), RamFileError::OpenPrepared { .. }));
    let missing = refused(&directory.path().join("missing"));
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(matches!(
        refused(Path::new("/")),
        RamFileError::PreparedName { .. }
    ));
    assert!(matches!(
        refused(Path::new("/dev/null")),
        RamFileError::PreparedKind { .. }
    ));
    std::fs::hard_link(&path, directory.path().join("snapshot")).unwrap();
    assert!(matches!(
        refused(&path),
        RamFileError::PreparedShared { links: 2, .. }
    ));
    assert_eq!(entries(directory.path()).len(), 3);
}

#[test]
fn a_new_machine_takes_a_prepared_file_only_if_it_is_empty() {
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let path = prepared(directory.path());
        let ram = RamFile::open_prepared(&path, SIZE).unwrap();
        ram.file().write_all_at(&[0; 8192], 4096).unwrap();
        ram.claim_for_new_machine().unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        ram.file().write_all_at(&[1], SIZE - 1).unwrap();
        let error = ram.claim_for_new_machine().unwrap_err();
        assert!(
            matches!(error, RamFileError::PreparedContent { .. }),
            "{error}"
        );
        // What NVX made is not read.
        let new = RamFile::create(directory.path(), SIZE).unwrap();
        new.file().write_all_at(&[1], 0).unwrap();
        new.claim_for_new_machine().unwrap();
    }
}
