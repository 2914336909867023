//! Files that share blocks until one of them is written.
//!
//! ReFS has them (`FSCTL_DUPLICATE_EXTENTS_TO_FILE`); NVX does not use them yet, since no machine that
//! it was tested on has ReFS. A capture whose guest goes on is a copy there.

use std::fs::File;

use crate::ReflinkError;

/// Not used on Windows.
///
/// # Errors
///
/// [`ReflinkError::Unsupported`]; `to` is unchanged.
pub fn reflink(_from: &File, _to: &File) -> Result<(), ReflinkError> {
    Err(ReflinkError::Unsupported)
}

/// As [`reflink`].
///
/// # Errors
///
/// [`ReflinkError::Unsupported`].
pub fn check_reflink(empty: &File) -> Result<(), ReflinkError> {
    reflink(empty, empty)
}
