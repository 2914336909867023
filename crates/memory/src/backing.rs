//! What stands behind a mapped range.

use std::fs::File;
use std::path::Path;

/// What backs one mapped range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backing<'a> {
    /// Stores reach the file. `writable` is false for a view that only reads.
    Shared {
        file: &'a File,
        name: &'a Path,
        writable: bool,
    },
    /// Stores stay in this process.
    Private { file: &'a File, name: &'a Path },
    /// No file; begins as zeros.
    Anonymous,
}

impl<'a> Backing<'a> {
    /// The file's name for messages, if there is a file.
    pub(crate) fn name(&self) -> Option<&'a Path> {
        match *self {
            Self::Shared { name, .. } | Self::Private { name, .. } => Some(name),
            Self::Anonymous => None,
        }
    }
}
