//! Sizes as users write and read them: `128M`, `4G`.

/// Binary units, largest first.
const UNITS: [(char, u64); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// Reads a size: a decimal number with an optional K, M or G (powers of 1024; `MiB` and `MB` mean
/// the same as `M`). Without a unit it is bytes.
///
/// # Errors
/// A text that says what is expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}' is no size; examples: 128M, 4G, 65536K");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let scale = match unit.to_ascii_uppercase().as_str() {
        "" => 1,
        unit => {
            // No unit begins with a character of more than one byte.
            let (letter, rest) = unit.split_at_checked(1).ok_or_else(expected)?;
            if !["", "B", "IB"].contains(&rest) {
                return Err(expected());
            }
            UNITS
                .iter()
                .find(|(name, _)| letter.starts_with(*name))
                .map(|(_, scale)| *scale)
                .ok_or_else(expected)?
        }
    };
    number
        .checked_mul(scale)
        .ok_or_else(|| format!("'{text}' is larger than any memory"))
}

/// A size for people: the largest unit that leaves at least one, with one decimal if needed.
pub fn format(bytes: u64) -> String {
    for (letter, scale) in UNITS {
        if bytes >= scale {
            return if bytes.is_multiple_of(scale) {
                format!("{} {letter}iB", bytes / scale)
            } else {
                format!("{:.1} {letter}iB", bytes as f64 / scale as f64)
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("128M", 128 << 20),
            ("4g", 4 << 30),
            ("64KiB", 64 << 10),
            ("1GB", 1 << 30),
            ("4096", 4096),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_gets_examples() {
        for text in [
            "",
            "M",
            "12Q",
            "-1M",
            "1.5G",
            "1Mx",
            "1 M",
            "128Ü",
            "99999999999G",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(format(128 << 20), "128 MiB");
        assert_eq!(format(1_600_000), "1.5 MiB");
        assert_eq!(format(77), "77 bytes");
    }
}
