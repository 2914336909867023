//! Digests of guest RAM's content, chunk by chunk.
//!
//! A plain restore reads no memory content, so nothing finds a damaged page before the guest uses it.
//! Who wants to know it beforehand has digests made, in the pass that copies RAM ([`ChunkDigester`]) or
//! when the snapshot has been published ([`Snapshot::digest_memory`]), and has them checked
//! ([`Snapshot::verify_memory`], [`Snapshot::load_memory`]).
//!
//! A chunk is the unit in which damage is named. A chunk that is one hole of the file has the digest of
//! as many zeros, which is known without reading. Chunks are independent, so that all processors work on
//! them; each holds one piece of a chunk at a time, so that memory use does not grow with RAM.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nvx_memory::may_hold_data;
use thiserror::Error;

use crate::manifest::limits::MIN_CHUNK_BYTES;
use crate::{ChunkDigests, Digest, MemoryLayer, Snapshot};

/// How much of a chunk one processor holds at once.
const PIECE_BYTES: usize = 256 << 10;
/// Smallest chunk that is chosen: a manifest grows by 90 bytes per chunk, which every restore reads.
const SMALLEST_CHOSEN_BYTES: u64 = 1 << 20;
/// Most chunks that are chosen, for the same reason.
const MOST_CHOSEN_CHUNKS: u64 = 256;

/// Digests of 64 KiB zeros, 128 KiB zeros and so on up to 4 GiB.
const ZERO_DIGESTS: [&str; 17] = [
    "blake3:3bdeaf8f8e98780b318106aafdc3ca257f73df123d97b69112b26044c91a7d56",
    "blake3:33badd2c738dbf1cbeebf3279bf6da04ee43995276f786ef8dd30fb708f16e95",
    "blake3:86bb2b521a10612d5a1d38204fac4fa632466d1866144d8a6a7e3afc050ce7ae",
    "blake3:934d6b7aea5a339a9e858430cca7ac455d3537e70fd2b302931cc93b25e1df9a",
    "blake3:488de202f73bd976de4e7048f4e1f39a776d86d582b7348ff53bf432b987fca8",
    "blake3:8ac83f8ce09d064b023ab3c15880b02f2686cd1817fd25915b8153316ee059f8",
    "blake3:04e52cd2da6a0e1f338b0078369130d96585c1de65057da5dd1283b12fb853e1",
    "blake3:27ddc0a1d824fa6befe0596ddc0136fc4a1dc060d526800851f87498768b755c",
    "blake3:b4834959bc889fed1abf3c45d5da0e384134386a4b2786cc5dbb9fe8fa853bbb",
    "blake3:2dbe083a48e7430772c9803d474523a53b7c8aad5c7daaba0a55b6f892a98074",
    "blake3:ea7b156fc9a810c181984f9e2da433feeeb2bf88ffa4d1f0dc1a92154b5bdc8b",
    "blake3:e66d34ca5a36dfa692903a66d66fd1d9c87bd553c32fbf7d3960542f4cda3257",
    "blake3:9216a60cba88b32b18349b83c57c22d2e3b514a9720916952e214e5fc065c538",
    "blake3:34f2f34bcc048af98242e010b4a661348276a784d9f9f99fcff70bf94fe8b9ba",
    "blake3:94b4ec39d8d42ebda685fbb5429e8ab0086e65245e750142c1eea36a26abc24d",
    "blake3:cbd71ef31685ea2c6ce0c146ef1d160b4d458f29cea2a61536a8a65f195fdb82",
    "blake3:7dde7c9fed144013fedbe2b0bbf2d82f004b60b589485851cdec29b27be408d7",
];

/// The size of chunks that NVX gives a memory file of this length; a power of two.
#[must_use]
pub fn chunk_bytes_for(length_bytes: u64) -> u64 {
    length_bytes
        .div_ceil(MOST_CHOSEN_CHUNKS)
        .next_power_of_two()
        .max(SMALLEST_CHOSEN_BYTES)
}

/// The digest of as many zeros, if it is known by heart.
fn known_zero_digest(size_bytes: u64) -> Option<Digest> {
    if !size_bytes.is_power_of_two() || size_bytes < MIN_CHUNK_BYTES {
        return None;
    }
    let index = size_bytes.ilog2() - MIN_CHUNK_BYTES.ilog2();
    ZERO_DIGESTS.get(index as usize)?.parse().ok()
}

fn zero_digest(size_bytes: u64) -> Digest {
    known_zero_digest(size_bytes).unwrap_or_else(|| {
        let mut hasher = blake3::Hasher::new();
        hash_zeros(&mut hasher, size_bytes);
        finish(&hasher)
    })
}

fn hash_zeros(hasher: &mut blake3::Hasher, size_bytes: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut left = size_bytes;
    while left > 0 {
        let step = left.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..step as usize]);
        left -= step;
    }
}

fn finish(hasher: &blake3::Hasher) -> Digest {
    Digest::from_bytes(*hasher.finalize().as_bytes())
}

/// Makes the digests of a memory file from what is written to it, in ascending order; what is left out
/// is zero.
#[derive(Debug)]
pub struct ChunkDigester {
    length_bytes: u64,
    chunk_bytes: u64,
    chunks: Vec<Digest>,
    /// End of what was taken so far, in the file.
    position: u64,
    /// The chunk at hand, up to the zeros that were not hashed yet.
    hasher: blake3::Hasher,
    /// Zeros at the end of what was taken of the chunk at hand.
    pending_zeros: u64,
}

impl ChunkDigester {
    /// A digester for a memory file of `length_bytes` bytes, with chunks of [`chunk_bytes_for`].
    #[must_use]
    pub fn new(length_bytes: u64) -> Self {
        Self::with_chunks_of(chunk_bytes_for(length_bytes), length_bytes)
    }

    fn with_chunks_of(chunk_bytes: u64, length_bytes: u64) -> Self {
        Self {
            length_bytes,
            chunk_bytes,
            chunks: Vec::new(),
            position: 0,
            hasher: blake3::Hasher::new(),
            pending_zeros: 0,
        }
    }

    /// Takes what is at `offset_bytes`. Each part must lie behind the ones before it and inside the
    /// file; anything else makes the digests those of another file.
    pub fn update(&mut self, offset_bytes: u64, mut bytes: &[u8]) {
        debug_assert!(offset_bytes >= self.position, "parts ascend");
        debug_assert!(offset_bytes + bytes.len() as u64 <= self.length_bytes);
        self.skip_to(offset_bytes);
        while !bytes.is_empty() {
            let left = self.chunk_end() - self.position;
            let (now, later) =
                bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            hash_zeros(&mut self.hasher, std::mem::take(&mut self.pending_zeros));
            self.hasher.update(now);
            self.position += now.len() as u64;
            bytes = later;
            self.end_chunk_if_full();
        }
    }

    /// The digests, once everything was taken.
    #[must_use]
    pub fn finish(mut self) -> ChunkDigests {
        self.skip_to(self.length_bytes);
        ChunkDigests {
            chunk_bytes: self.chunk_bytes,
            chunks: self.chunks,
        }
    }

    fn chunk_start(&self) -> u64 {
        self.chunks.len() as u64 * self.chunk_bytes
    }

    fn chunk_end(&self) -> u64 {
        (self.chunk_start() + self.chunk_bytes).min(self.length_bytes)
    }

    fn skip_to(&mut self, offset_bytes: u64) {
        while self.position < offset_bytes {
            let end = self.chunk_end().min(offset_bytes);
            self.pending_zeros += end - self.position;
            self.position = end;
            self.end_chunk_if_full();
        }
    }

    fn end_chunk_if_full(&mut self) {
        let (start, end) = (self.chunk_start(), self.chunk_end());
        if self.position < end {
            return;
        }
        let zeros = std::mem::take(&mut self.pending_zeros);
        self.chunks.push(if zeros == end - start {
            zero_digest(zeros)
        } else {
            hash_zeros(&mut self.hasher, zeros);
            finish(&self.hasher)
        });
        self.hasher.reset();
    }
}

/// Why the content of memory was refused, or could not be looked at. The text starts with the path of
/// the memory file.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// Nothing is known about the content.
    #[error("{}: the manifest has no digests of its content", path.display())]
    NoDigests {
        /// The memory file's path.
        path: PathBuf,
    },
    /// A chunk is not what the manifest says.
    #[error(
        "{}: chunk {chunk} of {chunks}, {length_bytes} bytes at offset {offset_bytes}, \
         does not match its digest in the manifest",
        path.display()
    )]
    Mismatch {
        /// The memory file's path.
        path: PathBuf,
        /// Number of the first such chunk, from 0.
        chunk: usize,
        /// Number of chunks in the file.
        chunks: usize,
        /// Where the chunk begins, in bytes.
        offset_bytes: u64,
        /// Its length in bytes.
        length_bytes: u64,
    },
    /// The file ends early: it was cut short after it had been opened.
    #[error("{}: ends before offset {offset_bytes}", path.display())]
    Truncated {
        /// The memory file's path.
        path: PathBuf,
        /// What is not there any more, in bytes.
        offset_bytes: u64,
    },
    /// The file cannot be read.
    #[error("{}: cannot read at offset {offset_bytes}", path.display())]
    Read {
        /// The memory file's path.
        path: PathBuf,
        /// Where, in bytes.
        offset_bytes: u64,
        /// The operating system's reason.
        source: io::Error,
    },
    /// What was read cannot be put where it is to go.
    #[error("{}: cannot take over what is at offset {offset_bytes}", path.display())]
    Take {
        /// The memory file's path.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset_bytes: u64,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What a look at memory content has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Chunks of the file.
    pub chunks: usize,
    /// Size of each but the last, in bytes.
    pub chunk_bytes: u64,
    /// Chunks that are holes and were not read.
    pub holes: usize,
    /// Bytes that were read.
    pub bytes_read: u64,
}

/// Where the bytes of a memory file go: called with their offset in the file. Parts that are holes are
/// left out. Calls come from several threads, in any order.
pub type Sink<'a> =
    &'a (dyn Fn(u64, &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Sync);

impl Snapshot {
    /// Makes the digests of the memory file on all processors. What is in the file now counts, whether
    /// or not the manifest has digests.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Read`], [`MemoryError::Truncated`].
    pub fn digest_memory(&self) -> Result<(ChunkDigests, MemoryReport), MemoryError> {
        let path = self.memory_path();
        let scan = Scan::of(self, &path, chunk_bytes_for(self.memory_length_bytes()));
        let (chunks, report) = scan.run(true, &|_, _| Ok(()), &|_, _| Ok(()))?;
        let digests = ChunkDigests {
            chunk_bytes: scan.chunk_bytes,
            chunks,
        };
        Ok((digests, report))
    }

    /// Checks every chunk of the memory file against the manifest, on all processors.
    ///
    /// # Errors
    ///
    /// Any [`MemoryError`] but [`MemoryError::Take`].
    pub fn verify_memory(&self) -> Result<MemoryReport, MemoryError> {
        self.check_memory(&|_, _| Ok(()))
    }

    /// Reads the memory file once and hands its bytes to `sink`; with `verify`, each is part of what
    /// was checked as [`verify_memory`](Self::verify_memory) does, though it may be handed over before
    /// its chunk's digest is known. Whatever happens to the file afterwards does not matter any more.
    ///
    /// # Errors
    ///
    /// Any [`MemoryError`]; then what `sink` was given must not be used.
    pub fn load_memory(&self, verify: bool, sink: Sink<'_>) -> Result<MemoryReport, MemoryError> {
        if verify {
            return self.check_memory(sink);
        }
        let path = self.memory_path();
        let scan = Scan::of(self, &path, chunk_bytes_for(self.memory_length_bytes()));
        Ok(scan.run(false, sink, &|_, _| Ok(()))?.1)
    }

    fn check_memory(&self, sink: Sink<'_>) -> Result<MemoryReport, MemoryError> {
        let path = self.memory_path();
        let Some(wanted) = self.layer().and_then(|layer| layer.digests.as_ref()) else {
            return Err(MemoryError::NoDigests { path });
        };
        let scan = Scan::of(self, &path, wanted.chunk_bytes);
        let check = |chunk: usize, found: Digest| match wanted.chunks.get(chunk) {
            Some(wanted) if *wanted == found => Ok(()),
            _ => Err(scan.mismatch(chunk)),
        };
        Ok(scan.run(true, sink, &check)?.1)
    }

    fn layer(&self) -> Option<&MemoryLayer> {
        self.manifest().memory.first()
    }

    fn memory_length_bytes(&self) -> u64 {
        self.layer().map_or(0, |layer| layer.length_bytes)
    }
}

/// Is told each chunk's number and digest.
type Check<'a> = &'a (dyn Fn(usize, Digest) -> Result<(), MemoryError> + Sync);

/// One look at a whole memory file.
struct Scan<'a> {
    path: &'a Path,
    file: &'a File,
    length_bytes: u64,
    chunk_bytes: u64,
}

/// What one processor has done.
#[derive(Default)]
struct Share {
    digests: Vec<(usize, Digest)>,
    holes: usize,
    bytes_read: u64,
}

impl<'a> Scan<'a> {
    fn of(snapshot: &'a Snapshot, path: &'a Path, chunk_bytes: u64) -> Self {
        Self {
            path,
            file: snapshot.memory(),
            length_bytes: snapshot.memory_length_bytes(),
            chunk_bytes,
        }
    }

    fn chunks(&self) -> usize {
        self.length_bytes.div_ceil(self.chunk_bytes) as usize
    }

    /// Start and length of a chunk.
    fn part(&self, chunk: usize) -> (u64, u64) {
        let start = chunk as u64 * self.chunk_bytes;
        (start, self.chunk_bytes.min(self.length_bytes - start))
    }

    fn mismatch(&self, chunk: usize) -> MemoryError {
        let (offset_bytes, length_bytes) = self.part(chunk);
        MemoryError::Mismatch {
            path: self.path.to_owned(),
            chunk,
            chunks: self.chunks(),
            offset_bytes,
            length_bytes,
        }
    }

    /// Looks at all chunks on all processors; without `hash` there are no digests. Of several errors
    /// that of the lowest chunk is told, so that a damaged file is always called damaged at one place.
    fn run(
        &self,
        hash: bool,
        sink: Sink<'_>,
        check: Check<'_>,
    ) -> Result<(Vec<Digest>, MemoryReport), MemoryError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let first_error: Mutex<Option<(usize, MemoryError)>> = Mutex::new(None);
        let work = || {
            let mut share = Share::default();
            let mut piece = vec![0; PIECE_BYTES];
            // A chunk that was taken is finished, so that no lower one than a failed one is left out.
            while !failed.load(Ordering::Relaxed) {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= self.chunks() {
                    break;
                }
                let looked = self
                    .look(chunk, hash, sink, &mut piece, &mut share)
                    .and_then(|digest| digest.map_or(Ok(()), |digest| check(chunk, digest)));
                if let Err(error) = looked {
                    failed.store(true, Ordering::Relaxed);
                    let mut first = first_error
                        .lock()
                        .unwrap_or_else(|broken| broken.into_inner());
                    if first.as_ref().is_none_or(|(earlier, _)| chunk < *earlier) {
                        *first = Some((chunk, error));
                    }
                }
            }
            share
        };
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let helpers = processors.min(self.chunks()).saturating_sub(1);
        let shares: Vec<Share> = std::thread::scope(|scope| {
            // Where no thread is to be had this one does all the work.
            let started: Vec<_> = (0..helpers)
                .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let own = work();
            // A thread does not end by a panic, and if it did its chunks would be missing below.
            let others = started.into_iter().filter_map(|thread| thread.join().ok());
            std::iter::once(own).chain(others).collect()
        });
        if let Some((_, error)) = first_error
            .into_inner()
            .unwrap_or_else(|broken| broken.into_inner())
        {
            return Err(error);
        }
        self.collect(shares, hash)
    }

    fn collect(
        &self,
        shares: Vec<Share>,
        hash: bool,
    ) -> Result<(Vec<Digest>, MemoryReport), MemoryError> {
        let mut report = MemoryReport {
            chunks: self.chunks(),
            chunk_bytes: self.chunk_bytes,
            holes: 0,
            bytes_read: 0,
        };
        let mut digests = Vec::new();
        for share in shares {
            report.holes += share.holes;
            report.bytes_read += share.bytes_read;
            digests.extend(share.digests);
        }
        digests.sort_unstable_by_key(|(chunk, _)| *chunk);
        let missing =
            (0..self.chunks()).find(|&chunk| digests.get(chunk).is_none_or(|d| d.0 != chunk));
        match missing {
            Some(chunk) if hash => Err(self.mismatch(chunk)),
            _ => Ok((
                digests.into_iter().map(|(_, digest)| digest).collect(),
                report,
            )),
        }
    }

    /// Looks at one chunk.
    fn look(
        &self,
        chunk: usize,
        hash: bool,
        sink: Sink<'_>,
        piece: &mut [u8],
        share: &mut Share,
    ) -> Result<Option<Digest>, MemoryError> {
        let (start, length_bytes) = self.part(chunk);
        if !self.may_hold_data(start, length_bytes)? {
            share.holes += 1;
            let digest = hash.then(|| zero_digest(length_bytes));
            share.digests.extend(digest.map(|digest| (chunk, digest)));
            return Ok(digest);
        }
        let mut hasher = hash.then(blake3::Hasher::new);
        let end = start + length_bytes;
        let mut position = start;
        while position < end {
            let size = (end - position).min(PIECE_BYTES as u64);
            let part = &mut piece[..size as usize];
            self.read(position, part)?;
            if let Some(hasher) = &mut hasher {
                hasher.update(part);
            }
            sink(position, part).map_err(|source| MemoryError::Take {
                path: self.path.to_owned(),
                offset_bytes: position,
                source,
            })?;
            position += size;
        }
        share.bytes_read += length_bytes;
        let digest = hasher.as_ref().map(finish);
        share.digests.extend(digest.map(|digest| (chunk, digest)));
        Ok(digest)
    }

    fn may_hold_data(&self, offset_bytes: u64, size_bytes: u64) -> Result<bool, MemoryError> {
        may_hold_data(self.file, offset_bytes, size_bytes)
            .map_err(|source| self.read_error(offset_bytes, source))
    }

    fn read(&self, offset_bytes: u64, target: &mut [u8]) -> Result<(), MemoryError> {
        nvx_host::read_exact_at(self.file, target, offset_bytes)
            .map_err(|source| self.read_error(offset_bytes, source))
    }

    fn read_error(&self, offset_bytes: u64, source: io::Error) -> MemoryError {
        let path = self.path.to_owned();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => MemoryError::Truncated { path, offset_bytes },
            _ => MemoryError::Read {
                path,
                offset_bytes,
                source,
            },
        }
    }
}

#[cfg(test)]
mod tests;
