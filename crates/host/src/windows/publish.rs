//! The steps that give finished work its name.
//!
//! Windows renames and links by an open handle, to a name relative to an open directory, and refuses
//! to replace anything unless asked to. A directory can be renamed only while no file in it is open:
//! whoever publishes one closes its files first.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::windows::io::AsHandle;

use windows_sys::Wdk::Storage::FileSystem::FILE_OPEN;
use windows_sys::Win32::Foundation::{
    NTSTATUS, STATUS_NOT_SAME_DEVICE, STATUS_OBJECT_NAME_COLLISION,
};
use windows_sys::Win32::Storage::FileSystem::DELETE;

use super::files::{Directory, FileIdentity, SHARE_ALL, is_one_component};
use super::nt::{self, Opening, error_of};
use crate::{LinkError, RenameError, RenameMethod};

/// Gives the open `file` the name `name` in `directory`, and proves that the name stands for the same
/// file of the same volume.
///
/// # Errors
///
/// See [`LinkError`]. After [`LinkError::NotTheSameFile`] the name exists; after any other error it
/// was not made by this call.
pub fn link_open_file(
    file: &File,
    directory: &Directory,
    name: impl AsRef<OsStr>,
) -> Result<(), LinkError> {
    let name = name.as_ref();
    let path = || directory.path().join(name);
    if !is_one_component(name) {
        return Err(LinkError::InvalidName { path: path() });
    }
    nt::link_to(file, directory.as_handle(), name).map_err(|status| match status {
        STATUS_OBJECT_NAME_COLLISION => LinkError::Exists { path: path() },
        STATUS_NOT_SAME_DEVICE => LinkError::OtherFileSystem { path: path() },
        _ => LinkError::System {
            path: path(),
            operation: "link the open file",
            source: error_of(status),
        },
    })?;
    let given = FileIdentity::of(file).map_err(|source| LinkError::System {
        path: path(),
        operation: "examine the file to link",
        source,
    })?;
    match directory.identity_of(name) {
        Ok(Some(named)) if named == given => Ok(()),
        Ok(_) | Err(_) => Err(LinkError::NotTheSameFile { path: path() }),
    }
}

/// Renames the directory `from` to `to`, both in `parent`, and never replaces anything.
///
/// # Errors
///
/// [`RenameError::Exists`] if anything has the name `to`; [`RenameError::InvalidName`];
/// [`RenameError::System`].
pub fn rename_no_replace(
    parent: &Directory,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> Result<RenameMethod, RenameError> {
    rename_no_replace_by(RenameMethod::NoReplace, parent, from, to)
}

/// As [`rename_no_replace`]; every file system has [`RenameMethod::NoReplace`], so it is the method
/// whatever `first` is.
///
/// # Errors
///
/// As [`rename_no_replace`].
pub fn rename_no_replace_by(
    _first: RenameMethod,
    parent: &Directory,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> Result<RenameMethod, RenameError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    for name in [from, to] {
        if !is_one_component(name) {
            let path = parent.path().join(name);
            return Err(RenameError::InvalidName { path });
        }
    }
    rename(parent, from, to).map_err(|status| {
        let path = parent.path().join(to);
        match status {
            STATUS_OBJECT_NAME_COLLISION => RenameError::Exists { path },
            _ => RenameError::System {
                path,
                operation: "rename to this name",
                source: error_of(status),
            },
        }
    })?;
    Ok(RenameMethod::NoReplace)
}

/// Gives the file `from` the name `to` in the same directory, in one step. By path: the directory must
/// not be moved meanwhile.
///
/// # Errors
///
/// [`RenameError::InvalidName`] or [`RenameError::System`].
pub fn replace_file(
    directory: &Directory,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> Result<(), RenameError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let path = |name: &OsStr| directory.path().join(name);
    for name in [from, to] {
        if !is_one_component(name) {
            return Err(RenameError::InvalidName { path: path(name) });
        }
    }
    std::fs::rename(path(from), path(to)).map_err(|source| RenameError::System {
        path: path(to),
        operation: "replace this file",
        source,
    })
}

fn rename(parent: &Directory, from: &OsStr, to: &OsStr) -> Result<(), NTSTATUS> {
    let opening = Opening {
        access: DELETE,
        share: SHARE_ALL,
        disposition: FILE_OPEN,
        directory: true,
    };
    let source = nt::open_at(parent.as_handle(), from, opening)?;
    nt::rename_to(source.as_handle(), parent.as_handle(), to)
}

/// Writes all of `bytes` to a file.
///
/// # Errors
///
/// The operating system's.
pub fn write_all(mut file: &File, _name: &str, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)
}

/// Brings a file's content and length to stable storage.
///
/// # Errors
///
/// The operating system's.
pub fn sync_data(file: &File, _name: &str) -> io::Result<()> {
    file.sync_data()
}

/// Does nothing: Windows has no call that only begins to write a file's pages. The flush that follows
/// is what counts.
pub fn start_writeback(_file: impl AsHandle) {}

/// As [`start_writeback`].
pub fn start_writeback_of(_file: impl AsHandle, _offset_bytes: u64, _size_bytes: u64) {}
