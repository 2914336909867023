//! A suggestion for a mistyped word in values that clap does not take apart itself.

use nvx_probe_guest::ParamsError;

const KEYS: [&str; 2] = ["fill", "seed"];
const FILLS: [&str; 4] = ["all", "alternate", "top", "spread"];

/// Two words this similar (Jaro, 0 to 1) are taken for one with a typo; clap's own bound.
const SIMILAR: f64 = 0.7;

/// The error's text, with what was probably meant.
pub fn explain(error: &ParamsError) -> String {
    let meant = match error {
        ParamsError::UnknownKey { key } => similar(key, &KEYS),
        ParamsError::UnknownFill { value } => {
            let name = value
                .split_once(':')
                .map_or(value.as_str(), |(name, _)| name);
            // The right word in the wrong form is no typo.
            similar(name, &FILLS).filter(|meant| *meant != name)
        }
        _ => None,
    };
    match meant {
        Some(meant) => format!("{error}; did you mean '{meant}'?"),
        None => error.to_string(),
    }
}

fn similar(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let scored = known
        .iter()
        .map(|known| (strsim::jaro(word, known), *known));
    scored
        .filter(|(score, _)| *score > SIMILAR)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use nvx_probe_guest::{Fill, ProbeParams};

    use super::*;

    #[test]
    fn typos_get_a_suggestion() {
        for (text, meant) in [
            ("spraed:5", Some("'spread'")),
            ("alternat", Some("'alternate'")),
            ("xyz", None),
            ("top", None),
        ] {
            let explained = explain(&text.parse::<Fill>().expect_err("no fill"));
            assert!(explained.contains("known values: all, alternate"));
            match meant {
                Some(meant) => assert!(explained.contains(meant), "{explained}"),
                None => assert!(!explained.contains("did you mean"), "{explained}"),
            }
        }
        let explained = explain(&"sede=1".parse::<ProbeParams>().expect_err("no key"));
        assert!(explained.ends_with("did you mean 'seed'?"), "{explained}");
    }
}
