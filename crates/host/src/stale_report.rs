//! What a clean-up of one directory did, entry by entry.

use std::io;

use crate::FileKind;

/// The outcome of one [`crate::remove_stale`].
#[derive(Debug, Default)]
pub struct StaleReport {
    /// Names of what was removed.
    pub removed: Vec<String>,
    /// What has a name of the right form and was left, with the reason.
    pub left: Vec<LeftEntry>,
    /// True if the directory holds more entries than one clean-up looks at.
    pub truncated: bool,
}

/// One entry that was left in place.
#[derive(Debug)]
pub struct LeftEntry {
    /// Its name in the directory.
    pub name: String,
    /// Why it was left.
    pub reason: LeftReason,
}

/// Why an entry was left in place.
#[derive(Debug)]
pub enum LeftReason {
    /// A living process holds its lock.
    InUse,
    /// The file system has no locks, so nobody can tell whether the owner lives.
    NoLocks,
    /// It vanished or was renamed while it was looked at: it is not this clean-up's business.
    Changed,
    /// The name says one kind, the entry is another.
    WrongKind(FileKind),
    /// A staging directory holds something else than a few regular files.
    UnexpectedContent(String),
    /// The operating system refused.
    System(io::Error),
}
