//! What the file system of a directory can do, by trying it with a few small files.
#![expect(
    unsafe_code,
    reason = "free space and mappings are asked for by raw calls"
)]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;

use windows_sys::Win32::System::Memory::{CreateFileMappingW, PAGE_READWRITE};

use super::super::usage::available_bytes;
use crate::probe::{ScratchError, ScratchFacts, Support};
use crate::{
    CreateError, Directory, FileSystem, FileSystemKind, LockedDirectory, STAGING_PREFIX,
    create_locked_directory,
};

/// Content of the trial file.
const TRIAL_BYTES: usize = 64 * 1024;
const CONTENT: &str = "content";

/// Examines the directory at `path`, which may be a link to one, and tries on its file system what RAM
/// files and publications need. Nothing of it stays behind.
///
/// # Errors
///
/// [`ScratchError`] if the directory cannot be used at all.
pub fn scratch(path: &Path) -> Result<ScratchFacts, ScratchError> {
    let directory = Directory::open_following(path).map_err(ScratchError::Open)?;
    let examine = |source| ScratchError::Examine {
        path: path.to_owned(),
        source,
    };
    let file_system = directory.file_system().map_err(examine)?;
    let free_bytes = available_bytes(path).map_err(examine)?;
    let trial = Trial::begin(&directory).map_err(ScratchError::Create)?;
    let content = trial.content().map_err(|source| ScratchError::Write {
        path: path.to_owned(),
        source,
    })?;
    Ok(ScratchFacts {
        path: path.to_owned(),
        file_system,
        driver: file_system.name().to_owned(),
        source: None,
        valid_data_length: valid_data_length(file_system),
        free_bytes,
        nameless_files: Support::No,
        rename_method: trial.own.rename_method,
        locks: Support::Yes,
        shared_mapping: shared_mapping(&content),
        reflink: Support::No,
        hole_punching: Support::No,
        directory_sync: Support::No,
    })
}

/// A staging directory for trials; dropping it removes what they made.
struct Trial<'a> {
    parent: &'a Directory,
    own: LockedDirectory,
}

impl<'a> Trial<'a> {
    fn begin(parent: &'a Directory) -> Result<Self, CreateError> {
        let own = create_locked_directory(parent, STAGING_PREFIX)?;
        Ok(Self { parent, own })
    }

    /// A file with something in it.
    fn content(&self) -> io::Result<File> {
        let mut file = self
            .own
            .directory
            .create_new(CONTENT)
            .map_err(io::Error::other)?;
        file.write_all(&[0x5a; TRIAL_BYTES])?;
        Ok(file)
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let _ = self.own.directory.remove_file(CONTENT);
        let _ = self.parent.remove_empty_subdirectory(&self.own.name);
    }
}

/// What Microsoft documents of its file systems ("Valid data length" in the file system documentation);
/// FAT keeps one only while a file is open.
fn valid_data_length(file_system: FileSystem) -> Support {
    match file_system.kind {
        FileSystemKind::Ntfs | FileSystemKind::Exfat | FileSystemKind::Refs => Support::Yes,
        FileSystemKind::Fat => Support::No,
        _ => Support::Unclear {
            reason: "unknown file system".to_owned(),
        },
    }
}

fn shared_mapping(file: &File) -> Support {
    // SAFETY: the handle is open; null stands for default security and no name, 0 for the file's length.
    let section = unsafe {
        CreateFileMappingW(
            file.as_raw_handle(),
            std::ptr::null(),
            PAGE_READWRITE,
            0,
            0,
            std::ptr::null(),
        )
    };
    if section.is_null() {
        return Support::Unclear {
            reason: io::Error::last_os_error().to_string(),
        };
    }
    // SAFETY: the call succeeded, so the handle is open and nobody else owns it.
    drop(unsafe { OwnedHandle::from_raw_handle(section) });
    Support::Yes
}
