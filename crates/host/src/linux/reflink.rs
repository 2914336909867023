//! Files that share blocks until one of them is written.
//!
//! The cheapest copy of a file that goes on being written: the file system writes nothing but the
//! second file's metadata, and gives whichever file is written next a block of its own. XFS and btrfs
//! have it; ext4, tmpfs and FUSE file systems do not.

use std::fs::File;

use rustix::io::Errno;

use crate::ReflinkError;

/// Makes `to` a reflink of `from`: afterwards `to` has the length and content of `from`, and no write
/// to either is seen in the other. What was written to `from` through a mapping counts as content,
/// and is written back first. `to` must be open for writing, and empty unless its blocks may be lost.
///
/// # Errors
///
/// [`ReflinkError`]; `to` is then unchanged.
pub fn reflink(from: &File, to: &File) -> Result<(), ReflinkError> {
    rustix::fs::ioctl_ficlone(to, from).map_err(|errno| match errno {
        // What file systems, and kernels that do not know the request, answer (ioctl_ficlone(2)).
        Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS => ReflinkError::Unsupported,
        Errno::XDEV => ReflinkError::OtherFileSystem,
        errno => ReflinkError::System(errno.into()),
    })
}

/// Whether the file system of `empty` can reflink at all, found by reflinking the empty file, open
/// for writing, with itself: that shares nothing, and costs one system call.
///
/// # Errors
///
/// [`ReflinkError`].
pub fn check_reflink(empty: &File) -> Result<(), ReflinkError> {
    reflink(empty, empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn where_blocks_cannot_be_shared_that_is_said() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        if !is_tmpfs(directory.path()) {
            println!("skipped: /dev/shm is no tmpfs");
            return;
        }
        let (from, to) = two_files(directory.path());
        let error = reflink(&from, &to).unwrap_err();
        assert!(matches!(error, ReflinkError::Unsupported), "{error}");
        let error = check_reflink(&to).unwrap_err();
        assert!(matches!(error, ReflinkError::Unsupported), "{error}");
        assert_eq!(to.metadata().unwrap().len(), 0);
    }

    #[test]
    fn files_of_different_file_systems_share_nothing() {
        let (here, there) = (tempfile::tempdir().unwrap(), Path::new("/dev/shm"));
        let there = tempfile::tempdir_in(there).unwrap();
        if is_tmpfs(here.path()) == is_tmpfs(there.path()) {
            println!("skipped: one file system only");
            return;
        }
        let (from, _) = two_files(here.path());
        let (_, to) = two_files(there.path());
        let error = reflink(&from, &to).unwrap_err();
        assert!(matches!(error, ReflinkError::OtherFileSystem), "{error}");
    }

    fn is_tmpfs(directory: &Path) -> bool {
        let kind = rustix::fs::statfs(directory).unwrap().f_type;
        // TMPFS_MAGIC in linux/magic.h.
        kind as u32 == 0x0102_1994
    }

    fn two_files(directory: &Path) -> (File, File) {
        std::fs::write(directory.join("from"), b"content").unwrap();
        let from = File::open(directory.join("from")).unwrap();
        let to = File::create_new(directory.join("to")).unwrap();
        (from, to)
    }
}
