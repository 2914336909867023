//! Packing an initramfs: a cpio archive in the "newc" format, which the kernel unpacks into its first
//! root file system.
//!
//! It is made in two passes, so that no copy of the tree is ever on disk or as a whole in memory. The
//! first pass notes what there is, and so knows the exact size of the archive before guest RAM is laid
//! out. [`Initramfs::write_to`] is the second one: it streams the archive, and refuses a file that is
//! not any more what the first pass saw.
//!
//! Names are components below the guest's root: they never begin with `/` and never have `.` or `..` in
//! them. Where a name in a tar archive leads through a symbolic link of the same archive, it is followed
//! *inside the archive*, never on the host. The kernel makes no directory that an archive does not list,
//! so those that are missing are added.
//!
//! Source of the format: `Documentation/driver-api/early-userspace/buffer-format.rst` of Linux.

#[cfg_attr(not(unix), path = "initramfs/directory_elsewhere.rs")]
mod directory;
mod newc;
mod tar;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

pub use tar::TarError;
use tar::TarSource;

/// Most names in an archive: several times what a whole distribution has, and few enough to keep in
/// memory.
pub const MAX_ENTRIES: usize = 2_000_000;
/// Longest name in bytes: the kernel skips longer ones (`PATH_MAX`, with the NUL at its end).
pub const MAX_NAME_BYTES: usize = 4095;
/// Largest file in bytes: the header has eight hexadecimal digits for it.
pub const MAX_FILE_BYTES: u64 = u32::MAX as u64;
/// Symbolic links followed on the way to one name, as the kernel has it.
const MAX_LINKS_FOLLOWED: u32 = 40;

/// Why something cannot be put into the archive.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// A file or directory of the host cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tar archive cannot be understood.
    #[error("cannot unpack {}", path.display())]
    Tar {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: TarError,
    },
    /// A name is longer than [`MAX_NAME_BYTES`].
    #[error("the name {name:.100}... is longer than {MAX_NAME_BYTES} bytes")]
    NameTooLong {
        /// The name.
        name: String,
    },
    /// More names than [`MAX_ENTRIES`].
    #[error("more than {MAX_ENTRIES} files and directories")]
    TooManyEntries,
    /// A file is larger than [`MAX_FILE_BYTES`].
    #[error(
        "{name} has {bytes} bytes; a file of an initramfs has at most {MAX_FILE_BYTES} (4 GiB)"
    )]
    FileTooLarge {
        /// The file.
        name: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A name would need a directory where something else is, or the other way round.
    #[error("{name} is to be a directory as well as something else")]
    Conflict {
        /// The name in dispute.
        name: String,
    },
    /// Symbolic links lead in a circle.
    #[error("too many symbolic links on the way to {name}")]
    LinkLoop {
        /// The name that cannot be reached.
        name: String,
    },
    /// A hard link's target is not in the archive before it.
    #[error("{name} is a hard link to {target}, which is not in the archive before it")]
    LinkTarget {
        /// The link.
        name: String,
        /// What it names.
        target: String,
    },
}

/// Why the archive cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A source cannot be read.
    #[error("cannot read {name}")]
    Read {
        /// The file, by its name in the guest.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not any more what it was when its size was noted.
    #[error("{name} changed while it was packed")]
    Changed {
        /// The file, by its name in the guest.
        name: String,
    },
    /// The destination takes no more.
    #[error("the initramfs cannot be written")]
    Write(#[source] io::Error),
}

/// Owner, mode and time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits with set-user-ID, set-group-ID and sticky bit (the low 12 bits of `st_mode`).
    pub permissions: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of its contents, in seconds since the Unix epoch. What does not fit into
    /// the header's 32 bits becomes the nearest that does.
    pub modified_s: i64,
}

impl Attributes {
    /// Root's, unchanged since the epoch.
    #[must_use]
    pub fn of_root(permissions: u32) -> Self {
        Self {
            permissions,
            uid: 0,
            gid: 0,
            modified_s: 0,
        }
    }
}

/// A device's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A regular file with these contents.
    File(Vec<u8>),
    /// A symbolic link.
    SymbolicLink(Vec<u8>),
    /// A character device.
    CharacterDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The kinds of inode, as bits of `st_mode` (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    Fifo = 0o010_000,
    CharacterDevice = 0o020_000,
    Directory = 0o040_000,
    BlockDevice = 0o060_000,
    File = 0o100_000,
    SymbolicLink = 0o120_000,
    Socket = 0o140_000,
}

/// Where an inode's bytes come from.
#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    HostFile {
        path: PathBuf,
        identity: HostIdentity,
    },
    Tar {
        archive: usize,
        offset: u64,
    },
}

/// By what a file of the host is known again: device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct HostIdentity {
    device: u64,
    inode: u64,
}

#[derive(Debug)]
struct Inode {
    kind: Kind,
    attributes: Attributes,
    device: DeviceNumber,
    size_bytes: u32,
    content: Content,
    names: u32,
    /// Until it has been listed once its bytes are not in the archive.
    first_entry: usize,
}

#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    inode: usize,
}

/// An archive being planned.
#[derive(Debug, Default)]
pub struct Initramfs {
    inodes: Vec<Inode>,
    /// In the order of the archive; none where a later entry replaced it.
    entries: Vec<Option<Entry>>,
    by_name: HashMap<Vec<u8>, usize>,
    archives: Vec<TarSource>,
    reserved: Option<&'static str>,
}

impl Initramfs {
    /// An archive without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An archive that keeps `name`, a directory of its root, for [`Self::add`]: what trees and tar
    /// archives have there is left out.
    #[must_use]
    pub fn reserving(name: &'static str) -> Self {
        Self {
            reserved: Some(name),
            ..Self::default()
        }
    }

    /// Adds one node; directories on the way to it are added, links on the way are followed inside the
    /// archive. It replaces what had the name before, except a directory.
    ///
    /// # Errors
    /// The name is too long or leads nowhere.
    pub fn add(&mut self, name: &str, attributes: Attributes, node: Node) -> Result<(), AddError> {
        let name = self.place(name.as_bytes())?;
        let (kind, device, bytes) = match node {
            Node::Directory => (Kind::Directory, DeviceNumber::default(), Vec::new()),
            Node::File(bytes) => (Kind::File, DeviceNumber::default(), bytes),
            Node::SymbolicLink(target) => (Kind::SymbolicLink, DeviceNumber::default(), target),
            Node::CharacterDevice(device) => (Kind::CharacterDevice, device, Vec::new()),
            Node::BlockDevice(device) => (Kind::BlockDevice, device, Vec::new()),
            Node::Fifo => (Kind::Fifo, DeviceNumber::default(), Vec::new()),
            Node::Socket => (Kind::Socket, DeviceNumber::default(), Vec::new()),
        };
        let size = bytes.len() as u64;
        self.insert(name, kind, attributes, device, size, Content::Bytes(bytes))
    }

    /// Adds a regular file of the host, which is read when the archive is written.
    ///
    /// # Errors
    /// It cannot be looked at, is no regular file, or is too large.
    pub fn add_host_file(
        &mut self,
        name: &str,
        attributes: Attributes,
        file: &Path,
    ) -> Result<(), AddError> {
        let name = self.place(name.as_bytes())?;
        let (size, content) = directory::regular_file(file)?;
        let device = DeviceNumber::default();
        self.insert(name, Kind::File, attributes, device, size, content)
    }

    /// Adds everything below `root`, but nothing of other file systems that are mounted there. Files of
    /// `owner` (user and group) become root's: so a tree that an ordinary user unpacked is in the guest
    /// what it was before.
    ///
    /// # Errors
    /// Something in it cannot be read, or does not fit into an archive; or the host's files are not those
    /// of a Unix system.
    pub fn add_tree(&mut self, root: &Path, owner: Option<(u32, u32)>) -> Result<(), AddError> {
        directory::add(self, root, owner)
    }

    /// Adds everything in a tar archive, plain or compressed. See [`TarError`] for what is refused.
    ///
    /// # Errors
    /// It cannot be read or understood, or does not fit into an archive.
    pub fn add_tar(&mut self, path: &Path) -> Result<(), AddError> {
        let read_error = |source| AddError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read_error)?;
        let source = TarSource::new(file).map_err(read_error)?;
        self.archives.push(source);
        tar::add(self, self.archives.len() - 1).map_err(|failure| match failure {
            tar::Failure::Tar(source) => AddError::Tar {
                path: path.to_owned(),
                source,
            },
            tar::Failure::Add(error) => error,
        })
    }

    /// Whether the guest will find something at `name`, a name without links on the way.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name.as_bytes())
    }

    /// The exact size of the archive in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        let entries = self.entries.iter().enumerate();
        let listed: u64 = entries
            .filter_map(|(index, entry)| entry.as_ref().map(|entry| (index, entry)))
            .map(|(index, entry)| {
                newc::entry_bytes(entry.name.len(), self.listed_bytes(index, entry))
            })
            .sum();
        listed + newc::trailer_bytes()
    }

    /// Streams the archive.
    ///
    /// # Errors
    /// A source cannot be read or has changed, or `out` takes no more.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<(), WriteError> {
        let mut tars: Vec<_> = self.archives.iter().map(tar::Contents::of).collect();
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry {
                self.write_entry(index, entry, &mut tars, out)?;
            }
        }
        newc::write_trailer(out).map_err(WriteError::Write)
    }

    fn write_entry(
        &self,
        index: usize,
        entry: &Entry,
        tars: &mut [tar::Contents<'_>],
        out: &mut dyn Write,
    ) -> Result<(), WriteError> {
        let inode = &self.inodes[entry.inode];
        let bytes = self.listed_bytes(index, entry);
        newc::Header {
            inode: entry.inode as u32 + 1,
            mode: inode.kind as u32 | inode.attributes.permissions,
            uid: inode.attributes.uid,
            gid: inode.attributes.gid,
            names: inode.names,
            modified_s: inode.attributes.modified_s.clamp(0, u32::MAX.into()) as u32,
            device: inode.device,
            file_bytes: bytes,
        }
        .write_to(&entry.name, out)
        .map_err(WriteError::Write)?;
        if bytes > 0 {
            let mut reader: Box<dyn Read + '_> = match &inode.content {
                Content::Bytes(bytes) => Box::new(&bytes[..]),
                Content::HostFile { path, identity } => {
                    Box::new(directory::open_again(path, *identity, entry)?)
                }
                Content::Tar { archive, offset } => {
                    let contents = tars[*archive].at(*offset);
                    Box::new(contents.map_err(|source| entry.read_error(source))?)
                }
            };
            copy_exactly(&mut reader, bytes, entry, out)?;
        }
        newc::write_padding(bytes.into(), out).map_err(WriteError::Write)
    }

    /// How many bytes an entry carries: an inode's bytes stand with the first of its names.
    fn listed_bytes(&self, index: usize, entry: &Entry) -> u32 {
        let inode = &self.inodes[entry.inode];
        if inode.first_entry == index {
            inode.size_bytes
        } else {
            0
        }
    }

    /// Whether trees and tar archives may say what is at `name`.
    fn is_open(&self, name: &[u8]) -> bool {
        let first = name.split(|byte| *byte == b'/').next();
        self.reserved
            .is_none_or(|reserved| first != Some(reserved.as_bytes()))
    }

    /// The name under which `name` is in the archive once the links on the way to it are followed. The
    /// directories on the way are added where nothing is.
    fn place(&mut self, name: &[u8]) -> Result<Vec<u8>, AddError> {
        let components = |path: &[u8]| -> Vec<Vec<u8>> {
            // Reversed: the next one is taken from the end.
            path.split(|byte| *byte == b'/')
                .filter(|component| !component.is_empty() && *component != b".")
                .map(<[u8]>::to_vec)
                .rev()
                .collect()
        };
        let mut pending = components(name);
        let mut links_followed = 0;
        let mut placed = Vec::new();
        while let Some(component) = pending.pop() {
            if component == b".." {
                let parent = placed.iter().rposition(|byte| *byte == b'/');
                placed.truncate(parent.unwrap_or(0));
                continue;
            }
            let directory_bytes = placed.len();
            if !placed.is_empty() {
                placed.push(b'/');
            }
            placed.extend(component);
            if pending.is_empty() {
                break;
            }
            match self.inode_at(&placed).map(|inode| (inode.kind, inode)) {
                Some((Kind::Directory, _)) => {}
                Some((Kind::SymbolicLink, inode)) => {
                    links_followed += 1;
                    let Content::Bytes(target) = &inode.content else {
                        continue;
                    };
                    if links_followed > MAX_LINKS_FOLLOWED {
                        return Err(AddError::LinkLoop { name: lossy(name) });
                    }
                    let is_absolute = target.starts_with(b"/");
                    pending.extend(components(target));
                    placed.truncate(if is_absolute { 0 } else { directory_bytes });
                }
                Some(_) => {
                    return Err(AddError::Conflict {
                        name: lossy(&placed),
                    });
                }
                None => self.insert(
                    placed.clone(),
                    Kind::Directory,
                    Attributes::of_root(0o755),
                    DeviceNumber::default(),
                    0,
                    Content::Bytes(Vec::new()),
                )?,
            }
        }
        Ok(placed)
    }

    fn inode_at(&self, name: &[u8]) -> Option<&Inode> {
        let entry = self.entries.get(*self.by_name.get(name)?)?;
        Some(&self.inodes[entry.as_ref()?.inode])
    }

    /// Lists a new inode at `name`, a name that [`Self::place`] would not change.
    fn insert(
        &mut self,
        name: Vec<u8>,
        kind: Kind,
        attributes: Attributes,
        device: DeviceNumber,
        size_bytes: u64,
        content: Content,
    ) -> Result<(), AddError> {
        if name.is_empty() {
            // The root itself: the kernel made it.
            return Ok(());
        }
        let size_bytes = u32::try_from(size_bytes).map_err(|_| AddError::FileTooLarge {
            name: lossy(&name),
            bytes: size_bytes,
        })?;
        if kind == Kind::Directory
            && let Some(entry) = self.by_name.get(&name)
            && let Some(entry) = &self.entries[*entry]
            && self.inodes[entry.inode].kind == Kind::Directory
        {
            self.inodes[entry.inode].attributes = attributes;
            return Ok(());
        }
        self.inodes.push(Inode {
            kind,
            attributes,
            device,
            size_bytes,
            content,
            names: 0,
            first_entry: self.entries.len(),
        });
        self.link(name, self.inodes.len() - 1)
    }

    /// Lists an inode at one more name.
    fn link(&mut self, name: Vec<u8>, inode: usize) -> Result<(), AddError> {
        if name.len() > MAX_NAME_BYTES {
            return Err(AddError::NameTooLong { name: lossy(&name) });
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(AddError::TooManyEntries);
        }
        if let Some(replaced) = self.by_name.insert(name.clone(), self.entries.len()) {
            self.unlink(replaced, &name)?;
        }
        self.inodes[inode].names += 1;
        self.entries.push(Some(Entry { name, inode }));
        Ok(())
    }

    fn unlink(&mut self, index: usize, name: &[u8]) -> Result<(), AddError> {
        let Some(entry) = self.entries[index].take() else {
            return Ok(());
        };
        let inode = &mut self.inodes[entry.inode];
        if inode.kind == Kind::Directory {
            return Err(AddError::Conflict { name: lossy(name) });
        }
        inode.names -= 1;
        if inode.first_entry == index && inode.names > 0 {
            // Its bytes go with the next of its names.
            let is_next = |candidate: &Option<Entry>| {
                candidate
                    .as_ref()
                    .is_some_and(|candidate| candidate.inode == entry.inode)
            };
            let next = self.entries[index..].iter().position(is_next);
            inode.first_entry = next.map_or(index, |next| index + next);
        }
        Ok(())
    }
}

impl Entry {
    fn read_error(&self, source: io::Error) -> WriteError {
        WriteError::Read {
            name: lossy(&self.name),
            source,
        }
    }

    fn changed(&self) -> WriteError {
        WriteError::Changed {
            name: lossy(&self.name),
        }
    }
}

fn copy_exactly(
    reader: &mut dyn Read,
    bytes: u32,
    entry: &Entry,
    out: &mut dyn Write,
) -> Result<(), WriteError> {
    let mut buffer = vec![0; (bytes as usize).min(64 << 10)];
    let mut left = bytes as usize;
    while left > 0 {
        let chunk = left.min(buffer.len());
        let length = match reader.read(&mut buffer[..chunk]) {
            Ok(0) => return Err(entry.changed()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(entry.read_error(error)),
        };
        out.write_all(&buffer[..length])
            .map_err(WriteError::Write)?;
        left -= length;
    }
    Ok(())
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

// They compare with what a Unix system has.
#[cfg(test)]
#[cfg(unix)]
mod tests;
