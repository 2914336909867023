//! Writing to the user. Standard output carries only what was asked for; everything else goes to
//! standard error. A reader that goes away ends nothing.

use std::io::Write;

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
