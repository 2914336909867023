//! Which pages of a view belong to this process alone: Windows does not tell in bulk, so a copy goes by
//! the dirty set, or looks at all of RAM.

use std::fs::File;
use std::io;

use crate::extents::ExtentList;
use crate::volatile::VolatileBytes;

fn unsupported() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "Windows has no map of a process's pages",
    )
}

/// There is none.
pub(crate) fn open() -> io::Result<File> {
    Err(unsupported())
}

/// As [`open`].
pub(crate) fn try_reading(_page_map: &File, _view: &VolatileBytes) -> io::Result<()> {
    Err(unsupported())
}

/// As [`open`].
pub(crate) fn private_pages(
    _page_map: &File,
    _view: &VolatileBytes,
    _file_offset_bytes: u64,
) -> io::Result<ExtentList> {
    Err(unsupported())
}
