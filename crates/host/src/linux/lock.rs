//! Locks that say "the owner lives".
//!
//! A lock belongs to the open file description, not to a file or a process: it ends when the last
//! descriptor for it is closed, at the latest when the kernel closes those of a dead process. That
//! makes it a proof of life that no crash can leave behind.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::FileLock;

/// Tries to take the exclusive lock (`flock`) of an open file or directory, without waiting.
///
/// # Errors
///
/// The operating system's, except that a held lock and a file system without locks are answers.
pub fn try_lock_exclusive(file: impl AsFd) -> io::Result<FileLock> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(FileLock::Taken),
        Err(Errno::WOULDBLOCK) => Ok(FileLock::HeldElsewhere),
        // EBADF: NFS turns flock into a byte-range lock, which a directory or a file that is open for
        // reading cannot have.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOLCK | Errno::BADF) => {
            Ok(FileLock::Unsupported)
        }
        Err(errno) => Err(errno.into()),
    }
}
