//! `nvx doctor`: shows what was found; the verdicts are [`nvx_bench::host_report`]'s.

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nvx_bench::host_report::{Area, Check, HostReport, Status, examine};
use nvx_host::{Directory, LeftReason, StaleReport};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::exit::{Failure, NOT_USABLE};
use crate::output::{self, Style};

/// The widest that a table gets, in columns.
const TABLE_COLUMNS: usize = 100;
/// Where details begin.
const DETAIL_COLUMN: usize = 26;

/// What `nvx doctor --json` prints.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    schema_version: u32,
    scratch: &'a Path,
    #[serde(flatten)]
    report: &'a HostReport,
}

/// What `nvx doctor --clean --json` prints.
#[derive(Serialize)]
struct CleanDocument<'a> {
    schema: &'static str,
    schema_version: u32,
    directory: &'a Path,
    removed: &'a [String],
    left: Vec<Left<'a>>,
    truncated: bool,
}

#[derive(Serialize)]
struct Left<'a> {
    name: &'a str,
    reason: String,
}

/// Examines the host, or cleans a directory.
pub fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let DoctorArgs {
        scratch,
        clean,
        json,
    } = args;
    match clean {
        Some(directory) => clean_up(&directory, json).map_err(Failure::input),
        None => diagnose(scratch, json).map_err(Failure::input),
    }
}

fn diagnose(scratch: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    let scratch = scratch.unwrap_or_else(std::env::temp_dir);
    let report = examine(&scratch);
    if json {
        output::json(&Document {
            schema: "nvx.doctor",
            schema_version: 1,
            scratch: &scratch,
            report: &report,
        })?;
    } else {
        output::result(&table(&report, Style::of_stdout()));
    }
    Ok(ExitCode::from(if report.can_run_demo {
        0
    } else {
        NOT_USABLE
    }))
}

fn table(report: &HostReport, style: Style) -> String {
    let mut text = String::new();
    let mut area: Option<Area> = None;
    for check in &report.checks {
        if area != Some(check.area) {
            let gap = if area.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{gap}{}", style.heading(check.area.title()));
            area = Some(check.area);
        }
        rows(&mut text, check, style);
    }
    let summary = if report.can_run_demo {
        let backend = report.backend.unwrap_or("none");
        format!(
            "nvx demo can run here: back end {backend}, {}.",
            report.execution
        )
    } else {
        "nvx demo cannot run here: see what is marked fail.".to_owned()
    };
    let _ = writeln!(text, "\n{summary}");
    text
}

fn rows(text: &mut String, check: &Check, style: Style) {
    let status = format!("{:<5}", check.status.name());
    let status = match check.status {
        Status::Ok => style.good(&status),
        Status::Info => status,
        Status::Warn => style.doubtful(&status),
        Status::Fail => style.bad(&status),
    };
    let name_columns = DETAIL_COLUMN - 7;
    let mut head = format!("  {status}{:<name_columns$}", check.name);
    let remedy = check.remedy.as_ref().map(|remedy| format!("-> {remedy}"));
    for part in [Some(&check.detail), remedy.as_ref()].into_iter().flatten() {
        for line in output::wrap(part, TABLE_COLUMNS - DETAIL_COLUMN) {
            let _ = writeln!(text, "{head}{line}");
            head = " ".repeat(DETAIL_COLUMN);
        }
    }
}

fn clean_up(path: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let directory = Directory::open_following(path)?;
    let report = nvx_host::remove_stale(&directory)
        .with_context(|| format!("cannot read the directory {}", path.display()))?;
    if json {
        let left = report.left.iter().map(|entry| Left {
            name: &entry.name,
            reason: reason(&entry.reason),
        });
        output::json(&CleanDocument {
            schema: "nvx.doctor.clean",
            schema_version: 1,
            directory: path,
            removed: &report.removed,
            left: left.collect(),
            truncated: report.truncated,
        })?;
    } else {
        output::result(&clean_text(path, &report));
    }
    Ok(ExitCode::SUCCESS)
}

fn clean_text(path: &Path, report: &StaleReport) -> String {
    let mut text = String::new();
    for name in &report.removed {
        let _ = writeln!(text, "removed {}", path.join(name).display());
    }
    for entry in &report.left {
        let path = path.join(&entry.name);
        let _ = writeln!(
            text,
            "left    {}: {}",
            path.display(),
            reason(&entry.reason)
        );
    }
    if report.truncated {
        let _ = writeln!(
            text,
            "{} has more entries than are looked at: there may be more",
            path.display()
        );
    } else if report.removed.is_empty() && report.left.is_empty() {
        let _ = writeln!(text, "nothing to remove in {}", path.display());
    }
    text
}

fn reason(reason: &LeftReason) -> String {
    match reason {
        LeftReason::InUse => "a running process holds it".to_owned(),
        LeftReason::NoLocks => {
            "the file system has no locks, so nobody can tell whether it is in use".to_owned()
        }
        LeftReason::Changed => "it was renamed or removed meanwhile".to_owned(),
        LeftReason::WrongKind(kind) => format!("it is {kind}, which nvx does not make"),
        LeftReason::UnexpectedContent(what) => format!("nvx did not make its content: {what}"),
        LeftReason::System(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Status, detail: &str) -> Check {
        Check {
            area: Area::Machine,
            name: "a name",
            status,
            detail: detail.to_owned(),
            remedy: Some("do something about it".to_owned()),
        }
    }

    #[test]
    fn the_table_keeps_to_its_width_and_hides_no_word() {
        let detail = "words and more ".repeat(30);
        let mut text = String::new();
        rows(&mut text, &check(Status::Warn, &detail), Style::plain());
        assert!(
            text.lines().all(|line| line.len() <= TABLE_COLUMNS),
            "{text}"
        );
        assert_eq!(text.matches("words").count(), 30);
        assert!(text.starts_with("  warn a name  "), "{text}");
        assert!(text.ends_with("   -> do something about it\n"), "{text}");
    }

    #[test]
    fn only_a_styled_table_has_escape_codes() {
        for status in [Status::Ok, Status::Info, Status::Warn, Status::Fail] {
            let mut plain = String::new();
            rows(&mut plain, &check(status, "x"), Style::plain());
            assert!(!plain.contains('\x1b'));
            let mut styled = String::new();
            rows(&mut styled, &check(status, "x"), Style::styled());
            assert_eq!(styled.contains('\x1b'), status != Status::Info);
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_clean_directory_is_said_to_be_clean() {
        let text = clean_text(Path::new("/x"), &StaleReport::default());
        assert_eq!(text, "nothing to remove in /x\n");
        let report = StaleReport {
            removed: vec![".nvx-ram-0".to_owned()],
            left: vec![nvx_host::LeftEntry {
                name: "y".to_owned(),
                reason: LeftReason::InUse,
            }],
            truncated: true,
        };
        let text = clean_text(Path::new("/x"), &report);
        assert!(text.starts_with("removed /x/.nvx-ram-0\nleft    /x/y: a running"));
        assert!(text.contains("there may be more"), "{text}");
    }
}
