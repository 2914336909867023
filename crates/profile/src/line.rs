//! Reading record lines back.

use std::time::Duration;

use crate::LINE_PREFIX;

/// A record as another process wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRecord {
    /// The operation.
    pub operation: String,
    /// The phase.
    pub phase: String,
    /// Exclusive phases do not overlap.
    pub exclusive: bool,
    /// How long the phase took.
    pub duration: Duration,
    /// When it ended, on the writing process's clock.
    pub end: Duration,
    /// The process that wrote it.
    pub pid: u32,
    /// Every other field, in the line's order.
    pub other: Vec<(String, String)>,
}

/// Why a line that begins like a record is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A word is not `name=value`, or one of the two is empty.
    #[error("profile record: '{word}' is not name=value")]
    Word {
        /// The word.
        word: String,
    },
    /// A field that every record has is missing.
    #[error("profile record: field {field} is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field's value is not of its kind.
    #[error("profile record: field {field} has the value '{value}'")]
    Value {
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
    },
}

/// Reads one line. `None`: the line is no record.
///
/// # Errors
/// The line begins like a record and is malformed.
pub fn parse_line(line: &str) -> Result<Option<ParsedRecord>, LineError> {
    let line = line.trim_end_matches(['\r', '\n']);
    let Some(words) = line
        .strip_prefix(LINE_PREFIX)
        .and_then(|rest| rest.strip_prefix(' '))
    else {
        return Ok(None);
    };
    let mut fields = words
        .split_ascii_whitespace()
        .map(|word| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok((name.to_owned(), value.to_owned()))
            }
            _ => Err(LineError::Word {
                word: word.to_owned(),
            }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut take = |field: &'static str| {
        let at = fields.iter().position(|(name, _)| name == field);
        at.map(|at| fields.remove(at).1)
            .ok_or(LineError::Missing { field })
    };
    let operation = take("operation")?;
    let phase = take("phase")?;
    let exclusive = match take("exclusive")?.as_str() {
        "0" => false,
        "1" => true,
        other => {
            return Err(LineError::Value {
                field: "exclusive",
                value: other.to_owned(),
            });
        }
    };
    let duration = Duration::from_nanos(number("duration_ns", take("duration_ns")?)?);
    let end = Duration::from_nanos(number("process_elapsed_ns", take("process_elapsed_ns")?)?);
    let pid = number("pid", take("pid")?)?;
    Ok(Some(ParsedRecord {
        operation,
        phase,
        exclusive,
        duration,
        end,
        pid: u32::try_from(pid).map_err(|_| LineError::Value {
            field: "pid",
            value: pid.to_string(),
        })?,
        other: fields,
    }))
}

fn number(field: &'static str, value: String) -> Result<u64, LineError> {
    value.parse().map_err(|_| LineError::Value { field, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "NVX_PROFILE_V1 operation=capture phase=input_gate exclusive=1 \
                        duration_ns=5 process_elapsed_ns=70 pid=12 pages=3";

    #[test]
    fn a_record_is_read_back() {
        let record = parse_line(&format!("{GOOD}\r\n"))
            .expect("well formed")
            .expect("a record");
        assert_eq!(record.phase, "input_gate");
        assert_eq!(record.duration, Duration::from_nanos(5));
        assert_eq!(record.end, Duration::from_nanos(70));
        assert_eq!(record.pid, 12);
        assert_eq!(record.other, [("pages".to_owned(), "3".to_owned())]);
    }

    #[test]
    fn other_lines_are_no_records() {
        for line in ["", "hello", "NVX_PROFILE_V12 operation=x", "NVX_PROFILE_V1"] {
            assert_eq!(parse_line(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn malformed_records_name_the_field() {
        let missing = parse_line("NVX_PROFILE_V1 operation=capture");
        assert_eq!(missing, Err(LineError::Missing { field: "phase" }));
        for (from, to, error) in [
            (
                "exclusive=1",
                "exclusive=2",
                "field exclusive has the value '2'",
            ),
            (
                "duration_ns=5",
                "duration_ns=-5",
                "field duration_ns has the value '-5'",
            ),
            (
                "pid=12",
                "pid=99999999999",
                "field pid has the value '99999999999'",
            ),
            ("pages=3", "pages=", "'pages=' is not name=value"),
        ] {
            let text = parse_line(&GOOD.replace(from, to))
                .expect_err("malformed")
                .to_string();
            assert!(text.contains(error), "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut profile = crate::Profile::start(false);
        profile.phase("capture", "save_state", |counters| {
            counters.logical_bytes = Some(9)
        });
        let written = profile.records()[0].to_string();
        let read = parse_line(&written)
            .expect("well formed")
            .expect("a record");
        assert_eq!(read.pid, std::process::id());
        assert_eq!(read.duration, profile.records()[0].duration);
        assert_eq!(read.other, [("logical_bytes".to_owned(), "9".to_owned())]);
    }
}
