//! The few questions that are put to git, with bounded answers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;
/// How much of git's complaint is repeated, in characters.
const COMPLAINT_CHARACTERS: usize = 300;

/// Why git gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The range is not `A..B`.
    #[error("'{range}' is no range of commits: A..B")]
    Range {
        /// What was given.
        range: String,
    },
    /// Git could not be run.
    #[error("{}: cannot run git", repository.display())]
    Run {
        /// The directory.
        repository: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Git refused.
    #[error("{}: git {command} failed: {complaint}", repository.display())]
    Failed {
        /// The directory.
        repository: PathBuf,
        /// The subcommand.
        command: String,
        /// The start of what git said.
        complaint: String,
    },
    /// Git's answer is too long.
    #[error("{}: the answer of git {command} is longer than {MAX_ANSWER_BYTES} bytes", repository.display())]
    TooLong {
        /// The directory.
        repository: PathBuf,
        /// The subcommand.
        command: String,
    },
}

pub(super) struct Git<'a> {
    repository: &'a Path,
}

impl<'a> Git<'a> {
    pub(super) fn new(repository: &'a Path) -> Self {
        Self { repository }
    }

    /// The name of the object that a revision stands for.
    pub(super) fn object(&self, revision: &str) -> Result<String, GitError> {
        let arguments = [
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            revision,
        ];
        let answer = self.ask(&arguments, Stdio::null())?;
        Ok(String::from_utf8_lossy(&answer).trim().to_owned())
    }

    /// The patch-id of everything between two commits, with names, modes and binary content.
    pub(super) fn patch_id(&self, base: &str, tip: &str) -> Result<Option<String>, GitError> {
        let mut diff = self
            .command(&[
                "diff-tree",
                "-p",
                "-r",
                "--full-index",
                "--binary",
                "--no-renames",
                "--no-ext-diff",
                "--no-textconv",
                base,
                tip,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| self.run_error(source))?;
        let input = diff.stdout.take().map_or_else(Stdio::null, Stdio::from);
        let answer = self.ask(&["patch-id", "--verbatim"], input);
        let ended = diff.wait().map_err(|source| self.run_error(source))?;
        let answer = answer?;
        if !ended.success() {
            return Err(self.failure("diff-tree", b""));
        }
        let text = String::from_utf8_lossy(&answer);
        Ok(text.split_whitespace().next().map(str::to_owned))
    }

    /// Every file that differs between two commits, with its mode and blob at the second one.
    pub(super) fn changed_blobs(
        &self,
        base: &str,
        tip: &str,
    ) -> Result<BTreeMap<String, String>, GitError> {
        let arguments = ["diff-tree", "-r", "-z", "--no-renames", base, tip];
        let answer = self.ask(&arguments, Stdio::null())?;
        let mut words = answer
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty());
        let mut blobs = BTreeMap::new();
        // ":<mode> <mode> <blob> <blob> <status>", then the path.
        while let (Some(facts), Some(path)) = (words.next(), words.next()) {
            let facts = String::from_utf8_lossy(facts);
            let facts: Vec<&str> = facts.split_ascii_whitespace().collect();
            let mode_and_blob = format!(
                "{} {}",
                facts.get(1).copied().unwrap_or_default(),
                facts.get(3).copied().unwrap_or_default()
            );
            blobs.insert(String::from_utf8_lossy(path).into_owned(), mode_and_blob);
        }
        Ok(blobs)
    }

    fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new("git");
        command
            .arg("--no-pager")
            .arg("-C")
            .arg(self.repository)
            .args(arguments)
            // Answers must not depend on the caller's settings or take locks.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C");
        command
    }

    fn ask(&self, arguments: &[&str], input: Stdio) -> Result<Vec<u8>, GitError> {
        let name = arguments.first().copied().unwrap_or_default();
        let mut child = self
            .command(arguments)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| self.run_error(source))?;
        let output = child.stdout.take();
        let complaints = child.stderr.take();
        // Read at the same time: a child that fills the one pipe would wait for ever at the other.
        let (answer, complaint) = std::thread::scope(|scope| {
            let complaint = scope.spawn(move || read_bounded(complaints).unwrap_or_default());
            (read_bounded(output), complaint.join().unwrap_or_default())
        });
        let answer = answer.map_err(|source| self.run_error(source))?;
        let ended = child.wait().map_err(|source| self.run_error(source))?;
        if answer.len() as u64 > MAX_ANSWER_BYTES {
            return Err(GitError::TooLong {
                repository: self.repository.to_owned(),
                command: name.to_owned(),
            });
        }
        if !ended.success() {
            return Err(self.failure(name, &complaint));
        }
        Ok(answer)
    }

    fn run_error(&self, source: io::Error) -> GitError {
        GitError::Run {
            repository: self.repository.to_owned(),
            source,
        }
    }

    fn failure(&self, command: &str, complaint: &[u8]) -> GitError {
        let complaint = String::from_utf8_lossy(complaint);
        let start: String = complaint
            .trim()
            .chars()
            .take(COMPLAINT_CHARACTERS)
            .collect();
        GitError::Failed {
            repository: self.repository.to_owned(),
            command: command.to_owned(),
            complaint: if start.is_empty() {
                "it said nothing".to_owned()
            } else {
                start.escape_debug().to_string()
            },
        }
    }
}

/// What a pipe gives, up to one byte more than the longest answer; then it is closed.
fn read_bounded(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
