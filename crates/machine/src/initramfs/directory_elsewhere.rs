//! Hosts whose files have no Unix attributes: a tree there says not what it would be in a guest.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::{AddError, Content, Entry, HostIdentity, Initramfs, WriteError};

pub(super) fn add(
    _initramfs: &mut Initramfs,
    root: &Path,
    _owner: Option<(u32, u32)>,
) -> Result<(), AddError> {
    let what = "files here have no Unix owners and modes; give a tar archive instead";
    Err(read_error(
        root,
        io::Error::new(io::ErrorKind::Unsupported, what),
    ))
}

/// A regular file that is read when the archive is written.
pub(super) fn regular_file(path: &Path) -> Result<(u64, Content), AddError> {
    let metadata = fs::metadata(path).map_err(|source| read_error(path, source))?;
    if !metadata.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(read_error(path, source));
    }
    let identity = HostIdentity {
        device: 0,
        inode: 0,
    };
    let path = path.to_owned();
    Ok((metadata.len(), Content::HostFile { path, identity }))
}

/// Opens a file of the first pass.
pub(super) fn open_again(
    path: &Path,
    _identity: HostIdentity,
    entry: &Entry,
) -> Result<File, WriteError> {
    File::open(path).map_err(|source| entry.read_error(source))
}

fn read_error(path: &Path, source: io::Error) -> AddError {
    AddError::Read {
        path: path.to_owned(),
        source,
    }
}
