//! The control protocol: one JSON object per line, in both directions. doc/control.md is its page.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The protocol's version, which every line carries.
pub const CONTROL_VERSION: u32 = 1;
/// The longest line, its line feed included.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// The longest identifier of a request.
const MAX_ID_BYTES: usize = 64;

/// A request as it is on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireRequest {
    /// [`CONTROL_VERSION`].
    pub version: u32,
    /// Comes back in the response; at most 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What to do: `status`, `pause`, `resume`, `stop` or `capture`.
    pub command: String,
    /// For `capture`: the snapshot directory to make, as an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<PathBuf>,
    /// For `capture`: the guest goes on afterwards.
    #[serde(default, rename = "continue", skip_serializing_if = "Option::is_none")]
    pub continue_after: Option<bool>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Tell about the VM.
    Status,
    /// Stop the vCPUs.
    Pause,
    /// Let the vCPUs run.
    Resume,
    /// End the VM.
    Stop,
    /// Capture the VM.
    Capture {
        /// The snapshot directory to make.
        destination: PathBuf,
        /// The guest goes on afterwards.
        continue_after: bool,
    },
}

/// Every command's name on the wire.
pub const COMMANDS: [&str; 5] = ["status", "pause", "resume", "stop", "capture"];

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The line is no request of this version.
    BadRequest,
    /// The line is longer than [`MAX_LINE_BYTES`].
    TooLong,
    /// Too many connections.
    Busy,
    /// The destination is outside the declared roots.
    OutsideRoots,
    /// The capture was refused or failed; the guest runs on.
    CaptureFailed,
    /// The vCPUs did not stop.
    PauseFailed,
    /// The VM ended before the request was carried out.
    Ended,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// [`CONTROL_VERSION`].
    pub version: u32,
    /// The request's identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What came of it.
    #[serde(flatten)]
    pub result: ResponseResult,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResponseResult {
    /// Done, and nothing to tell.
    Done {},
    /// How the VM is.
    Status(Status),
    /// The snapshot that was made.
    Captured(CapturedInfo),
    /// Not done.
    Error {
        /// Why, for programs.
        code: ErrorCode,
        /// Why, for people.
        message: String,
    },
}

/// How a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `running` or `paused`.
    pub state: String,
    /// The monitor's process.
    pub pid: u32,
    /// The back end.
    pub backend: String,
    /// How many vCPUs.
    pub vcpus: u8,
    /// Guest RAM in bytes.
    pub memory_bytes: u64,
    /// Where guest RAM lives: `file`, `anonymous` or `private-view`.
    pub ram: String,
    /// Captures of this process that succeeded.
    pub captures: u32,
}

/// A snapshot that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapturedInfo {
    /// The snapshot directory.
    pub destination: PathBuf,
    /// How guest RAM got there: `link`, `reflink` or `copy`.
    pub publication: String,
    /// Why so.
    pub reason: String,
    /// From the start of the input gate to the end of the commit, in milliseconds.
    pub generation_ms: f64,
    /// The guest goes on in this process.
    pub continues: bool,
}

impl Response {
    /// A response that tells of an error.
    pub fn error(id: Option<String>, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            version: CONTROL_VERSION,
            id,
            result: ResponseResult::Error {
                code,
                message: message.into(),
            },
        }
    }
}

/// A line that is no request, with the identifier if at least that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// The request's identifier.
    pub id: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// Reads one line.
///
/// # Errors
/// The line is no request of this version; the text says what is wrong.
pub fn parse_request(line: &[u8]) -> Result<(Option<String>, Command), BadRequest> {
    let request: WireRequest = serde_json::from_slice(line).map_err(|error| BadRequest {
        id: None,
        message: format!("not a request: {error}"),
    })?;
    let WireRequest {
        version,
        id,
        command,
        destination,
        continue_after,
    } = request;
    let id = id.filter(|id| id.len() <= MAX_ID_BYTES);
    let bad = |message: String| BadRequest {
        id: id.clone(),
        message,
    };
    if version != CONTROL_VERSION {
        return Err(bad(format!(
            "version {version} is unknown, this is version {CONTROL_VERSION}"
        )));
    }
    if command == "capture" {
        let destination = destination
            .filter(|path| path.is_absolute())
            .ok_or_else(|| bad("capture needs an absolute destination".to_owned()))?;
        let continue_after = continue_after.unwrap_or(false);
        return Ok((
            id,
            Command::Capture {
                destination,
                continue_after,
            },
        ));
    }
    if destination.is_some() || continue_after.is_some() {
        return Err(bad(format!(
            "only capture has a destination and continue, not '{command}'"
        )));
    }
    let command = match command.as_str() {
        "status" => Command::Status,
        "pause" => Command::Pause,
        "resume" => Command::Resume,
        "stop" => Command::Stop,
        other => {
            return Err(bad(format!(
                "command '{other}' is unknown (known: {})",
                COMMANDS.join(", ")
            )));
        }
    };
    Ok((id, command))
}

/// A response as a line.
pub fn response_line(response: &Response) -> Vec<u8> {
    // Every field is text, a number or a flag, so this cannot fail; an empty line would only
    // mean that the client learns nothing.
    let mut line = serde_json::to_vec(response).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        parse_request(line.as_bytes()).expect_err(line).message
    }

    #[test]
    fn requests_are_read() {
        let parsed = parse_request(br#"{"version":1,"id":"a","command":"pause"}"#);
        assert_eq!(parsed, Ok((Some("a".to_owned()), Command::Pause)));
        let absolute = if cfg!(windows) { "C:/s/one" } else { "/s/one" };
        let line = format!(
            r#"{{"version":1,"command":"capture","destination":"{absolute}","continue":true}}"#
        );
        let parsed = parse_request(line.as_bytes());
        let capture = Command::Capture {
            destination: absolute.into(),
            continue_after: true,
        };
        assert_eq!(parsed, Ok((None, capture)));
    }

    #[test]
    fn what_is_no_request_is_told_why() {
        for (line, part) in [
            ("", "not a request"),
            ("hello", "not a request"),
            ("[1]", "not a request"),
            (r#"{"version":1}"#, "command"),
            (
                r#"{"version":2,"command":"status"}"#,
                "version 2 is unknown",
            ),
            (
                r#"{"version":1,"command":"fly"}"#,
                "'fly' is unknown (known: status",
            ),
            (r#"{"version":1,"command":"status","x":1}"#, "unknown field"),
            (
                r#"{"version":1,"command":"capture"}"#,
                "absolute destination",
            ),
            (
                r#"{"version":1,"command":"capture","destination":"a/b"}"#,
                "absolute",
            ),
            (
                r#"{"version":1,"command":"stop","continue":true}"#,
                "only capture",
            ),
        ] {
            let message = refusal(line);
            assert!(message.contains(part), "{line}: {message}");
        }
    }

    #[test]
    fn responses_can_be_read_back() {
        for result in [
            ResponseResult::Done {},
            ResponseResult::Error {
                code: ErrorCode::OutsideRoots,
                message: "no".to_owned(),
            },
            ResponseResult::Captured(CapturedInfo {
                destination: "/s".into(),
                publication: "link".to_owned(),
                reason: "same file system".to_owned(),
                generation_ms: 0.5,
                continues: false,
            }),
        ] {
            let response = Response {
                version: CONTROL_VERSION,
                id: Some("7".to_owned()),
                result,
            };
            let line = response_line(&response);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let read: Response = serde_json::from_slice(&line).expect("a response");
            assert_eq!(read, response);
        }
    }
}
