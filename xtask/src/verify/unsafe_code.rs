//! `unsafe` stands only where it must, says why it is sound, and is opted into with a reason.
//!
//! The compiler refuses `unsafe` in a module that did not opt in (the workspace denies `unsafe_code`), and
//! clippy wants a comment on each block. This check adds what neither knows: *which* modules may opt in,
//! that the opting-in gives a reason, that all crates take part in the workspace's lints, and that every
//! other crate forbids unsafe code for good.

use std::path::Path;

use anyhow::Result;

use super::Finding;
use crate::rust_text::{self, Line};
use crate::workspace::{Package, Workspace};

/// Crates that cannot forbid `unsafe` as a whole, because some of their modules need it.
const CRATES_WITH_UNSAFE: &[&str] = &[
    "nvx-host",
    "nvx-memory",
    "nvx-hypervisor",
    // For tests only.
    "nvx-whp-double",
];

/// Where `unsafe` may stand, relative to the root: a path that starts with one of these.
const PLACES: &[&str] = &[
    "crates/host/src/",
    "crates/memory/src/",
    "crates/hypervisor/src/kvm",
    "crates/hypervisor/src/whp",
    "crates/hypervisor/src/soft",
    "crates/whp-double/src/",
];

/// Single files beyond [`PLACES`], each with its reason. Empty is how it should be.
const EDGES: &[(&str, &str)] = &[];

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in workspace.files()? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let source = workspace.read(&file)?;
            findings.extend(scan(&file, &source));
        }
    }
    for package in &workspace.packages {
        findings.extend(check_package(workspace, package)?);
    }
    Ok(findings)
}

/// The crate takes the workspace's lints, and forbids unsafe code unless it is one that cannot.
fn check_package(workspace: &Workspace, package: &Package) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let manifest = std::fs::read_to_string(&package.manifest)?;
    if !takes_workspace_lints(&manifest) {
        let file = relative(workspace, &package.manifest);
        findings.push(Finding::new(file, 0, "needs [lints] workspace = true"));
    }
    if !CRATES_WITH_UNSAFE.contains(&package.name.as_str()) {
        for root in &package.roots {
            if !forbids_unsafe(&std::fs::read_to_string(root)?) {
                let file = relative(workspace, root);
                findings.push(Finding::new(file, 0, "needs #![forbid(unsafe_code)]"));
            }
        }
    }
    Ok(findings)
}

fn relative<'a>(workspace: &Workspace, path: &'a Path) -> &'a Path {
    path.strip_prefix(&workspace.root).unwrap_or(path)
}

fn takes_workspace_lints(manifest: &str) -> bool {
    manifest
        .split("[lints]")
        .nth(1)
        .is_some_and(|rest| rest.trim_start().starts_with("workspace = true"))
}

fn forbids_unsafe(source: &str) -> bool {
    rust_text::split(source)
        .iter()
        .any(|line| line.code.trim() == "#![forbid(unsafe_code)]")
}

fn may_be_unsafe(file: &Path) -> bool {
    let name = file.to_string_lossy();
    // Tests of their own crate target drive the kernel directly; they are not shipped.
    let test = file.components().any(|part| part.as_os_str() == "tests");
    test || PLACES.iter().any(|place| name.starts_with(place))
        || EDGES.iter().any(|(edge, _)| *edge == name)
}

fn scan(file: &Path, source: &str) -> Vec<Finding> {
    let lines = rust_text::split(source);
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        for at in rust_text::find_word(&line.code, "unsafe") {
            let number = index + 1;
            if !may_be_unsafe(file) {
                findings.push(Finding::new(file, number, "`unsafe` may not stand here"));
            }
            let need = need(&lines, index, at + "unsafe".len());
            if let Some(message) = need.missing_from(&comments_about(&lines, index)) {
                findings.push(Finding::new(file, number, message));
            }
        }
    }
    findings.extend(opt_ins_without_reason(file, &lines));
    findings
}

/// What a use of `unsafe` has to say for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A pointer type: says nothing, promises nothing.
    Nothing,
    /// A function or trait: tells callers what they must uphold.
    Contract,
    /// A block, impl, extern block or attribute: says why it is sound.
    Argument,
}

impl Need {
    fn missing_from(self, comments: &str) -> Option<&'static str> {
        let argued = comments.contains("SAFETY:");
        match self {
            Self::Nothing => None,
            Self::Contract if argued || comments.contains("# Safety") => None,
            Self::Contract => Some("unsafe item without a `# Safety` section"),
            Self::Argument if argued => None,
            Self::Argument => Some("`unsafe` without a `// SAFETY:` comment"),
        }
    }
}

/// Looks at what follows the keyword, which may be on the next lines.
fn need(lines: &[Line], index: usize, after: usize) -> Need {
    let mut rest = lines[index].code[after..].to_owned();
    for line in lines.iter().skip(index + 1).take(3) {
        rest.push(' ');
        rest.push_str(&line.code);
    }
    let mut rest = rest.trim_start();
    if let Some(external) = rest.strip_prefix("extern") {
        rest = external.trim_start();
        if let Some(literal) = rest.strip_prefix('"') {
            rest = literal
                .split_once('"')
                .map_or("", |(_, tail)| tail)
                .trim_start();
        }
    }
    match rest.strip_prefix("fn") {
        Some(tail) if tail.trim_start().starts_with('(') => Need::Nothing,
        Some(_) => Need::Contract,
        None if rest.starts_with("trait") => Need::Contract,
        None => Need::Argument,
    }
}

/// The comments on the line, and those above it that belong to the same statement or item.
fn comments_about(lines: &[Line], index: usize) -> String {
    let mut comments = lines[index].comment.clone();
    for line in lines[..index].iter().rev() {
        let code = line.code.trim();
        let attribute = code.starts_with("#[") || code.starts_with("#![");
        let ends_statement = code.ends_with([';', '{', '}']) || code.contains("=>");
        let blank = code.is_empty() && line.comment.is_empty();
        if blank || (ends_statement && !attribute) {
            break;
        }
        comments.push('\n');
        comments.push_str(&line.comment);
    }
    comments
}

/// `allow` or `expect` of `unsafe_code` whose attribute has no non-empty `reason`.
fn opt_ins_without_reason(file: &Path, lines: &[Line]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let opens = ["allow(", "expect("]
            .iter()
            .find_map(|word| line.code.find(word));
        let Some(at) = opens.filter(|_| line.code.contains("#[") || line.code.contains("#!["))
        else {
            continue;
        };
        let mut attribute = line.code[at..].to_owned();
        for next in lines.iter().skip(index + 1).take(8) {
            if attribute.contains(']') {
                break;
            }
            attribute.push_str(&next.code);
        }
        let attribute = attribute
            .split(']')
            .next()
            .unwrap_or_default()
            .replace(' ', "");
        let opts_in = !rust_text::find_word(&attribute, "unsafe_code").is_empty();
        if opts_in && !attribute.contains("reason=\"_") {
            findings.push(Finding::new(
                file,
                index + 1,
                "unsafe_code opted into without a reason",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: &str = "crates/memory/src/linux.rs";

    fn messages(file: &str, source: &str) -> Vec<String> {
        scan(Path::new(file), source)
            .iter()
            .map(|finding| format!("{}: {}", finding.line, finding.message))
            .collect()
    }

    #[test]
    fn argued_unsafe_in_its_place_passes() {
        let source = "\
#![expect(unsafe_code, reason = \"maps memory\")]
#![expect(
    unsafe_code,
    reason = \"long\"
)]
fn f() {
    // SAFETY: the pointer is ours.
    let x =
        unsafe { g() };
    // SAFETY: both are.
    #[cfg(unix)]
    unsafe { g() }
}
/// Text.
///
/// # Safety
/// Callers hold the lock.
pub unsafe fn h() {}
type F = unsafe extern \"C\" fn(i32);
// SAFETY: plain data.
unsafe impl Send for X {}
";
        assert_eq!(messages(MEMORY, source), Vec::<String>::new());
    }

    #[test]
    fn silent_unsafe_fails() {
        let source = "\
fn f() {
    // SAFETY: this one only.
    unsafe { g() };
    unsafe { g() };
    match x {
        // SAFETY: the first arm.
        1 => unsafe { g() },
        2 => unsafe { g() },
    }
}
unsafe impl Send for X {}
pub unsafe fn h() {}
// SAFETY: too far away.

unsafe impl Sync for X {}
";
        assert_eq!(
            messages(MEMORY, source),
            [
                "4: `unsafe` without a `// SAFETY:` comment",
                "8: `unsafe` without a `// SAFETY:` comment",
                "11: `unsafe` without a `// SAFETY:` comment",
                "12: unsafe item without a `# Safety` section",
                "15: `unsafe` without a `// SAFETY:` comment",
            ]
        );
    }

    #[test]
    fn place_matters_except_in_integration_tests() {
        let source = "// SAFETY: fine.\nunsafe { f() }\n";
        for file in [
            "crates/host/src/linux/files.rs",
            "crates/hypervisor/src/kvm/vcpu.rs",
            "crates/hypervisor/src/kvm.rs",
            "crates/probe-guest/tests/native_kvm.rs",
        ] {
            assert_eq!(messages(file, source), Vec::<String>::new(), "{file}");
        }
        for file in ["crates/hypervisor/src/lib.rs", "crates/vmm/src/run.rs"] {
            assert_eq!(
                messages(file, source),
                ["2: `unsafe` may not stand here"],
                "{file}"
            );
        }
        assert_eq!(
            messages("crates/probe-guest/tests/native_kvm.rs", "unsafe { f() }"),
            ["1: `unsafe` without a `// SAFETY:` comment"]
        );
    }

    #[test]
    fn words_in_strings_and_comments_do_not_count() {
        let source = "// unsafe { }\nlet a = \"unsafe { }\"; /* unsafe */ let unsafe_code = 1;";
        assert_eq!(
            messages("crates/vmm/src/run.rs", source),
            Vec::<String>::new()
        );
    }

    #[test]
    fn opting_in_needs_a_reason() {
        for source in [
            "#![allow(unsafe_code)]",
            "#[expect(unsafe_code, reason = \"\")]",
            "#[allow(\n    unsafe_code,\n)]\nmod linux; // reason = \"x\"",
        ] {
            assert_eq!(
                messages(MEMORY, source),
                ["1: unsafe_code opted into without a reason"]
            );
        }
    }

    #[test]
    fn crate_level_rules() {
        assert!(forbids_unsafe("//! Doc.\n#![forbid(unsafe_code)]\n"));
        assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n"));
        assert!(takes_workspace_lints(
            "[package]\n\n[lints]\nworkspace = true\n"
        ));
        assert!(!takes_workspace_lints("[package]\n[lints.rust]\n"));
    }
}
