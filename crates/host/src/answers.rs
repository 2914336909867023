//! Answers of operations, the same on every system.

/// What came of an attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileLock {
    /// The lock is held until the file or directory, and every duplicate of the handle, is closed.
    Taken,
    /// It is held through another opening of the file.
    HeldElsewhere,
    /// The file system has no such locks for this file.
    Unsupported,
}

/// How far a directory could be made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DirectorySync {
    /// The entries are on stable storage.
    Done,
    /// The file system has no such operation for directories.
    Unsupported,
}

/// The kinds of file system that NVX treats or reports differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileSystemKind {
    /// tmpfs, also as `/dev/shm`.
    Tmpfs,
    /// ramfs, which cannot be swapped out.
    Ramfs,
    /// hugetlbfs.
    Hugetlbfs,
    /// ext2, ext3 or ext4, which share one magic number.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// F2FS.
    F2fs,
    /// ZFS.
    Zfs,
    /// bcachefs.
    Bcachefs,
    /// overlayfs, as in containers.
    Overlay,
    /// Anything served by FUSE, such as ntfs-3g.
    Fuse,
    /// The kernel's own NTFS driver.
    Ntfs3,
    /// NTFS by its own system's driver.
    Ntfs,
    /// ReFS.
    Refs,
    /// exFAT.
    Exfat,
    /// FAT.
    Fat,
    /// NFS.
    Nfs,
    /// SMB or CIFS.
    Smb,
    /// Plan 9 file protocol.
    NineP,
    /// Any other.
    Other,
}

/// How a rename that never replaces is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenameMethod {
    /// The system checks and renames in one step: `renameat2` with `RENAME_NOREPLACE` on Linux,
    /// `FileRenameInformation` without replacing on Windows.
    NoReplace,
    /// The new name is claimed by creating an empty directory, over which the old one is renamed. For
    /// file systems without `RENAME_NOREPLACE`. A crash between the two steps leaves the empty
    /// directory.
    ClaimedDirectory,
}

/// What reading console input gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRead {
    /// This many bytes, more than 0.
    Data(usize),
    /// Nothing at the moment.
    Nothing,
    /// The input has ended.
    End,
}

/// What reading from a connection gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRead {
    /// This many bytes, more than 0.
    Data(usize),
    /// Nothing at the moment.
    Nothing,
    /// The other side will send no more.
    End,
}

/// What to wait for on one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to read, the end of the stream, or an error.
    Readable,
    /// Room to write, or an error.
    Writable,
}

/// Whether a source can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The set waits for it.
    Yes,
    /// It is of a kind that is always ready, as a regular file, and is not in the set.
    AlwaysReady,
}
