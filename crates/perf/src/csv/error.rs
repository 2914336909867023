//! What can be wrong with a history file.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A column, counted from 1, with the name that the header gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its number, the first is 1.
    pub number: usize,
    /// Its name; empty beyond the last column and in the header line.
    pub name: &'static str,
}

impl fmt::Display for Column {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "column {}", self.number)?;
        if self.name.is_empty() {
            return Ok(());
        }
        write!(formatter, " ({})", self.name)
    }
}

/// Why a history file was not read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The operating system refused.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The name belongs to something that is no regular file.
    #[error("{}: is {what}, not a history file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The file is longer than [`super::MAX_FILE_BYTES`].
    #[error("{}: longer than {} bytes", path.display(), super::MAX_FILE_BYTES)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line breaks a rule of the format.
    #[error("{}:{line}: {column}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, the first is 1.
        line: usize,
        /// The column.
        column: Column,
        /// The broken rule.
        problem: Box<Problem>,
    },
}

/// Which rule of the format a line breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The file has no bytes.
    #[error("the file is empty; it must begin with a header")]
    Empty,
    /// A byte order mark stands before the header.
    #[error("a UTF-8 byte order mark; save the file without one")]
    ByteOrderMark,
    /// A carriage return.
    #[error(
        "a carriage return; lines end with a line feed only (git's core.autocrlf may have changed the \
         file: set it to false, or mark *.csv as '-text' in .gitattributes)"
    )]
    CarriageReturn,
    /// The bytes are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The first line is neither of the two headers.
    #[error("the header is '{found}', must be '{}'", super::HEADER)]
    Header {
        /// The start of the line.
        found: String,
    },
    /// The last line has no line feed.
    #[error("the last line has no line feed: the file is cut off")]
    CutOff,
    /// Rows that were collected, without any row.
    #[error("there are no rows, so that nothing says what the file is about")]
    NoRows,
    /// An empty line.
    #[error("an empty line")]
    EmptyLine,
    /// Fewer columns than the header has.
    #[error("the line has {found} of {wanted} columns")]
    Short {
        /// How many there are.
        found: usize,
        /// How many there must be.
        wanted: usize,
    },
    /// More columns than the header has.
    #[error("one column too many; the header has {wanted}")]
    Extra {
        /// How many there must be.
        wanted: usize,
    },
    /// The file's name is not one that says what its rows are about.
    #[error(
        "the file's name must have the form '<os>-<backend>-<bare-metal|virtual-machine|emulated>\
         -microvm-v<abi>-<n>vcpu.csv'"
    )]
    FileName,
    /// A row is about something else than the file's name says.
    #[error("'{found}', but the file's name says '{wanted}'")]
    OtherFile {
        /// What the row says.
        found: String,
        /// What the file's name says.
        wanted: String,
    },
    /// A row is about something else than the rows before it.
    #[error("'{found}', but the rows before say '{wanted}'")]
    OtherRows {
        /// What the row says.
        found: String,
        /// What the rows before say.
        wanted: String,
    },
    /// Not a platform's name.
    #[error(
        "'{found}' is no platform; it must have the form \
         '<os>-<backend>-<bare-metal|virtual-machine|emulated>'"
    )]
    Platform {
        /// What stands there.
        found: String,
    },
    /// Not an ABI version that is known.
    #[error("'{found}' is no known microVM ABI version")]
    Abi {
        /// What stands there.
        found: String,
    },
    /// Not a processor count of the ABI version.
    #[error("'{found}' processors; ABI {abi} has {allowed:?}")]
    Processors {
        /// What stands there.
        found: String,
        /// The ABI version.
        abi: u32,
        /// The counts that it has.
        allowed: &'static [u32],
    },
    /// Not a commit's object name.
    #[error("'{found}' is no commit: 40 or 64 lower-case hexadecimal digits")]
    Commit {
        /// What stands there.
        found: String,
    },
    /// A commit's rows are not one block.
    #[error(
        "commit {commit} has rows up to line {last_line}; the rows of one commit must stand together"
    )]
    SecondBlock {
        /// The commit.
        commit: String,
        /// The last line of its first block.
        last_line: usize,
    },
    /// The same metric of the same commit twice.
    #[error("metric '{metric}' of this commit stands in line {first_line} already")]
    Duplicate {
        /// The metric.
        metric: String,
        /// Where it stood first.
        first_line: usize,
    },
    /// Not a name or unit: printable ASCII without comma, quote and space.
    #[error("'{found}' must be 1 to {limit} printable ASCII characters without quotes and spaces")]
    Word {
        /// What stands there.
        found: String,
        /// The longest that is allowed.
        limit: usize,
    },
    /// Neither `lower` nor `higher`.
    #[error("'{found}' is no direction: 'lower' or 'higher'")]
    Direction {
        /// What stands there.
        found: String,
    },
    /// A metric has another unit or direction than before.
    #[error("'{found}', but the metric's {what} is '{wanted}' since line {first_line}")]
    Changed {
        /// `unit` or `direction`.
        what: &'static str,
        /// What stands there.
        found: String,
        /// What it was.
        wanted: String,
        /// Where the metric stood first.
        first_line: usize,
    },
    /// One ending with both prefixes.
    #[error("'{metric}' and '{other}' (line {first_line}) are one metric under two names")]
    BothPrefixes {
        /// The second name.
        metric: String,
        /// The first name.
        other: String,
        /// Where the first name stood first.
        first_line: usize,
    },
    /// More metrics than [`super::MAX_METRICS`].
    #[error("more than {} metrics", super::MAX_METRICS)]
    TooManyMetrics,
    /// Not a decimal number.
    #[error("'{found}' is no decimal number")]
    Number {
        /// What stands there.
        found: String,
    },
    /// NaN, infinite, or too large.
    #[error("'{found}' is not finite")]
    NotFinite {
        /// What stands there.
        found: String,
    },
    /// Zero or less.
    #[error("'{found}' is not above zero")]
    NotPositive {
        /// What stands there.
        found: String,
    },
    /// Too many digits.
    #[error("'{found}' has more than 12 significant digits")]
    Digits {
        /// What stands there.
        found: String,
    },
}
