//! Appending accepted rows to a history, and renaming its lifecycle metrics once.
//!
//! Rows whose commit and metric the history has already are kept as they are: an accepted value is
//! never overwritten. What stands beside the rows about their hosts goes beside the history. Everything is checked by reading the new content back before it is put in
//! place, so that a history that was written can be read.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::csv::{History, HistoryError, NameRule, push_row, read_bytes};
use crate::hosts::{Hosts, HostsError};
use crate::identity::Identity;
use crate::metric_name::Prefix;
use crate::replace_file::{ReplaceError, ReplaceGuard};

/// What to append to which history.
#[derive(Clone, Debug)]
pub struct PersistRequest {
    /// The history file; created where it does not exist.
    pub history: PathBuf,
    /// Files of rows, oldest first.
    pub rows: Vec<PathBuf>,
    /// Rename every lifecycle metric of the history to this prefix, before anything is appended.
    pub rename_metrics: Option<Prefix>,
}

/// One row by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowKey {
    /// The commit.
    pub commit: String,
    /// The metric.
    pub metric: String,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PersistResult {
    /// The history file.
    pub history: PathBuf,
    /// The file did not exist before.
    pub created: bool,
    /// Rows that were appended.
    pub appended: Vec<RowKey>,
    /// Rows that the history had already, with the same value or another one: left as they are.
    pub kept: Vec<RowKey>,
    /// Commits whose host was put beside the history.
    pub hosts: Vec<String>,
    /// Names that were changed, old and new.
    pub renamed: Vec<(String, String)>,
}

impl PersistResult {
    /// Whether anything was written.
    pub fn changed(&self) -> bool {
        !self.appended.is_empty() || !self.renamed.is_empty() || !self.hosts.is_empty()
    }

    /// What was done, in a few lines.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} rows appended, {} kept as they are\n",
            self.history.display(),
            self.appended.len(),
            self.kept.len()
        );
        for (old, new) in &self.renamed {
            text.push_str(&format!("renamed {old} to {new}\n"));
        }
        text
    }
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The history or the rows are wrong.
    #[error("nothing was written")]
    History(#[from] HistoryError),
    /// The hosts beside the history or the rows are wrong.
    #[error("nothing was written")]
    Hosts(#[from] HostsError),
    /// The new content would break a rule of the format.
    #[error("nothing was written: the rows do not fit to the history")]
    Result(#[source] HistoryError),
    /// The rows are about something else.
    #[error("{}: the rows are of {found}, the history is of {wanted}", path.display())]
    OtherIdentity {
        /// The file of rows.
        path: PathBuf,
        /// What the rows are about.
        found: Identity,
        /// What the history is about.
        wanted: Identity,
    },
    /// The history would be new, and its name does not say what it is about.
    #[error("{}: a history of {identity} must be named {}", path.display(), identity.file_name())]
    NewName {
        /// The history's path.
        path: PathBuf,
        /// What the rows are about.
        identity: Identity,
    },
    /// There is no history and there are no rows.
    #[error("{}: does not exist and there are no rows to begin it with", path.display())]
    Nothing {
        /// The history's path.
        path: PathBuf,
    },
    /// New rows of a commit that is not the last one: rows are never put into the past.
    #[error(
        "{}: commit {commit} lies before the last commit of the history; metric {metric} cannot be \
         added to the past", path.display()
    )]
    Past {
        /// The file of rows.
        path: PathBuf,
        /// The commit.
        commit: String,
        /// The metric.
        metric: String,
    },
    /// The file could not be replaced.
    #[error("nothing was written")]
    Replace(#[from] ReplaceError),
}

/// Appends rows to a history.
///
/// # Errors
/// See [`PersistError`]; the history is as it was.
pub fn persist(request: &PersistRequest) -> Result<PersistResult, PersistError> {
    let guard = ReplaceGuard::take(&request.history)?;
    let mut result = PersistResult {
        history: request.history.clone(),
        created: !request.history.exists(),
        appended: Vec::new(),
        kept: Vec::new(),
        hosts: Vec::new(),
        renamed: Vec::new(),
    };
    let batches = read_rows(&request.rows)?;
    let (mut text, mut history) = begin(request, &batches, result.created)?;
    if let Some(prefix) = request.rename_metrics {
        text = rename(&text, &mut history, prefix, &mut result.renamed);
    }
    for (path, rows) in &batches {
        append(&mut text, &mut history, path, rows, &mut result)?;
    }
    // Read back before it is put in place: what the rules together forbid is found here.
    History::parse(&request.history, text.as_bytes(), NameRule::History)
        .map_err(PersistError::Result)?;
    // The hosts come first: after a crash between the two, a host without rows says nothing wrong.
    result.hosts = persist_hosts(&guard, request)?;
    if !result.appended.is_empty() || !result.renamed.is_empty() {
        guard.replace(text.as_bytes())?;
    }
    Ok(result)
}

/// Brings what stands beside the rows beside the history.
fn persist_hosts(
    guard: &ReplaceGuard,
    request: &PersistRequest,
) -> Result<Vec<String>, PersistError> {
    let mut hosts = Hosts::read_beside(&request.history)?;
    let mut added = Vec::new();
    for path in &request.rows {
        for entry in Hosts::read_beside(path)?.entries() {
            if hosts.add(entry.clone()) {
                added.push(entry.commit.clone());
            }
        }
    }
    if !added.is_empty() {
        let path = Hosts::path_beside(&request.history);
        guard.replace_companion(&path, hosts.to_json_lines().as_bytes())?;
    }
    Ok(added)
}

fn read_rows(paths: &[PathBuf]) -> Result<Vec<(&Path, History)>, HistoryError> {
    paths
        .iter()
        .map(|path| Ok((path.as_path(), History::read(path, NameRule::Rows)?)))
        .collect()
}

/// The history's text and what it says; that of a new one is a header.
fn begin(
    request: &PersistRequest,
    batches: &[(&Path, History)],
    new: bool,
) -> Result<(String, History), PersistError> {
    let path = &request.history;
    if !new {
        let content = read_bytes(path)?;
        let history = History::parse(path, &content, NameRule::History)?;
        // Parsing has shown that it is UTF-8.
        let text = String::from_utf8_lossy(&content).into_owned();
        return Ok((text, history));
    }
    let Some((_, rows)) = batches.first() else {
        return Err(PersistError::Nothing { path: path.clone() });
    };
    let identity = rows.identity.clone();
    if path.file_name().and_then(|name| name.to_str()) != Some(&identity.file_name()) {
        return Err(PersistError::NewName {
            path: path.clone(),
            identity,
        });
    }
    let history = History::empty(identity);
    Ok((history.to_csv(), history))
}

fn append(
    text: &mut String,
    history: &mut History,
    path: &Path,
    rows: &History,
    result: &mut PersistResult,
) -> Result<(), PersistError> {
    if rows.identity != history.identity {
        return Err(PersistError::OtherIdentity {
            path: path.to_owned(),
            found: rows.identity.clone(),
            wanted: history.identity.clone(),
        });
    }
    for block in &rows.commits {
        let place = history
            .commits
            .iter()
            .position(|known| known.commit == block.commit);
        let is_last = place.is_none_or(|place| place + 1 == history.commits.len());
        for row in &block.rows {
            let Some(metric) = rows.metrics.get(row.metric) else {
                continue;
            };
            let key = RowKey {
                commit: block.commit.clone(),
                metric: metric.name.clone(),
            };
            let known = history.metric_index(&metric.name);
            if let (Some(place), Some(known)) = (place, known)
                && history
                    .commits
                    .get(place)
                    .is_some_and(|block| block.value(known).is_some())
            {
                result.kept.push(key);
                continue;
            }
            if !is_last {
                return Err(PersistError::Past {
                    path: path.to_owned(),
                    commit: key.commit,
                    metric: key.metric,
                });
            }
            push_row(text, history, &block.commit, metric, row.p50);
            result.appended.push(key);
        }
        if place.is_none() {
            history.commits.push(crate::csv::CommitRows {
                commit: block.commit.clone(),
                rows: Vec::new(),
            });
        }
    }
    // A second batch must see what the first one appended.
    *history = History::parse(&result.history, text.as_bytes(), NameRule::History)
        .map_err(PersistError::Result)?;
    Ok(())
}

/// Changes the prefix in the metric column; every other byte stays.
fn rename(
    text: &str,
    history: &mut History,
    prefix: Prefix,
    renamed: &mut Vec<(String, String)>,
) -> String {
    for metric in &mut history.metrics {
        let new = prefix.apply(&metric.name);
        if new != metric.name {
            renamed.push((std::mem::replace(&mut metric.name, new.clone()), new));
        }
    }
    let column = history
        .layout
        .header()
        .split(',')
        .take_while(|name| *name != "metric")
        .count();
    text.lines()
        .map(|line| {
            let cells: Vec<String> = line
                .split(',')
                .enumerate()
                .map(|(at, cell)| {
                    if at == column {
                        prefix.apply(cell)
                    } else {
                        cell.to_owned()
                    }
                })
                .collect();
            cells.join(",") + "\n"
        })
        .collect()
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
