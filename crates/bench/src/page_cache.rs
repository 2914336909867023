//! Emptying a file's page cache, and making sure that it is empty.

use std::fs::File;
use std::io;

/// A file with writes on the way cannot be dropped; they are over soon.
const MAX_ATTEMPTS: u32 = 20;

/// Why a file's page cache is not known to be empty.
#[derive(Debug, thiserror::Error)]
pub enum PageCacheError {
    /// A call failed.
    #[error("cannot {what} the snapshot")]
    System {
        /// What was being done, as a verb.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel cannot tell what is cached.
    #[error("this system cannot tell what is in the page cache")]
    CannotTell,
    /// Pages stay.
    #[error("{pages} pages of a file of the snapshot stay in the page cache")]
    NotCold {
        /// How many.
        pages: u64,
    },
}

/// Drops a file from the page cache and checks that no page of it is left.
///
/// # Errors
/// It cannot be written back, or pages stay, or it cannot be told.
pub fn make_cold(file: &File) -> Result<(), PageCacheError> {
    let system = |what| move |source| PageCacheError::System { what, source };
    file.sync_all().map_err(system("write back"))?;
    let mut pages = 0;
    for _ in 0..MAX_ATTEMPTS {
        nvx_host::drop_cached_pages(file).map_err(|source| match source.kind() {
            io::ErrorKind::Unsupported => PageCacheError::CannotTell,
            _ => system("drop from the page cache")(source),
        })?;
        pages = count(file)?;
        if pages == 0 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(PageCacheError::NotCold { pages })
}

fn count(file: &File) -> Result<u64, PageCacheError> {
    nvx_host::cached_pages(file).map_err(|source| match source.kind() {
        io::ErrorKind::Unsupported => PageCacheError::CannotTell,
        _ => PageCacheError::System {
            what: "look at the page cache of",
            source,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};

    #[test]
    fn a_file_on_a_disk_becomes_cold_and_warm_again() {
        let mut file = tempfile::tempfile_in(".").expect("a file");
        if nvx_host::FileSystem::of(&file).is_ok_and(nvx_host::FileSystem::is_memory) {
            println!("skipped: the working directory is in memory");
            return;
        }
        file.write_all(&vec![7; 64 * 4096]).expect("space");
        match make_cold(&file) {
            Ok(()) => {}
            Err(PageCacheError::CannotTell) => {
                println!("skipped: the file system cannot tell");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(count(&file).expect("told"), 0);
        file.rewind().expect("a file");
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("a file");
        assert_eq!(count(&file).expect("told"), 64);
    }
}
