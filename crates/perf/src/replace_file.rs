//! Replacing a file's content so that a crash at any moment leaves the old content or the new.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nvx_host::{Directory, FileLock, random_name, try_lock_exclusive};

/// Why a file was not replaced. The old content is in place.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The path ends in no file name.
    #[error("{}: has no file name", path.display())]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// Another process is replacing files in this directory.
    #[error("{}: another process is writing in this directory; try again", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation}", path.display())]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// The right to replace files of one directory, from before the old content is read until the new is
/// in place, so that two writers cannot undo each other's rows.
pub(crate) struct ReplaceGuard {
    target: PathBuf,
    directory: PathBuf,
    _lock: Directory,
}

const TEMPORARY_PREFIX: &str = ".nvx-perf-";

impl ReplaceGuard {
    /// Takes the right for one file, which need not exist. Links are followed, so that it is the
    /// file that changes and not the link.
    pub(crate) fn take(path: &Path) -> Result<Self, ReplaceError> {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if target.file_name().is_none() {
            return Err(ReplaceError::NoName { path: target });
        }
        let directory = directory_of(&target);
        let system = |operation| {
            let path = directory.clone();
            move |source| ReplaceError::System {
                path,
                operation,
                source,
            }
        };
        let lock = Directory::open_following(&directory)
            .map_err(|error| system("open")(std::io::Error::other(error)))?;
        match try_lock_exclusive(&lock).map_err(system("lock"))? {
            // A file system without locks has no second writer that could be told from this one.
            FileLock::Taken | FileLock::Unsupported => {}
            FileLock::HeldElsewhere => return Err(ReplaceError::Busy { path: directory }),
        }
        Ok(Self {
            target,
            directory,
            _lock: lock,
        })
    }

    /// Puts the content in place: written beside the target, synced, and renamed over it.
    pub(crate) fn replace(&self, content: &[u8]) -> Result<(), ReplaceError> {
        Self::replace_at(&self.target, &self.directory, content)
    }

    /// The same for a file that belongs to the guarded one and is written by its writers only.
    pub(crate) fn replace_companion(
        &self,
        path: &Path,
        content: &[u8],
    ) -> Result<(), ReplaceError> {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = directory_of(&target);
        Self::replace_at(&target, &directory, content)
    }

    fn replace_at(target: &Path, directory: &Path, content: &[u8]) -> Result<(), ReplaceError> {
        let name = random_name(TEMPORARY_PREFIX).map_err(|source| ReplaceError::System {
            path: directory.to_owned(),
            operation: "name a temporary file",
            source,
        })?;
        let temporary = directory.join(name);
        let put = write(target, directory, &temporary, content);
        if put.is_err() {
            // Nothing refers to the temporary file; if it cannot be removed it is only litter.
            let _ = std::fs::remove_file(&temporary);
        }
        put
    }
}

/// Writes a file that is as it was or has the new content, whenever this process or the machine ends.
///
/// # Errors
/// It cannot be written, or another process of this kind is writing in the same directory.
pub fn write_file(path: &Path, content: &[u8]) -> Result<(), ReplaceError> {
    ReplaceGuard::take(path)?.replace(content)
}

fn directory_of(target: &Path) -> PathBuf {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Writes beside the target, syncs, and renames over it.
fn write(
    target: &Path,
    directory: &Path,
    temporary: &Path,
    content: &[u8],
) -> Result<(), ReplaceError> {
    let system = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError::System {
            path,
            operation,
            source,
        }
    };
    let mut file = File::create_new(temporary).map_err(system("create", temporary))?;
    if let Ok(old) = std::fs::metadata(target) {
        file.set_permissions(old.permissions())
            .map_err(system("set the rights of", temporary))?;
    }
    file.write_all(content)
        .map_err(system("write", temporary))?;
    file.sync_all().map_err(system("sync", temporary))?;
    std::fs::rename(temporary, target).map_err(system("replace", target))?;
    // The new content is in place; a directory that cannot be synced is one whose file system
    // keeps its own order.
    if let Ok(directory) = Directory::open_following(directory) {
        directory
            .sync()
            .map_err(system("sync the directory of", target))?;
    }
    Ok(())
}
