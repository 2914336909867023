//! Building a snapshot beside its destination, and giving it its name.
//!
//! A [`Staging`] is a locked directory with a random name in the destination's parent. The steps are
//! separate because each is a phase of its own in a capture's profile; a capture calls them in this
//! order:
//!
//! 1. [`Staging::create`];
//! 2. [`Staging::write_state`], [`Staging::link_memory`] or [`Staging::create_memory`], and
//!    [`Staging::write_manifest`], which needs what the other two made;
//! 3. [`Staging::start_writeback`], then [`Staging::sync`]: everything is created and on its way before
//!    anything is waited for, so that a journal commits as few times as possible;
//! 4. [`Staging::commit`]: one rename that never replaces. Before it nothing exists for anybody else;
//!    after it the snapshot is complete;
//! 5. [`Published::sync_parent`].
//!
//! Syncing the content of `memory.bin` is the caller's: it knows how that content was written.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use nvx_host::{
    CreateError, DirectorySync, FileKind, LinkError, LockedDirectory, RenameError, RenameMethod,
    STAGING_PREFIX, create_locked_directory, link_open_file, rename_no_replace_by, start_writeback,
    sync_data, write_all,
};

use crate::destination::Destination;
use crate::manifest::{Manifest, ManifestError, StateFile};
use crate::state::StateTable;
use crate::{Digest, MANIFEST_FILE, MEMORY_FILE, STATE_FILE};

/// Why a snapshot could not be published.
#[derive(Debug, Error)]
pub enum PublishError {
    /// The destination does not end with a name.
    #[error("{}: does not end with the name of a new directory", destination.display())]
    NoName {
        /// The destination as given.
        destination: PathBuf,
    },
    /// The directory that is to hold the snapshot does not exist.
    #[error("{}: the parent directory {} does not exist", destination.display(), parent.display())]
    MissingParent {
        /// The destination as given.
        destination: PathBuf,
        /// Its parent.
        parent: PathBuf,
    },
    /// What is to hold the snapshot is no directory.
    #[error("{}: the parent {} is {found}, not a directory", destination.display(), parent.display())]
    ParentNotDirectory {
        /// The destination as given.
        destination: PathBuf,
        /// Its parent.
        parent: PathBuf,
        /// What the parent is.
        found: FileKind,
    },
    /// The directory that is to hold the snapshot cannot be used.
    #[error("{}: cannot {operation} the parent directory", destination.display())]
    Parent {
        /// The destination as given.
        destination: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Something already has the destination's name. It is never replaced.
    #[error("{}: already exists", destination.display())]
    Exists {
        /// The destination as given.
        destination: PathBuf,
    },
    /// The destination's name could not be looked up.
    #[error("{}: cannot tell whether it exists", destination.display())]
    Lookup {
        /// The destination as given.
        destination: PathBuf,
        /// The reason.
        source: nvx_host::OpenError,
    },
    /// The staging directory or a file in it could not be created.
    #[error("{}: cannot create {what}", destination.display())]
    Create {
        /// The destination as given.
        destination: PathBuf,
        /// The staging directory or the file's name.
        what: &'static str,
        /// The reason.
        source: CreateError,
    },
    /// The RAM file could not be linked as `memory.bin`.
    #[error("{}: cannot link the RAM file as {MEMORY_FILE}", destination.display())]
    Link {
        /// The destination as given.
        destination: PathBuf,
        /// The reason; for most of them copying is possible instead.
        source: LinkError,
    },
    /// A file of the snapshot could not be written or synced.
    #[error("{}: cannot {operation} {what}", destination.display())]
    Io {
        /// The destination as given.
        destination: PathBuf,
        /// What was being done, as a verb.
        operation: &'static str,
        /// The staging directory or the file's name.
        what: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The manifest is not one that could be read again.
    #[error("{}: {MANIFEST_FILE} is not valid", destination.display())]
    Manifest {
        /// The destination as given.
        destination: PathBuf,
        /// The reason.
        source: ManifestError,
    },
    /// The manifest describes another file than the one that was staged.
    #[error("{}: {MANIFEST_FILE} does not describe the {file} that was staged", destination.display())]
    NotAsDescribed {
        /// The destination as given.
        destination: PathBuf,
        /// The file's name.
        file: &'static str,
    },
    /// A file that every snapshot has was not staged.
    #[error("{}: {file} was not staged", destination.display())]
    Incomplete {
        /// The destination as given.
        destination: PathBuf,
        /// The file's name.
        file: &'static str,
    },
    /// The snapshot was to be committed before it was synced.
    #[error("{}: not synced yet", destination.display())]
    NotSynced {
        /// The destination as given.
        destination: PathBuf,
    },
    /// The operating system refused the commit.
    #[error("{}: cannot commit", destination.display())]
    Commit {
        /// The destination as given.
        destination: PathBuf,
        /// The reason.
        source: RenameError,
    },
}

/// A snapshot in the making. Dropping it before [`Staging::commit`] removes all that it made.
#[derive(Debug)]
pub struct Staging {
    destination: Destination,
    staged: LockedDirectory,
    /// Names of the files that were made, for removal.
    made: Vec<&'static str>,
    state: Option<(File, StateFile)>,
    manifest: Option<File>,
    synced: bool,
    committed: bool,
}

impl Staging {
    /// Creates the staging directory for `destination`, whose name must be free. Nothing is made at
    /// `destination` itself before the commit.
    ///
    /// # Errors
    ///
    /// As [`Destination::check_free`], and [`PublishError::Create`].
    pub fn create(destination: &Destination) -> Result<Self, PublishError> {
        destination.check_free()?;
        let staged =
            create_locked_directory(destination.parent(), STAGING_PREFIX).map_err(|source| {
                PublishError::Create {
                    destination: destination.path().to_path_buf(),
                    what: "the staging directory",
                    source,
                }
            })?;
        Ok(Self {
            destination: destination.clone(),
            staged,
            made: Vec::with_capacity(3),
            state: None,
            manifest: None,
            synced: false,
            committed: false,
        })
    }

    /// The destination as it was given.
    #[must_use]
    pub fn destination(&self) -> &Path {
        self.destination.path()
    }

    /// The second choices that the destination's file system makes necessary, as texts for the
    /// manifest's `capture.fallbacks`.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<String> {
        match self.staged.rename_method {
            RenameMethod::NoReplace => Vec::new(),
            RenameMethod::ClaimedDirectory => vec![
                "commit: no RENAME_NOREPLACE, the destination was claimed as an empty directory"
                    .to_owned(),
            ],
        }
    }

    /// Writes `state.bin`, whose bytes a [`StateWriter`](crate::StateWriter) has made, and returns
    /// what the manifest must say of it.
    ///
    /// # Errors
    ///
    /// [`PublishError::Create`], [`PublishError::Io`].
    pub fn write_state(&mut self, bytes: &[u8]) -> Result<StateFile, PublishError> {
        debug_assert!(StateTable::parse(bytes).is_ok(), "not by a StateWriter");
        let description = StateFile {
            length_bytes: bytes.len() as u64,
            digest: Digest::of(bytes),
        };
        let file = self.write_new(STATE_FILE, bytes)?;
        self.state = Some((file, description));
        Ok(description)
    }

    /// Links the RAM file as `memory.bin` and proves that it is the same file.
    ///
    /// # Errors
    ///
    /// [`PublishError::Link`]. If the snapshot is abandoned afterwards, a RAM file that had no other
    /// name cannot be linked again ([`LinkError::NotLinkable`]): the next capture must copy.
    pub fn link_memory(&mut self, ram_file: &File) -> Result<(), PublishError> {
        let linked = link_open_file(ram_file, &self.staged.directory, MEMORY_FILE);
        if matches!(linked, Ok(()) | Err(LinkError::NotTheSameFile { .. })) {
            self.mark_made(MEMORY_FILE);
        }
        linked.map_err(|source| PublishError::Link {
            destination: self.destination.path().to_path_buf(),
            source,
        })
    }

    /// Creates an empty `memory.bin`, open for reading and writing, for a copy of guest RAM.
    ///
    /// # Errors
    ///
    /// [`PublishError::Create`].
    pub fn create_memory(&mut self) -> Result<File, PublishError> {
        self.create_file(MEMORY_FILE)
    }

    /// Writes `manifest.json`. The other two files must be staged, with the lengths (and for the state
    /// the digest) that the manifest gives.
    ///
    /// # Errors
    ///
    /// [`PublishError::Incomplete`], [`PublishError::NotAsDescribed`], [`PublishError::Manifest`],
    /// [`PublishError::Create`], [`PublishError::Io`].
    pub fn write_manifest(&mut self, manifest: &Manifest) -> Result<(), PublishError> {
        let not_as_described = |file| PublishError::NotAsDescribed {
            destination: self.destination.path().to_path_buf(),
            file,
        };
        match &self.state {
            None => return Err(self.incomplete(STATE_FILE)),
            Some((_, written)) if *written != manifest.state => {
                return Err(not_as_described(STATE_FILE));
            }
            Some(_) => {}
        }
        let described = manifest.memory.first().map(|layer| layer.length_bytes);
        match self.memory_length_bytes()? {
            None => return Err(self.incomplete(MEMORY_FILE)),
            staged if staged != described => return Err(not_as_described(MEMORY_FILE)),
            Some(_) => {}
        }
        let bytes = manifest.encode().map_err(|source| PublishError::Manifest {
            destination: self.destination.path().to_path_buf(),
            source,
        })?;
        self.manifest = Some(self.write_new(MANIFEST_FILE, &bytes)?);
        Ok(())
    }

    /// Asks the kernel to begin writing the state and the manifest, without waiting.
    pub fn start_writeback(&self) {
        if let Some((file, _)) = &self.state {
            start_writeback(file);
        }
        if let Some(file) = &self.manifest {
            start_writeback(file);
        }
    }

    /// Brings the state, the manifest and then the staging directory's entries to stable storage.
    ///
    /// # Errors
    ///
    /// [`PublishError::Incomplete`], [`PublishError::Io`].
    pub fn sync(&mut self) -> Result<(), PublishError> {
        let Some((state, _)) = &self.state else {
            return Err(self.incomplete(STATE_FILE));
        };
        let Some(manifest) = &self.manifest else {
            return Err(self.incomplete(MANIFEST_FILE));
        };
        let failed = |what, source| self.io_error("sync", what, source);
        sync_data(state, STATE_FILE).map_err(|source| failed(STATE_FILE, source))?;
        sync_data(manifest, MANIFEST_FILE).map_err(|source| failed(MANIFEST_FILE, source))?;
        self.staged
            .directory
            .sync()
            .map_err(|source| failed("the staging directory", source))?;
        self.synced = true;
        Ok(())
    }

    /// Gives the snapshot its name, without ever replacing anything.
    ///
    /// # Errors
    ///
    /// [`PublishError::NotSynced`], [`PublishError::Exists`] if the name was taken meanwhile,
    /// [`PublishError::Commit`]. After an error everything that was staged is removed.
    pub fn commit(self) -> Result<Published, PublishError> {
        let method = self.staged.rename_method;
        self.commit_by(method)
    }

    fn commit_by(mut self, method: RenameMethod) -> Result<Published, PublishError> {
        // Syncing needs all three files, so this covers a missing one too.
        if !self.synced {
            return Err(PublishError::NotSynced {
                destination: self.destination.path().to_path_buf(),
            });
        }
        // Windows renames no directory while a file in it is open.
        self.state = None;
        self.manifest = None;
        let method = rename_no_replace_by(
            method,
            self.destination.parent(),
            &self.staged.name,
            self.destination.name(),
        )
        .map_err(|source| match source {
            RenameError::Exists { .. } => PublishError::Exists {
                destination: self.destination.path().to_path_buf(),
            },
            source => PublishError::Commit {
                destination: self.destination.path().to_path_buf(),
                source,
            },
        })?;
        self.committed = true;
        Ok(Published {
            staging: self,
            rename_method: method,
        })
    }

    fn memory_length_bytes(&self) -> Result<Option<u64>, PublishError> {
        self.staged
            .directory
            .length_bytes_of(MEMORY_FILE)
            .map_err(|source| PublishError::Lookup {
                destination: self.destination.path().to_path_buf(),
                source,
            })
    }

    fn write_new(&mut self, name: &'static str, bytes: &[u8]) -> Result<File, PublishError> {
        let file = self.create_file(name)?;
        write_all(&file, name, bytes).map_err(|source| self.io_error("write", name, source))?;
        Ok(file)
    }

    fn create_file(&mut self, name: &'static str) -> Result<File, PublishError> {
        let file =
            self.staged
                .directory
                .create_new(name)
                .map_err(|source| PublishError::Create {
                    destination: self.destination.path().to_path_buf(),
                    what: name,
                    source,
                })?;
        self.mark_made(name);
        Ok(file)
    }

    fn mark_made(&mut self, name: &'static str) {
        self.made.push(name);
        self.synced = false;
    }

    fn incomplete(&self, file: &'static str) -> PublishError {
        PublishError::Incomplete {
            destination: self.destination.path().to_path_buf(),
            file,
        }
    }

    fn io_error(
        &self,
        operation: &'static str,
        what: &'static str,
        source: io::Error,
    ) -> PublishError {
        PublishError::Io {
            destination: self.destination.path().to_path_buf(),
            operation,
            what,
            source,
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Best effort: what cannot be removed now is stale once the lock is gone, and the next start
        // removes it. Only what this value made is touched.
        //
        // A FUSE file system keeps a removed file under a hidden name while it is open, and then the
        // directory is not empty: so close first.
        self.state = None;
        self.manifest = None;
        for name in &self.made {
            let _ = self.staged.directory.remove_file(name);
        }
        let named = self.destination.parent().identity_of(&self.staged.name);
        if matches!(named, Ok(Some(identity)) if identity == self.staged.identity) {
            let _ = self
                .destination
                .parent()
                .remove_empty_subdirectory(&self.staged.name);
        }
    }
}

/// A snapshot that has its name.
#[derive(Debug)]
pub struct Published {
    /// Committed, so that dropping it removes nothing.
    staging: Staging,
    rename_method: RenameMethod,
}

impl Published {
    /// Where the snapshot is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.staging.destination.path()
    }

    /// How the commit was done.
    #[must_use]
    pub fn rename_method(&self) -> RenameMethod {
        self.rename_method
    }

    /// Brings the parent directory's entries, and with them the snapshot's name, to stable storage.
    ///
    /// # Errors
    ///
    /// [`PublishError::Io`]. The snapshot is complete all the same; after a power failure it may be
    /// gone.
    pub fn sync_parent(&self) -> Result<DirectorySync, PublishError> {
        self.staging.destination.parent().sync().map_err(|source| {
            self.staging
                .io_error("sync", "the parent directory", source)
        })
    }
}

#[cfg(test)]
mod tests;
