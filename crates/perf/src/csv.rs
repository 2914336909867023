//! The history file: one CSV per platform, ABI and processor count.
//!
//! A file is a header and one row per metric and commit. *Row order is time*: the rows of one commit
//! stand together in one block, and the blocks are in the order in which the commits were accepted.
//! Metrics may start late, stop, or miss commits. A metric keeps its unit and direction for ever.
//!
//! The reader takes nothing that the writer would not write: UTF-8 without a byte order mark, LF
//! after every line, no quotes, numbers in plain form with at most 12 significant digits. Whatever
//! else a file holds is an error that names file, line and column, since a history that is read
//! wrongly accuses the wrong commit.
//!
//! Files with the *legacy header* have no columns for platform, ABI and processors: the platform is
//! the file's stem, the ABI is 1, and there is one processor. They are read, and appended to, as they
//! are.

mod error;
mod number;
mod parse;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::metric_name::Prefix;

pub use error::{Column, HistoryError, Problem};
pub use number::format_p50;
pub(crate) use parse::check_commit;

/// The header of a history file.
pub const HEADER: &str = "platform,microvm_abi_version,processors,commit,metric,unit,direction,p50";
/// The header of files from before there were an ABI version and processors.
pub const LEGACY_HEADER: &str = "commit,metric,unit,direction,p50";
/// Most metrics that one file may have: a bound against files that name a new metric in every row.
pub const MAX_METRICS: usize = 1000;
/// Longest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Which values of a metric are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Lower is better.
    Lower,
    /// Higher is better.
    Higher,
}

impl Direction {
    /// The word in a file.
    pub fn word(self) -> &'static str {
        match self {
            Direction::Lower => "lower",
            Direction::Higher => "higher",
        }
    }

    /// How much worse `value` is than `level`, in percent of `level`; negative when it is better.
    pub fn worse_percent(self, level: f64, value: f64) -> f64 {
        let change = (value / level - 1.0) * 100.0;
        match self {
            Direction::Lower => change,
            Direction::Higher => -change,
        }
    }
}

/// Which of the two headers a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// [`HEADER`].
    Current,
    /// [`LEGACY_HEADER`].
    Legacy,
}

impl Layout {
    /// The header line, without its line feed.
    pub fn header(self) -> &'static str {
        match self {
            Layout::Current => HEADER,
            Layout::Legacy => LEGACY_HEADER,
        }
    }
}

/// What a metric is, in every row of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Unit of its values, as in `ms` or `MB/s`.
    pub unit: String,
    /// Which values are good.
    pub direction: Direction,
}

/// One value of a commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Index into [`History::metrics`].
    pub metric: usize,
    /// Median of the accepted run, in the metric's unit; finite and above zero.
    pub p50: f64,
}

/// All rows of one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitRows {
    /// Object name of the commit: 40 or 64 lower-case hexadecimal digits.
    pub commit: String,
    /// Its rows in the file's order, each metric at most once.
    pub rows: Vec<Row>,
}

impl CommitRows {
    /// The value of a metric at this commit.
    pub fn value(&self, metric: usize) -> Option<f64> {
        self.rows
            .iter()
            .find_map(|row| (row.metric == metric).then_some(row.p50))
    }
}

/// A history file's content, or rows that may become part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// What it is about.
    pub identity: Identity,
    /// Which header it has.
    pub layout: Layout,
    /// Its metrics, in the order of their first rows.
    pub metrics: Vec<Metric>,
    /// Its commits, in the order of time.
    pub commits: Vec<CommitRows>,
}

/// Whether a file's name must say what its rows are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A history: its name must agree with every row.
    History,
    /// Rows that were collected: any name; the rows must still agree with each other, and only the
    /// current header says what they are about.
    Rows,
}

impl History {
    /// A history without rows.
    pub fn empty(identity: Identity) -> Self {
        Self {
            identity,
            layout: Layout::Current,
            metrics: Vec::new(),
            commits: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or breaks a rule of the format; see [`HistoryError`].
    pub fn read(path: &Path, rule: NameRule) -> Result<Self, HistoryError> {
        Self::parse(path, &read_bytes(path)?, rule)
    }

    /// Reads a file's content; `path` is what errors and the name rule are about.
    ///
    /// # Errors
    /// The content breaks a rule of the format; see [`HistoryError`].
    pub fn parse(path: &Path, content: &[u8], rule: NameRule) -> Result<Self, HistoryError> {
        parse::parse(path, content, rule)
    }

    /// The index of a metric by its name.
    pub fn metric_index(&self, name: &str) -> Option<usize> {
        self.metrics.iter().position(|metric| metric.name == name)
    }

    /// The values of a metric, oldest first, each with its commit's index.
    pub fn values(&self, metric: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.commits
            .iter()
            .enumerate()
            .filter_map(move |(at, commit)| Some((at, commit.value(metric)?)))
    }

    /// The prefix of this file's lifecycle metrics, where it has any.
    pub fn prefix(&self) -> Option<Prefix> {
        Prefix::used_by(self.metrics.iter().map(|metric| metric.name.as_str()))
    }

    /// How many rows there are.
    pub fn row_count(&self) -> usize {
        self.commits.iter().map(|commit| commit.rows.len()).sum()
    }

    /// The whole file as text.
    pub fn to_csv(&self) -> String {
        let mut text = format!("{}\n", self.layout.header());
        for commit in &self.commits {
            for row in &commit.rows {
                if let Some(metric) = self.metrics.get(row.metric) {
                    push_row(&mut text, self, &commit.commit, metric, row.p50);
                }
            }
        }
        text
    }
}

/// Appends one line of a file that is laid out as `file` is.
pub(crate) fn push_row(text: &mut String, file: &History, commit: &str, metric: &Metric, p50: f64) {
    if file.layout == Layout::Current {
        let identity = &file.identity;
        text.push_str(&format!(
            "{},{},{},",
            identity.platform, identity.microvm_abi_version, identity.processors
        ));
    }
    text.push_str(&format!(
        "{commit},{},{},{},{}\n",
        metric.name,
        metric.unit,
        metric.direction.word(),
        format_p50(p50)
    ));
}

/// A regular file's bytes, bounded by [`MAX_FILE_BYTES`].
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, HistoryError> {
    let failed = |source| HistoryError::Read {
        path: path.to_owned(),
        source,
    };
    // Asked before opening: opening a FIFO would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(HistoryError::NotAFile {
            path: path.to_owned(),
            what: if metadata.is_dir() {
                "a directory"
            } else {
                "no regular file"
            },
        });
    }
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content))
        .map_err(failed)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(HistoryError::TooLong {
            path: path.to_owned(),
        });
    }
    Ok(content)
}
