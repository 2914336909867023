//! A tree of the host.
//!
//! What is read is what the first pass saw: files are opened without following a link in their last
//! component, and are compared by device and inode number, so that a tree which changes meanwhile is
//! noticed and cannot lead elsewhere.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::{
    AddError, Attributes, Content, DeviceNumber, Entry, HostIdentity, Initramfs, Kind, WriteError,
};

pub(super) fn add(
    initramfs: &mut Initramfs,
    root: &Path,
    owner: Option<(u32, u32)>,
) -> Result<(), AddError> {
    // The user names the tree, by a link or not.
    let metadata = fs::metadata(root).map_err(|source| read_error(root, source))?;
    let mut walk = Walk {
        initramfs,
        owner,
        device: metadata.dev(),
        linked: HashMap::new(),
    };
    let mut pending = vec![(root.to_owned(), Vec::new())];
    while let Some((path, name)) = pending.pop() {
        pending.extend(walk.directory(&path, &name)?);
    }
    Ok(())
}

struct Walk<'a> {
    initramfs: &'a mut Initramfs,
    owner: Option<(u32, u32)>,
    /// The device of the tree's root.
    device: u64,
    /// Files with more than one name, by what they are on the host.
    linked: HashMap<HostIdentity, usize>,
}

impl Walk<'_> {
    /// Adds what is in a directory, and gives the directories among it, the last one first.
    fn directory(&mut self, path: &Path, name: &[u8]) -> Result<Vec<(PathBuf, Vec<u8>)>, AddError> {
        let mut children = fs::read_dir(path)
            .and_then(|children| {
                children
                    .map(|child| child.map(|child| child.file_name()))
                    .collect::<io::Result<Vec<_>>>()
            })
            .map_err(|source| read_error(path, source))?;
        // The same tree gives the same archive.
        children.sort_unstable();
        let mut directories = Vec::new();
        for child in children {
            let child_path = path.join(&child);
            let child_name = join(name, &child);
            if !self.initramfs.is_open(&child_name) {
                continue;
            }
            let metadata = fs::symlink_metadata(&child_path)
                .map_err(|source| read_error(&child_path, source))?;
            self.node(&child_path, child_name.clone(), &metadata)?;
            if metadata.is_dir() && metadata.dev() == self.device {
                directories.push((child_path, child_name));
            }
        }
        directories.reverse();
        Ok(directories)
    }

    fn node(&mut self, path: &Path, name: Vec<u8>, metadata: &Metadata) -> Result<(), AddError> {
        let identity = identity_of(metadata);
        let has_more_names = metadata.nlink() > 1 && !metadata.is_dir();
        if has_more_names && let Some(inode) = self.linked.get(&identity) {
            return self.initramfs.link(name, *inode);
        }
        let (kind, size, content) = match kind_of(metadata) {
            Kind::File => {
                let path = path.to_owned();
                let content = Content::HostFile { path, identity };
                (Kind::File, metadata.len(), content)
            }
            Kind::SymbolicLink => {
                let target = fs::read_link(path).map_err(|source| read_error(path, source))?;
                let target = target.into_os_string().into_vec();
                let size = target.len() as u64;
                (Kind::SymbolicLink, size, Content::Bytes(target))
            }
            kind => (kind, 0, Content::Bytes(Vec::new())),
        };
        let number = metadata.rdev();
        let device = match kind {
            Kind::CharacterDevice | Kind::BlockDevice => device_number(number),
            _ => DeviceNumber::default(),
        };
        let attributes = self.attributes(metadata);
        self.initramfs
            .insert(name, kind, attributes, device, size, content)?;
        if has_more_names {
            self.linked
                .insert(identity, self.initramfs.inodes.len() - 1);
        }
        Ok(())
    }

    fn attributes(&self, metadata: &Metadata) -> Attributes {
        let or_root = |id, owner| if Some(id) == owner { 0 } else { id };
        Attributes {
            permissions: metadata.mode() & 0o7777,
            uid: or_root(metadata.uid(), self.owner.map(|owner| owner.0)),
            gid: or_root(metadata.gid(), self.owner.map(|owner| owner.1)),
            modified_s: metadata.mtime(),
        }
    }
}

/// A regular file that is read when the archive is written.
pub(super) fn regular_file(path: &Path) -> Result<(u64, Content), AddError> {
    let path = fs::canonicalize(path).map_err(|source| read_error(path, source))?;
    let metadata = fs::metadata(&path).map_err(|source| read_error(&path, source))?;
    if !metadata.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(read_error(&path, source));
    }
    let identity = identity_of(&metadata);
    Ok((metadata.len(), Content::HostFile { path, identity }))
}

/// Opens a file of the first pass.
pub(super) fn open_again(
    path: &Path,
    identity: HostIdentity,
    entry: &Entry,
) -> Result<File, WriteError> {
    // Looked at before and after it is opened: opening a pipe or a device that took the file's place
    // could wait or do something.
    let metadata = fs::symlink_metadata(path).map_err(|source| entry.read_error(source))?;
    if !metadata.is_file() || identity_of(&metadata) != identity {
        return Err(entry.changed());
    }
    let file = File::open(path).map_err(|source| entry.read_error(source))?;
    let metadata = file.metadata().map_err(|source| entry.read_error(source))?;
    if identity_of(&metadata) != identity {
        return Err(entry.changed());
    }
    Ok(file)
}

fn identity_of(metadata: &Metadata) -> HostIdentity {
    HostIdentity {
        device: metadata.dev(),
        inode: metadata.ino(),
    }
}

fn kind_of(metadata: &Metadata) -> Kind {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_symlink() {
        Kind::SymbolicLink
    } else if file_type.is_char_device() {
        Kind::CharacterDevice
    } else if file_type.is_block_device() {
        Kind::BlockDevice
    } else if file_type.is_fifo() {
        Kind::Fifo
    } else if file_type.is_socket() {
        Kind::Socket
    } else {
        Kind::File
    }
}

/// Takes apart a device number as the C library has it (`gnu_dev_major` and `gnu_dev_minor`).
fn device_number(number: u64) -> DeviceNumber {
    DeviceNumber {
        major: (number >> 8 & 0xfff | number >> 32 & 0xffff_f000) as u32,
        minor: (number & 0xff | number >> 12 & 0xffff_ff00) as u32,
    }
}

fn join(directory: &[u8], child: &OsStr) -> Vec<u8> {
    let mut name = directory.to_vec();
    if !name.is_empty() {
        name.push(b'/');
    }
    name.extend(child.as_bytes());
    name
}

fn read_error(path: &Path, source: io::Error) -> AddError {
    AddError::Read {
        path: path.to_owned(),
        source,
    }
}
