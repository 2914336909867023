//! Where guest RAM lives, decided at start.
//!
//! A capture can publish the RAM file itself, by a link, only if the file is on the destination's
//! file system; so a VM that knows its destination puts the file beside it. Without a place for a
//! file RAM is anonymous memory, and a capture copies it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvx_memory::{GuestMemory, MapError, RamFile, RamFileError, RamFileKind, RamLayout};
use nvx_snapshot::parent_of;

/// What a user asked for concerning guest RAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RamRequest {
    /// `--scratch`: the directory where RAM files live.
    pub scratch: Option<PathBuf>,
}

/// Where guest RAM lives, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RamPlace {
    /// In a new file in this directory.
    File {
        /// The directory.
        directory: PathBuf,
        /// Why there.
        reason: &'static str,
    },
    /// In anonymous memory.
    Anonymous,
    /// In a private copy-on-write view of a snapshot's memory.
    PrivateView,
}

impl RamPlace {
    /// Decides for a VM that starts anew.
    pub fn decide(request: &RamRequest, snapshot_destination: Option<&Path>) -> Self {
        if let Some(scratch) = &request.scratch {
            return Self::File {
                directory: scratch.clone(),
                reason: "the scratch directory was given",
            };
        }
        match snapshot_destination {
            Some(destination) => Self::File {
                directory: parent_of(destination).to_owned(),
                reason: "the snapshot's parent directory, so that the file can be linked",
            },
            None => Self::Anonymous,
        }
    }

    /// The word for it in a manifest.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Anonymous => "anonymous",
            Self::PrivateView => "private-view",
        }
    }

    /// Why, as a clause.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::File { reason, .. } => reason,
            Self::Anonymous => "neither a snapshot destination nor a scratch directory was given",
            Self::PrivateView => "the machine was restored from a snapshot",
        }
    }

    /// The directory of the RAM file, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::File { directory, .. } => Some(directory),
            Self::Anonymous | Self::PrivateView => None,
        }
    }
}

/// Guest RAM cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum RamError {
    /// The RAM file cannot be made.
    #[error(transparent)]
    File(#[from] RamFileError),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Guest RAM as the main thread holds it.
pub(crate) struct VmRam {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) file: Option<RamFile>,
    /// A nameless file can be given a name once only, so a capture that fails after linking it
    /// leaves one that the next capture must copy.
    pub(crate) link_spent: bool,
    pub(crate) place: RamPlace,
}

impl VmRam {
    /// Makes RAM for a VM that starts anew.
    pub(crate) fn create(layout: RamLayout, place: RamPlace) -> Result<Self, RamError> {
        let (memory, file) = match place.directory() {
            None => (GuestMemory::anonymous(layout)?, None),
            Some(directory) => {
                let file = RamFile::create(directory, layout.file_len_bytes())?;
                let view = file.try_clone_file()?;
                let memory = GuestMemory::shared_file(layout, view, file.display_name())?;
                (memory, Some(file))
            }
        };
        Ok(Self {
            memory: Arc::new(memory),
            file,
            link_spent: false,
            place,
        })
    }

    /// RAM that is a private view of a snapshot's memory.
    pub(crate) fn private_view(memory: GuestMemory) -> Self {
        Self {
            memory: Arc::new(memory),
            file: None,
            link_spent: false,
            place: RamPlace::PrivateView,
        }
    }

    /// What had to be done otherwise than wished, for the manifest.
    pub(crate) fn fallback(&self) -> Option<String> {
        self.file
            .as_ref()
            .filter(|file| file.kind() == RamFileKind::Named)
            .map(|_| "RAM file has a name: the file system knows no nameless files".to_owned())
    }

    /// Length in bytes of the file behind RAM if it is shorter than RAM; `None` if all is well or
    /// cannot be told.
    pub(crate) fn truncated_length_bytes(memory: &GuestMemory) -> Option<u64> {
        let length_bytes = memory.file()?.metadata().ok()?.len();
        (length_bytes < memory.layout().file_len_bytes()).then_some(length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(scratch: Option<&str>, destination: Option<&str>) -> RamPlace {
        let request = RamRequest {
            scratch: scratch.map(PathBuf::from),
        };
        RamPlace::decide(&request, destination.map(Path::new))
    }

    #[test]
    fn ram_lives_beside_the_snapshot_unless_told_otherwise() {
        let directory = |place: &RamPlace| place.directory().map(Path::to_owned);
        let beside = decide(None, Some("/data/snapshots/one"));
        assert_eq!(directory(&beside), Some("/data/snapshots".into()));
        let told = decide(Some("/fast"), Some("/data/snapshots/one"));
        assert_eq!(directory(&told), Some("/fast".into()));
        assert_eq!(
            directory(&decide(Some("/fast"), None)),
            Some("/fast".into())
        );
        assert_eq!(decide(None, None), RamPlace::Anonymous);
    }
}
