//! Differences between operating systems end at the boundary of a module.
//!
//! A condition on the operating system (`cfg` with `unix`, `windows`, `target_os` or `target_family`) may
//! stand at a module, at the `use` that gives a system's module the name by which the rest knows it, and
//! at the head of a file. Tests may stand behind one too, since some have an object that only one system
//! has. Anything else (functions, statements, fields, `cfg!` in an expression) is logic with systems mixed
//! into it.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::rust_text::{self, Line};
use crate::workspace::Workspace;

/// The code that is built for more than one system.
const PLACE: &str = "crates/";
/// What makes a condition one on the operating system.
const WORDS: [&str; 4] = ["unix", "windows", "target_os", "target_family"];
/// What such a condition may stand at, behind its visibility.
const BOUNDARIES: [&str; 2] = ["mod", "use"];
/// Single files where it may stand elsewhere, each with its reason.
const EDGES: &[(&str, &str)] = &[(
    "crates/nvx/src/main.rs",
    "on Linux the program has an entry point of its own, which is said of the whole program",
)];

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in workspace.files()? {
        let is_source = file.extension().is_some_and(|extension| extension == "rs");
        if is_source && file.starts_with(PLACE) && !is_edge(&file) {
            findings.extend(scan(&file, &workspace.read(&file)?));
        }
    }
    Ok(findings)
}

fn is_edge(file: &Path) -> bool {
    EDGES.iter().any(|(edge, _)| file == Path::new(edge))
}

fn scan(file: &Path, source: &str) -> Vec<Finding> {
    if is_test_file(file) {
        return Vec::new();
    }
    let lines = rust_text::split(source);
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if line.code.trim_start().starts_with("mod tests {") {
            // Tests are the last item of a file.
            break;
        }
        let Some(condition) = condition(&lines, index) else {
            continue;
        };
        if !is_at_boundary(&lines, index, &condition) {
            let message = "a condition on the operating system at something other than a module \
                           or its use: move what differs into a module of each system";
            findings.push(Finding::new(file, index + 1, message));
        }
    }
    findings
}

/// Files that consist of tests.
fn is_test_file(file: &Path) -> bool {
    file.components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The condition on the operating system that begins in this line, up to the end of its parentheses.
fn condition(lines: &[Line], index: usize) -> Option<String> {
    let code = &lines.get(index)?.code;
    let start = ["cfg", "cfg_attr"]
        .iter()
        .flat_map(|word| rust_text::find_word(code, word))
        .min()?;
    let mut text = String::new();
    let mut depth = 0_i32;
    let rest = std::iter::once(&code[start..]);
    for part in rest.chain(lines[index + 1..].iter().map(|line| line.code.as_str())) {
        for character in part.chars() {
            text.push(character);
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if character == ')' && depth == 0 {
                let is_one = WORDS
                    .iter()
                    .any(|word| !rust_text::find_word(&text, word).is_empty());
                return is_one.then_some(text);
            }
        }
        if depth == 0 {
            // The word alone, as in a function's name or a path.
            return None;
        }
    }
    None
}

fn is_at_boundary(lines: &[Line], index: usize, condition: &str) -> bool {
    let code = lines[index].code.trim_start();
    if code.starts_with("#![") {
        return condition.starts_with("cfg(");
    }
    // A module that has another file on one system is a boundary as well.
    let names_file = code.starts_with("#[cfg_attr(") && condition.contains("path = ");
    if !code.starts_with("#[cfg(") && !names_file {
        return false;
    }
    if !rust_text::find_word(condition, "test").is_empty() {
        return true;
    }
    // The rest of this line, behind the attribute, or what follows the attributes after it.
    let item = lines[index..]
        .iter()
        .map(|line| line.code.trim())
        .map(|code| match code.strip_prefix("#[") {
            Some(attribute) => attribute.rsplit_once(']').map_or("", |(_, rest)| rest),
            None => code,
        })
        .map(str::trim)
        .find(|code| !code.is_empty());
    item.is_some_and(|item| {
        let mut words = item.split_whitespace();
        let first = words.next().unwrap_or_default();
        let word = if first.starts_with("pub") {
            words.find(|word| !word.ends_with(')'))
        } else {
            Some(first)
        };
        word.is_some_and(|word| BOUNDARIES.contains(&word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(source: &str) -> Vec<usize> {
        scan(Path::new("crates/x/src/lib.rs"), source)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn modules_and_uses_are_boundaries() {
        let source = r##"
#[cfg(unix)]
mod linux;
#[cfg(windows)]
#[path = "other.rs"]
pub(crate) mod windows;
#[cfg(target_os = "linux")]
pub(in super::super) use linux as os;
#[cfg(all(windows, feature = "x"))] pub use windows::y;
// #[cfg(windows)] is a comment
#[cfg(test)]
#[cfg(unix)]
mod tests;
#[cfg_attr(not(unix), path = "elsewhere.rs")]
mod directory;
const TEXT: &str = "#[cfg(unix)]";
"##;
        assert_eq!(lines_found(source), [0; 0]);
        assert_eq!(
            lines_found("#![cfg(target_os = \"linux\")]\nfn f() {}\n"),
            [0; 0]
        );
        assert_eq!(lines_found("#[cfg(feature = \"x\")]\nfn f() {}\n"), [0; 0]);
    }

    #[test]
    fn anything_else_is_found() {
        for source in [
            "#[cfg(unix)]\nfn f() {}\n",
            "#[cfg(unix)]\npub(crate) const fn f() {}\n",
            "#[cfg(all(\n    windows,\n    feature = \"x\"\n))]\nfn f() {}\n",
            "let a = if cfg!(windows) { 1 } else { 2 };\n",
            "#[cfg_attr(unix, derive(Debug))]\nmod m;\n",
            "#![cfg_attr(unix, allow(unused))]\n",
        ] {
            assert_eq!(lines_found(source), [1], "{source}");
        }
        assert_eq!(
            lines_found("struct S {\n    #[cfg(unix)]\n    a: u8,\n}\n"),
            [2]
        );
    }

    #[test]
    fn tests_may_have_objects_of_one_system() {
        let source = "#[cfg(test)]\nmod tests {\n    #[cfg(unix)]\n    #[test]\n    fn t() {}\n}\n";
        assert_eq!(lines_found(source), [0; 0]);
        let gated = "#[cfg(all(test, target_os = \"linux\"))]\nfn helper() {}\n";
        assert_eq!(lines_found(gated), [0; 0]);
        let file = Path::new("crates/x/src/y/tests.rs");
        assert_eq!(scan(file, "#[cfg(unix)]\nfn t() {}\n"), []);
    }
}
