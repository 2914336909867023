//! The words that the probe keeps in RAM, as the host computes them.
//!
//! A filled page carries one 32-bit word at the start of each 512-byte sector, because a sector is the
//! smallest piece that storage can lose. The word depends on the seed and the page's address, so a page that
//! is stale, zero, or taken from elsewhere is noticed:
//!
//! ```text
//! word(seed, page, sector) = (page ^ (seed * SEED_FACTOR + 1)) * PAGE_FACTOR + sector * SECTOR_STEP
//! ```
//!
//! in 32-bit arithmetic. Page addresses and the seed's factor are even, `PAGE_FACTOR` is odd and
//! `SECTOR_STEP` even, so every word is odd and never zero. Seeds that differ by 2^31 share their words.

use crate::params::Fill;

/// Size of a guest page in bytes.
pub const PAGE_BYTES: u32 = 4096;
/// Size in bytes of the piece of a page that gets a word of its own.
pub const SECTOR_BYTES: u32 = 512;
/// First guest address that the probe fills; its own code and the boot data lie below.
pub const FILL_START: u32 = 2 << 20;
/// Guest RAM at or above this address is left alone: the last page that 32-bit code can reach.
pub(crate) const RAM_END_CAP: u32 = 0xffff_f000;

pub(crate) const SEED_FACTOR: u32 = 0x3c6e_f372;
pub(crate) const PAGE_FACTOR: u32 = 0x85eb_ca6b;
pub(crate) const SECTOR_STEP: u32 = 0x27d4_eb2e;
/// Left rotation of the checksum before each page's last word is mixed in.
pub(crate) const CHECKSUM_ROTATE: u32 = 5;

pub(crate) const SECTORS_PER_PAGE: u32 = PAGE_BYTES / SECTOR_BYTES;

/// The word that belongs at `address`, the start of a sector.
#[must_use]
pub fn word(seed: u32, address: u32) -> u32 {
    let page = address & !(PAGE_BYTES - 1);
    let sector = (address - page) / SECTOR_BYTES;
    let first = (page ^ seed.wrapping_mul(SEED_FACTOR).wrapping_add(1)).wrapping_mul(PAGE_FACTOR);
    first.wrapping_add(sector.wrapping_mul(SECTOR_STEP))
}

/// The checksum that `v` prints when every page of `span` holds the words of `seed`.
#[must_use]
pub fn checksum(seed: u32, span: Span) -> u32 {
    span.pages().fold(0, |sum: u32, page| {
        sum.rotate_left(CHECKSUM_ROTATE) ^ word(seed, page + PAGE_BYTES - SECTOR_BYTES)
    })
}

/// Pages at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Guest address of the first page.
    pub first: u32,
    /// Distance in bytes from one page to the next.
    pub stride_bytes: u32,
    /// Number of pages.
    pub pages: u32,
}

impl Span {
    /// Pages from [`FILL_START`] to the end of low RAM.
    pub(crate) fn max_pages(ram_low_bytes: u64) -> u32 {
        let end = u32::try_from(ram_low_bytes)
            .unwrap_or(u32::MAX)
            .min(RAM_END_CAP);
        end.saturating_sub(FILL_START) / PAGE_BYTES
    }

    pub(crate) fn of(fill: Fill, ram_low_bytes: u64) -> Self {
        let available = Self::max_pages(ram_low_bytes);
        let (skip, stride, pages) = match fill {
            Fill::All => (0, 1, available),
            Fill::Alternate => (0, 2, available.div_ceil(2)),
            Fill::Top(pages) => {
                let pages = pages.min(available);
                (available - pages, 1, pages)
            }
            Fill::Spread(pages) => {
                let pages = pages.min(available);
                (0, available.checked_div(pages).unwrap_or(1), pages)
            }
        };
        Self {
            first: FILL_START + skip * PAGE_BYTES,
            stride_bytes: stride * PAGE_BYTES,
            pages,
        }
    }

    /// Addresses of the pages, ascending.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        (0..self.pages).map(move |index| self.first + index * self.stride_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lie_between_two_mib_and_the_end_of_ram() {
        let ram = 4 << 20;
        let of = |fill| Span::of(fill, ram);
        let span = |first, stride_bytes, pages| Span {
            first,
            stride_bytes,
            pages,
        };
        assert_eq!(of(Fill::All), span(0x20_0000, 0x1000, 512));
        assert_eq!(of(Fill::Alternate), span(0x20_0000, 0x2000, 256));
        assert_eq!(of(Fill::Top(2)), span(0x3f_e000, 0x1000, 2));
        assert_eq!(of(Fill::Top(9999)), span(0x20_0000, 0x1000, 512));
        assert_eq!(of(Fill::Spread(3)), span(0x20_0000, 170 * 0x1000, 3));
        assert_eq!(of(Fill::Spread(9999)), span(0x20_0000, 0x1000, 512));
        assert_eq!(Span::of(Fill::Spread(3), 0).pages, 0);
        assert_eq!(
            Span::of(Fill::Top(1), 1 << 40),
            span(0xffff_e000, 0x1000, 1)
        );
    }

    proptest::proptest! {
        #[test]
        fn words_are_never_zero_and_tell_pages_apart(seed: u32, page in 0x200u32..0xf_ffff, other in 0x200u32..0xf_ffff) {
            let mut words: Vec<u32> = (0..SECTORS_PER_PAGE)
                .map(|sector| word(seed, page * PAGE_BYTES + sector * SECTOR_BYTES))
                .collect();
            proptest::prop_assert!(words.iter().all(|word| *word != 0));
            proptest::prop_assert!(word(seed, page * PAGE_BYTES) != word(seed.wrapping_add(1), page * PAGE_BYTES));
            proptest::prop_assert!(page == other || word(seed, page * PAGE_BYTES) != word(seed, other * PAGE_BYTES));
            words.sort_unstable();
            words.dedup();
            proptest::prop_assert_eq!(words.len(), SECTORS_PER_PAGE as usize);
        }
    }
}
