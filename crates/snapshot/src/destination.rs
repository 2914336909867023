//! Where a snapshot is to be, declared before it is made.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvx_host::{AsFile, Directory};

use crate::staging::PublishError;

/// A name in a directory that is held open, so that it stays the same place whatever happens to the
/// path. A start declares it: a user hears of a mistake at once and not at the first capture.
#[derive(Clone, Debug)]
pub struct Destination {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    parent: Directory,
    name: OsString,
}

impl Destination {
    /// Declares `path`: its parent is a directory that may be written, and nothing has its name.
    ///
    /// # Errors
    ///
    /// [`PublishError::NoName`], [`PublishError::MissingParent`], [`PublishError::ParentNotDirectory`],
    /// [`PublishError::Parent`], [`PublishError::Exists`], [`PublishError::Lookup`].
    pub fn declare(path: &Path) -> Result<Self, PublishError> {
        let name = path.file_name().ok_or_else(|| PublishError::NoName {
            destination: path.to_path_buf(),
        })?;
        let destination = Self {
            place: Arc::new(Place {
                path: path.to_path_buf(),
                parent: open_parent(path)?,
                name: name.to_owned(),
            }),
        };
        destination.check_free()?;
        destination
            .parent()
            .check_writable()
            .map_err(|source| PublishError::Parent {
                destination: path.to_path_buf(),
                operation: "write to",
                source,
            })?;
        Ok(destination)
    }

    /// Checks that nothing has the name.
    ///
    /// # Errors
    ///
    /// [`PublishError::Exists`], [`PublishError::Lookup`].
    pub fn check_free(&self) -> Result<(), PublishError> {
        match self.parent().kind(self.name()) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(PublishError::Exists {
                destination: self.path().to_path_buf(),
            }),
            Err(source) => Err(PublishError::Lookup {
                destination: self.path().to_path_buf(),
                source,
            }),
        }
    }

    /// The path as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// The directory that is to hold the snapshot.
    #[must_use]
    pub fn parent(&self) -> &Directory {
        &self.place.parent
    }

    /// Whether `file` is on the file system that the snapshot will be on. False where that cannot be
    /// told.
    pub fn same_file_system(&self, file: impl AsFile) -> bool {
        self.parent().same_file_system(file).unwrap_or(false)
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.place.name
    }
}

/// The directory that holds `path`, as a path; the current one for a bare name.
#[must_use]
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn open_parent(path: &Path) -> Result<Directory, PublishError> {
    let destination = path.to_path_buf();
    Directory::open_following(parent_of(path)).map_err(|error| match error {
        nvx_host::OpenError::NotFound { path } => PublishError::MissingParent {
            destination,
            parent: path,
        },
        nvx_host::OpenError::WrongKind { path, found, .. } => PublishError::ParentNotDirectory {
            destination,
            parent: path,
            found,
        },
        nvx_host::OpenError::InvalidName { .. } => PublishError::NoName { destination },
        nvx_host::OpenError::System {
            operation, source, ..
        } => PublishError::Parent {
            destination,
            operation,
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_lies_in_the_current_directory() {
        assert_eq!(parent_of(Path::new("one")), Path::new("."));
        assert_eq!(parent_of(Path::new("a/one")), Path::new("a"));
    }

    #[test]
    fn a_declared_place_stays_the_same_when_its_path_changes() {
        let root = tempfile::tempdir().unwrap();
        let before = root.path().join("before");
        let after = root.path().join("after");
        std::fs::create_dir(&before).unwrap();
        let destination = Destination::declare(&before.join("snapshot")).unwrap();
        std::fs::rename(&before, &after).unwrap();
        std::fs::create_dir(after.join("snapshot")).unwrap();
        let error = destination.check_free().unwrap_err();
        assert!(matches!(error, PublishError::Exists { .. }), "{error}");
    }
}
