//! `cargo xtask verify`: everything that can be said about the workspace without running it.
//!
//! Every check runs even if an earlier one failed, so that one run shows all there is to repair. A check
//! gives a list of findings; none means that it passed.

mod file_size;
mod layers;
mod links;
mod markers;
mod platforms;
mod promises;
mod unsafe_code;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::workspace::{Workspace, cargo};

/// One thing that is wrong, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file at fault, relative to the root; empty where no file is.
    pub file: PathBuf,
    /// Line number from 1; 0 where the whole file is meant.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl Finding {
    fn new(file: impl AsRef<Path>, line: usize, message: impl Into<String>) -> Self {
        Self {
            file: file.as_ref().to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_os_str().is_empty(), self.line) {
            (true, _) => write!(f, "{}", self.message),
            (false, 0) => write!(f, "{}: {}", self.file.display(), self.message),
            (false, line) => write!(f, "{}:{line}: {}", self.file.display(), self.message),
        }
    }
}

type Check = fn(&Workspace) -> Result<Vec<Finding>>;

const CHECKS: &[(&str, Check)] = &[
    ("dependency direction", layers::check),
    ("unsafe code", unsafe_code::check),
    ("systems in modules", platforms::check),
    ("markdown links", links::check),
    ("file size", file_size::check),
    ("ignored and unfinished", markers::check),
    ("promises and their tests", promises::check),
    ("format", format),
    ("locked build, all targets", build),
    ("clippy", clippy),
    ("documentation", documentation),
];

/// Runs all checks; the exit code is 1 if any found something.
pub fn run(workspace: &Workspace) -> Result<ExitCode> {
    let mut failed = 0;
    for (name, check) in CHECKS {
        let start = Instant::now();
        let findings = check(workspace).with_context(|| format!("check `{name}`"));
        let seconds = start.elapsed().as_secs_f64();
        let findings = match findings {
            Ok(findings) => findings,
            // A check that cannot run must fail too, and must not stop the others.
            Err(error) => vec![Finding::new("", 0, format!("{error:#}"))],
        };
        if findings.is_empty() {
            println!("ok    {name:<28} {seconds:6.1} s");
            continue;
        }
        failed += 1;
        println!(
            "FAIL  {name:<28} {seconds:6.1} s  {} finding(s)",
            findings.len()
        );
        for finding in findings {
            println!("      {}", finding.to_string().replace('\n', "\n      "));
        }
    }
    println!("{} checks, {failed} failed", CHECKS.len());
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn format(workspace: &Workspace) -> Result<Vec<Finding>> {
    // `-l` names the files; the differences are for the editor to show.
    cargo_check(workspace, &["fmt", "--all", "--", "--check", "-l"], &[])
}

fn build(workspace: &Workspace) -> Result<Vec<Finding>> {
    cargo_check(
        workspace,
        &["check", "--workspace", "--all-targets", "--locked"],
        &[],
    )
}

fn clippy(workspace: &Workspace) -> Result<Vec<Finding>> {
    cargo_check(
        workspace,
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )
}

fn documentation(workspace: &Workspace) -> Result<Vec<Finding>> {
    cargo_check(
        workspace,
        &[
            "doc",
            "--workspace",
            "--no-deps",
            "--locked",
            "--document-private-items",
        ],
        // Public documentation that links to a private item is a link that users cannot follow, but
        // with private items documented every link resolves; the rest of the lints stay errors.
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}

/// Runs Cargo and turns a failure into one finding that holds its output.
fn cargo_check(
    workspace: &Workspace,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Vec<Finding>> {
    let output = cargo()
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(&workspace.root)
        .output()
        .context("cannot run cargo")?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let said = format!(
        "cargo {} failed\n{}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(vec![Finding::new("", 0, said.trim_end())])
}
