//! The performance history: remember accepted medians, judge new ones, and show them.
//!
//! A *history* is one CSV file per platform, ABI and processor count ([`History`]); it holds the
//! median (p50) of every metric of every accepted run, in the order of time. Everything here works
//! offline on such files. Each command of `nvx perf` is one function from a typed request to a
//! serializable result; nothing here prints or ends the process.

#![forbid(unsafe_code)]

mod adaptive;
mod collect;
mod csv;
mod evaluate;
mod exit_status;
mod gate;
#[cfg(test)]
mod generated;
mod hosts;
mod identity;
mod import;
mod lifecycle_document;
mod metric_name;
mod persist;
mod provenance;
mod replace_file;
mod report;

pub use adaptive::findings::{Finding, FindingKind};
pub use collect::{CollectError, CollectRequest, CollectResult, collect};
pub use csv::{
    Column, CommitRows, Direction, HEADER, History, HistoryError, LEGACY_HEADER, Layout,
    MAX_FILE_BYTES, MAX_METRICS, Metric, NameRule, Problem, Row, format_p50,
};
pub use evaluate::{EvaluatedEvent, Evaluation, Share, SuspectCommit, evaluate, evaluate_history};
pub use exit_status::ExitStatus;
pub use gate::fixed::{FixedFinding, FixedRule, FixedVerdict};
pub use gate::{
    COMPARISON_SCHEMA, COMPARISON_SCHEMA_VERSION, ComparedMetric, Comparison, GateError,
    GateRequest, GateResult, GateRules, ReplayRequest, ReplayResult, ReplayedFile, gate, replay,
};
pub use hosts::{HostEntry, Hosts, HostsError};
pub use identity::{HostKind, Identity, KNOWN_ABIS};
pub use import::{
    ImportError, ImportRequest, ImportResult, ImportedLifecycle, ImportedProfile, ImportedRecord,
    PhaseSummary, import,
};
pub use lifecycle_document::{DocumentError, LIFECYCLE_SCHEMA, LIFECYCLE_SCHEMA_VERSION};
pub use metric_name::Prefix;
pub use persist::{PersistError, PersistRequest, PersistResult, RowKey, persist};
pub use provenance::{
    CommitRange, GitError, Provenance, ProvenanceRequest, ProvenanceVerdict, is_repository,
    provenance,
};
pub use replace_file::{ReplaceError, write_file};
pub use report::{Report, ReportRequest, SeriesReport, report};
