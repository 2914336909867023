//! A file with given content, for what reads only from files.

use std::cell::RefCell;
use std::io::{Seek, Write};
use std::path::Path;

use tempfile::NamedTempFile;

thread_local! {
    /// Kept, since making a file takes longer than most targets.
    static FILE: RefCell<Option<NamedTempFile>> = const { RefCell::new(None) };
}

/// Calls `read` with the path of a file that holds `content`.
pub(crate) fn with_content<T>(content: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    FILE.with_borrow_mut(|kept| {
        let file = kept.get_or_insert_with(|| {
            // Memory where there is such a directory: thousands of files a second are written.
            let memory = Path::new("/dev/shm");
            if memory.is_dir() {
                NamedTempFile::new_in(memory)
            } else {
                NamedTempFile::new()
            }
            .expect("a temporary file")
        });
        let inner = file.as_file_mut();
        inner.set_len(0).expect("an empty file");
        inner.rewind().expect("its start");
        inner.write_all(content).expect("room for the content");
        read(file.path())
    })
}
