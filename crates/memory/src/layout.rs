//! Where guest RAM lies: in the guest's physical address space and in the RAM file.
//!
//! A layout is an ascending list of ranges. Between two ranges there may be a gap (the PC's MMIO
//! window below 4 GiB); no access and no mapping ever spans it. Every range also has its place in
//! the RAM file, so that a file can be mapped range by range and written back range by range.

use std::fmt;

use thiserror::Error;

/// Size of a guest page, in bytes. Fixed by the x86-64 architecture (Intel SDM volume 3, 4.2).
pub const PAGE_SIZE_BYTES: u64 = 4096;

/// Alignment of every range's place in the RAM file, in bytes: the granularity at which Windows
/// maps views of a section, so that one file serves both systems.
pub const FILE_OFFSET_ALIGNMENT_BYTES: u64 = 64 * 1024;

/// The largest number of ranges in one layout.
pub const MAX_RANGES: usize = 16;

/// A guest physical address, in bytes from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

impl fmt::Display for GuestAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One contiguous range of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// Where the guest sees the range.
    pub start: GuestAddress,
    /// Length in bytes, a multiple of [`PAGE_SIZE_BYTES`].
    pub size_bytes: u64,
    /// Where the range begins in the RAM file, a multiple of [`FILE_OFFSET_ALIGNMENT_BYTES`].
    pub file_offset_bytes: u64,
}

impl RamRange {
    /// The number of pages in the range.
    pub fn pages(&self) -> u64 {
        self.size_bytes / PAGE_SIZE_BYTES
    }

    /// The first file offset behind the range. Does not overflow in a validated layout.
    pub fn file_end_bytes(&self) -> u64 {
        self.file_offset_bytes.saturating_add(self.size_bytes)
    }
}

/// Why a list of ranges is not a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The list has no range.
    #[error("guest RAM has no range")]
    Empty,
    /// The list is longer than [`MAX_RANGES`].
    #[error("guest RAM has {count} ranges, more than {MAX_RANGES}")]
    TooManyRanges {
        /// Length of the list.
        count: usize,
    },
    /// A range of length 0.
    #[error("RAM range {index} is empty")]
    EmptyRange {
        /// Position in the list.
        index: usize,
    },
    /// Start or length is not a multiple of the page size.
    #[error("RAM range {index} (start {start}, {size_bytes} bytes) is not page aligned")]
    Unaligned {
        /// Position in the list.
        index: usize,
        /// Start of the range.
        start: GuestAddress,
        /// Length of the range in bytes.
        size_bytes: u64,
    },
    /// The file offset is not a multiple of [`FILE_OFFSET_ALIGNMENT_BYTES`].
    #[error(
        "RAM range {index} has file offset {file_offset_bytes:#x}, which is not aligned to 64 KiB"
    )]
    FileOffsetUnaligned {
        /// Position in the list.
        index: usize,
        /// The offset at fault.
        file_offset_bytes: u64,
    },
    /// The end of a range is not representable as an address or as a file offset.
    #[error("RAM range {index} ends beyond the largest address or file offset")]
    Overflow {
        /// Position in the list.
        index: usize,
    },
    /// A range begins before its predecessor ends, in guest addresses.
    #[error("RAM range {index} begins before the previous range ends")]
    Overlap {
        /// Position in the list.
        index: usize,
    },
    /// A range's file extent begins before its predecessor's ends.
    #[error("the file extent of RAM range {index} begins before the previous one ends")]
    FileOverlap {
        /// Position in the list.
        index: usize,
    },
}

/// A checked list of RAM ranges: not empty, ascending and disjoint both in guest addresses and in
/// the file, page aligned, file offsets aligned to 64 KiB, nothing overflows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamLayout {
    ranges: Vec<RamRange>,
}

impl RamLayout {
    /// Checks `ranges` and makes a layout of them.
    ///
    /// # Errors
    /// The first rule that a range breaks, with the range's position.
    pub fn new(ranges: Vec<RamRange>) -> Result<Self, LayoutError> {
        if ranges.is_empty() {
            return Err(LayoutError::Empty);
        }
        if ranges.len() > MAX_RANGES {
            return Err(LayoutError::TooManyRanges {
                count: ranges.len(),
            });
        }
        let mut guest_end = 0;
        let mut file_end = 0;
        for (index, range) in ranges.iter().enumerate() {
            (guest_end, file_end) = check_range(index, range, guest_end, file_end)?;
        }
        Ok(Self { ranges })
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[RamRange] {
        &self.ranges
    }

    /// The amount of RAM, in bytes, gaps not counted.
    pub fn total_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.size_bytes).sum()
    }

    /// The length that a RAM file of this layout has, in bytes.
    pub fn file_len_bytes(&self) -> u64 {
        self.ranges.last().map_or(0, RamRange::file_end_bytes)
    }

    /// Whether `address` is RAM.
    pub fn contains(&self, address: GuestAddress) -> bool {
        self.locate(address, 1).is_some()
    }

    /// The range that holds all of `size_bytes` bytes at `address`, and the offset in that range.
    /// A size of 0 is located like a size of 1, so an address behind RAM is never valid.
    pub(crate) fn locate(&self, address: GuestAddress, size_bytes: u64) -> Option<(usize, u64)> {
        let index = self
            .ranges
            .partition_point(|range| range.start <= address)
            .checked_sub(1)?;
        let range = self.ranges.get(index)?;
        let offset = address.0 - range.start.0;
        let room = range.size_bytes.checked_sub(offset)?;
        (room > 0 && size_bytes <= room).then_some((index, offset))
    }
}

/// Checks one range against the rules and its predecessor's ends; returns its own two ends.
fn check_range(
    index: usize,
    range: &RamRange,
    guest_end: u64,
    file_end: u64,
) -> Result<(u64, u64), LayoutError> {
    let RamRange {
        start,
        size_bytes,
        file_offset_bytes,
    } = *range;
    if size_bytes == 0 {
        return Err(LayoutError::EmptyRange { index });
    }
    if !start.0.is_multiple_of(PAGE_SIZE_BYTES) || !size_bytes.is_multiple_of(PAGE_SIZE_BYTES) {
        return Err(LayoutError::Unaligned {
            index,
            start,
            size_bytes,
        });
    }
    if !file_offset_bytes.is_multiple_of(FILE_OFFSET_ALIGNMENT_BYTES) {
        return Err(LayoutError::FileOffsetUnaligned {
            index,
            file_offset_bytes,
        });
    }
    // File offsets are signed in every system interface, addresses of the view are `usize`.
    let overflow = LayoutError::Overflow { index };
    let this_guest_end = start.0.checked_add(size_bytes).ok_or(overflow)?;
    let this_file_end = file_offset_bytes.checked_add(size_bytes).ok_or(overflow)?;
    if i64::try_from(this_file_end).is_err() || isize::try_from(size_bytes).is_err() {
        return Err(overflow);
    }
    if start.0 < guest_end {
        return Err(LayoutError::Overlap { index });
    }
    if file_offset_bytes < file_end {
        return Err(LayoutError::FileOverlap { index });
    }
    Ok((this_guest_end, this_file_end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn range(start: u64, size_bytes: u64, file_offset_bytes: u64) -> RamRange {
        RamRange {
            start: GuestAddress(start),
            size_bytes,
            file_offset_bytes,
        }
    }

    #[test]
    fn a_layout_with_a_gap_knows_what_is_ram() {
        let layout =
            RamLayout::new(vec![range(0, 3 * GIB, 0), range(4 * GIB, GIB, 3 * GIB)]).unwrap();
        assert_eq!(layout.total_bytes(), 4 * GIB);
        assert_eq!(layout.file_len_bytes(), 4 * GIB);
        assert!(layout.contains(GuestAddress(0)));
        assert!(layout.contains(GuestAddress(3 * GIB - 1)));
        assert!(!layout.contains(GuestAddress(3 * GIB)));
        assert!(!layout.contains(GuestAddress(4 * GIB - 1)));
        assert!(layout.contains(GuestAddress(4 * GIB)));
        assert!(!layout.contains(GuestAddress(5 * GIB)));
        assert!(!layout.contains(GuestAddress(u64::MAX)));
        assert_eq!(layout.locate(GuestAddress(4 * GIB + 8), 8), Some((1, 8)));
        assert_eq!(layout.locate(GuestAddress(3 * GIB - 4), 8), None);
        assert_eq!(layout.locate(GuestAddress(5 * GIB - 1), u64::MAX), None);
    }

    #[test]
    fn each_broken_rule_is_named() {
        let cases = [
            (vec![], LayoutError::Empty),
            (vec![range(0, 0, 0)], LayoutError::EmptyRange { index: 0 }),
            (
                vec![range(1, 4096, 0)],
                LayoutError::Unaligned {
                    index: 0,
                    start: GuestAddress(1),
                    size_bytes: 4096,
                },
            ),
            (
                vec![range(0, 4097, 0)],
                LayoutError::Unaligned {
                    index: 0,
                    start: GuestAddress(0),
                    size_bytes: 4097,
                },
            ),
            (
                vec![range(0, 4096, 4096)],
                LayoutError::FileOffsetUnaligned {
                    index: 0,
                    file_offset_bytes: 4096,
                },
            ),
            (
                vec![range(u64::MAX - 4095, 4096, 0)],
                LayoutError::Overflow { index: 0 },
            ),
            (
                vec![
                    range(0, 4096, (1 << 63) - 65536),
                    range(8192, 65536, 1 << 63),
                ],
                LayoutError::Overflow { index: 1 },
            ),
            (
                vec![range(0, 8192, 0), range(4096, 4096, 65536)],
                LayoutError::Overlap { index: 1 },
            ),
            (
                vec![range(0, 131_072, 0), range(GIB, 4096, 65536)],
                LayoutError::FileOverlap { index: 1 },
            ),
        ];
        for (ranges, expected) in cases {
            assert_eq!(RamLayout::new(ranges), Err(expected));
        }
        let many = (0..17).map(|n| range(n * 65536, 4096, n * 65536)).collect();
        assert_eq!(
            RamLayout::new(many),
            Err(LayoutError::TooManyRanges { count: 17 })
        );
    }

    #[test]
    fn addresses_print_in_hexadecimal() {
        assert_eq!(GuestAddress(0xd000_0000).to_string(), "0xd0000000");
    }
}
