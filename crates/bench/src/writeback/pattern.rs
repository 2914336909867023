//! Which pages of a RAM file are dirty.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A choice of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every page. Written `all`.
    All,
    /// Every other page, beginning with the first: the most fragmented choice. Written `alternate`.
    Alternate,
    /// This many pages at the end. Written `top:PAGES`.
    Top(u64),
    /// This many pages at equal distances. Written `spread:PAGES`.
    Spread(u64),
    /// This share of the pages, the same ones each time. Written `random:PERCENT`.
    Random(u8),
}

impl Pattern {
    /// The patterns that a comparison of strategies needs: dense, fragmented, at the end, scattered.
    pub const STANDARD: [Self; 5] = [
        Self::All,
        Self::Alternate,
        Self::Top(16),
        Self::Spread(256),
        Self::Random(25),
    ];

    /// The chosen ones of `total` pages, ascending.
    pub fn pages(self, total: u64) -> Vec<u64> {
        match self {
            Self::All => (0..total).collect(),
            Self::Alternate => (0..total).step_by(2).collect(),
            Self::Top(count) => (total.saturating_sub(count)..total).collect(),
            Self::Spread(count) => {
                let count = count.min(total);
                let at = |n: u64| (u128::from(n) * u128::from(total) / u128::from(count)) as u64;
                (0..count).map(at).collect()
            }
            Self::Random(percent) => random_pages(total, percent),
        }
    }
}

/// Each page with the same probability, by xorshift64 from a fixed seed.
fn random_pages(total: u64, percent: u8) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..total)
        .filter(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) * 100 < u64::from(percent) << 32
        })
        .collect()
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Alternate => f.write_str("alternate"),
            Self::Top(pages) => write!(f, "top:{pages}"),
            Self::Spread(pages) => write!(f, "spread:{pages}"),
            Self::Random(percent) => write!(f, "random:{percent}"),
        }
    }
}

/// A text that names no pattern.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no pattern of dirty pages: all, alternate, top:PAGES, spread:PAGES, or random:PERCENT with PERCENT from 1 to 100"
)]
pub struct UnknownPattern {
    /// The text.
    pub text: String,
}

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownPattern {
            text: text.to_owned(),
        };
        let number = |digits: &str| -> Option<u64> {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|number| plain && *number > 0)
        };
        let pattern = match text.split_once(':') {
            None if text == "all" => Some(Self::All),
            None if text == "alternate" => Some(Self::Alternate),
            Some(("top", pages)) => number(pages).map(Self::Top),
            Some(("spread", pages)) => number(pages).map(Self::Spread),
            Some(("random", percent)) => number(percent)
                .and_then(|percent| u8::try_from(percent).ok())
                .filter(|percent| *percent <= 100)
                .map(Self::Random),
            _ => None,
        };
        pattern.ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for pattern in Pattern::STANDARD {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        for text in [
            "",
            "All",
            "top",
            "top:",
            "top:0",
            "top:+1",
            "top:-1",
            "spread:x",
            "random:101",
            "random:256",
            "all:1",
            "alternate:2",
        ] {
            let error = text.parse::<Pattern>().unwrap_err();
            assert_eq!(error.text, text);
        }
    }

    #[test]
    fn each_pattern_chooses_ascending_pages_inside() {
        for pattern in Pattern::STANDARD {
            for total in [1, 2, 15, 16, 17, 256, 1000, 32768] {
                let pages = pattern.pages(total);
                assert!(pages.is_sorted_by(|a, b| a < b), "{pattern} of {total}");
                assert!(pages.iter().all(|page| *page < total));
            }
        }
        assert_eq!(Pattern::Alternate.pages(32768).len(), 16384);
        assert_eq!(Pattern::Top(2).pages(10), [8, 9]);
        assert_eq!(Pattern::Spread(4).pages(32), [0, 8, 16, 24]);
        assert_eq!(Pattern::Random(100).pages(7).len(), 7);
        let quarter = Pattern::Random(25).pages(32768).len();
        assert!((7800..8600).contains(&quarter), "{quarter}");
        assert_eq!(Pattern::Random(25).pages(99), Pattern::Random(25).pages(99));
    }
}
