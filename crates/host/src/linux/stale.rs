//! Names with an owner, and the removal of those whose owner is dead.
//!
//! A process that needs a directory or a file of its own beside a destination gives it a random name
//! with a fixed prefix and holds its lock for life. Any other process may try that lock: if it gets
//! it, the owner is dead and what it left is removed.
//!
//! The one race is between creating and locking: a clean-up may take the lock first. So the creator
//! checks after locking that the name still stands for what it opened, and starts again with another
//! name if not. A clean-up checks the same before it removes, because an owner may have renamed its
//! directory to the published name just before it ended.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::files::{Directory, FileIdentity, is_self_or_parent, make_directory_at};
use super::lock::try_lock_exclusive;
use super::publish::try_rename_no_replace;
use crate::owned_names::{
    MAX_CREATE_ATTEMPTS, MAX_SCANNED_ENTRIES, MAX_STAGING_FILES, RANDOM_DIGITS, owned_kind,
};
use crate::{
    CreateError, FileKind, FileLock, LeftEntry, LeftReason, OpenError, RenameMethod, StaleReport,
};

/// A new directory of this process's own, locked for as long as the value lives.
#[derive(Debug)]
pub struct LockedDirectory {
    /// The directory, whose descriptor carries the lock.
    pub directory: Directory,
    /// Its name in the parent.
    pub name: String,
    /// What it is, to recognise it by.
    pub identity: FileIdentity,
    /// How the parent's file system renames without replacing.
    pub rename_method: RenameMethod,
}

/// A name that nobody else uses: `prefix` and 64 random bits in hexadecimal.
///
/// # Errors
///
/// The operating system's, if it has no randomness to give.
pub fn random_name(prefix: &str) -> io::Result<String> {
    let mut bytes = [0u8; RANDOM_DIGITS / 2];
    // Up to 256 bytes come whole or not at all.
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{prefix}{:016x}", u64::from_ne_bytes(bytes)))
}

/// Creates a directory with a random name that starts with `prefix`, rights 0700, and locks it.
///
/// Where possible it gets its name by a rename that never replaces: whether a file system has that
/// rename can be found out in no other way, and who publishes the directory needs to know beforehand.
///
/// # Errors
///
/// [`CreateError::NoFreeName`] or [`CreateError::System`].
pub fn create_locked_directory(
    parent: &Directory,
    prefix: &'static str,
) -> Result<LockedDirectory, CreateError> {
    for _ in 0..MAX_CREATE_ATTEMPTS {
        if let Some(created) = try_create_locked(parent, prefix)? {
            return Ok(created);
        }
    }
    Err(CreateError::NoFreeName {
        path: parent.path().to_path_buf(),
        prefix,
        attempts: MAX_CREATE_ATTEMPTS,
    })
}

/// One attempt; `None` if another process was in the way.
fn try_create_locked(
    parent: &Directory,
    prefix: &'static str,
) -> Result<Option<LockedDirectory>, CreateError> {
    let system = |operation| {
        move |source| CreateError::System {
            path: parent.path().to_path_buf(),
            operation,
            source,
        }
    };
    let random = || random_name(prefix).map_err(system("make a random name"));
    let (first_name, second_name) = (random()?, random()?);
    match make_directory_at(parent, OsStr::new(&first_name)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(system("create a directory in it")(errno.into())),
    }
    let owned = own_directory(parent, &first_name, second_name.clone());
    if owned.is_err() {
        // It is empty, and the names are this process's; a name that is not there is not missed.
        for name in [&first_name, &second_name] {
            let _ = parent.remove_empty_subdirectory(name);
        }
    }
    owned
}

/// Locks the new directory `first_name`, and gives it its second name where the file system has the rename for
/// that. `None` if another process was in the way. What an error leaves is the caller's to remove.
fn own_directory(
    parent: &Directory,
    first_name: &str,
    second_name: String,
) -> Result<Option<LockedDirectory>, CreateError> {
    let system = |operation| {
        move |source| CreateError::System {
            path: parent.path().to_path_buf(),
            operation,
            source,
        }
    };
    let directory = match parent.open_subdirectory(first_name) {
        Ok(directory) => directory,
        Err(OpenError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(CreateError::Open(error)),
    };
    if try_lock_exclusive(&directory).map_err(system("lock a new directory in it"))?
        == FileLock::HeldElsewhere
    {
        return Ok(None);
    }

    // The first name stays where there is no such rename: a claimed name would have no lock.
    let renamed = try_rename_no_replace(parent, first_name.as_ref(), second_name.as_ref());
    let (name, rename_method) = match renamed {
        Ok(true) => (second_name, RenameMethod::NoReplace),
        Ok(false) => (first_name.to_owned(), RenameMethod::ClaimedDirectory),
        // Removed by a clean-up, or a name that is taken. If the empty directory is still there, the
        // next clean-up takes it.
        Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(system("rename a directory in it")(errno.into())),
    };
    let identity = match directory.identity() {
        Ok(identity) => identity,
        // FUSE forgets a removed directory even while it is open.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(system("examine a new directory in it")(error)),
    };
    if parent.identity_of(&name).map_err(CreateError::Open)? != Some(identity) {
        return Ok(None);
    }
    Ok(Some(LockedDirectory {
        directory,
        name,
        identity,
        rename_method,
    }))
}

/// Removes, in `parent`, staging directories and named RAM files whose owner is dead.
///
/// Only what has a name of the exact form, is of the right kind and gives up its lock is touched;
/// symbolic links are never followed; a staging directory goes only if it holds nothing but a few
/// regular files.
///
/// # Errors
///
/// The operating system's, if the directory cannot be read. What cannot be removed is in the report.
pub fn remove_stale(parent: &Directory) -> io::Result<StaleReport> {
    let mut report = StaleReport::default();
    let mut candidates = Vec::new();
    for (scanned, entry) in rustix::fs::Dir::read_from(parent)?.enumerate() {
        if scanned >= MAX_SCANNED_ENTRIES {
            report.truncated = true;
            break;
        }
        // Removing while reading may hide entries, so the names are collected first.
        if let Some(candidate) = Candidate::from_name(entry?.file_name().to_bytes()) {
            candidates.push(candidate);
        }
    }
    for candidate in candidates {
        match candidate.remove(parent) {
            Ok(()) => report.removed.push(candidate.name),
            Err(reason) => report.left.push(LeftEntry {
                name: candidate.name,
                reason,
            }),
        }
    }
    Ok(report)
}

/// An entry whose name has the form of something that NVX owns.
struct Candidate {
    name: String,
    wanted: FileKind,
}

impl Candidate {
    fn from_name(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        Some(Self {
            name: name.to_owned(),
            wanted: owned_kind(name)?,
        })
    }

    fn remove(&self, parent: &Directory) -> Result<(), LeftReason> {
        if self.wanted == FileKind::Directory {
            let staging = parent.open_subdirectory(&self.name).map_err(left_open)?;
            self.claim(parent, &staging)?;
            remove_content(&staging)?;
            parent
                .remove_empty_subdirectory(&self.name)
                .map_err(left_system)
        } else {
            let file: File = parent.open_regular(&self.name).map_err(left_open)?;
            self.claim(parent, &file)?;
            parent.remove_file(&self.name).map_err(left_system)
        }
    }

    /// Takes the dead owner's lock and makes sure that the name still stands for what is locked.
    fn claim(&self, parent: &Directory, opened: impl AsFd) -> Result<(), LeftReason> {
        match try_lock_exclusive(&opened).map_err(left_system)? {
            FileLock::Taken => {}
            FileLock::HeldElsewhere => return Err(LeftReason::InUse),
            FileLock::Unsupported => return Err(LeftReason::NoLocks),
        }
        let locked = FileIdentity::of(&opened).map_err(left_system)?;
        match parent.identity_of(&self.name) {
            Ok(Some(named)) if named == locked => Ok(()),
            Ok(_) => Err(LeftReason::Changed),
            Err(error) => Err(left_open(error)),
        }
    }
}

/// Removes the regular files of a staging directory, or nothing if there is anything else in it.
fn remove_content(staging: &Directory) -> Result<(), LeftReason> {
    let system = |errno: Errno| left_system(errno.into());
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(staging).map_err(system)? {
        let entry = entry.map_err(system)?;
        let name = entry.file_name().to_bytes();
        if is_self_or_parent(name) {
            continue;
        }
        let name = OsStr::from_bytes(name).to_owned();
        match staging.kind(&name).map_err(left_open)? {
            Some(FileKind::Regular) if names.len() < MAX_STAGING_FILES => names.push(name),
            Some(FileKind::Regular) => {
                let text = format!("more than {MAX_STAGING_FILES} files");
                return Err(LeftReason::UnexpectedContent(text));
            }
            Some(kind) => {
                let text = format!("{} is {kind}", name.display());
                return Err(LeftReason::UnexpectedContent(text));
            }
            None => {}
        }
    }
    for name in names {
        staging.remove_file(&name).map_err(left_system)?;
    }
    Ok(())
}

fn left_system(error: io::Error) -> LeftReason {
    match error.kind() {
        io::ErrorKind::NotFound => LeftReason::Changed,
        _ => LeftReason::System(error),
    }
}

fn left_open(error: OpenError) -> LeftReason {
    match error {
        OpenError::NotFound { .. } | OpenError::InvalidName { .. } => LeftReason::Changed,
        OpenError::WrongKind { found, .. } => LeftReason::WrongKind(found),
        OpenError::System { source, .. } => left_system(source),
    }
}
