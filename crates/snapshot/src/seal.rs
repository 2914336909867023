//! Adding digests of memory content to a snapshot that was published without them.
//!
//! A linked publication writes no memory, so there is no pass in which digests could be made on the way.
//! They are made afterwards, when somebody has the time, and the manifest that has them replaces the old
//! one in one step: whoever opens the snapshot meanwhile finds either.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nvx_host::{
    CreateError, Directory, FileIdentity, FileLock, REPLACEMENT_PREFIX, RenameError, random_name,
    remove_stale, replace_file, sync_data, try_lock_exclusive, write_all,
};
use thiserror::Error;

use crate::open::open_directory;
use crate::{MANIFEST_FILE, ManifestError, MemoryError, MemoryReport, OpenError, Snapshot};

/// A name that a clean-up takes away at once is not tried again this often.
const MAX_ATTEMPTS: u32 = 16;

/// Why a snapshot was not sealed; its manifest is as before.
#[derive(Debug, Error)]
pub enum SealError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its memory cannot be read; or it has digests already, and its memory does not match them.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The new manifest is not one that could be read again.
    #[error("{}: the new manifest is not valid", path.display())]
    Manifest {
        /// The manifest's path.
        path: PathBuf,
        /// The reason.
        source: ManifestError,
    },
    /// There is no place for the new manifest.
    #[error("{}: cannot create a new manifest", path.display())]
    Create {
        /// The snapshot directory.
        path: PathBuf,
        /// The reason.
        source: CreateError,
    },
    /// The new manifest cannot be written or synced.
    #[error("{}: cannot {operation} the new manifest", path.display())]
    Io {
        /// The snapshot directory.
        path: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The old manifest cannot be replaced.
    #[error("the manifest cannot be replaced")]
    Replace(#[from] RenameError),
}

/// A snapshot whose memory content is covered by digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What was looked at.
    pub report: MemoryReport,
    /// It had digests before, and all chunks match them; nothing was written.
    pub was_sealed: bool,
}

/// Makes digests of the memory of the snapshot at `path` and puts them into its manifest, which is
/// otherwise as before. If it has digests they are checked and kept: making them anew would bless
/// whatever the file holds now.
///
/// # Errors
///
/// [`SealError`].
pub fn seal(path: &Path) -> Result<Sealed, SealError> {
    let directory = open_directory(path)?;
    let snapshot = Snapshot::open_in(&directory)?;
    let mut manifest = snapshot.manifest().clone();
    if manifest.memory.iter().all(|layer| layer.digests.is_some()) {
        return Ok(Sealed {
            report: snapshot.verify_memory()?,
            was_sealed: true,
        });
    }
    let (digests, report) = snapshot.digest_memory()?;
    if let Some(layer) = manifest.memory.first_mut() {
        layer.digests = Some(digests);
    }
    let bytes = manifest.encode().map_err(|source| SealError::Manifest {
        path: path.join(MANIFEST_FILE),
        source,
    })?;
    // What a killed process left. That it cannot be removed is no reason not to go on.
    let _ = remove_stale(&directory);
    replace_manifest(&directory, &bytes)?;
    Ok(Sealed {
        report,
        was_sealed: false,
    })
}

fn replace_manifest(directory: &Directory, bytes: &[u8]) -> Result<(), SealError> {
    let (name, file) = create_replacement(directory)?;
    let failed = |operation| move |source| io_error(directory, operation, source);
    let written = write_all(&file, &name, bytes)
        .map_err(failed("write"))
        .and_then(|()| sync_data(&file, &name).map_err(failed("sync")))
        .and_then(|()| Ok(replace_file(directory, &name, MANIFEST_FILE)?));
    if let Err(error) = written {
        // The next seal removes what cannot be removed now.
        let _ = directory.remove_file(&name);
        return Err(error);
    }
    directory.sync().map_err(failed("sync the directory of"))?;
    Ok(())
}

/// A new file in the directory, locked for as long as it is open, and its name.
fn create_replacement(directory: &Directory) -> Result<(String, File), SealError> {
    let create_error = |source| SealError::Create {
        path: directory.path().to_owned(),
        source,
    };
    for _ in 0..MAX_ATTEMPTS {
        let name = random_name(REPLACEMENT_PREFIX)
            .map_err(|source| io_error(directory, "name", source))?;
        let file = match directory.create_new(&name) {
            Ok(file) => file,
            Err(CreateError::Exists { .. }) => continue,
            Err(error) => return Err(create_error(error)),
        };
        match try_lock_exclusive(&file) {
            Ok(FileLock::Taken | FileLock::Unsupported) => {}
            // Another seal's clean-up is about to remove it.
            Ok(FileLock::HeldElsewhere) => continue,
            Err(source) => {
                let _ = directory.remove_file(&name);
                return Err(io_error(directory, "lock", source));
            }
        }
        // A clean-up may have removed the name before the lock was ours.
        let named = directory.identity_of(&name);
        if let (Ok(Some(named)), Ok(open)) = (named, FileIdentity::of(&file))
            && named == open
        {
            return Ok((name, file));
        }
    }
    Err(create_error(CreateError::NoFreeName {
        path: directory.path().to_owned(),
        prefix: REPLACEMENT_PREFIX,
        attempts: MAX_ATTEMPTS,
    }))
}

fn io_error(directory: &Directory, operation: &'static str, source: io::Error) -> SealError {
    SealError::Io {
        path: directory.path().to_owned(),
        operation,
        source,
    }
}

#[cfg(test)]
mod tests;
