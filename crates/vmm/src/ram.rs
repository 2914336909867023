//! Where guest RAM lives, decided at start.
//!
//! A capture can publish the RAM file itself, by a link, only if the file is on the destination's
//! file system; so a VM that knows its destination puts the file beside it. Without a place for a
//! file RAM is anonymous memory, and a capture copies it. How the file's pages are written back
//! depends on what the file was when it was new, so that is decided early too, by a thread that the
//! guest does not wait for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nvx_host::FileSystem;
use nvx_memory::{
    AccessError, ChosenStrategy, GuestAddress, GuestMemory, MapError, PAGE_SIZE_BYTES, RamFile,
    RamFileChoice, RamFileError, RamFileKind, RamLayout, RamRange, ViewKind, WritebackChoice,
    WritebackError,
};
use nvx_snapshot::{CaptureFacts, Snapshot, parent_of};

use crate::error::RestoreError;

/// What a user asked for concerning guest RAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RamRequest {
    /// `--scratch`: the directory where RAM files live.
    pub scratch: Option<PathBuf>,
    /// `--ram-file`: which file; one that the user prepared lies where it lies.
    pub file: RamFileChoice,
    /// `--writeback`: how a capture brings the file's pages to it.
    pub writeback: WritebackChoice,
}

/// Where guest RAM lives, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RamPlace {
    /// In a file in this directory.
    File {
        /// The directory.
        directory: PathBuf,
        /// Which file.
        file: RamFileChoice,
        /// Why there.
        reason: &'static str,
    },
    /// In anonymous memory.
    Anonymous,
    /// In a private copy-on-write view of a snapshot's memory.
    PrivateView,
    /// In anonymous memory that a snapshot's memory was copied to.
    PrivateCopy,
}

impl RamPlace {
    /// Decides for a VM that starts anew.
    ///
    /// # Errors
    /// [`RamError::NoPlace`] if something was asked for that needs a RAM file, and no place for one is
    /// known.
    pub fn decide(
        request: &RamRequest,
        snapshot_destination: Option<&Path>,
    ) -> Result<Self, RamError> {
        let (directory, reason) = match (&request.file, &request.scratch, snapshot_destination) {
            (RamFileChoice::Prepared(path), ..) => (parent_of(path), "the RAM file was given"),
            (_, Some(scratch), _) => (scratch.as_path(), "the scratch directory was given"),
            (_, None, Some(destination)) => (
                parent_of(destination),
                "the snapshot's parent directory, so that the file can be linked",
            ),
            (RamFileChoice::Auto, None, None) if request.writeback == WritebackChoice::Auto => {
                return Ok(Self::Anonymous);
            }
            (file, None, None) => {
                return Err(RamError::NoPlace {
                    file: file.clone(),
                    writeback: request.writeback,
                });
            }
        };
        Ok(Self::File {
            directory: directory.to_owned(),
            file: request.file.clone(),
            reason,
        })
    }

    /// The word for it in a manifest.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File { file, .. } => match file {
                RamFileChoice::Auto | RamFileChoice::Sparse => "file",
                RamFileChoice::Dense => "dense-file",
                RamFileChoice::Prepared(_) => "prepared-file",
            },
            Self::Anonymous => "anonymous",
            Self::PrivateView => "private-view",
            Self::PrivateCopy => "private-copy",
        }
    }

    /// Why, as a clause.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::File { reason, .. } => reason,
            Self::Anonymous => "neither a snapshot destination nor a scratch directory was given",
            Self::PrivateView => "the machine was restored from a snapshot",
            Self::PrivateCopy => "the machine was restored from a copy of a snapshot's memory",
        }
    }

    /// The directory of the RAM file, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::File { directory, .. } => Some(directory),
            Self::Anonymous | Self::PrivateView | Self::PrivateCopy => None,
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
    /// A RAM file is needed, and there is no place for one.
    #[error(
        "RAM file '{file}' with writeback '{writeback}' needs a directory: \
         neither a snapshot destination nor a scratch directory was given"
    )]
    NoPlace {
        /// Which file was asked for.
        file: RamFileChoice,
        /// Which writeback was asked for.
        writeback: WritebackChoice,
    },
}

/// The strategy by which a RAM file is written back, decided when somebody first asks.
pub(crate) struct Writeback {
    choice: WritebackChoice,
    chosen: OnceLock<ChosenStrategy>,
}

impl Writeback {
    fn new(choice: WritebackChoice) -> Self {
        Self {
            choice,
            chosen: OnceLock::new(),
        }
    }

    /// The strategy for the file behind `memory`, as the file was when this was asked first; `None`
    /// if RAM has no file of its own.
    pub(crate) fn strategy(&self, memory: &GuestMemory) -> Option<&ChosenStrategy> {
        let file = match memory.view_kind() {
            ViewKind::SharedFile => memory.file()?,
            ViewKind::PrivateFile | ViewKind::Anonymous => return None,
        };
        Some(self.chosen.get_or_init(|| self.choice.resolve(file)))
    }
}

/// Guest RAM as the main thread holds it.
pub(crate) struct VmRam {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) file: Option<RamFile>,
    /// A nameless file can be given a name once only, so a capture that fails after linking it
    /// leaves one that the next capture must copy.
    pub(crate) link_spent: bool,
    pub(crate) place: RamPlace,
    pub(crate) writeback: Arc<Writeback>,
    /// [`nvx_host::modified_file_bytes`] after the last writeback of this VM.
    pub(crate) written_back_bytes: u64,
}

impl VmRam {
    /// Makes RAM for a VM that starts anew.
    pub(crate) fn create(
        layout: RamLayout,
        place: RamPlace,
        writeback: WritebackChoice,
    ) -> Result<Self, RamError> {
        let (memory, file) = match &place {
            RamPlace::Anonymous | RamPlace::PrivateView | RamPlace::PrivateCopy => {
                (GuestMemory::anonymous(layout)?, None)
            }
            RamPlace::File {
                directory, file, ..
            } => {
                let file = RamFile::obtain(file, directory, layout.file_len_bytes())?;
                file.claim_for_new_machine()?;
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
            writeback: Arc::new(Writeback::new(writeback)),
            written_back_bytes: 0,
        })
    }

    /// RAM that is a private view of a snapshot's memory.
    pub(crate) fn private_view(memory: GuestMemory) -> Self {
        Self::restored(memory, RamPlace::PrivateView)
    }

    /// RAM that a snapshot's memory is copied to: whoever writes to the file afterwards does not reach
    /// this machine. With `verify` no byte is taken that does not match the manifest's digests.
    pub(crate) fn private_copy(
        layout: RamLayout,
        snapshot: &Snapshot,
        verify: bool,
    ) -> Result<Self, RestoreError> {
        let memory = GuestMemory::anonymous(layout).map_err(RamError::from)?;
        snapshot.load_memory(verify, &|offset, bytes| {
            Ok(place_file_bytes(&memory, offset, bytes)?)
        })?;
        Ok(Self::restored(memory, RamPlace::PrivateCopy))
    }

    fn restored(memory: GuestMemory, place: RamPlace) -> Self {
        Self {
            memory: Arc::new(memory),
            file: None,
            link_spent: false,
            place,
            writeback: Arc::new(Writeback::new(WritebackChoice::Auto)),
            written_back_bytes: 0,
        }
    }

    /// Writes the RAM file back and records how in `facts`. Nothing happens if RAM has no file.
    pub(crate) fn write_back(&mut self, facts: &mut CaptureFacts) -> Result<(), WritebackError> {
        let Some(ChosenStrategy { strategy, reason }) = self.writeback.strategy(&self.memory)
        else {
            return Ok(());
        };
        facts.strategy = format!("{strategy} ({reason})");
        let in_memory = self
            .file
            .as_ref()
            .is_some_and(|file| FileSystem::of(file.file()).is_ok_and(FileSystem::is_memory));
        let modified_bytes = match in_memory {
            true => Some(0),
            false => nvx_host::modified_file_bytes(),
        };
        let before = self.written_back_bytes;
        let result = self.memory.writeback(*strategy);
        if !in_memory && let Some(now) = nvx_host::modified_file_bytes() {
            self.written_back_bytes = now;
        }
        let report = result?;
        (facts.pages, facts.bytes, facts.calls) = (report.pages, report.bytes, report.calls);
        facts.background_bytes = modified_bytes
            .zip(report.modified_bytes)
            .map(|(modified, left)| modified.saturating_sub(before.saturating_add(left)));
        Ok(())
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

/// Writes bytes of a memory file, from a page boundary on, to where its RAM is. Pages of zeros are left
/// alone: RAM begins as zeros, and what is not touched takes no memory.
fn place_file_bytes(
    memory: &GuestMemory,
    offset_bytes: u64,
    bytes: &[u8],
) -> Result<(), AccessError> {
    const ZEROS: [u8; PAGE_SIZE_BYTES as usize] = [0; PAGE_SIZE_BYTES as usize];
    let mut offset = offset_bytes;
    for page in bytes.chunks(ZEROS.len()) {
        let ranges = memory.layout().ranges();
        let at =
            |range: &&RamRange| (range.file_offset_bytes..range.file_end_bytes()).contains(&offset);
        // Between two ranges a file has bytes that are nobody's.
        if let Some(range) = ranges.iter().find(at)
            && *page != ZEROS[..page.len()]
        {
            let address = range.start.0 + (offset - range.file_offset_bytes);
            memory.write(GuestAddress(address), page)?;
        }
        offset += page.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(scratch: Option<&str>) -> RamRequest {
        RamRequest {
            scratch: scratch.map(PathBuf::from),
            ..RamRequest::default()
        }
    }

    fn decide(request: &RamRequest, destination: Option<&str>) -> RamPlace {
        RamPlace::decide(request, destination.map(Path::new)).unwrap()
    }

    #[test]
    fn ram_lives_beside_the_snapshot_unless_told_otherwise() {
        let directory = |place: &RamPlace| place.directory().map(Path::to_owned);
        let destination = Some("/data/snapshots/one");
        let beside = decide(&request(None), destination);
        assert_eq!(directory(&beside), Some("/data/snapshots".into()));
        let told = decide(&request(Some("/fast")), destination);
        assert_eq!(directory(&told), Some("/fast".into()));
        let scratch = decide(&request(Some("/fast")), None);
        assert_eq!(directory(&scratch), Some("/fast".into()));
        assert_eq!(scratch.name(), "file");
        assert_eq!(decide(&request(None), None), RamPlace::Anonymous);
        let given = RamRequest {
            file: RamFileChoice::Prepared("/ntfs/ram".into()),
            ..request(Some("/fast"))
        };
        let given = decide(&given, destination);
        assert_eq!(directory(&given), Some("/ntfs".into()));
        assert_eq!(
            (given.name(), given.reason()),
            ("prepared-file", "the RAM file was given")
        );
    }

    #[test]
    fn what_needs_a_ram_file_needs_a_place_for_it() {
        let requests = [
            RamRequest {
                file: RamFileChoice::Dense,
                ..request(None)
            },
            RamRequest {
                writeback: "ranges:2".parse().unwrap(),
                ..request(None)
            },
        ];
        for request in requests {
            let error = RamPlace::decide(&request, None).unwrap_err();
            assert!(matches!(error, RamError::NoPlace { .. }), "{error}");
            RamPlace::decide(&request, Some(Path::new("/data/one"))).unwrap();
        }
    }
}
