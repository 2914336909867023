//! `nvx perf import`.

use crate::exit::ExitCode;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::anyhow;
use nvx_perf::{
    ImportRequest, ImportResult, ImportedLifecycle, ImportedProfile, import, write_file,
};

use super::show;
use crate::cli::ImportArgs;
use crate::exit::Failure;

/// Imports, and writes rows where they are wanted.
pub fn run(args: ImportArgs) -> Result<ExitCode, Failure> {
    let imported = import(&ImportRequest {
        source: args.source.clone(),
        history: args.history,
        platform: args.platform,
        commit: args.commit,
    })
    .map_err(Failure::input)?;
    match (&imported, &args.out) {
        (ImportResult::Lifecycle(rows), Some(path)) => {
            write_file(path, rows.csv.as_bytes()).map_err(Failure::input)?;
        }
        (ImportResult::Profile(_), Some(_)) => {
            let source = args.source.display();
            return Err(Failure::input(anyhow!(
                "{source}: is a log; it gives no rows for --out"
            )));
        }
        (_, None) => {}
    }
    show(&imported, args.json, |imported| match imported {
        ImportResult::Lifecycle(rows) => lifecycle_text(rows, args.out.as_deref()),
        ImportResult::Profile(profile) => profile_text(profile),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn lifecycle_text(rows: &ImportedLifecycle, out: Option<&Path>) -> String {
    let Some(path) = out else {
        return rows.csv.clone();
    };
    let mut text = format!(
        "{}: {} rows of {}, commit {}\n",
        path.display(),
        rows.rows,
        rows.identity,
        rows.commit
    );
    if !rows.unknown.is_empty() {
        let names: Vec<&str> = rows.unknown.keys().map(String::as_str).collect();
        let _ = writeln!(
            text,
            "not part of the format, kept in --json: {}",
            names.join(", ")
        );
    }
    text
}

fn profile_text(profile: &ImportedProfile) -> String {
    let mut text = format!(
        "{:<44}{:>7}{:>12}{:>12}{:>12}{:>12}\n",
        "phase", "runs", "p50 ms", "p95", "min", "max"
    );
    for (name, phase) in &profile.phases {
        let mark = if phase.exclusive { "" } else { " (milestone)" };
        let _ = writeln!(
            text,
            "{:<44}{:>7}{:>12.3}{:>12.3}{:>12.3}{:>12.3}",
            format!("{name}{mark}"),
            phase.samples_ms.len(),
            phase.p50_ms,
            phase.p95_ms,
            phase.min_ms,
            phase.max_ms
        );
    }
    text
}
