//! Reading what is judged, and checking that the parts belong together.

use std::collections::HashSet;
use std::path::Path;

use super::{GateError, GateRequest};
use crate::csv::{CommitRows, History, Metric, NameRule, Row};

/// The base branch's history; empty where the file does not exist yet.
pub(super) fn read_base(path: &Path, candidate: &History) -> Result<History, GateError> {
    if path.exists() {
        Ok(History::read(path, NameRule::History)?)
    } else {
        Ok(History::empty(candidate.identity.clone()))
    }
}

/// Rows of exactly one commit.
pub(super) fn read_rows(path: &Path) -> Result<History, GateError> {
    let rows = History::read(path, NameRule::Rows)?;
    if rows.commits.len() != 1 {
        return Err(GateError::CommitCount {
            path: path.to_owned(),
            count: rows.commits.len(),
        });
    }
    Ok(rows)
}

/// The commit of rows that [`read_rows`] has read.
pub(super) fn commit_of(rows: &History) -> String {
    rows.commits
        .first()
        .map(|block| block.commit.clone())
        .unwrap_or_default()
}

/// Checks that rows can be compared with a base at all.
pub(super) fn check_fit(
    base_path: &Path,
    base: &History,
    path: &Path,
    rows: &History,
) -> Result<(), GateError> {
    if rows.identity != base.identity {
        return Err(GateError::OtherIdentity {
            path: path.to_owned(),
            found: rows.identity.clone(),
            other: base_path.to_owned(),
            wanted: base.identity.clone(),
        });
    }
    if let (Some(found), Some(wanted)) = (rows.prefix(), base.prefix())
        && found != wanted
    {
        return Err(GateError::OtherPrefix {
            path: path.to_owned(),
            found: found.text(),
            other: base_path.to_owned(),
            wanted: wanted.text(),
        });
    }
    let kind = |metric: &Metric| format!("{} {}", metric.unit, metric.direction.word());
    for metric in &rows.metrics {
        let known = base.metrics.iter().find(|known| known.name == metric.name);
        if let Some(known) = known.filter(|known| *known != metric) {
            return Err(GateError::MetricChanged {
                path: path.to_owned(),
                metric: metric.name.clone(),
                found: kind(metric),
                other: base_path.to_owned(),
                wanted: kind(known),
            });
        }
    }
    Ok(())
}

/// Metrics that the candidate branch's history has dropped. A file that does not exist drops nothing.
pub(super) fn read_resets(request: &GateRequest, base: &History) -> Result<Vec<String>, GateError> {
    let Some(path) = request.candidate_history.as_deref() else {
        return Ok(Vec::new());
    };
    let path = match request.base.file_name() {
        Some(name) if path.is_dir() => path.join(name),
        _ => path.to_owned(),
    };
    if !path.exists() {
        return Ok(Vec::new());
    }
    let history = History::read(&path, NameRule::History)?;
    if history.identity != base.identity {
        return Err(GateError::OtherIdentity {
            path,
            found: history.identity,
            other: request.base.clone(),
            wanted: base.identity.clone(),
        });
    }
    let kept: HashSet<&str> = history
        .metrics
        .iter()
        .map(|metric| metric.name.as_str())
        .collect();
    let resets: Vec<String> = base
        .metrics
        .iter()
        .filter(|metric| !kept.contains(metric.name.as_str()))
        .map(|metric| metric.name.clone())
        .collect();
    if 2 * resets.len() > base.metrics.len() && !request.allow_reset {
        return Err(GateError::TooManyResets {
            path,
            count: resets.len(),
            of: base.metrics.len(),
        });
    }
    Ok(resets)
}

/// The base up to the candidate, without the rows of metrics that are reset, and the candidate's rows
/// as its newest commit.
pub(super) fn joined(base: &History, rows: &History, resets: &[String]) -> History {
    let commit = commit_of(rows);
    let dropped: Vec<bool> = base
        .metrics
        .iter()
        .map(|metric| resets.contains(&metric.name))
        .collect();
    let mut history = History {
        identity: base.identity.clone(),
        layout: base.layout,
        metrics: base.metrics.clone(),
        commits: base
            .commits
            .iter()
            .take_while(|block| block.commit != commit)
            .map(|block| CommitRows {
                commit: block.commit.clone(),
                rows: block
                    .rows
                    .iter()
                    .copied()
                    .filter(|row| dropped.get(row.metric) != Some(&true))
                    .collect(),
            })
            .collect(),
    };
    let newest = rows.commits.iter().flat_map(|block| &block.rows);
    let newest: Vec<Row> = newest
        .filter_map(|row| {
            let metric = rows.metrics.get(row.metric)?;
            let index = history.metric_index(&metric.name).unwrap_or_else(|| {
                history.metrics.push(metric.clone());
                history.metrics.len() - 1
            });
            Some(Row {
                metric: index,
                p50: row.p50,
            })
        })
        .collect();
    history.commits.push(CommitRows {
        commit,
        rows: newest,
    });
    history
}

/// Metrics of the base's newest commit that the candidate lacks.
pub(super) fn not_measured(base: &History, rows: &History) -> Vec<String> {
    let newest = base
        .commits
        .last()
        .map(|block| block.rows.as_slice())
        .unwrap_or_default();
    newest
        .iter()
        .filter_map(|row| base.metrics.get(row.metric))
        .filter(|metric| rows.metric_index(&metric.name).is_none())
        .map(|metric| metric.name.clone())
        .collect()
}
