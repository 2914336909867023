//! Sets of file bytes as ascending lists of extents: what a copy has to read, what a bitmap marks.
//!
//! All of it is arithmetic: finding the extents of a real file or of a view is the operating
//! system module's work.

use crate::layout::{PAGE_SIZE_BYTES, RamLayout};

/// A contiguous part of the RAM file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First byte.
    pub offset_bytes: u64,
    /// Length in bytes, not 0.
    pub size_bytes: u64,
}

impl FileExtent {
    /// The first offset behind the extent.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.size_bytes)
    }
}

/// A set of file bytes: extents that ascend, do not overlap, do not touch and are not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentList {
    extents: Vec<FileExtent>,
}

impl ExtentList {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of all bytes that a RAM range of `layout` occupies.
    pub fn of_layout(layout: &RamLayout) -> Self {
        let mut list = Self::new();
        for range in layout.ranges() {
            list.push(range.file_offset_bytes, range.size_bytes);
        }
        list
    }

    /// The pages whose bits are set in `words` (bit 0 of word 0 is the page at `offset_bytes`),
    /// looking at `pages` bits.
    pub fn from_bitmap(
        words: impl IntoIterator<Item = u64>,
        pages: u64,
        offset_bytes: u64,
    ) -> Self {
        let mut list = Self::new();
        for (index, word) in words.into_iter().enumerate() {
            let mut page = index as u64 * 64;
            let mut rest = word;
            while rest != 0 && page < pages {
                let clear = u64::from(rest.trailing_zeros());
                rest >>= clear;
                page += clear;
                let run = u64::from(rest.trailing_ones());
                let end = pages.min(page + run);
                if page < end {
                    let size_bytes = (end - page) * PAGE_SIZE_BYTES;
                    list.push(offset_bytes + page * PAGE_SIZE_BYTES, size_bytes);
                }
                rest = rest.checked_shr(run as u32).unwrap_or(0);
                page += run;
            }
        }
        list
    }

    /// Adds bytes at or behind the last extent's start; overlapping and touching bytes merge.
    /// An extent that starts before the last one does is merged by the bytes behind that start.
    pub fn push(&mut self, offset_bytes: u64, size_bytes: u64) {
        let end = offset_bytes.saturating_add(size_bytes);
        if size_bytes == 0 {
            return;
        }
        match self.extents.last_mut() {
            Some(last) if offset_bytes <= last.end_bytes() => {
                last.size_bytes = last.size_bytes.max(end.saturating_sub(last.offset_bytes));
            }
            _ => self.extents.push(FileExtent {
                offset_bytes,
                size_bytes,
            }),
        }
    }

    /// All bytes that are in one of the two sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut merged = Self::new();
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) if a.offset_bytes <= b.offset_bytes => left.next(),
                (_, Some(_)) => right.next(),
                (Some(_), None) => left.next(),
                (None, None) => return merged,
            };
            if let Some(extent) = next {
                merged.push(extent.offset_bytes, extent.size_bytes);
            }
        }
    }

    /// The set rounded outwards to whole pages and restricted to the ranges of `layout`.
    #[must_use]
    pub fn pages_in(&self, layout: &RamLayout) -> Self {
        let mut clipped = Self::new();
        for range in layout.ranges() {
            let first = self
                .extents
                .partition_point(|extent| extent.end_bytes() <= range.file_offset_bytes);
            for extent in self.extents.iter().skip(first) {
                if extent.offset_bytes >= range.file_end_bytes() {
                    break;
                }
                let start = extent.offset_bytes / PAGE_SIZE_BYTES * PAGE_SIZE_BYTES;
                let end = extent
                    .end_bytes()
                    .div_ceil(PAGE_SIZE_BYTES)
                    .saturating_mul(PAGE_SIZE_BYTES);
                let start = start.max(range.file_offset_bytes);
                let end = end.min(range.file_end_bytes());
                clipped.push(start, end - start);
            }
        }
        clipped
    }

    /// The extents, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FileExtent> + '_ {
        self.extents.iter().copied()
    }

    /// The number of extents.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether the set has no byte.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The number of bytes in the set.
    pub fn total_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.size_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::{GuestAddress, RamRange};

    fn set_of(list: &ExtentList) -> BTreeSet<u64> {
        list.iter()
            .flat_map(|e| e.offset_bytes..e.end_bytes())
            .collect()
    }

    fn list_of(set: &BTreeSet<u64>) -> ExtentList {
        let mut list = ExtentList::new();
        for &byte in set {
            list.push(byte, 1);
        }
        list
    }

    fn assert_canonical(list: &ExtentList) {
        let mut previous_end = None;
        for extent in list.iter() {
            assert!(extent.size_bytes > 0);
            assert!(previous_end.is_none_or(|end| end < extent.offset_bytes));
            previous_end = Some(extent.end_bytes());
        }
    }

    proptest! {
        #[test]
        fn a_union_has_the_bytes_of_both(
            a in proptest::collection::btree_set(0u64..200, 0..60),
            b in proptest::collection::btree_set(0u64..200, 0..60),
        ) {
            let union = list_of(&a).union(&list_of(&b));
            assert_canonical(&union);
            prop_assert_eq!(set_of(&union), a.union(&b).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(union.total_bytes(), a.union(&b).count() as u64);
        }

        #[test]
        fn a_bitmap_becomes_its_pages(
            words in proptest::collection::vec(
                prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)], 0..5),
            pages in 0u64..330,
        ) {
            let offset = 65536;
            let list = ExtentList::from_bitmap(words.iter().copied(), pages, offset);
            assert_canonical(&list);
            let expected: BTreeSet<u64> = (0..pages.min(words.len() as u64 * 64))
                .filter(|page| words[(page / 64) as usize] >> (page % 64) & 1 == 1)
                .collect();
            let got: BTreeSet<u64> = list
                .iter()
                .flat_map(|e| (e.offset_bytes..e.end_bytes()).step_by(4096))
                .map(|byte| (byte - offset) / 4096)
                .collect();
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn clipping_keeps_whole_pages_of_the_layout_only(
            bytes in proptest::collection::btree_set(0u64..60, 0..30),
        ) {
            // Units of 1000 bytes so that extents cut through pages.
            let mut list = ExtentList::new();
            for unit in &bytes {
                list.push(unit * 5000, 1000);
            }
            let layout = RamLayout::new(vec![
                RamRange { start: GuestAddress(0), size_bytes: 3 * 4096, file_offset_bytes: 0 },
                RamRange { start: GuestAddress(1 << 32), size_bytes: 20 * 4096, file_offset_bytes: 65536 },
            ]).unwrap();
            let clipped = list.pages_in(&layout);
            assert_canonical(&clipped);
            let touched: BTreeSet<u64> = set_of(&list).iter().map(|byte| byte / 4096).collect();
            let expected: BTreeSet<u64> =
                touched.into_iter().filter(|page| *page < 3 || (16..36).contains(page)).collect();
            let got: BTreeSet<u64> = set_of(&clipped).iter().map(|byte| byte / 4096).collect();
            prop_assert_eq!(clipped.total_bytes(), expected.len() as u64 * 4096);
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn the_whole_layout_is_one_extent_per_range_unless_they_touch() {
        let range = |start, size_bytes, file_offset_bytes| RamRange {
            start: GuestAddress(start),
            size_bytes,
            file_offset_bytes,
        };
        let apart = RamLayout::new(vec![range(0, 4096, 0), range(1 << 32, 4096, 65536)]).unwrap();
        assert_eq!(ExtentList::of_layout(&apart).len(), 2);
        let touching =
            RamLayout::new(vec![range(0, 65536, 0), range(1 << 32, 4096, 65536)]).unwrap();
        assert_eq!(ExtentList::of_layout(&touching).len(), 1);
        assert!(ExtentList::new().is_empty());
    }
}
