//! The performance history: remember accepted medians, judge new ones, and show them.
//!
//! A *history* is one CSV file per platform, ABI and processor count ([`History`]); it holds the
//! median (p50) of every metric of every accepted run, in the order of time. Everything here works
//! offline on such files. Each command of `nvx perf` is one function from a typed request to a
//! serializable result; nothing here prints or ends the process.

#![forbid(unsafe_code)]

mod adaptive;
mod csv;
mod evaluate;
mod exit_status;
mod hosts;
mod identity;
mod metric_name;
mod persist;
mod replace_file;

pub use csv::{
    Column, CommitRows, Direction, HEADER, History, HistoryError, LEGACY_HEADER, Layout,
    MAX_FILE_BYTES, MAX_METRICS, Metric, NameRule, Problem, Row, format_p50,
};
pub use evaluate::{EvaluatedEvent, Evaluation, Share, evaluate};
pub use exit_status::ExitStatus;
pub use hosts::{HostEntry, Hosts, HostsError};
pub use identity::{HostKind, Identity, KNOWN_ABIS};
pub use metric_name::Prefix;
pub use persist::{PersistError, PersistRequest, PersistResult, RowKey, persist};
pub use replace_file::ReplaceError;
