//! Writing to the user. Standard output carries only what was asked for; everything else goes to
//! standard error. A reader that goes away ends nothing.

use std::io::{IsTerminal as _, Write};

/// Writes one line to standard error, marked as the monitor's.
pub fn message(text: &str) {
    let _ = writeln!(std::io::stderr(), "nvx: {text}");
}

/// Writes text that was asked for to standard output.
pub fn result(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes a JSON document that was asked for to standard output.
pub fn json(document: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    result(&text);
    Ok(())
}

/// One line on standard error that says how far a command has come: replaced each time, gone at the
/// end. Nothing is written where standard error is no terminal.
pub struct ProgressLine {
    visible: bool,
}

impl ProgressLine {
    /// A line that is shown if standard error is a terminal.
    pub fn new() -> Self {
        Self {
            visible: std::io::stderr().is_terminal(),
        }
    }

    /// Shows `text` instead of what was shown before.
    pub fn show(&mut self, text: &str) {
        if self.visible {
            // ECMA-48: carriage return, then "erase in line" to the end.
            let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.show("");
    }
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// Colours if standard output is a terminal, unless the user wants none: `NO_COLOR` with any
    /// text in it (<https://no-color.org>), or a terminal that has none.
    pub fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        Self {
            colours: std::io::stdout().is_terminal() && !unwanted && !dumb,
        }
    }

    /// No escape codes.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { colours: false }
    }

    /// Escape codes.
    #[cfg(test)]
    pub fn styled() -> Self {
        Self { colours: true }
    }

    /// The heading of a part.
    pub fn heading(self, text: &str) -> String {
        self.rendered("1", text)
    }

    /// Something that is as it should be.
    pub fn good(self, text: &str) -> String {
        self.rendered("32", text)
    }

    /// Something to look at.
    pub fn doubtful(self, text: &str) -> String {
        self.rendered("33", text)
    }

    /// Something that must be mended.
    pub fn bad(self, text: &str) -> String {
        self.rendered("31", text)
    }

    /// ECMA-48 "select graphic rendition": 1 bold, 31 red, 32 green, 33 yellow, 0 back to normal.
    fn rendered(self, code: &str, text: &str) -> String {
        if self.colours {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Breaks text at spaces into lines of at most `columns`; a longer word has a line of its own.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("longer than", 3), ["longer", "than"]);
        assert!(wrap("", 3).is_empty());
    }
}
