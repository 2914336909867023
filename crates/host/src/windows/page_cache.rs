//! How much of a file is in the file cache.

use std::fs::File;
use std::io;

/// Windows does not tell.
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`].
pub fn cached_pages(_file: &File) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Windows drops a file's pages when it likes.
///
/// # Errors
///
/// [`io::ErrorKind::Unsupported`].
pub fn drop_cached_pages(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
