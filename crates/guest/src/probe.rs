//! `nvx guest probe`: a process of a Linux guest that speaks the built-in probe guest's lines, as far as a
//! measurement of a VM's life needs them.
//!
//! | line | answer |
//! | --- | --- |
//! | (start) | `PROBE-READY nonce=<16 hex> count=0` |
//! | `s` | asks for a snapshot: `PROBE-RESTORED`, `PROBE-CONTINUED`, each with `nonce` and `count`, or `PROBE-REFUSED` |
//! | `xN` | ends with status N (0 to 255, 0 when left out) |
//! | other | `PROBE-WHAT` |
//!
//! `nonce` lives only in the guest's RAM and `count` is the number of lines taken so far, so both show that a
//! restored guest did not start anew. Empty lines are none.

use std::io::{self, BufRead, Write};

use crate::{SnapshotError, SnapshotOutcome};

/// Why a probe ended early.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its input or output is broken.
    #[error("the console cannot be used")]
    Console(#[source] io::Error),
    /// No snapshot can be asked for.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Serves the lines of `input` until one asks for the end or there are none any more, and returns the status to
/// end with. `snapshot` asks for a snapshot of the guest.
///
/// # Errors
/// Input or output fails, or no snapshot can be asked for.
pub fn serve_probe(
    nonce: u64,
    input: impl BufRead,
    mut output: impl Write,
    mut snapshot: impl FnMut() -> Result<SnapshotOutcome, SnapshotError>,
) -> Result<u8, ProbeError> {
    let mut count = 0_u64;
    let mut say = |text: String| {
        writeln!(output, "{text}")
            .and_then(|()| output.flush())
            .map_err(ProbeError::Console)
    };
    say(format!("PROBE-READY nonce={nonce:016x} count={count}"))?;
    for line in input.lines() {
        let line = line.map_err(ProbeError::Console)?;
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            continue;
        }
        count += 1;
        if line == "s" {
            let word = match snapshot()? {
                SnapshotOutcome::Restored => "PROBE-RESTORED",
                SnapshotOutcome::Source => "PROBE-CONTINUED",
                SnapshotOutcome::Refused => {
                    say("PROBE-REFUSED".to_owned())?;
                    continue;
                }
            };
            say(format!("{word} nonce={nonce:016x} count={count}"))?;
        } else if let Some(status) = end_status(line) {
            return Ok(status);
        } else {
            say("PROBE-WHAT".to_owned())?;
        }
    }
    Ok(0)
}

/// The status of a line that asks for the end.
fn end_status(line: &str) -> Option<u8> {
    match line.strip_prefix('x')? {
        "" => Some(0),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said to `input`, with the outcomes of the snapshots that it asks for.
    fn said(input: &str, outcomes: &[SnapshotOutcome]) -> (Vec<String>, Result<u8, ProbeError>) {
        let mut outcomes = outcomes.iter();
        let mut output = Vec::new();
        let status = serve_probe(0xfe, input.as_bytes(), &mut output, || {
            outcomes.next().copied().ok_or(SnapshotError::NotLinux)
        });
        let text = String::from_utf8(output).expect("text");
        (text.lines().map(str::to_owned).collect(), status)
    }

    #[test]
    fn lines_are_answered_in_order() {
        let outcomes = [
            SnapshotOutcome::Refused,
            SnapshotOutcome::Source,
            SnapshotOutcome::Restored,
        ];
        let (lines, status) = said("s\r\n\nhello\ns\ns\nx7\ns\n", &outcomes);
        assert_eq!(
            lines,
            [
                "PROBE-READY nonce=00000000000000fe count=0",
                "PROBE-REFUSED",
                "PROBE-WHAT",
                "PROBE-CONTINUED nonce=00000000000000fe count=3",
                "PROBE-RESTORED nonce=00000000000000fe count=4",
            ]
        );
        assert_eq!(status.ok(), Some(7));
    }

    #[test]
    fn the_end_is_told_by_a_number_or_by_the_end_of_input() {
        for (line, status) in [
            ("x", Some(0)),
            ("x255", Some(255)),
            ("x256", None),
            ("x+1", None),
        ] {
            assert_eq!(end_status(line), status, "{line}");
        }
        assert_eq!(said("", &[]).1.ok(), Some(0));
    }

    #[test]
    fn where_there_is_no_snapshot_the_probe_ends() {
        let (lines, status) = said("s\nx0\n", &[]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(matches!(status, Err(ProbeError::Snapshot(_))));
    }
}
