//! Which pages have been written: the monitor's own writes and the hypervisor's logs, together.
//!
//! One bit per page. Setting a bit is one atomic operation without a lock. The bitmap is allocated
//! in chunks of 128 MiB of RAM when their first bit is set, so that a large guest that the monitor
//! hardly writes to costs neither time at start nor memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::extents::ExtentList;
use crate::layout::{GuestAddress, RamLayout};

const WORDS_PER_CHUNK: usize = 512;

/// Why a hypervisor's log cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DirtyLogError {
    /// There is no RAM range of that index.
    #[error("dirty log of RAM range {region_index}, but guest RAM has {count} ranges")]
    NoSuchRegion {
        /// The index given.
        region_index: usize,
        /// The number of ranges.
        count: usize,
    },
    /// The log has words behind the range's last page.
    #[error(
        "dirty log of RAM range {region_index} has {words} words, more than its {pages} pages need"
    )]
    TooLong {
        /// The index given.
        region_index: usize,
        /// Length of the log.
        words: usize,
        /// Pages in the range.
        pages: u64,
    },
}

/// The live bitmap of one RAM range.
#[derive(Debug)]
pub(crate) struct DirtyBitmap {
    pages: u64,
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl DirtyBitmap {
    pub(crate) fn new(pages: u64) -> Self {
        let words = pages.div_ceil(64) as usize;
        let chunks = (0..words.div_ceil(WORDS_PER_CHUNK))
            .map(|_| OnceLock::new())
            .collect();
        Self { pages, chunks }
    }

    /// Marks `count` pages from `first` on; pages behind the end are ignored.
    pub(crate) fn mark(&self, first: u64, count: u64) {
        let end = first.saturating_add(count).min(self.pages);
        let mut page = first;
        while page < end {
            let bit = page % 64;
            let run = (64 - bit).min(end - page);
            let ones = u64::MAX >> (64 - run);
            self.or_word((page / 64) as usize, ones << bit);
            page += run;
        }
    }

    /// Merges a log whose bit 0 is the range's first page; returns `false` when the log is too long.
    pub(crate) fn merge(&self, log: &[u64]) -> bool {
        if log.len() as u64 > self.pages.div_ceil(64) {
            return false;
        }
        for (index, &word) in log.iter().enumerate() {
            let valid = (self.pages - index as u64 * 64).min(64);
            let word = word & (u64::MAX >> (64 - valid));
            if word != 0 {
                self.or_word(index, word);
            }
        }
        true
    }

    fn or_word(&self, index: usize, bits: u64) {
        let Some(chunk) = self.chunks.get(index / WORDS_PER_CHUNK) else {
            return;
        };
        let words = chunk.get_or_init(|| (0..WORDS_PER_CHUNK).map(|_| AtomicU64::new(0)).collect());
        if let Some(word) = words.get(index % WORDS_PER_CHUNK) {
            // Acquire/release, so that whoever sees the bit also sees the store that it announces
            // once the writer has been stopped.
            word.fetch_or(bits, Ordering::AcqRel);
        }
    }

    fn snapshot(&self) -> Vec<u64> {
        let words = self.pages.div_ceil(64) as usize;
        let mut copy = vec![0; words];
        for (chunk, target) in self.chunks.iter().zip(copy.chunks_mut(WORDS_PER_CHUNK)) {
            if let Some(source) = chunk.get() {
                for (word, bits) in target.iter_mut().zip(source.iter()) {
                    *word = bits.load(Ordering::Acquire);
                }
            }
        }
        copy
    }
}

/// The pages written up to one moment: a copy, which later writes do not change.
#[derive(Clone, Debug)]
pub struct DirtySet {
    layout: RamLayout,
    /// One bitmap per RAM range, in the layout's order.
    words: Vec<Vec<u64>>,
}

impl DirtySet {
    pub(crate) fn new(layout: &RamLayout, bitmaps: &[DirtyBitmap]) -> Self {
        Self {
            layout: layout.clone(),
            words: bitmaps.iter().map(DirtyBitmap::snapshot).collect(),
        }
    }

    /// The number of dirty pages.
    pub fn pages(&self) -> u64 {
        self.words
            .iter()
            .flatten()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    /// Whether no page is dirty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().flatten().all(|&word| word == 0)
    }

    /// Whether the page that holds `address` is dirty; `false` where there is no RAM.
    pub fn contains(&self, address: GuestAddress) -> bool {
        self.layout
            .locate(address, 1)
            .is_some_and(|(index, offset)| {
                let page = offset / crate::layout::PAGE_SIZE_BYTES;
                let word = self
                    .words
                    .get(index)
                    .and_then(|words| words.get((page / 64) as usize));
                word.is_some_and(|word| word >> (page % 64) & 1 == 1)
            })
    }

    /// The bitmap of one RAM range: bit 0 of word 0 is its first page. `None` if there is no such range.
    pub fn region_bitmap(&self, region_index: usize) -> Option<&[u64]> {
        self.words.get(region_index).map(Vec::as_slice)
    }

    /// The dirty pages as extents of the RAM file.
    pub fn extents(&self) -> ExtentList {
        let mut all = ExtentList::new();
        for (range, words) in self.layout.ranges().iter().zip(&self.words) {
            let extents = ExtentList::from_bitmap(
                words.iter().copied(),
                range.pages(),
                range.file_offset_bytes,
            );
            for extent in extents.iter() {
                all.push(extent.offset_bytes, extent.size_bytes);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marking_runs_sets_exactly_their_pages(
            pages in 1u64..70_000,
            runs in proptest::collection::vec((0u64..80_000, 0u64..300), 0..12),
        ) {
            let bitmap = DirtyBitmap::new(pages);
            let mut expected = vec![false; pages as usize];
            for (first, count) in runs {
                bitmap.mark(first, count);
                for page in first..(first + count).min(pages) {
                    expected[page as usize] = true;
                }
            }
            let words = bitmap.snapshot();
            prop_assert_eq!(words.len() as u64, pages.div_ceil(64));
            for (page, &dirty) in expected.iter().enumerate() {
                prop_assert_eq!(words[page / 64] >> (page % 64) & 1 == 1, dirty);
            }
        }
    }

    #[test]
    fn a_log_is_merged_without_bits_behind_the_end() {
        let bitmap = DirtyBitmap::new(70);
        bitmap.mark(3, 1);
        assert!(bitmap.merge(&[1, u64::MAX]));
        assert_eq!(bitmap.snapshot(), [0b1001, 0b11_1111]);
        assert!(bitmap.merge(&[]));
        assert!(!bitmap.merge(&[0, 0, 0]));
    }

    #[test]
    fn nothing_is_allocated_before_the_first_bit() {
        let bitmap = DirtyBitmap::new(1 << 20);
        assert!(bitmap.chunks.iter().all(|chunk| chunk.get().is_none()));
        bitmap.mark(1 << 19, 1);
        assert_eq!(
            bitmap
                .chunks
                .iter()
                .filter(|chunk| chunk.get().is_some())
                .count(),
            1
        );
    }
}
