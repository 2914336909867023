//! Names with an owner, and the removal of those whose owner is dead.
//!
//! A process that needs a directory or a file of its own beside a destination gives it a random name
//! with a fixed prefix, and opens it with the right to delete it, from the moment of its creation and
//! for life. Who wants to clean up asks for that right *without sharing it*: the system grants this only
//! if nobody else has it, so that the owner is dead; and while the cleaner holds it nobody can rename
//! the entry.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::windows::io::AsHandle as _;

use windows_sys::Win32::Foundation::{ERROR_SHARING_VIOLATION, GENERIC_READ};
use windows_sys::Win32::Storage::FileSystem::{
    DELETE, FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FILE_TRAVERSE,
};

use super::facts;
use super::files::{Directory, FileIdentity};
use super::nt;
use super::random;
use crate::owned_names::{MAX_CREATE_ATTEMPTS, MAX_SCANNED_ENTRIES, MAX_STAGING_FILES, owned_kind};
use crate::{CreateError, FileKind, LeftEntry, LeftReason, OpenError, RenameMethod, StaleReport};

/// Everybody may go on using the entry, but nobody may have the right to delete it.
const SHARE_BUT_NOT_DELETE: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE;

/// A new directory of this process's own, whose ownership lasts as long as the value lives.
#[derive(Debug)]
pub struct LockedDirectory {
    /// The directory, whose handle shows that it has an owner.
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
    Ok(format!("{prefix}{:016x}", random::random_u64()?))
}

/// Creates a directory with a random name that starts with `prefix`, and owns it.
///
/// # Errors
///
/// [`CreateError::NoFreeName`] or [`CreateError::System`].
pub fn create_locked_directory(
    parent: &Directory,
    prefix: &'static str,
) -> Result<LockedDirectory, CreateError> {
    let system = |operation| {
        move |source| CreateError::System {
            path: parent.path().to_path_buf(),
            operation,
            source,
        }
    };
    for _ in 0..MAX_CREATE_ATTEMPTS {
        let name = random_name(prefix).map_err(system("make a random name"))?;
        let directory = match parent.create_owned_subdirectory(name.as_ref()) {
            Ok(directory) => directory,
            Err(CreateError::Exists { .. }) => continue,
            Err(CreateError::System { source, .. }) => {
                return Err(system("create a directory in it")(source));
            }
            Err(error) => return Err(error),
        };
        let identity = directory
            .identity()
            .map_err(system("examine a new directory in it"))?;
        return Ok(LockedDirectory {
            directory,
            name,
            identity,
            rename_method: RenameMethod::NoReplace,
        });
    }
    Err(CreateError::NoFreeName {
        path: parent.path().to_path_buf(),
        prefix,
        attempts: MAX_CREATE_ATTEMPTS,
    })
}

/// Removes, in `parent`, staging directories and named RAM files whose owner is dead.
///
/// Only what has a name of the exact form, is of the right kind and has no owner is touched; reparse
/// points are never followed; a staging directory goes only if it holds nothing but a few regular
/// files.
///
/// # Errors
///
/// The operating system's, if the directory cannot be read. What cannot be removed is in the report.
pub fn remove_stale(parent: &Directory) -> io::Result<StaleReport> {
    let listing = facts::entries(parent.as_handle(), MAX_SCANNED_ENTRIES)?;
    let mut report = StaleReport {
        truncated: listing.truncated,
        ..Default::default()
    };
    for name in listing.names {
        let Some(name) = name.to_str() else { continue };
        let removed = match owned_kind(name) {
            Some(FileKind::Directory) => remove_staging(parent, name.as_ref()),
            Some(_) => remove_ram_file(parent, name.as_ref()),
            None => continue,
        };
        match removed {
            Ok(()) => report.removed.push(name.to_owned()),
            Err(reason) => report.left.push(LeftEntry {
                name: name.to_owned(),
                reason,
            }),
        }
    }
    Ok(report)
}

fn remove_staging(parent: &Directory, name: &OsStr) -> Result<(), LeftReason> {
    let access = DELETE | FILE_LIST_DIRECTORY | FILE_TRAVERSE | FILE_READ_ATTRIBUTES;
    let staging = parent
        .open_subdirectory_as(name, access, SHARE_BUT_NOT_DELETE)
        .map_err(left_open)?;
    remove_content(&staging)?;
    nt::delete(staging.as_handle()).map_err(left_system)
}

fn remove_ram_file(parent: &Directory, name: &OsStr) -> Result<(), LeftReason> {
    let access = DELETE | GENERIC_READ;
    let file = parent
        .open_regular_as(name, access, SHARE_BUT_NOT_DELETE)
        .map_err(left_open)?;
    nt::delete(file.as_handle()).map_err(left_system)
}

/// Removes the regular files of a staging directory, or nothing if there is anything else in it.
fn remove_content(staging: &Directory) -> Result<(), LeftReason> {
    let listing = facts::entries(staging.as_handle(), MAX_STAGING_FILES).map_err(left_system)?;
    if listing.truncated {
        let text = format!("more than {MAX_STAGING_FILES} files");
        return Err(LeftReason::UnexpectedContent(text));
    }
    let mut names: Vec<OsString> = Vec::new();
    for name in listing.names {
        match staging.kind(&name).map_err(left_open)? {
            Some(FileKind::Regular) => names.push(name),
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
    if error.raw_os_error().map(i32::cast_unsigned) == Some(ERROR_SHARING_VIOLATION) {
        return LeftReason::InUse;
    }
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
