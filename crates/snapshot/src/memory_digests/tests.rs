//! Tests of digests of memory content.

use std::fs::OpenOptions;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::MEMORY_FILE;
use crate::sample::{self, MEMORY_BYTES};

#[cfg(unix)]
mod unix;

/// The digest of a chunk, made in the plain way.
fn plain(bytes: &[u8]) -> Digest {
    Digest::of(bytes)
}

#[test]
fn the_digests_of_zeros_that_are_known_by_heart_are_right() {
    for power in MIN_CHUNK_BYTES.ilog2()..=22 {
        let size_bytes = 1_u64 << power;
        let known = known_zero_digest(size_bytes).unwrap();
        assert_eq!(known, plain(&vec![0; size_bytes as usize]), "{size_bytes}");
    }
    assert!(known_zero_digest(4 << 30).is_some());
    for unknown in [0, 1, 32 << 10, (64 << 10) + 1, 8 << 30] {
        assert_eq!(known_zero_digest(unknown), None, "{unknown}");
    }
    assert_eq!(zero_digest(70_000), plain(&[0; 70_000]));
}

#[test]
#[ignore = "hashes 4 GiB"]
fn all_digests_of_zeros_are_right() {
    let mut hasher = blake3::Hasher::new();
    let mut size_bytes = 0;
    for (index, known) in ZERO_DIGESTS.iter().enumerate() {
        let next = MIN_CHUNK_BYTES << index;
        hash_zeros(&mut hasher, next - size_bytes);
        size_bytes = next;
        assert_eq!(finish(&hasher).to_string(), *known, "{size_bytes}");
    }
}

#[test]
fn chunks_keep_a_manifest_small() {
    assert_eq!(chunk_bytes_for(1), 1 << 20);
    assert_eq!(chunk_bytes_for(128 << 20), 1 << 20);
    assert_eq!(chunk_bytes_for((256 << 20) + 1), 2 << 20);
    assert_eq!(chunk_bytes_for(1 << 40), 4 << 30);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_digester_sees_what_is_left_out_as_zeros(
        length in 1_usize..(400 << 10),
        parts in prop::collection::vec((0_usize..(150 << 10), 1_usize..(150 << 10)), 0..6),
    ) {
        let mut file = vec![0_u8; length];
        let mut digester = ChunkDigester::with_chunks_of(MIN_CHUNK_BYTES, length as u64);
        let mut position = 0;
        for (gap, size) in parts {
            let start = position + gap;
            if start >= length {
                break;
            }
            let end = (start + size).min(length);
            file[start..end].fill(start as u8 | 1);
            digester.update(start as u64, &file[start..end]);
            position = end;
        }
        let digests = digester.finish();
        let wanted: Vec<Digest> = file.chunks(digests.chunk_bytes as usize).map(plain).collect();
        prop_assert_eq!(digests.chunks, wanted);
    }
}

/// A sample snapshot with digests in its manifest, of 64 KiB each, and with something in its memory.
fn with_digests(content: &[(u64, &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snap");
    sample::publish(&path);
    let file = path.join(MEMORY_FILE);
    let mut memory = vec![0; MEMORY_BYTES as usize];
    for (offset, bytes) in content {
        sample::write_at(&file, bytes, *offset);
        memory[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let mut manifest = sample::manifest(&sample::state());
    manifest.memory[0].digests = Some(ChunkDigests {
        chunk_bytes: MIN_CHUNK_BYTES,
        chunks: memory.chunks(MIN_CHUNK_BYTES as usize).map(plain).collect(),
    });
    std::fs::write(path.join(crate::MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
    (directory, path)
}

#[test]
fn a_flipped_bit_is_named_by_its_chunk() {
    let (_directory, path) = with_digests(&[(100, b"low"), (70_000, b"high")]);
    let report = Snapshot::open(&path).unwrap().verify_memory().unwrap();
    assert_eq!((report.chunks, report.bytes_read), (2, MEMORY_BYTES));
    let file = path.join(MEMORY_FILE);
    // Opened anew each time: Windows lets nobody write to what is open.
    let verify = || Snapshot::open(&path).unwrap().verify_memory();
    for (offset, chunk) in [(0, 0), (65_535, 0), (65_536, 1), (131_071, 1)] {
        sample::write_at(&file, &[1], offset);
        let error = verify().unwrap_err();
        assert!(
            matches!(&error, MemoryError::Mismatch { chunk: found, chunks: 2, length_bytes: 65_536, .. }
                if *found == chunk),
            "{offset}: {error}"
        );
        assert!(error.to_string().starts_with(&format!(
            "{}: chunk {chunk} of 2",
            path.join(MEMORY_FILE).display()
        )));
        sample::write_at(&file, &[0], offset);
    }
    verify().unwrap();
    // Of two the first is named, whichever processor is faster.
    sample::write_at(&file, &[1], 0);
    sample::write_at(&file, &[1], 131_071);
    for _ in 0..50 {
        let error = verify().unwrap_err();
        assert!(
            matches!(error, MemoryError::Mismatch { chunk: 0, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_hole_where_data_was_is_found_and_holes_are_not_read() {
    let (_directory, path) = with_digests(&[(0, b"data")]);
    let report = Snapshot::open(&path).unwrap().verify_memory().unwrap();
    // A file system that cannot tell where data is has no holes to it.
    assert!(report.holes <= 1);
    assert_eq!(
        report.bytes_read,
        MEMORY_BYTES - report.holes as u64 * MIN_CHUNK_BYTES
    );
    let file = OpenOptions::new()
        .write(true)
        .open(path.join(MEMORY_FILE))
        .unwrap();
    file.set_len(0).unwrap();
    file.set_len(MEMORY_BYTES).unwrap();
    drop(file);
    let error = Snapshot::open(&path).unwrap().verify_memory().unwrap_err();
    assert!(
        matches!(error, MemoryError::Mismatch { chunk: 0, .. }),
        "{error}"
    );
}

#[test]
fn without_digests_there_is_nothing_to_verify() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("snap");
    sample::publish(&path);
    let error = Snapshot::open(&path).unwrap().verify_memory().unwrap_err();
    assert!(matches!(error, MemoryError::NoDigests { .. }), "{error}");
}

#[test]
fn what_is_loaded_is_what_was_checked() {
    let (_directory, path) = with_digests(&[(100, b"low"), (131_000, b"high")]);
    let snapshot = Snapshot::open(&path).unwrap();
    for verify in [false, true] {
        let copy = Mutex::new(vec![0_u8; MEMORY_BYTES as usize]);
        let take = |offset: u64, bytes: &[u8]| {
            copy.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        snapshot.load_memory(verify, &take).unwrap();
        assert_eq!(
            copy.into_inner().unwrap(),
            std::fs::read(path.join(MEMORY_FILE)).unwrap()
        );
    }
    let refuse = |_: u64, _: &[u8]| Err("no room".into());
    let error = snapshot.load_memory(true, &refuse).unwrap_err();
    assert!(matches!(error, MemoryError::Take { .. }), "{error}");
}
