//! The host beside the history: which machine each accepted run was measured on.
//!
//! A history has no column for the host, and stays as it is. Beside `NAME.csv` may stand
//! `NAME.hosts.jsonl`, with one JSON object per line and commit: `commit`, `fingerprint` (a text that
//! is equal for equal kinds of host) and optionally `host`, what the fingerprint was made of. With it
//! a flip between two kinds of host is named as such, and cannot be taken for a change of the code.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::csv::{HistoryError, check_commit, read_bytes};

/// One accepted run's host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostEntry {
    /// The commit.
    pub commit: String,
    /// Equal for equal kinds of host.
    pub fingerprint: String,
    /// What the fingerprint was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<serde_json::Value>,
}

/// Hosts by commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hosts {
    entries: Vec<HostEntry>,
    by_commit: HashMap<String, usize>,
}

/// Why a side file was not read.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// It cannot be read as a file.
    #[error("hosts beside a history")]
    Read(#[source] HistoryError),
    /// A line is not what it must be.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The side file.
        path: PathBuf,
        /// The line, the first is 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A line is not the JSON that it must be.
    #[error("{}:{line}: not a host's JSON object", path.display())]
    Json {
        /// The side file.
        path: PathBuf,
        /// The line, the first is 1.
        line: usize,
        /// The parser's reason.
        source: serde_json::Error,
    },
}

impl Hosts {
    /// The side file's path for a history's or a rows file's.
    pub fn path_beside(csv: &Path) -> PathBuf {
        csv.with_extension("hosts.jsonl")
    }

    /// Reads the side file of a history; empty where there is none.
    ///
    /// # Errors
    /// There is one, and it is wrong.
    pub fn read_beside(csv: &Path) -> Result<Self, HostsError> {
        let path = Self::path_beside(csv);
        if !path.exists() {
            return Ok(Self::default());
        }
        Self::read(&path)
    }

    /// Reads a side file.
    ///
    /// # Errors
    /// It cannot be read, or is wrong.
    pub fn read(path: &Path) -> Result<Self, HostsError> {
        let content = read_bytes(path).map_err(HostsError::Read)?;
        Self::parse(path, &content)
    }

    fn parse(path: &Path, content: &[u8]) -> Result<Self, HostsError> {
        let mut hosts = Self::default();
        let fault = |line, what| HostsError::Line {
            path: path.to_owned(),
            line,
            what,
        };
        let text = std::str::from_utf8(content).map_err(|_| fault(1, "not UTF-8"))?;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let entry: HostEntry =
                serde_json::from_str(line).map_err(|source| HostsError::Json {
                    path: path.to_owned(),
                    line: number,
                    source,
                })?;
            if !check_commit(&entry.commit) {
                return Err(fault(
                    number,
                    "the commit is not 40 or 64 lower-case hexadecimal digits",
                ));
            }
            if entry.fingerprint.is_empty() {
                return Err(fault(number, "the fingerprint is empty"));
            }
            if !hosts.add(entry) {
                return Err(fault(number, "the commit has a host already"));
            }
        }
        Ok(hosts)
    }

    /// Adds a commit's host; `false` where it has one already, which stays.
    pub fn add(&mut self, entry: HostEntry) -> bool {
        if self.by_commit.contains_key(&entry.commit) {
            return false;
        }
        self.by_commit
            .insert(entry.commit.clone(), self.entries.len());
        self.entries.push(entry);
        true
    }

    /// The fingerprint of a commit's host.
    pub fn fingerprint(&self, commit: &str) -> Option<&str> {
        let at = *self.by_commit.get(commit)?;
        self.entries.get(at).map(|entry| entry.fingerprint.as_str())
    }

    /// Every entry, in the order in which they were accepted.
    pub fn entries(&self) -> &[HostEntry] {
        &self.entries
    }

    /// The side file as text.
    pub fn to_json_lines(&self) -> String {
        self.entries
            .iter()
            .filter_map(|entry| serde_json::to_string(entry).ok())
            .map(|line| line + "\n")
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(commit: char, fingerprint: &str) -> String {
        format!(
            "{{\"commit\":\"{}\",\"fingerprint\":\"{fingerprint}\"}}\n",
            commit.to_string().repeat(40)
        )
    }

    #[test]
    fn hosts_are_read_and_written_back() {
        let text = line('a', "one") + &line('b', "two");
        let hosts = Hosts::parse(Path::new("x"), text.as_bytes()).expect("well formed");
        assert_eq!(hosts.fingerprint(&"b".repeat(40)), Some("two"));
        assert_eq!(hosts.fingerprint(&"c".repeat(40)), None);
        assert_eq!(hosts.to_json_lines(), text);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, wanted) in [
            (
                line('a', "one") + &line('a', "two"),
                "x:2: the commit has a host already",
            ),
            (line('g', "one"), "x:1: the commit is not"),
            (line('a', ""), "x:1: the fingerprint is empty"),
            ("{}\n".to_owned(), "x:1: not a host's JSON object"),
        ] {
            let error = Hosts::parse(Path::new("x"), text.as_bytes()).expect_err("wrong");
            assert!(error.to_string().starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn a_history_without_hosts_has_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let csv = directory
            .path()
            .join("linux-kvm-bare-metal-microvm-v2-1vcpu.csv");
        assert_eq!(
            Hosts::path_beside(&csv)
                .file_name()
                .and_then(|name| name.to_str()),
            Some("linux-kvm-bare-metal-microvm-v2-1vcpu.hosts.jsonl")
        );
        assert_eq!(Hosts::read_beside(&csv).expect("none"), Hosts::default());
    }
}
