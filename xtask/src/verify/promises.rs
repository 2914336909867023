//! Every promise of the threat model names tests that exist.
//!
//! A promise is a row of a table with the columns `promise` and `test`. The second column names test functions in
//! backquotes; the word `fuzz` before one makes it a fuzz target.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::rust_text;
use crate::workspace::Workspace;

const PAGE: &str = "doc/design/threat-model.md";
const HEADER: &str = "| promise | test |";

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut tests = HashSet::new();
    let mut targets = HashSet::new();
    for file in workspace.files()? {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        if file.starts_with("fuzz/fuzz_targets") {
            targets.extend(
                file.file_stem()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
        tests.extend(tests_in(&workspace.read(&file)?));
    }
    let text = workspace.read(Path::new(PAGE))?;
    Ok(findings(&text, &tests, &targets))
}

/// Names of the functions in a source file that have the attribute `test`.
fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in rust_text::split(source) {
        let code = line.code.trim();
        if code.starts_with("#[test]") {
            is_test = true;
        } else if let Some(rest) = code.strip_prefix("fn ") {
            if std::mem::take(&mut is_test) {
                names.extend(rest.split_once('(').map(|(name, _)| name.trim().to_owned()));
            }
        } else if !code.is_empty() && !code.starts_with("#[") {
            is_test = false;
        }
    }
    names
}

fn findings(text: &str, tests: &HashSet<String>, targets: &HashSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_table = false;
    let mut promises = 0;
    for (index, line) in text.lines().enumerate() {
        if line == HEADER {
            in_table = true;
            continue;
        }
        in_table &= line.starts_with('|');
        if !in_table || line.starts_with("| ---") {
            continue;
        }
        promises += 1;
        let mut fault = |what: String| findings.push(Finding::new(PAGE, index + 1, what));
        let column = line
            .trim_end_matches(['|', ' '])
            .rsplit_once(" | ")
            .map_or("", |(_, column)| column);
        let pieces: Vec<&str> = column.split('`').collect();
        if pieces.len() < 3 {
            fault("the promise names no test".to_owned());
        }
        // Before, in and between backquotes by turns.
        for pair in pieces.chunks_exact(2) {
            let (before, name) = (pair[0], pair[1]);
            if before.trim_end().ends_with("fuzz") {
                if !targets.contains(name) {
                    fault(format!("there is no fuzz target `{name}`"));
                }
            } else if !tests.contains(name) {
                fault(format!("there is no test `{name}`"));
            }
        }
    }
    if promises == 0 {
        findings.push(Finding::new(PAGE, 0, format!("no table `{HEADER}`")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &str) -> Vec<String> {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let text = format!("{HEADER}\n| --- | --- |\n{rows}\n");
        findings(&text, &set(&["good"]), &set(&["target"]))
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn tests_and_targets_that_exist_pass() {
        assert_eq!(found("| it holds | `good`, fuzz `target` |"), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        assert_eq!(
            found("| a | `bad` |\n| b `good` | fuzz `good` |\n| c | later |"),
            [
                "there is no test `bad`",
                "there is no fuzz target `good`",
                "the promise names no test"
            ]
        );
    }

    #[test]
    fn a_function_is_a_test_by_its_attribute() {
        let source = "#[test]\n// why\n#[ignore]\nfn one() {\n    let x = 1;\n}\nfn two() {}\n\
                      mod m {\n    #[test]\n    fn three(x in 0..9u8) {}\n}\n#[test]\nstruct S;\nfn four() {}\n";
        assert_eq!(tests_in(source), ["one", "three"]);
    }

    #[test]
    fn a_page_without_promises_is_one_too_few() {
        assert_eq!(findings("", &HashSet::new(), &HashSet::new()).len(), 1);
    }
}
