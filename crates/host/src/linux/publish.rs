//! The steps that give finished work its name.
//!
//! Publication is: give an open file a name, start writing everything back, sync it, and rename one
//! directory without ever replacing anything. Each step is one function; the order belongs to the
//! caller.
#![expect(
    unsafe_code,
    reason = "sync_file_range has no safe wrapper in the crates that are used"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use super::files::{Directory, FileIdentity, is_one_component, make_directory_at};
use crate::faults::{self, StepKind};
use crate::{LinkError, RenameError, RenameMethod};

/// Gives the open `file` the name `name` in `directory`, and proves that the name stands for the same
/// device and inode. The file may be nameless (`O_TMPFILE` without `O_EXCL`).
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
    link_descriptor(file, directory, name).map_err(|errno| match errno {
        Errno::EXIST => LinkError::Exists { path: path() },
        Errno::XDEV => LinkError::OtherFileSystem { path: path() },
        Errno::NOENT => LinkError::NotLinkable { path: path() },
        _ => LinkError::System {
            path: path(),
            operation: "link the open file",
            source: errno.into(),
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

fn link_descriptor(file: &File, directory: &Directory, name: &OsStr) -> Result<(), Errno> {
    faults::step(StepKind::Link, directory.path(), name)?;
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, source, directory, name, AtFlags::SYMLINK_FOLLOW) {
        // Without a mounted /proc the same is possible by descriptor, but only for a process with
        // CAP_DAC_READ_SEARCH (or, since Linux 6.10, for the opener itself).
        Err(Errno::NOENT) => rustix::fs::linkat(file, "", directory, name, AtFlags::EMPTY_PATH),
        result => result,
    }
}

/// Renames the directory `from` to `to`, both in `parent`, and never replaces anything.
///
/// # Errors
///
/// [`RenameError::Exists`] if anything has the name `to`, even an empty directory or a dangling
/// symbolic link; [`RenameError::InvalidName`]; [`RenameError::System`].
pub fn rename_no_replace(
    parent: &Directory,
    from: impl AsRef<OsStr>,
    to: impl AsRef<OsStr>,
) -> Result<RenameMethod, RenameError> {
    rename_no_replace_by(RenameMethod::NoReplace, parent, from, to)
}

/// As [`rename_no_replace`], starting with the method `first`. [`RenameMethod::NoReplace`] falls back
/// to [`RenameMethod::ClaimedDirectory`] where the file system lacks it; the method that did the work
/// is returned.
///
/// # Errors
///
/// As [`rename_no_replace`].
pub fn rename_no_replace_by(
    first: RenameMethod,
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
    if first == RenameMethod::NoReplace {
        let renamed = try_rename_no_replace(parent, from, to)
            .map_err(|errno| rename_error(parent, to, "rename to this name", errno))?;
        if renamed {
            return Ok(RenameMethod::NoReplace);
        }
    }
    rename_over_claim(parent, from, to)?;
    Ok(RenameMethod::ClaimedDirectory)
}

/// Renames in one step, or answers `false` if kernel or file system cannot.
pub(super) fn try_rename_no_replace(
    parent: &Directory,
    from: &OsStr,
    to: &OsStr,
) -> Result<bool, Errno> {
    faults::rename_step(parent.path(), from, to)?;
    match rustix::fs::renameat_with(parent, from, parent, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn rename_over_claim(parent: &Directory, from: &OsStr, to: &OsStr) -> Result<(), RenameError> {
    make_directory_at(parent, to)
        .map_err(|errno| rename_error(parent, to, "claim this name", errno))?;
    let renamed = faults::rename_step(parent.path(), from, to)
        .and_then(|()| rustix::fs::renameat(parent, from, parent, to));
    renamed.map_err(|errno| {
        // Takes back the claim only while it is still an empty directory.
        let _ = parent.remove_empty_subdirectory(to);
        rename_error(parent, to, "rename to this name", errno)
    })
}

/// Gives the file `from` the name `to` in the same directory, in one step: whoever opens `to` finds
/// the old file or the new one, whole.
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
    for name in [from, to] {
        if !is_one_component(name) {
            let path = directory.path().join(name);
            return Err(RenameError::InvalidName { path });
        }
    }
    faults::rename_step(directory.path(), from, to)
        .and_then(|()| rustix::fs::renameat(directory, from, directory, to))
        .map_err(|errno| rename_error(directory, to, "replace this file", errno))
}

fn rename_error(
    parent: &Directory,
    to: &OsStr,
    operation: &'static str,
    errno: Errno,
) -> RenameError {
    let path = parent.path().join(to);
    match errno {
        Errno::EXIST | Errno::NOTEMPTY => RenameError::Exists { path },
        _ => RenameError::System {
            path,
            operation,
            source: errno.into(),
        },
    }
}

/// Writes all of `bytes` to a file; `name` is what test support calls it.
///
/// # Errors
///
/// The operating system's.
pub fn write_all(mut file: &File, name: &str, bytes: &[u8]) -> io::Result<()> {
    faults::step(StepKind::Write, Path::new(""), name.as_ref())?;
    file.write_all(bytes)
}

/// Brings a file's content and length to stable storage; `name` is what test support calls it.
///
/// # Errors
///
/// The operating system's.
pub fn sync_data(file: &File, name: &str) -> io::Result<()> {
    faults::step(StepKind::SyncFile, Path::new(""), name.as_ref())?;
    file.sync_data()
}

/// Asks the kernel to begin writing the file's dirty pages, without waiting for them. A hint: the sync
/// that follows is what counts and what reports errors, so a refusal is ignored.
pub fn start_writeback(file: impl AsFd) {
    // A length of 0 means "to the end" (sync_file_range(2)).
    ask_for_writeback(file.as_fd(), 0, 0);
}

/// As [`start_writeback`], for `size_bytes` bytes of the file from `offset_bytes` on.
pub fn start_writeback_of(file: impl AsFd, offset_bytes: u64, size_bytes: u64) {
    if let (Ok(offset), Ok(size @ 1..)) = (i64::try_from(offset_bytes), i64::try_from(size_bytes)) {
        ask_for_writeback(file.as_fd(), offset, size);
    }
}

fn ask_for_writeback(file: BorrowedFd<'_>, offset: i64, size: i64) {
    let descriptor = file.as_raw_fd();
    // SAFETY: the call takes no pointers, and the borrow keeps the descriptor open.
    let _ = unsafe { libc::sync_file_range(descriptor, offset, size, libc::SYNC_FILE_RANGE_WRITE) };
}
