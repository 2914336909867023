//! `nvx perf collect`: an accepted result of our own becomes rows.
//!
//! Refused by name are results that are *unvalidated*, *disturbed*, *incomplete*, *emulated* (on a
//! platform that does not say so) or *mismatched* (another size, another teardown, medians that their
//! samples do not give). A result can be collected under another commit than the measured one only
//! with a [`Provenance`] that proves the two to be the same change; the proof is part of what is
//! collected.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::csv::{History, HistoryError, NameRule, check_commit, read_bytes};
use crate::hosts::{HostEntry, Hosts, HostsError};
use crate::identity::{HostKind, Identity};
use crate::lifecycle_document::{
    Document, DocumentError, LIFECYCLE_SCHEMA, LIFECYCLE_SCHEMA_VERSION,
};
use crate::metric_name::Prefix;
use crate::provenance::Provenance;
use crate::replace_file::{ReplaceError, ReplaceGuard};

/// What to collect.
#[derive(Clone, Debug)]
pub struct CollectRequest {
    /// The result document.
    pub result: PathBuf,
    /// The history that the rows are for: its names are used.
    pub history: Option<PathBuf>,
    /// The platform's name. It may repeat what the result says; it cannot change it.
    pub platform: Option<String>,
    /// The commit to collect under, where it is not the measured one.
    pub commit: Option<String>,
    /// The proof (`nvx perf provenance --json`) that the two are the same change.
    pub provenance: Option<PathBuf>,
}

/// Rows that may become part of a history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectResult {
    /// What the rows are about.
    pub identity: Identity,
    /// The commit that they are of.
    pub commit: String,
    /// The commit that was measured.
    pub measured_commit: String,
    /// The proof, where the two differ.
    pub provenance: Option<Provenance>,
    /// How many rows there are.
    pub rows: usize,
    /// The rows, as a file.
    pub csv: String,
    /// The host that they were measured on.
    pub host: Option<HostEntry>,
}

/// Why nothing was collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The result is wrong or refused.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The history is wrong.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The hosts beside the rows are wrong.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The history is about something else than the result.
    #[error("{}: is of {found}, the result is of {wanted}: mismatched", path.display())]
    OtherIdentity {
        /// The history.
        path: PathBuf,
        /// What it is about.
        found: Identity,
        /// What the result is about.
        wanted: Identity,
    },
    /// A commit is not an object name.
    #[error("'{commit}' is no commit: 40 or 64 lower-case hexadecimal digits")]
    Commit {
        /// What was given.
        commit: String,
    },
    /// Another commit was asked for without a proof.
    #[error(
        "the result is of commit {measured}; to collect it under {wanted} needs a provenance that proves them the same"
    )]
    NeedsProof {
        /// The measured commit.
        measured: String,
        /// The wanted one.
        wanted: String,
    },
    /// The proof proves something else.
    #[error("{}: {what}", path.display())]
    Proof {
        /// The proof.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The proof is not JSON of the form that it must have.
    #[error("{}: not a provenance", path.display())]
    ProofJson {
        /// The proof.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// The rows could not be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
}

/// Turns an accepted result into rows.
///
/// # Errors
/// The result is wrong or refused; see [`CollectError`].
pub fn collect(request: &CollectRequest) -> Result<CollectResult, CollectError> {
    let document = Document::read(&request.result)?;
    check(&document)?;
    let identity = document.identity(request.platform.as_deref())?;
    check_emulation(&document, &identity)?;
    let measured_commit = document.text("controls.commit")?.to_owned();
    let (commit, provenance) = shipped_commit(request, &measured_commit)?;
    for commit in [&commit, &measured_commit] {
        if !check_commit(commit) {
            return Err(CollectError::Commit {
                commit: commit.clone(),
            });
        }
    }
    let prefix = prefix_for(request.history.as_deref(), &identity, Prefix::Nvx)?;
    let rows = document.rows(identity.clone(), &commit, prefix)?;
    let csv = rows.to_csv();
    // Read back: a platform or ABI that no history can have is found here.
    History::parse(&request.result, csv.as_bytes(), NameRule::Rows)?;
    Ok(CollectResult {
        host: host_of(&document, &commit),
        identity,
        commit,
        measured_commit,
        provenance,
        rows: rows.row_count(),
        csv,
    })
}

fn check(document: &Document) -> Result<(), DocumentError> {
    document.expect("mismatched", "schema", &LIFECYCLE_SCHEMA.into())?;
    document.expect(
        "mismatched",
        "schema_version",
        &LIFECYCLE_SCHEMA_VERSION.into(),
    )?;
    document.expect("incomplete", "controls.complete", &json!(true))?;
    document.expect("unvalidated", "controls.validated", &json!(true))?;
    document.expect("disturbed", "controls.disturbed", &json!(false))?;
    document.expect_accepted_controls("lifecycle")
}

/// Emulated results enter files of emulated platforms only, and no others enter those.
fn check_emulation(document: &Document, identity: &Identity) -> Result<(), DocumentError> {
    let emulated = document
        .member("controls.emulated")
        .and_then(Value::as_bool)
        .ok_or_else(|| document.fault("controls.emulated", "true or false"))?;
    let platform_is = HostKind::of_platform(&identity.platform) == Some(HostKind::Emulated);
    if emulated != platform_is {
        let name = if emulated { "emulated" } else { "mismatched" };
        return Err(document.refusal(name, "controls.emulated", emulated, platform_is));
    }
    Ok(())
}

/// The commit to collect under, and the proof where it is not the measured one.
fn shipped_commit(
    request: &CollectRequest,
    measured: &str,
) -> Result<(String, Option<Provenance>), CollectError> {
    let wanted = request.commit.as_deref().unwrap_or(measured);
    let Some(path) = &request.provenance else {
        if wanted == measured {
            return Ok((measured.to_owned(), None));
        }
        return Err(CollectError::NeedsProof {
            measured: measured.to_owned(),
            wanted: wanted.to_owned(),
        });
    };
    let content = read_bytes(path)?;
    let proof: Provenance =
        serde_json::from_slice(&content).map_err(|source| CollectError::ProofJson {
            path: path.clone(),
            source,
        })?;
    let fault = |what: String| CollectError::Proof {
        path: path.clone(),
        what,
    };
    if !proof.verdict.is_same() {
        return Err(fault("it says that the two differ".to_owned()));
    }
    let ends = [proof.left.tip.as_str(), proof.right.tip.as_str()];
    if !(ends.contains(&measured) && ends.contains(&wanted)) {
        return Err(fault(format!(
            "it is about {} and {}, not about {measured} and {wanted}",
            ends[0], ends[1]
        )));
    }
    Ok((wanted.to_owned(), Some(proof)))
}

/// The prefix that the target history uses.
pub(crate) fn prefix_for(
    history: Option<&Path>,
    identity: &Identity,
    otherwise: Prefix,
) -> Result<Prefix, CollectError> {
    let Some(path) = history.filter(|path| path.exists()) else {
        return Ok(otherwise);
    };
    let history = History::read(path, NameRule::History)?;
    if history.identity != *identity {
        return Err(CollectError::OtherIdentity {
            path: path.to_owned(),
            found: history.identity,
            wanted: identity.clone(),
        });
    }
    Ok(history.prefix().unwrap_or(otherwise))
}

fn host_of(document: &Document, commit: &str) -> Option<HostEntry> {
    let fingerprint = document.member("host.fingerprint")?.as_str()?.to_owned();
    Some(HostEntry {
        commit: commit.to_owned(),
        fingerprint,
        host: document.member("host").cloned(),
    })
}

impl CollectResult {
    /// Writes the rows to a file, and their host beside it.
    ///
    /// # Errors
    /// A file cannot be written, or the hosts that stand there already are wrong.
    pub fn write(&self, path: &Path) -> Result<(), CollectError> {
        if let Some(host) = &self.host {
            let beside = Hosts::path_beside(path);
            let guard = ReplaceGuard::take(&beside)?;
            let mut hosts = Hosts::read_beside(path)?;
            if hosts.add(host.clone()) {
                guard.replace(hosts.to_json_lines().as_bytes())?;
            }
        }
        Ok(ReplaceGuard::take(path)?.replace(self.csv.as_bytes())?)
    }
}

#[cfg(test)]
mod tests;
