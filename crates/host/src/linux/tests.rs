//! Tests of files by handle, publication, locks and clean-up, on real directories.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::{CWD, Mode};
use tempfile::TempDir;

use super::files::{Directory, FileIdentity, FileSystem};
use super::lock::try_lock_exclusive;
use super::publish::{
    link_open_file, rename_no_replace, rename_no_replace_by, start_writeback, start_writeback_of,
};
use super::stale::{create_locked_directory, random_name, remove_stale};
use crate::{
    CreateError, DirectorySync, FileKind, FileLock, FileSystemKind, LeftReason, LinkError,
    OpenError, RAM_FILE_PREFIX, RenameError, RenameMethod, STAGING_PREFIX,
};

/// A process that is being spawned holds every lock of this one until it executes its own program. A
/// test that expects a dropped lock to be free reads this; a test that spawns writes it.
static SPAWNING: RwLock<()> = RwLock::new(());

fn no_spawning() -> RwLockReadGuard<'static, ()> {
    SPAWNING.read().unwrap_or_else(PoisonError::into_inner)
}

fn scratch() -> (TempDir, Directory) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::open(temporary.path()).unwrap();
    (temporary, directory)
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
}

/// `None`, with a printed reason, where files are never born nameless.
fn nameless_file(directory: &Path) -> Option<File> {
    let file = Directory::open(directory)
        .unwrap()
        .create_nameless()
        .unwrap();
    if let Some(file) = &file {
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.nlink(), 0);
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    } else {
        println!("skipped: no nameless files in {}", directory.display());
    }
    file
}

fn names_in(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

// ---- directories and files -------------------------------------------------------------------

#[test]
fn a_directory_is_opened_only_if_it_is_one() {
    let (temporary, _) = scratch();
    let root = temporary.path();
    fs::write(root.join("file"), b"x").unwrap();
    fs::create_dir(root.join("real")).unwrap();
    symlink("real", root.join("link")).unwrap();

    assert!(Directory::open(&root.join("real")).is_ok());
    assert!(Directory::open(&root.join("real/")).is_ok());
    assert!(Directory::open_following(&root.join("link")).is_ok());
    let missing = Directory::open(&root.join("missing")).unwrap_err();
    assert!(matches!(&missing, OpenError::NotFound { path } if path.ends_with("missing")));
    for (name, kind) in [
        ("file", FileKind::Regular),
        ("link", FileKind::Symlink),
        ("link/", FileKind::Symlink),
        ("link/.", FileKind::Symlink),
    ] {
        let error = Directory::open(&root.join(name)).unwrap_err();
        let OpenError::WrongKind { found, wanted, .. } = &error else {
            panic!("{name}: {error}");
        };
        assert_eq!((*found, *wanted), (kind, FileKind::Directory), "{name}");
        assert!(error.to_string().contains(kind.to_string().as_str()));
        assert!(error.source().is_none());
    }
}

#[test]
fn only_regular_files_are_opened_and_nothing_blocks() {
    let (temporary, directory) = scratch();
    let root = temporary.path();
    fs::write(root.join("file"), b"content").unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    symlink("file", root.join("link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    make_fifo(&root.join("fifo"));
    let _listener = UnixListener::bind(root.join("socket")).unwrap();

    let mut text = String::new();
    let mut file = directory.open_regular("file").unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    assert!(file.write(b"x").is_err(), "opened for reading only");

    for (name, kind) in [
        ("directory", FileKind::Directory),
        ("link", FileKind::Symlink),
        ("dangling", FileKind::Symlink),
        ("fifo", FileKind::Fifo),
        ("socket", FileKind::Socket),
    ] {
        let error = directory.open_regular(name).unwrap_err();
        assert!(
            matches!(&error, OpenError::WrongKind { found, path, .. }
                if *found == kind && path.ends_with(name)),
            "{name}: {error}"
        );
        assert_eq!(directory.kind(name).unwrap(), Some(kind));
    }
    assert_eq!(directory.kind("missing").unwrap(), None);
    let device = Directory::open(Path::new("/dev")).unwrap();
    assert!(matches!(
        device.open_regular("null"),
        Err(OpenError::WrongKind {
            found: FileKind::CharacterDevice,
            ..
        })
    ));
}

#[test]
fn names_have_one_component() {
    let (_temporary, directory) = scratch();
    for name in ["", ".", "..", "a/b", "/etc", "a\0b"] {
        assert!(matches!(
            directory.open_regular(name),
            Err(OpenError::InvalidName { .. })
        ));
        assert!(matches!(
            directory.open_subdirectory(name),
            Err(OpenError::InvalidName { .. })
        ));
        assert!(matches!(
            directory.create_new(name),
            Err(CreateError::InvalidName { .. })
        ));
        assert!(matches!(
            directory.create_subdirectory(name),
            Err(CreateError::InvalidName { .. })
        ));
        assert!(matches!(
            rename_no_replace(&directory, name, "to"),
            Err(RenameError::InvalidName { .. })
        ));
        assert!(matches!(
            rename_no_replace(&directory, "from", name),
            Err(RenameError::InvalidName { .. })
        ));
    }
}

#[test]
fn what_is_created_is_private_and_new() {
    let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = Directory::open(temporary.path()).unwrap();
    let sub = directory.create_subdirectory("sub").unwrap();
    let mut file = sub.create_new("file").unwrap();
    file.write_all(b"abc").unwrap();
    let mode = |path: &str| fs::metadata(temporary.path().join(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("sub") & 0o077, 0);
    assert_eq!(mode("sub/file") & 0o177, 0);
    assert_eq!(sub.length_bytes_of("file").unwrap(), Some(3));
    assert_eq!(sub.length_bytes_of("other").unwrap(), None);

    symlink("nowhere", temporary.path().join("dangling")).unwrap();
    for name in ["sub", "dangling"] {
        assert!(matches!(
            directory.create_new(name),
            Err(CreateError::Exists { .. })
        ));
        assert!(matches!(
            directory.create_subdirectory(name),
            Err(CreateError::Exists { .. })
        ));
    }
    assert!(!sub.is_empty().unwrap());
    sub.remove_file("file").unwrap();
    assert!(sub.is_empty().unwrap());
    assert_eq!(sub.sync().unwrap(), DirectorySync::Done);
    directory.check_writable().unwrap();
}

#[test]
fn file_systems_are_recognised() {
    let (_temporary, directory) = scratch();
    let shm = Directory::open(Path::new("/dev/shm")).unwrap();
    let memory = shm.file_system().unwrap();
    assert_eq!(memory.kind, FileSystemKind::Tmpfs);
    assert_eq!((memory.name(), memory.magic), ("tmpfs", 0x0102_1994));
    assert!(memory.is_memory());
    let proc_files = Directory::open(Path::new("/proc")).unwrap();
    let other = FileSystem::of(&proc_files).unwrap();
    assert_eq!(
        (other.kind, other.name()),
        (FileSystemKind::Other, "unknown")
    );
    assert!(!other.is_memory());

    let file = directory.create_new("file").unwrap();
    assert!(directory.same_file_system(&file).unwrap());
    assert!(!proc_files.same_file_system(&file).unwrap());
}

// ---- publication -----------------------------------------------------------------------------

#[test]
fn a_nameless_file_gets_a_name_and_is_the_same_file() {
    for root in [std::env::temp_dir(), "/dev/shm".into()] {
        let temporary = tempfile::tempdir_in(root).unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        let Some(mut file) = nameless_file(temporary.path()) else {
            continue;
        };
        file.write_all(b"ram").unwrap();
        start_writeback(&file);
        start_writeback_of(&file, 4096, 4096);
        start_writeback_of(&file, u64::MAX, 1);
        start_writeback_of(&file, 0, 0);
        link_open_file(&file, &directory, "memory").unwrap();
        assert_eq!(
            directory.identity_of("memory").unwrap(),
            Some(FileIdentity::of(&file).unwrap())
        );
        assert_eq!(fs::read(temporary.path().join("memory")).unwrap(), b"ram");

        let again = link_open_file(&file, &directory, "memory").unwrap_err();
        assert!(matches!(again, LinkError::Exists { .. }));
        directory.remove_file("memory").unwrap();
        let lost = link_open_file(&file, &directory, "memory").unwrap_err();
        assert!(matches!(lost, LinkError::NotLinkable { .. }), "{lost}");
        assert!(directory.is_empty().unwrap());
    }
}

#[test]
fn a_file_is_not_linked_across_file_systems() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let (temporary, directory) = scratch();
    if shm.path().metadata().unwrap().dev() == temporary.path().metadata().unwrap().dev() {
        println!("skipped: the temporary directory is on the file system of /dev/shm");
        return;
    }
    let file = nameless_file(shm.path()).unwrap();
    let error = link_open_file(&file, &directory, "memory").unwrap_err();
    assert!(
        matches!(error, LinkError::OtherFileSystem { .. }),
        "{error}"
    );
    assert!(directory.is_empty().unwrap());
}

#[test]
fn a_rename_never_replaces() {
    for method in [RenameMethod::NoReplace, RenameMethod::ClaimedDirectory] {
        for root in [std::env::temp_dir(), "/dev/shm".into()] {
            let temporary = tempfile::tempdir_in(root).unwrap();
            let path = temporary.path();
            let directory = Directory::open(path).unwrap();
            fs::create_dir(path.join("from")).unwrap();
            fs::write(path.join("from/content"), b"new").unwrap();
            fs::create_dir(path.join("empty")).unwrap();
            fs::create_dir(path.join("full")).unwrap();
            fs::write(path.join("full/old"), b"old").unwrap();
            fs::write(path.join("file"), b"old").unwrap();
            symlink("empty", path.join("link")).unwrap();
            symlink("nowhere", path.join("dangling")).unwrap();
            for name in ["empty", "full", "file", "link", "dangling", "from"] {
                let before = names_in(path);
                let error = rename_no_replace_by(method, &directory, "from", name).unwrap_err();
                assert!(
                    matches!(&error, RenameError::Exists { path } if path.ends_with(name)),
                    "{method:?} {name}: {error}"
                );
                assert_eq!(names_in(path), before);
            }
            let used = rename_no_replace_by(method, &directory, "from", "to").unwrap();
            assert!(
                used == method || directory.file_system().unwrap().kind == FileSystemKind::Fuse
            );
            assert_eq!(fs::read(path.join("to/content")).unwrap(), b"new");
            assert!(!path.join("from").exists());
        }
    }
}

#[test]
fn a_claim_is_taken_back_when_the_rename_fails() {
    let (_temporary, directory) = scratch();
    let error = rename_no_replace_by(RenameMethod::ClaimedDirectory, &directory, "missing", "to")
        .unwrap_err();
    assert!(matches!(error, RenameError::System { .. }));
    assert!(error.source().is_some());
    assert!(directory.is_empty().unwrap());
}

// ---- locks and clean-up ----------------------------------------------------------------------

#[test]
fn a_lock_lasts_as_long_as_its_descriptor() {
    let _guard = no_spawning();
    let (temporary, directory) = scratch();
    let other = Directory::open(temporary.path()).unwrap();
    assert_eq!(try_lock_exclusive(&directory).unwrap(), FileLock::Taken);
    assert_eq!(try_lock_exclusive(&directory).unwrap(), FileLock::Taken);
    assert_eq!(try_lock_exclusive(&other).unwrap(), FileLock::HeldElsewhere);
    let duplicate = directory.as_fd().try_clone_to_owned().unwrap();
    drop(directory);
    assert_eq!(try_lock_exclusive(&other).unwrap(), FileLock::HeldElsewhere);
    drop(duplicate);
    assert_eq!(try_lock_exclusive(&other).unwrap(), FileLock::Taken);
}

#[test]
fn random_names_differ_and_have_one_form() {
    let (a, b) = (random_name("x-").unwrap(), random_name("x-").unwrap());
    assert_ne!(a, b);
    let digits = a.strip_prefix("x-").unwrap();
    assert_eq!(digits.len(), 16);
    assert!(
        digits
            .bytes()
            .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
    );
}

#[test]
fn a_locked_directory_is_left_alone_while_it_lives() {
    let _guard = no_spawning();
    let temporary = tempfile::tempdir_in("/dev/shm").unwrap();
    let parent = Directory::open(temporary.path()).unwrap();
    let locked = create_locked_directory(&parent, STAGING_PREFIX).unwrap();
    assert_eq!(locked.rename_method, RenameMethod::NoReplace);
    assert_eq!(
        names_in(temporary.path()),
        std::slice::from_ref(&locked.name)
    );
    locked.directory.create_new("state.bin").unwrap();

    let report = remove_stale(&parent).unwrap();
    assert!(report.removed.is_empty());
    assert!(matches!(report.left[..], [ref left]
        if left.name == locked.name && matches!(left.reason, LeftReason::InUse)));
    let name = locked.name.clone();
    drop(locked);
    assert_eq!(remove_stale(&parent).unwrap().removed, [name]);
    assert!(parent.is_empty().unwrap());
}

#[test]
fn a_published_directory_is_no_longer_stale() {
    let (temporary, parent) = scratch();
    let locked = create_locked_directory(&parent, STAGING_PREFIX).unwrap();
    rename_no_replace(&parent, &locked.name, "published").unwrap();
    drop(locked);
    let report = remove_stale(&parent).unwrap();
    assert!(report.removed.is_empty() && report.left.is_empty());
    assert_eq!(names_in(temporary.path()), ["published"]);
}

#[test]
fn only_what_is_surely_stale_is_removed() {
    let _guard = no_spawning();
    let (temporary, parent) = scratch();
    let path = temporary.path();
    let staging = |digit: char| format!("{STAGING_PREFIX}{}", digit.to_string().repeat(16));
    let ram = |digit: char| format!("{RAM_FILE_PREFIX}{}", digit.to_string().repeat(16));
    // Stale.
    fs::create_dir(path.join(staging('0'))).unwrap();
    fs::create_dir(path.join(staging('1'))).unwrap();
    fs::write(path.join(staging('1')).join("state.bin"), b"x").unwrap();
    fs::write(path.join(ram('0')), b"x").unwrap();
    // Of the right name, and not what NVX makes.
    fs::create_dir(path.join(staging('2'))).unwrap();
    fs::create_dir(path.join(staging('2')).join("deeper")).unwrap();
    fs::write(path.join(staging('2')).join("file"), b"x").unwrap();
    fs::create_dir(path.join(staging('3'))).unwrap();
    symlink("/etc/hostname", path.join(staging('3')).join("link")).unwrap();
    fs::create_dir(path.join(staging('4'))).unwrap();
    for index in 0..9 {
        fs::write(path.join(staging('4')).join(index.to_string()), b"x").unwrap();
    }
    fs::write(path.join(staging('5')), b"a file").unwrap();
    fs::create_dir(path.join(ram('1'))).unwrap();
    fs::create_dir(path.join("kept")).unwrap();
    symlink("kept", path.join(staging('6'))).unwrap();
    fs::write(path.join("kept-file"), b"x").unwrap();
    symlink("kept-file", path.join(ram('2'))).unwrap();
    make_fifo(&path.join(ram('3')));
    // Of another name.
    let others = [
        ".nvx-staging-".to_owned(),
        ".nvx-staging-0123456789abcde".to_owned(),
        ".nvx-staging-0123456789abcdef0".to_owned(),
        ".nvx-staging-0123456789ABCDEF".to_owned(),
        "x.nvx-staging-0123456789abcdef".to_owned(),
        ".nvx-ram-0123456789abcdeg".to_owned(),
    ];
    for name in &others {
        fs::write(path.join(name), b"x").unwrap();
    }

    let mut before = names_in(path);
    let report = remove_stale(&parent).unwrap();
    let mut removed = report.removed.clone();
    removed.sort();
    assert_eq!(removed, [ram('0'), staging('0'), staging('1')]);
    before.retain(|name| !removed.contains(name));
    assert_eq!(names_in(path), before);
    assert!(!report.truncated);

    let reason = |name: &str| {
        let entry = report.left.iter().find(|left| left.name == name);
        format!("{:?}", entry.unwrap().reason)
    };
    assert_eq!(report.left.len(), 8);
    assert!(reason(&staging('2')).contains("deeper is a directory"));
    assert!(reason(&staging('3')).contains("link is a symbolic link"));
    assert!(reason(&staging('4')).contains("more than 8 files"));
    assert_eq!(reason(&staging('5')), "WrongKind(Regular)");
    assert_eq!(reason(&staging('6')), "WrongKind(Symlink)");
    assert_eq!(reason(&ram('1')), "WrongKind(Directory)");
    assert_eq!(reason(&ram('2')), "WrongKind(Symlink)");
    assert_eq!(reason(&ram('3')), "WrongKind(Fifo)");
    assert!(path.join(staging('2')).join("file").exists());
    assert!(path.join(staging('3')).join("link").is_symlink());
}

/// Name of the variable that tells the child where to work.
const CHILD_DIRECTORY: &str = "NVX_TEST_LOCK_DIRECTORY";

/// The other process of the next test: holds a staging directory until its input ends.
#[test]
#[ignore = "only run by another test, as its child process"]
fn child_that_holds_locks() {
    let Some(path) = std::env::var_os(CHILD_DIRECTORY) else {
        return;
    };
    let parent = Directory::open(Path::new(&path)).unwrap();
    let locked = create_locked_directory(&parent, STAGING_PREFIX).unwrap();
    locked.directory.create_new("memory.bin").unwrap();
    let ram_file = parent
        .create_new(random_name(RAM_FILE_PREFIX).unwrap())
        .unwrap();
    assert_eq!(try_lock_exclusive(&ram_file).unwrap(), FileLock::Taken);
    println!("\nready");
    let mut input = [0];
    let _ = std::io::stdin().read(&mut input);
}

fn start_child(path: &Path) -> Child {
    let name = "linux::tests::child_that_holds_locks";
    let guard = SPAWNING.write().unwrap_or_else(PoisonError::into_inner);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(CHILD_DIRECTORY, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(guard);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
    assert!(is_ready, "the child ended early");
    child
}

#[test]
fn what_a_killed_process_left_is_removed_and_not_before() {
    for root in [std::env::temp_dir(), "/dev/shm".into()] {
        let temporary = tempfile::tempdir_in(root).unwrap();
        let parent = Directory::open(temporary.path()).unwrap();
        let mut child = start_child(temporary.path());
        let while_alive = remove_stale(&parent).unwrap();
        let names = names_in(temporary.path());
        child.kill().unwrap();
        child.wait().unwrap();

        assert!(while_alive.removed.is_empty());
        assert_eq!(while_alive.left.len(), 2);
        assert!(
            while_alive
                .left
                .iter()
                .all(|left| matches!(left.reason, LeftReason::InUse))
        );
        let _guard = no_spawning();
        let mut removed = remove_stale(&parent).unwrap().removed;
        removed.sort();
        assert_eq!(removed, names);
        assert!(parent.is_empty().unwrap());
    }
}

/// Ends another thread's loop, also when a test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn creators_and_cleaners_do_not_hurt_each_other() {
    let _guard = no_spawning();
    let (_temporary, parent) = scratch();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cleaner = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for left in remove_stale(&parent).unwrap().left {
                    assert!(
                        matches!(left.reason, LeftReason::InUse | LeftReason::Changed),
                        "{left:?}"
                    );
                }
            }
        });
        let set_on_drop = SetOnDrop(&done);
        for round in 0..200 {
            let locked = create_locked_directory(&parent, STAGING_PREFIX).unwrap();
            locked.directory.create_new("state.bin").unwrap();
            assert_eq!(
                parent.identity_of(&locked.name).unwrap(),
                Some(locked.identity),
                "round {round}"
            );
        }
        drop(set_on_drop);
        cleaner.join().unwrap();
    });
    remove_stale(&parent).unwrap();
    assert!(parent.is_empty().unwrap());
}

#[test]
fn a_directory_without_write_rights_says_so() {
    let (temporary, _) = scratch();
    let path = temporary.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o500)).unwrap();
    let directory = Directory::open(path).unwrap();
    let answer = directory.check_writable();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(answer.is_ok(), "rights do not bind root");
    } else {
        assert!(answer.is_err());
    }
}
