//! Phase records on the monitor's monotonic clock.
//!
//! A [`Profile`] belongs to one process. Each phase of an operation (`capture`, `restore`,
//! `startup`) becomes one [`Record`]: how long it took, and when it ended on the process clock.
//! Records are kept in memory and written as lines when their operation is over, so that writing
//! one never lengthens a later phase; a line that cannot be written is dropped, since a profile
//! must never end a VM.
//!
//! The line format is fixed (doc/profile.md):
//! `NVX_PROFILE_V1 operation=capture phase=input_gate exclusive=1 duration_ns=... process_elapsed_ns=... pid=...`,
//! then those of `logical_bytes`, `allocated_bytes`, `pages` and `calls` that apply.

#![forbid(unsafe_code)]

mod line;

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

pub use line::{LineError, ParsedRecord, parse_line};

/// First word of every record line.
pub const LINE_PREFIX: &str = "NVX_PROFILE_V1";

/// Environment variable that asks for record lines: any value but the empty one and `0`.
pub const ENVIRONMENT_VARIABLE: &str = "NVX_PROFILE";

/// Quantities that a phase may have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Length of what the phase was about, holes included.
    pub logical_bytes: Option<u64>,
    /// Bytes of it that take space or were handed to the system.
    pub allocated_bytes: Option<u64>,
    /// Pages handed to the system.
    pub pages: Option<u64>,
    /// System calls that moved data.
    pub calls: Option<u64>,
}

/// One phase of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The operation: `capture`, `restore` or `startup`.
    pub operation: &'static str,
    /// The phase's name within it.
    pub phase: &'static str,
    /// Exclusive phases do not overlap; others are milestones that may contain them.
    pub exclusive: bool,
    /// How long the phase took.
    pub duration: Duration,
    /// When it ended, counted from the start of the process clock.
    pub end: Duration,
    /// What it counted.
    pub counters: Counters,
}

impl Record {
    /// When the phase began, counted from the start of the process clock.
    pub fn start(&self) -> Duration {
        self.end.saturating_sub(self.duration)
    }
}

/// The record's line without a line feed.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            phase,
            exclusive,
            duration,
            end,
            counters,
        } = self;
        write!(
            f,
            "{LINE_PREFIX} operation={operation} phase={phase} exclusive={} duration_ns={} \
             process_elapsed_ns={} pid={}",
            u8::from(*exclusive),
            duration.as_nanos(),
            end.as_nanos(),
            std::process::id()
        )?;
        let Counters {
            logical_bytes,
            allocated_bytes,
            pages,
            calls,
        } = counters;
        for (name, value) in [
            ("logical_bytes", logical_bytes),
            ("allocated_bytes", allocated_bytes),
            ("pages", pages),
            ("calls", calls),
        ] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

/// The records of one process.
#[derive(Debug)]
pub struct Profile {
    start: Instant,
    written: bool,
    records: Vec<Record>,
}

impl Profile {
    /// Starts the process clock; to be called as early in the process as possible. Lines are
    /// written only if `written`.
    pub fn start(written: bool) -> Self {
        Self {
            start: Instant::now(),
            written,
            records: Vec::new(),
        }
    }

    /// Starts the process clock and asks the environment whether lines are wanted.
    pub fn from_environment() -> Self {
        let written = std::env::var_os(ENVIRONMENT_VARIABLE)
            .is_some_and(|value| !value.is_empty() && value != "0");
        Self::start(written)
    }

    /// Time on the process clock.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Runs `work` as an exclusive phase. A phase that fails is recorded like any other.
    pub fn phase<T>(
        &mut self,
        operation: &'static str,
        phase: &'static str,
        work: impl FnOnce(&mut Counters) -> T,
    ) -> T {
        let begin = self.elapsed();
        let mut counters = Counters::default();
        let result = work(&mut counters);
        let end = self.elapsed();
        self.records.push(Record {
            operation,
            phase,
            exclusive: true,
            duration: end - begin,
            end,
            counters,
        });
        result
    }

    /// Records a milestone that began at `since` on the process clock and is reached now; gives its duration.
    pub fn milestone(
        &mut self,
        operation: &'static str,
        phase: &'static str,
        since: Duration,
    ) -> Duration {
        let end = self.elapsed();
        let duration = end.saturating_sub(since);
        self.records.push(Record {
            operation,
            phase,
            exclusive: false,
            duration,
            end,
            counters: Counters::default(),
        });
        duration
    }

    /// The records that have not been written yet, oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Writes the pending records to standard error if they are wanted, and forgets them.
    pub fn flush(&mut self) {
        if self.written && !self.records.is_empty() {
            let lines: String = self
                .records
                .iter()
                .map(|record| format!("{record}\n"))
                .collect();
            // A reader that went away must not end the VM.
            let _ = std::io::stderr().write_all(lines.as_bytes());
        }
        self.records.clear();
    }
}

/// Time from the start of the first phase named `from` to the end of the last phase named `to`,
/// if both were recorded.
pub fn interval(records: &[Record], from: &str, to: &str) -> Option<Duration> {
    let begin = records.iter().find(|record| record.phase == from)?.start();
    let end = records.iter().rev().find(|record| record.phase == to)?.end;
    end.checked_sub(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(phase: &'static str, start_ns: u64, end_ns: u64) -> Record {
        Record {
            operation: "capture",
            phase,
            exclusive: true,
            duration: Duration::from_nanos(end_ns - start_ns),
            end: Duration::from_nanos(end_ns),
            counters: Counters::default(),
        }
    }

    #[test]
    fn lines_have_the_documented_form() {
        let mut record = record("mapped_memory_flush", 1_000, 3_500);
        record.counters = Counters {
            logical_bytes: Some(4096),
            pages: Some(1),
            ..Default::default()
        };
        assert_eq!(
            record.to_string(),
            format!(
                "NVX_PROFILE_V1 operation=capture phase=mapped_memory_flush exclusive=1 \
                 duration_ns=2500 process_elapsed_ns=3500 pid={} logical_bytes=4096 pages=1",
                std::process::id()
            )
        );
    }

    #[test]
    fn phases_follow_one_another_on_one_clock() {
        let mut profile = Profile::start(false);
        let answer = profile.phase("capture", "first", |_| 7);
        profile.phase("capture", "second", |counters| counters.calls = Some(2));
        assert_eq!(answer, 7);
        let [first, second] = profile.records() else {
            panic!("two records");
        };
        assert!(first.end <= second.start());
        assert_eq!(second.counters.calls, Some(2));
        profile.flush();
        assert!(profile.records().is_empty());
    }

    #[test]
    fn a_milestone_spans_from_its_beginning_and_is_not_exclusive() {
        let mut profile = Profile::start(false);
        let since = profile.elapsed();
        profile.phase("restore", "inside", |_| ());
        let duration = profile.milestone("restore", "reached", since);
        let [inside, reached] = profile.records() else {
            panic!("two records");
        };
        assert_eq!((reached.duration, reached.exclusive), (duration, false));
        assert_eq!(reached.start(), since);
        assert!(reached.end >= inside.end);
    }

    #[test]
    fn intervals_span_from_start_to_end() {
        let records = [
            record("input_gate", 100, 200),
            record("publication_commit", 900, 1000),
        ];
        let span = interval(&records, "input_gate", "publication_commit");
        assert_eq!(span, Some(Duration::from_nanos(900)));
        assert_eq!(interval(&records, "input_gate", "missing"), None);
    }
}
