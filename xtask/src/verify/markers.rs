//! Nothing is left out silently: every `#[ignore]` says why, and no `todo!` or `unimplemented!` stands
//! anywhere, tests included.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::rust_text;
use crate::workspace::Workspace;

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in workspace.files()? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(scan(&file, &workspace.read(&file)?));
        }
    }
    Ok(findings)
}

fn scan(file: &Path, source: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in rust_text::split(source).iter().enumerate() {
        for name in ["todo", "unimplemented"] {
            let used = rust_text::find_word(&line.code, name)
                .iter()
                .any(|at| line.code[at + name.len()..].starts_with('!'));
            if used {
                findings.push(Finding::new(
                    file,
                    index + 1,
                    format!("{name}! is unfinished work"),
                ));
            }
        }
        if line.code.contains("#[ignore") && !gives_reason(&line.code) {
            let message = "#[ignore] without a reason: write #[ignore = \"why\"]";
            findings.push(Finding::new(file, index + 1, message));
        }
    }
    findings
}

/// True if `code` has `ignore = "..."` with something between the quotes (masked, so underscores).
fn gives_reason(code: &str) -> bool {
    code.split("#[ignore")
        .skip(1)
        .all(|rest| rest.replace(' ', "").starts_with("=\"_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_found() {
        let source = "#[ignore]\nfn a() { todo!() }\n#[ignore = \"\"]\nunimplemented!(\"x\");";
        let lines: Vec<usize> = scan(Path::new("a.rs"), source)
            .iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [1, 2, 3, 4]);
    }

    #[test]
    fn reasons_and_mentions_pass() {
        let source = "#[ignore = \"prints a table\"]\n// todo! #[ignore]\nlet todo = \"todo!()\";";
        assert_eq!(scan(Path::new("a.rs"), source), []);
    }
}
