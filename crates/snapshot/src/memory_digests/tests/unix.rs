//! Files that change while they are open, which Windows does not allow.

use super::*;

#[test]
fn a_file_that_is_cut_short_while_it_is_open_is_called_that() {
    let (_directory, path) = with_digests(&[(0, b"data")]);
    let snapshot = Snapshot::open(&path).unwrap();
    let file = OpenOptions::new()
        .write(true)
        .open(path.join(MEMORY_FILE))
        .unwrap();
    for length in [MEMORY_BYTES - 1, 65_536, 10, 0] {
        file.set_len(length).unwrap();
        let error = snapshot.verify_memory().unwrap_err();
        assert!(
            matches!(error, MemoryError::Truncated { .. }),
            "{length}: {error}"
        );
    }
}
