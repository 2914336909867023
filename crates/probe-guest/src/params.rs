//! What the probe guest is asked to do, as the user types it and as the guest reads it.

use std::fmt;
use std::str::FromStr;

use crate::pattern::Span;

/// Pages of guest RAM that the probe keeps filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Every page from 2 MiB to the end of low RAM.
    All,
    /// Every other page from 2 MiB on: the most fragmented dirty set there is.
    Alternate,
    /// This many pages at the end of low RAM, one contiguous piece.
    Top(u32),
    /// This many pages at equal distances from 2 MiB on.
    Spread(u32),
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Alternate => f.write_str("alternate"),
            Self::Top(pages) => write!(f, "top:{pages}"),
            Self::Spread(pages) => write!(f, "spread:{pages}"),
        }
    }
}

impl FromStr for Fill {
    type Err = ParamsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, pages) = match text.split_once(':') {
            Some((name, pages)) => (name, Some(pages)),
            None => (text, None),
        };
        match (name, pages) {
            ("all", None) => Ok(Self::All),
            ("alternate", None) => Ok(Self::Alternate),
            ("top", Some(pages)) => Ok(Self::Top(parse_pages(pages)?)),
            ("spread", Some(pages)) => Ok(Self::Spread(parse_pages(pages)?)),
            _ => Err(ParamsError::UnknownFill {
                value: text.to_owned(),
            }),
        }
    }
}

fn parse_pages(text: &str) -> Result<u32, ParamsError> {
    let pages = parse_decimal(text).ok_or_else(|| ParamsError::BadPages {
        value: text.to_owned(),
    })?;
    if pages == 0 {
        return Err(ParamsError::BadPages {
            value: text.to_owned(),
        });
    }
    Ok(pages)
}

/// Digits only: the guest's own parser knows no sign, which `u32::from_str` would accept.
fn parse_decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

/// Parameters of the probe guest.
///
/// The textual form for people is `fill=top:256,seed=7`; every key may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProbeParams {
    /// Pages to fill; `top:256` (1 MiB) unless told otherwise.
    pub fill: Fill,
    /// Seed of the first fill; each `d` command adds one.
    pub seed: u32,
}

impl Default for ProbeParams {
    fn default() -> Self {
        Self {
            fill: Fill::Top(256),
            seed: 1,
        }
    }
}

/// Why a text is no set of probe parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// A part between commas is not `key=value`.
    #[error("probe parameter '{part}': expected key=value (known keys: fill, seed)")]
    NotKeyValue {
        /// The part as it was given.
        part: String,
    },
    /// A key that the probe does not have.
    #[error("probe parameter '{key}' is unknown (known keys: fill, seed)")]
    UnknownKey {
        /// The key as it was given.
        key: String,
    },
    /// A key that stands there twice.
    #[error("probe parameter '{key}' is given twice")]
    Duplicate {
        /// The key.
        key: &'static str,
    },
    /// A value of `fill` that the probe does not have.
    #[error("fill={value}: unknown (known values: all, alternate, top:PAGES, spread:PAGES)")]
    UnknownFill {
        /// The value as it was given.
        value: String,
    },
    /// A page count that is no decimal number from 1 to 4294967295.
    #[error("fill: '{value}' is no page count (a decimal number, at least 1)")]
    BadPages {
        /// The count as it was given.
        value: String,
    },
    /// A seed that is no decimal number from 0 to 4294967295.
    #[error("seed={value}: expected a decimal number from 0 to 4294967295")]
    BadSeed {
        /// The seed as it was given.
        value: String,
    },
}

/// Why guest RAM cannot hold what the parameters ask for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// RAM ends before the region that the probe fills begins.
    #[error("the probe guest fills RAM from 2 MiB on; {ram_low_bytes} bytes leave it no page")]
    NoPages {
        /// End of low RAM, in bytes from address 0.
        ram_low_bytes: u64,
    },
    /// More pages than there are.
    #[error(
        "fill={fill}: guest RAM of {ram_low_bytes} bytes has at most {max_pages} pages for the probe"
    )]
    TooManyPages {
        /// What was asked for.
        fill: Fill,
        /// End of low RAM, in bytes from address 0.
        ram_low_bytes: u64,
        /// The largest count that fits.
        max_pages: u32,
    },
}

impl ProbeParams {
    /// The command line that tells the guest these parameters: `fill=top:256 seed=7`.
    #[must_use]
    pub fn command_line(&self) -> String {
        format!("fill={} seed={}", self.fill, self.seed)
    }

    /// Checks the page count against guest RAM.
    ///
    /// `ram_low_bytes` is the end of the RAM range that starts at address 0.
    ///
    /// # Errors
    /// [`CapacityError`] when the probe would have no page, or fewer than it was asked to fill (the guest
    /// itself would quietly fill what there is).
    pub fn check(&self, ram_low_bytes: u64) -> Result<(), CapacityError> {
        let max_pages = Span::max_pages(ram_low_bytes);
        if max_pages == 0 {
            return Err(CapacityError::NoPages { ram_low_bytes });
        }
        match self.fill {
            Fill::Top(pages) | Fill::Spread(pages) if pages > max_pages => {
                Err(CapacityError::TooManyPages {
                    fill: self.fill,
                    ram_low_bytes,
                    max_pages,
                })
            }
            _ => Ok(()),
        }
    }

    /// The pages that the guest fills when low RAM ends at `ram_low_bytes`.
    #[must_use]
    pub fn span(&self, ram_low_bytes: u64) -> Span {
        Span::of(self.fill, ram_low_bytes)
    }
}

impl fmt::Display for ProbeParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fill={},seed={}", self.fill, self.seed)
    }
}

impl FromStr for ProbeParams {
    type Err = ParamsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fill = None;
        let mut seed = None;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| ParamsError::NotKeyValue {
                    part: part.to_owned(),
                })?;
            match key {
                "fill" => set_once("fill", &mut fill, value.parse()?)?,
                "seed" => {
                    let parsed = parse_decimal(value).ok_or_else(|| ParamsError::BadSeed {
                        value: value.to_owned(),
                    })?;
                    set_once("seed", &mut seed, parsed)?;
                }
                _ => {
                    return Err(ParamsError::UnknownKey {
                        key: key.to_owned(),
                    });
                }
            }
        }
        let default = Self::default();
        Ok(Self {
            fill: fill.unwrap_or(default.fill),
            seed: seed.unwrap_or(default.seed),
        })
    }
}

fn set_once<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), ParamsError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParamsError::Duplicate { key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_back() {
        for (text, line) in [
            ("fill=top:256,seed=7", "fill=top:256 seed=7"),
            ("fill=all,seed=0", "fill=all seed=0"),
            (
                "fill=alternate,seed=4294967295",
                "fill=alternate seed=4294967295",
            ),
            ("fill=spread:3,seed=1", "fill=spread:3 seed=1"),
        ] {
            let params: ProbeParams = text.parse().unwrap();
            assert_eq!(params.to_string(), text);
            assert_eq!(params.command_line(), line);
        }
        assert_eq!("".parse(), Ok(ProbeParams::default()));
        assert_eq!(
            "seed=9".parse(),
            Ok(ProbeParams {
                fill: Fill::Top(256),
                seed: 9
            })
        );
    }

    #[test]
    fn errors_name_what_is_known() {
        for (text, words) in [
            ("fil=all", "known keys: fill, seed"),
            ("all", "known keys: fill, seed"),
            (
                "fill=some",
                "known values: all, alternate, top:PAGES, spread:PAGES",
            ),
            ("fill=top", "known values"),
            ("fill=all:3", "known values"),
            ("fill=top:0", "at least 1"),
            ("fill=top:+1", "at least 1"),
            ("fill=top:", "at least 1"),
            ("fill=spread:99999999999", "at least 1"),
            ("seed=-1", "from 0 to 4294967295"),
            ("seed=1,seed=2", "given twice"),
        ] {
            let error = text.parse::<ProbeParams>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn capacity_is_checked_against_low_ram() {
        let top = |pages| ProbeParams {
            fill: Fill::Top(pages),
            seed: 1,
        };
        assert_eq!(top(512).check(4 << 20), Ok(()));
        let error = top(513).check(4 << 20).unwrap_err();
        assert_eq!(
            error,
            CapacityError::TooManyPages {
                fill: Fill::Top(513),
                ram_low_bytes: 4 << 20,
                max_pages: 512
            }
        );
        assert!(error.to_string().contains("at most 512 pages"));
        assert_eq!(
            ProbeParams::default().check(2 << 20),
            Err(CapacityError::NoPages {
                ram_low_bytes: 2 << 20
            })
        );
    }
}
