//! No file of source or documentation is longer than [`MAX_LINES`]: what outgrows it is two things.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::workspace::Workspace;

/// The longest a file may be, in lines, tests included.
const MAX_LINES: usize = 800;

/// Extensions of files that people write and read. Data (CSV, golden files, Cargo.lock) may be long.
const EXTENSIONS: &[&str] = &["rs", "c", "h", "md", "toml", "sh", "py"];

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in workspace.files()? {
        if is_written_by_people(&file) {
            let lines = workspace.read(&file)?.lines().count();
            if lines > MAX_LINES {
                let message = format!("{lines} lines, at most {MAX_LINES} are allowed");
                findings.push(Finding::new(&file, 0, message));
            }
        }
    }
    Ok(findings)
}

fn is_written_by_people(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) || file.starts_with(".ci")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_counts_and_data_does_not() {
        for file in ["a/b.rs", "doc/a.md", ".ci/run", "x.c"] {
            assert!(is_written_by_people(Path::new(file)), "{file}");
        }
        for file in ["Cargo.lock", "data/x.csv", "LICENSE-MIT", "a.bin"] {
            assert!(!is_written_by_people(Path::new(file)), "{file}");
        }
    }
}
