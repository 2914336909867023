//! A monitor process under observation: started, timed, spoken to over the guest's console, and
//! never left behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvx_profile::{ENVIRONMENT_VARIABLE, LINE_PREFIX, ParsedRecord, parse_line};

/// Time between two looks at whether the process has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The peak resident set is read at every so many of them: once in a millisecond.
const PEAK_RSS_TURNS: u32 = 5;
/// How long the output of a process that is gone is waited for.
const REST_OF_OUTPUT_LIMIT: Duration = Duration::from_secs(1);
/// How many of the guest's last lines an error shows.
const SHOWN_LINES: usize = 5;

/// What went wrong with a monitor process.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// It cannot be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The guest did not print what was waited for in time.
    #[error("no '{marker}' within {} s{}", limit.as_secs(), last_lines(lines))]
    TimeOut {
        /// What was waited for.
        marker: String,
        /// How long.
        limit: Duration,
        /// What it printed instead, at the end.
        lines: Vec<String>,
    },
    /// The process ended before the guest printed what was waited for.
    #[error(
        "the monitor ended ({status}) before '{marker}'{}{}",
        last_lines(lines),
        complaint(errors)
    )]
    Ended {
        /// What was waited for.
        marker: String,
        /// How it ended.
        status: String,
        /// What the guest printed, at the end.
        lines: Vec<String>,
        /// What the monitor complained of.
        errors: String,
    },
    /// The process does not end.
    #[error("the monitor did not end within {} s", limit.as_secs())]
    DoesNotEnd {
        /// How long was waited.
        limit: Duration,
    },
    /// The process ended with another status than expected.
    #[error(
        "the monitor ended with {status}, expected status {expected}{}{}",
        last_lines(lines),
        complaint(errors)
    )]
    Status {
        /// How it ended.
        status: String,
        /// What was expected.
        expected: i32,
        /// What the guest printed, at the end.
        lines: Vec<String>,
        /// What the monitor complained of.
        errors: String,
    },
    /// Talking to the process failed.
    #[error("cannot {what} the monitor")]
    Io {
        /// What was being done, as a verb.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A profile record is malformed.
    #[error("the monitor wrote a malformed record")]
    Record(#[from] nvx_profile::LineError),
}

fn last_lines(lines: &[String]) -> String {
    if lines.is_empty() {
        return "; the guest printed nothing".to_owned();
    }
    format!("; the guest's last lines: {}", lines.join(" | "))
}

/// What a monitor wrote to standard error, without its records.
fn complaint(errors: &str) -> String {
    let lines: Vec<&str> = errors
        .lines()
        .filter(|line| !line.starts_with(LINE_PREFIX) && !line.trim().is_empty())
        .collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("; it said: {}", lines.join(" | ")),
    }
}

/// What every line of a probe guest contains.
const PROBE_LINE: &str = "PROBE-";

/// A line of the guest and when it was complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestLine {
    /// The line without its line feed.
    pub text: String,
    /// Time since just before the process was created.
    pub elapsed: Duration,
    /// The monitor's peak resident set then, in bytes, of lines of a probe guest only: a process whose exit is
    /// queued may be gone before another thread has woken up.
    pub peak_rss_bytes: Option<u64>,
}

/// How a monitor process ended, and what it wrote to standard error.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Time from just before its creation to its end.
    pub elapsed: Duration,
    /// Its profile records.
    pub records: Vec<ParsedRecord>,
    /// Everything else on standard error.
    pub errors: String,
    /// The first sight of a capture's records, if there was one.
    pub capture_seen: Option<CaptureSeen>,
}

/// What was seen when the records of a capture arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureSeen {
    /// Time since just before the process was created.
    pub elapsed: Duration,
    /// The process's peak resident set; `None` if it was gone already or the system does not tell.
    pub peak_rss_bytes: Option<u64>,
}

/// What arrived on standard error.
#[derive(Default)]
struct Errors {
    text: String,
    capture_seen: Option<CaptureSeen>,
}

/// A running monitor. Dropping it kills the process.
pub struct Monitor {
    child: Child,
    input: ChildStdin,
    lines: Receiver<GuestLine>,
    seen: Vec<String>,
    errors: Option<JoinHandle<Errors>>,
    started: Instant,
    limit: Duration,
    last_peak_rss_bytes: Option<u64>,
}

impl Monitor {
    /// Starts `program` with `arguments` and profile records on; `limit` bounds every wait.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &Path,
        arguments: &[std::ffi::OsString],
        limit: Duration,
    ) -> Result<Self, MonitorError> {
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(arguments)
            .env(ENVIRONMENT_VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| MonitorError::Start {
                program: program.to_owned(),
                source,
            })?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(MonitorError::Io {
                what: "connect to",
                source: std::io::ErrorKind::BrokenPipe.into(),
            });
        };
        let (sender, lines) = channel();
        let pid = child.id();
        std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                let line = GuestLine {
                    elapsed: started.elapsed(),
                    peak_rss_bytes: text
                        .contains(PROBE_LINE)
                        .then(|| nvx_host::process_peak_rss_bytes(pid))
                        .flatten(),
                    text,
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = std::thread::spawn(move || read_errors(errors, pid, started));
        Ok(Self {
            child,
            input,
            lines,
            seen: Vec::new(),
            errors: Some(errors),
            started,
            limit,
            last_peak_rss_bytes: None,
        })
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the guest to print a line that begins with `marker`.
    ///
    /// # Errors
    /// The time limit passed or the process ended before.
    pub fn wait_for_line(&mut self, marker: &str) -> Result<GuestLine, MonitorError> {
        let deadline = Instant::now() + self.limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.text.clone());
                    if line.text.starts_with(marker) {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(MonitorError::TimeOut {
                        marker: marker.to_owned(),
                        limit: self.limit,
                        lines: self.last_seen(),
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended_before(marker)),
            }
        }
    }

    fn last_seen(&self) -> Vec<String> {
        let from = self.seen.len().saturating_sub(SHOWN_LINES);
        self.seen[from..].to_vec()
    }

    fn ended_before(&mut self, marker: &str) -> MonitorError {
        let status = match self.wait_for_exit() {
            Ok(status) => status.to_string(),
            Err(error) => return error,
        };
        MonitorError::Ended {
            marker: marker.to_owned(),
            status,
            lines: self.last_seen(),
            errors: self.take_errors().text,
        }
    }

    /// Sends a line to the guest's console.
    ///
    /// # Errors
    /// The process does not take it.
    pub fn send_line(&mut self, line: &str) -> Result<(), MonitorError> {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|source| MonitorError::Io {
                what: "write to",
                source,
            })
    }

    /// The process's peak resident set so far, in bytes; `None` where the system does not tell.
    pub fn peak_rss_bytes(&self) -> Option<u64> {
        nvx_host::process_peak_rss_bytes(self.pid())
    }

    /// Waits for the process to end and expects `expected` as its exit status.
    ///
    /// # Errors
    /// It does not end in time, ends otherwise, or wrote malformed records.
    pub fn wait_for_end(mut self, expected: i32) -> Result<Ended, MonitorError> {
        let status = self.wait_for_exit()?;
        let elapsed = self.started.elapsed();
        let mut records = Vec::new();
        let mut errors = String::new();
        let Errors { text, capture_seen } = self.take_errors();
        for line in text.lines() {
            match parse_line(line)? {
                Some(record) => records.push(record),
                None => errors.extend([line, "\n"]),
            }
        }
        // The records may have been seen too late; the peak only grows, so what was read last before the
        // end, at most a millisecond, is the next best.
        let last_peak_rss_bytes = self.last_peak_rss_bytes;
        let capture_seen = capture_seen.map(|seen| CaptureSeen {
            peak_rss_bytes: seen.peak_rss_bytes.or(last_peak_rss_bytes),
            ..seen
        });
        if status.code() != Some(expected) {
            // The process is gone, so its output ends at once.
            while let Ok(line) = self.lines.recv_timeout(REST_OF_OUTPUT_LIMIT) {
                self.seen.push(line.text);
            }
            return Err(MonitorError::Status {
                status: status.to_string(),
                expected,
                lines: self.last_seen(),
                errors,
            });
        }
        Ok(Ended {
            status,
            elapsed,
            records,
            errors,
            capture_seen,
        })
    }

    /// Time since just before the process was created.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the process is over, or cannot be asked.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Bounds the waits that follow.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    fn wait_for_exit(&mut self) -> Result<ExitStatus, MonitorError> {
        let mut turns = 0u32;
        let deadline = Instant::now() + self.limit;
        loop {
            let status = self.child.try_wait().map_err(|source| MonitorError::Io {
                what: "wait for",
                source,
            })?;
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(MonitorError::DoesNotEnd { limit: self.limit });
            }
            if turns.is_multiple_of(PEAK_RSS_TURNS)
                && let Some(peak) = self.peak_rss_bytes()
            {
                self.last_peak_rss_bytes = Some(peak);
            }
            turns = turns.wrapping_add(1);
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
    }

    fn take_errors(&mut self) -> Errors {
        self.errors
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

/// Reads standard error to its end. The peak resident set after a capture can only be read between its
/// records and the process's end, so it is read here, as soon as they arrive.
fn read_errors(errors: impl Read, pid: u32, started: Instant) -> Errors {
    let mut all = Errors::default();
    let mut reader = BufReader::new(errors);
    let mut line = Vec::new();
    while reader
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        if all.capture_seen.is_none() && is_record_of_capture(&line) {
            all.capture_seen = Some(CaptureSeen {
                peak_rss_bytes: nvx_host::process_peak_rss_bytes(pid),
                elapsed: started.elapsed(),
            });
        }
        all.text.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    all
}

fn is_record_of_capture(line: &[u8]) -> bool {
    line.starts_with(LINE_PREFIX.as_bytes())
        && line
            .split(|byte| *byte == b' ')
            .any(|word| word == b"operation=capture")
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // After a regular end both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// A shell stands in for the monitor.
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str, limit: Duration) -> Monitor {
        let arguments = ["-c".into(), script.into()];
        Monitor::start(Path::new("/bin/sh"), &arguments, limit).expect("a shell")
    }

    #[test]
    fn lines_and_records_come_apart() {
        let mut monitor = shell(
            "echo READY one; read x; echo GOT $x; \
             echo NVX_PROFILE_V1 operation=a phase=b exclusive=1 duration_ns=1 \
             process_elapsed_ns=2 pid=$$ >&2; echo trouble >&2; exit 3",
            LIMIT,
        );
        let pid = monitor.pid();
        let ready = monitor.wait_for_line("READY").expect("a line");
        assert_eq!(ready.text, "READY one");
        monitor.send_line("word").expect("a reader");
        let got = monitor.wait_for_line("GOT").expect("a line");
        assert_eq!(got.text, "GOT word");
        assert!(got.elapsed >= ready.elapsed);
        let ended = monitor.wait_for_end(3).expect("status 3");
        assert_eq!(ended.errors, "trouble\n");
        assert_eq!(ended.records.len(), 1);
        assert_eq!(ended.records[0].pid, pid);
    }

    #[test]
    fn an_early_end_tells_why() {
        let mut monitor = shell(
            "echo something; echo NVX_PROFILE_V1 operation=a >&2; echo no room >&2; exit 125",
            LIMIT,
        );
        let error = monitor
            .wait_for_line("READY")
            .expect_err("ended")
            .to_string();
        for part in ["exit status: 125", "READY", "something", "it said: no room"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn silence_ends_with_a_time_out() {
        let mut monitor = shell("echo hello; exec sleep 60", Duration::from_millis(300));
        let error = monitor
            .wait_for_line("READY")
            .expect_err("silence")
            .to_string();
        assert!(error.contains("hello"), "{error}");
    }

    #[test]
    fn the_peak_rss_of_a_living_process_is_known() {
        let mut monitor = shell("echo READY; read x", LIMIT);
        monitor.wait_for_line("READY").expect("a line");
        assert!(monitor.peak_rss_bytes() > Some(64 << 10));
    }
}
