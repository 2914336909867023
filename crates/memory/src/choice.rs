//! What a user may ask for, and what `auto` makes of it.
//!
//! Marking every page pays only for a new, dense file on a file system that keeps a *valid data
//! length*: a position in the file up to which the device holds data, and behind which everything
//! reads as zeros. A write behind it has the file system store zeros up to the write. Everywhere
//! else marking would turn pages that nobody touched into bytes on the device.
//!
//! So `auto` asks three questions of the open file: is it dense, does its file system keep a valid
//! data length, and, where a FUSE server stands in front of the file system, what is behind it. The
//! answer always comes with its reason, since a user cannot see it otherwise.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nvx_host::AsFile;

use crate::os::valid_data;
use crate::writeback::{Strategy, UnknownStrategy};

/// How a user asks for a writeback: by a strategy, or by leaving it to NVX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritebackChoice {
    /// The strategy that suits the RAM file's file system. Written `auto`.
    #[default]
    Auto,
    /// This strategy. Written as the strategy is.
    Fixed(Strategy),
}

impl fmt::Display for WritebackChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(strategy) => strategy.fmt(f),
        }
    }
}

impl FromStr for WritebackChoice {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Fixed),
        }
    }
}

impl WritebackChoice {
    /// The strategy for `file`, and why it is the one.
    pub fn resolve(self, file: &File) -> ChosenStrategy {
        match self {
            Self::Auto => Strategy::for_file(file),
            Self::Fixed(strategy) => ChosenStrategy {
                strategy,
                reason: StrategyReason::AskedFor,
            },
        }
    }
}

/// A strategy and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenStrategy {
    /// The strategy.
    pub strategy: Strategy,
    /// Why.
    pub reason: StrategyReason,
}

/// Why a strategy was chosen. Its text is what results and manifests record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrategyReason {
    /// The user named the strategy.
    AskedFor,
    /// A dense file on a file system with a valid data length: written once only if in full.
    ValidDataLength {
        /// The file system, such as `ntfs`.
        file_system: String,
    },
    /// The file is sparse, so the file system fills nothing with zeros.
    Sparse,
    /// The file system has no valid data length.
    NoValidDataLength {
        /// The file system, such as `ext4`.
        file_system: String,
    },
    /// It cannot be found out what is behind FUSE.
    Unknown {
        /// What stood in the way.
        obstacle: String,
    },
}

impl fmt::Display for StrategyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AskedFor => f.write_str("asked for"),
            Self::ValidDataLength { file_system } => {
                write!(
                    f,
                    "dense file on {file_system}, which has a valid data length"
                )
            }
            Self::Sparse => f.write_str("sparse file"),
            Self::NoValidDataLength { file_system } => {
                write!(f, "{file_system} has no valid data length")
            }
            Self::Unknown { obstacle } => write!(f, "unknown file system: {obstacle}"),
        }
    }
}

/// What is known of a file system's treatment of a file's unwritten part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValidData {
    /// Writes behind the valid data length store zeros first.
    Kept { file_system: String },
    /// Unwritten parts cost nothing.
    NotKept { file_system: String },
    /// No way to tell.
    Unknown { obstacle: String },
}

impl Strategy {
    /// The strategy that writes a RAM file's pages once and no more than needed: in ascending order,
    /// with every page marked if the file is dense and its file system keeps a valid data length.
    ///
    /// A file that was written in full before is not told from a new one; there the marking is
    /// needless. So a file is best looked at while it is new. Behind FUSE this reads the device's boot
    /// sector, for which the process needs the right. Elsewhere it is a single system call unless the
    /// file system keeps a valid data length.
    pub fn for_file(file: &File) -> ChosenStrategy {
        let (mark_every_page, reason) = decide(valid_data::of(file), || valid_data::is_dense(file));
        ChosenStrategy {
            strategy: Self::Ascending { mark_every_page },
            reason,
        }
    }
}

/// What the file system of a file or directory is called, also where it is behind FUSE: `ext4`,
/// `ntfs (by FUSE)`, `fuse (unknown: ...)` with what stood in the way.
pub fn file_system_name(file: impl AsFile) -> String {
    match valid_data::of(file) {
        ValidData::Kept { file_system } | ValidData::NotKept { file_system } => file_system,
        ValidData::Unknown { obstacle } => format!("unknown: {obstacle}"),
    }
}

fn decide(valid_data: ValidData, is_dense: impl FnOnce() -> bool) -> (bool, StrategyReason) {
    match valid_data {
        ValidData::Kept { file_system } if is_dense() => {
            (true, StrategyReason::ValidDataLength { file_system })
        }
        ValidData::Kept { .. } => (false, StrategyReason::Sparse),
        ValidData::NotKept { file_system } => {
            (false, StrategyReason::NoValidDataLength { file_system })
        }
        ValidData::Unknown { obstacle } => (false, StrategyReason::Unknown { obstacle }),
    }
}

/// Which file a VM's RAM lives in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RamFileChoice {
    /// A new file of the form that this system handles best: sparse on Linux. Written `auto`.
    #[default]
    Auto,
    /// A new file with all its blocks allocated. Written `dense`.
    Dense,
    /// A new file without blocks. Written `sparse`.
    Sparse,
    /// A file that the user prepared. Written as its path; `./dense` for a file of that name.
    Prepared(PathBuf),
}

impl fmt::Display for RamFileChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Dense => f.write_str("dense"),
            Self::Sparse => f.write_str("sparse"),
            Self::Prepared(path) => path.display().fmt(f),
        }
    }
}

impl RamFileChoice {
    /// The choice as a program's argument: read by [`FromStr`] in any directory that a relative path
    /// of it is valid in, it is this choice again.
    pub fn to_argument(&self) -> OsString {
        match self {
            // A relative path that reads like a word stays a path.
            Self::Prepared(path) if path.is_relative() => Path::new(".").join(path).into(),
            Self::Prepared(path) => path.into(),
            word => word.to_string().into(),
        }
    }
}

/// A text that names no RAM file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no RAM file is named: auto, dense, sparse, or a path")]
pub struct NoRamFile;

impl FromStr for RamFileChoice {
    type Err = NoRamFile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "" => return Err(NoRamFile),
            "auto" => Self::Auto,
            "dense" => Self::Dense,
            "sparse" => Self::Sparse,
            path => Self::Prepared(path.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "ascending", "ascending-marked", "ranges:3"] {
            assert_eq!(text.parse::<WritebackChoice>().unwrap().to_string(), text);
        }
        let error = "fast".parse::<WritebackChoice>().unwrap_err();
        assert!(error.to_string().contains("auto"), "{error}");
        for text in ["auto", "dense", "sparse", "/mnt/ram", "./dense"] {
            assert_eq!(text.parse::<RamFileChoice>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<RamFileChoice>(), Err(NoRamFile));
        let here = Path::new(".").join("dense");
        for (path, argument) in [("dense", &*here), ("/mnt/auto", Path::new("/mnt/auto"))] {
            let choice = RamFileChoice::Prepared(path.into());
            assert_eq!(choice.to_argument(), argument.as_os_str());
        }
        assert_eq!(RamFileChoice::Sparse.to_argument(), "sparse");
    }

    #[test]
    fn every_page_is_marked_only_for_a_dense_file_with_a_valid_data_length() {
        let ntfs = || "ntfs".to_owned();
        let kept = || ValidData::Kept {
            file_system: ntfs(),
        };
        assert_eq!(
            decide(kept(), || true),
            (
                true,
                StrategyReason::ValidDataLength {
                    file_system: ntfs()
                }
            )
        );
        assert_eq!(decide(kept(), || false), (false, StrategyReason::Sparse));
        for dense in [true, false] {
            let file_system = "ext4".to_owned();
            assert!(!decide(ValidData::NotKept { file_system }, || dense).0);
            let obstacle = "no right to read /dev/loop0".to_owned();
            let (marked, reason) = decide(ValidData::Unknown { obstacle }, || dense);
            assert!(!marked);
            assert_eq!(
                reason.to_string(),
                "unknown file system: no right to read /dev/loop0"
            );
        }
    }

    #[test]
    #[cfg(unix)]
    fn ordinary_places_need_no_marking() {
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let file = tempfile::tempfile_in(directory).unwrap();
            file.set_len(1 << 20).unwrap();
            let chosen = WritebackChoice::Auto.resolve(&file);
            assert_eq!(chosen.strategy, Strategy::default());
            let StrategyReason::NoValidDataLength { .. } = chosen.reason else {
                panic!("{}", chosen.reason);
            };
        }
        let file = tempfile::tempfile().unwrap();
        let fixed: WritebackChoice = "ranges:2".parse().unwrap();
        assert_eq!(fixed.resolve(&file).reason, StrategyReason::AskedFor);
    }
}
