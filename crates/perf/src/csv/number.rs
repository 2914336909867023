//! Values of `p50` as text: at most 12 significant digits, in the form that C's `%.12g` gives.

/// Most significant digits of a value in a file.
pub(crate) const SIGNIFICANT_DIGITS: usize = 12;

/// Why a text is no `p50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFault {
    /// It is no decimal number.
    Form,
    /// It is NaN, infinite, or too large to be held.
    NotFinite,
    /// It is zero, below zero, or too small to be held.
    NotPositive,
    /// It has more than [`SIGNIFICANT_DIGITS`] significant digits.
    Digits,
}

/// Reads a value.
pub(crate) fn parse_p50(text: &str) -> Result<f64, NumberFault> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if ["nan", "inf", "infinity"].contains(&unsigned.to_ascii_lowercase().as_str()) {
        return Err(NumberFault::NotFinite);
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let formed = digits(whole)
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|part| digits(part.strip_prefix(['-', '+']).unwrap_or(part)));
    if !formed || text.starts_with('+') {
        return Err(NumberFault::Form);
    }
    let value: f64 = text.parse().map_err(|_| NumberFault::Form)?;
    if !value.is_finite() {
        return Err(NumberFault::NotFinite);
    }
    if value <= 0.0 {
        return Err(NumberFault::NotPositive);
    }
    let all: String = mantissa.chars().filter(|digit| *digit != '.').collect();
    if all.trim_matches('0').len() > SIGNIFICANT_DIGITS {
        return Err(NumberFault::Digits);
    }
    Ok(value)
}

/// Writes a value with at most 12 significant digits, without trailing zeros, and with an exponent
/// only where it is below -4 or above 11: what C's `%.12g` gives.
pub fn format_p50(value: f64) -> String {
    let scientific = format!("{value:.*e}", SIGNIFICANT_DIGITS - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= SIGNIFICANT_DIGITS as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.abs());
    }
    let decimals = (SIGNIFICANT_DIGITS as i32 - 1 - exponent).max(0) as usize;
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_c_writes_them() {
        for (value, text) in [
            (291.5, "291.5"),
            (2600.0, "2600"),
            (20_185.438_712_345_6, "20185.4387123"),
            (1.0 / 3.0, "0.333333333333"),
            (0.0001, "0.0001"),
            (0.000_012_5, "1.25e-05"),
            (999_999_999_999.0, "999999999999"),
            (9_999_999_999_999.0, "1e+13"),
            (1.0e15, "1e+15"),
            (0.1 + 0.2, "0.3"),
        ] {
            assert_eq!(format_p50(value), text);
            assert!(parse_p50(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_no_value_is_told_apart() {
        for (text, fault) in [
            ("", NumberFault::Form),
            ("abc", NumberFault::Form),
            ("1.", NumberFault::Form),
            (".5", NumberFault::Form),
            ("+1", NumberFault::Form),
            (" 1", NumberFault::Form),
            ("1e", NumberFault::Form),
            ("1,5", NumberFault::Form),
            ("0x10", NumberFault::Form),
            ("nan", NumberFault::NotFinite),
            ("-inf", NumberFault::NotFinite),
            ("Infinity", NumberFault::NotFinite),
            ("1e400", NumberFault::NotFinite),
            ("0", NumberFault::NotPositive),
            ("0.000", NumberFault::NotPositive),
            ("-1", NumberFault::NotPositive),
            ("1e-400", NumberFault::NotPositive),
            ("1.234567890123", NumberFault::Digits),
        ] {
            assert_eq!(parse_p50(text), Err(fault), "{text:?}");
        }
    }

    #[test]
    fn zeros_at_the_ends_are_not_significant() {
        assert_eq!(parse_p50("0.00123456789012"), Ok(0.001_234_567_890_12));
        assert_eq!(parse_p50("123456789012000"), Ok(123_456_789_012_000.0));
    }
}
