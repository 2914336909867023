//! `nvx perf provenance A..B C..D`: is the measured build the shipped build?
//!
//! Two ranges of commits are *the same tree* when their tips hold the same files. They are *the same
//! patch* when what each range changes has the same patch-id and every changed file is the same blob at
//! both tips; the bases may then differ in other files. Anything else differs, and is listed. Git
//! itself is asked, through its command line, and nothing is written to the repository.

mod git;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use git::Git;
pub use git::GitError;

/// Most differing files that are listed.
const MAX_LISTED: usize = 100;

/// Which ranges to compare.
#[derive(Clone, Debug)]
pub struct ProvenanceRequest {
    /// A directory of the repository.
    pub repository: PathBuf,
    /// The measured range, as in `main..measured`.
    pub left: String,
    /// The shipped range, as in `main..shipped`.
    pub right: String,
}

/// One range of commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRange {
    /// The range as it was given.
    pub range: String,
    /// The commit that it begins after.
    pub base: String,
    /// The commit that it ends with.
    pub tip: String,
    /// The tree of its tip.
    pub tree: String,
    /// The patch-id of what it changes; `None` where it changes nothing.
    pub patch_id: Option<String>,
}

/// How two ranges relate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum ProvenanceVerdict {
    /// Both tips hold the same files.
    SameTree,
    /// Both change the same files in the same way, to the same content; their bases differ.
    SamePatch {
        /// The changed files.
        files: Vec<String>,
    },
    /// They differ.
    Different {
        /// Whether the patch-ids differ.
        patch_ids_differ: bool,
        /// Files that only one of the ranges changes, or that both change to different content.
        files: Vec<String>,
        /// How many more there are.
        left_off: usize,
    },
}

impl ProvenanceVerdict {
    /// Whether a measurement of the one may stand for the other.
    pub fn is_same(&self) -> bool {
        !matches!(self, Self::Different { .. })
    }
}

/// What is known of two ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The measured range.
    pub left: CommitRange,
    /// The shipped range.
    pub right: CommitRange,
    /// How they relate.
    #[serde(flatten)]
    pub verdict: ProvenanceVerdict,
}

impl Provenance {
    /// The verdict in words.
    pub fn to_text(&self) -> String {
        match &self.verdict {
            ProvenanceVerdict::SameTree => "same tree\n".to_owned(),
            ProvenanceVerdict::SamePatch { files } => format!(
                "same patch: patch-ids equal and the changed files' blobs equal ({} files), bases differ\n",
                files.len()
            ),
            ProvenanceVerdict::Different {
                patch_ids_differ,
                files,
                left_off,
            } => {
                let mut text = format!(
                    "different: patch-ids {}\n",
                    if *patch_ids_differ {
                        "differ"
                    } else {
                        "are equal"
                    }
                );
                for file in files {
                    text.push_str(&format!("  {file}\n"));
                }
                if *left_off > 0 {
                    text.push_str(&format!("  and {left_off} more\n"));
                }
                text
            }
        }
    }
}

/// Compares two ranges of commits.
///
/// # Errors
/// A range is not one, or git fails.
pub fn provenance(request: &ProvenanceRequest) -> Result<Provenance, GitError> {
    let git = Git::new(&request.repository);
    let left = read_range(&git, &request.left)?;
    let right = read_range(&git, &request.right)?;
    let verdict = if left.tree == right.tree {
        ProvenanceVerdict::SameTree
    } else {
        compare(&git, &left, &right)?
    };
    Ok(Provenance {
        left,
        right,
        verdict,
    })
}

fn read_range(git: &Git<'_>, range: &str) -> Result<CommitRange, GitError> {
    let fault = || GitError::Range {
        range: range.to_owned(),
    };
    let (base, tip) = range.split_once("..").ok_or_else(fault)?;
    // Three dots mean another base, and a leading dash would be an option.
    if base.is_empty() || tip.is_empty() || tip.starts_with('.') || range.starts_with('-') {
        return Err(fault());
    }
    let base = git.object(&format!("{base}^{{commit}}"))?;
    let tip = git.object(&format!("{tip}^{{commit}}"))?;
    Ok(CommitRange {
        range: range.to_owned(),
        tree: git.object(&format!("{tip}^{{tree}}"))?,
        patch_id: git.patch_id(&base, &tip)?,
        base,
        tip,
    })
}

fn compare(
    git: &Git<'_>,
    left: &CommitRange,
    right: &CommitRange,
) -> Result<ProvenanceVerdict, GitError> {
    let changed_left = git.changed_blobs(&left.base, &left.tip)?;
    let changed_right = git.changed_blobs(&right.base, &right.tip)?;
    let different = differing(&changed_left, &changed_right);
    let patch_ids_differ = left.patch_id != right.patch_id;
    if different.is_empty() && !patch_ids_differ && left.patch_id.is_some() {
        let files = changed_left.into_keys().collect();
        return Ok(ProvenanceVerdict::SamePatch { files });
    }
    Ok(ProvenanceVerdict::Different {
        patch_ids_differ,
        left_off: different.len().saturating_sub(MAX_LISTED),
        files: different.into_iter().take(MAX_LISTED).collect(),
    })
}

/// Files that are not changed to the same content on both sides.
fn differing(left: &BTreeMap<String, String>, right: &BTreeMap<String, String>) -> Vec<String> {
    let only_right = right.keys().filter(|file| !left.contains_key(*file));
    left.iter()
        .filter(|(file, blob)| right.get(*file) != Some(blob))
        .map(|(file, _)| file)
        .chain(only_right)
        .cloned()
        .collect()
}

/// Whether a directory belongs to a repository; for callers that want to say so early.
pub fn is_repository(directory: &Path) -> bool {
    Git::new(directory).object("HEAD").is_ok()
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
