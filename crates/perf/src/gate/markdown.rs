//! The gate's verdict as Markdown, for a pull request's summary.

use super::fixed::{FixedFinding, FixedVerdict};
use super::{GateResult, ReplayResult};
use crate::adaptive::findings::{Finding, short};
use crate::csv::format_p50;
use crate::exit_status::ExitStatus;

pub(super) fn status_word(status: ExitStatus) -> &'static str {
    match status {
        ExitStatus::Good => "passed",
        ExitStatus::Regression => "regression",
        ExitStatus::BadInput => "bad input",
        ExitStatus::Incomparable => "incomparable: measured on another kind of host",
        ExitStatus::Suspect => "suspect: measure again",
    }
}

/// Text that Markdown and a table's cells leave as it is.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '`' | '*' | '\\' | '[' | ']' | '~' | '_' | '#' => {
                escaped.push('\\');
                escaped.push(character);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// One finding of the fixed rule in words.
pub(super) fn fixed_line(finding: &FixedFinding) -> String {
    let unit = &finding.unit;
    match finding.baseline.zip(finding.worse_percent) {
        Some((baseline, worse)) => format!(
            "{} {} {unit} against {} {unit}, {worse:+.1} % worse",
            finding.metric,
            format_p50(finding.p50),
            format_p50(baseline)
        ),
        None => format!(
            "{} {} {unit}, no rows before",
            finding.metric,
            format_p50(finding.p50)
        ),
    }
}

pub(super) fn gate(result: &GateResult) -> String {
    let mut text = format!(
        "### Performance gate: {}\n\n{}, {} rules, commit {}. {} metrics judged, {} in warm-up.\n\n",
        status_word(result.status),
        escaped(&result.identity.to_string()),
        result.rules,
        short(&result.commit),
        result.judged,
        result.warm_up.len()
    );
    if !result.fixed.is_empty() {
        text.push_str("| metric | verdict | p50 | median of the last rows | worse by | rows |\n");
        text.push_str("| --- | --- | ---: | ---: | ---: | ---: |\n");
        for finding in &result.fixed {
            text.push_str(&fixed_row(finding));
        }
        text.push('\n');
    }
    if !result.findings.is_empty() {
        text.push_str(&finding_table(&result.findings));
        text.push('\n');
    }
    list(&mut text, "History reset, begins anew", &result.resets);
    list(
        &mut text,
        "In warm-up",
        if result.fixed.is_empty() {
            &result.warm_up
        } else {
            &[]
        },
    );
    list(&mut text, "Not measured", &result.not_measured);
    text
}

fn list(text: &mut String, title: &str, names: &[String]) {
    if names.is_empty() {
        return;
    }
    let names: Vec<String> = names.iter().map(|name| escaped(name)).collect();
    text.push_str(&format!(
        "{title} ({}): {}\n\n",
        names.len(),
        names.join(", ")
    ));
}

fn fixed_row(finding: &FixedFinding) -> String {
    let verdict = match finding.verdict {
        FixedVerdict::Passed => "passed",
        FixedVerdict::Regression => "**regression**",
        FixedVerdict::WarmUp => "warm-up",
    };
    let unit = escaped(&finding.unit);
    let value = |value: f64| format!("{} {unit}", format_p50(value));
    format!(
        "| {} | {verdict} | {} | {} | {} | {} |\n",
        escaped(&finding.metric),
        value(finding.p50),
        finding.baseline.map_or_else(|| "-".to_owned(), value),
        finding
            .worse_percent
            .map_or_else(|| "-".to_owned(), |worse| format!("{worse:+.1} %")),
        finding.rows
    )
}

/// Findings of the adaptive rules as a table.
pub(crate) fn finding_table(findings: &[Finding]) -> String {
    let mut text = String::from(
        "| finding | of | worse by | limit | since | by chance once in | to be sure |\n\
         | --- | --- | ---: | ---: | --- | ---: | --- |\n",
    );
    for finding in findings {
        text.push_str(&format!(
            "| {} | {} | {:+.1} % ({:+.1} to {:+.1}) | {:.1} % | {} | {:.0} commits | {} |\n",
            finding.kind.word(),
            escaped(&finding.scope),
            finding.worse_percent,
            finding.worse_percent_range.0,
            finding.worse_percent_range.1,
            finding.limit_percent,
            short(&finding.since),
            finding.by_chance_once_in_commits,
            escaped(&finding.to_be_sure)
        ));
    }
    text
}

pub(super) fn replay(result: &ReplayResult) -> String {
    let mut text = String::new();
    for file in &result.files {
        text.push_str(&format!(
            "### {}: newest commit {}\n\n{} commits, {} rules.\n\n",
            escaped(&file.identity.to_string()),
            status_word(file.status),
            file.commits,
            result.rules
        ));
        if !file.fixed.is_empty() {
            text.push_str("| commit | regression |\n| --- | --- |\n");
            for finding in &file.fixed {
                text.push_str(&format!(
                    "| {} | {} |\n",
                    short(&finding.commit),
                    escaped(&fixed_line(finding))
                ));
            }
            text.push('\n');
        }
        if !file.findings.is_empty() {
            text.push_str(&finding_table(&file.findings));
            text.push('\n');
        }
    }
    text
}
