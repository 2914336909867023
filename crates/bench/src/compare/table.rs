//! Comparisons as tables for people, and several hosts' comparisons in one.

use std::fmt::Write as _;

use super::{ComparisonResult, MetricVerdict};

/// One comparison as text.
pub fn text(result: &ComparisonResult) -> String {
    let mut text = String::new();
    for verdict in &result.verdicts {
        let _ = writeln!(
            text,
            "{} against {}: {}: {}\n",
            verdict.candidate,
            verdict.base,
            verdict.primary.metric.ending(),
            verdict.primary.words
        );
        let _ = writeln!(
            text,
            "{:<38}{:>9}{:>9}{:>9}{:>8}{:>8}{:>8}  verdict",
            "", "base p50", "p50", "p25", "p50/p25", "sigma", "p"
        );
        for metric in verdict.all() {
            let _ = writeln!(text, "{}", row(metric));
        }
        text.push('\n');
    }
    let secondaries = !result.tests.secondaries.is_empty();
    let _ = writeln!(
        text,
        "{} decides{}.",
        result.tests.primary.ending(),
        if secondaries {
            "; the others are secondary, their p adjusted (Holm)"
        } else {
            ""
        }
    );
    if result.aa {
        let alarm = result
            .verdicts
            .iter()
            .flat_map(super::ComparisonVerdict::all)
            .find(|metric| metric.is_change());
        let _ = match alarm {
            Some(metric) => writeln!(
                text,
                "A/A: FALSE ALARM in {}: {}",
                metric.metric.ending(),
                metric.words
            ),
            None => writeln!(text, "A/A: no false alarm"),
        };
    }
    if result.emulated {
        text.push_str("Guest code was emulated: good for ratios on this host only.\n");
    }
    text
}

fn row(metric: &MetricVerdict) -> String {
    format!(
        "{:<38}{:>9.3}{:>9.3}{:>9.3}{:>8.3}{:>8.3}{:>8.4}  {}",
        format!("{} ({})", metric.metric.ending(), metric.unit),
        metric.base_p50,
        metric.candidate_p50,
        metric.candidate_p25,
        metric.candidate_p50_over_p25,
        metric.candidate_sigma,
        metric.p,
        metric.words
    )
}

/// Why comparisons cannot stand in one table.
#[derive(Debug, thiserror::Error)]
#[error("{of} and {with} are incomparable: {what} differs")]
pub struct Incomparable {
    /// The first result.
    pub of: String,
    /// The other.
    pub with: String,
    /// What differs.
    pub what: &'static str,
}

/// Several hosts' comparisons of the same builds with the same guest: one row per host and build.
///
/// # Errors
/// They are not of the same builds, guest or tests.
pub fn merge(results: &[(String, ComparisonResult)]) -> Result<String, Incomparable> {
    let Some(((first_name, first), rest)) = results.split_first() else {
        return Ok(String::new());
    };
    let digests = |result: &ComparisonResult| -> Vec<(String, String)> {
        let builds = result.builds.iter();
        builds
            .map(|build| (build.name.clone(), build.program_blake3.clone()))
            .collect()
    };
    for (name, result) in rest {
        let what = if digests(result) != digests(first) {
            "the builds"
        } else if result.subject != first.subject {
            "the guest"
        } else if result.tests != first.tests {
            "the tests"
        } else {
            continue;
        };
        return Err(Incomparable {
            of: first_name.clone(),
            with: name.clone(),
            what,
        });
    }
    let mut text = format!(
        "{} p50 in {}\n{:<34}{:<20}{:>10}{:>10}{:>9}  verdict\n",
        first.tests.primary.ending(),
        first.tests.primary.unit(),
        "host",
        "build",
        "base",
        "p50",
        "p50/p25"
    );
    for (_, result) in results {
        let host = format!(
            "{} ({})",
            result.host.machine_name,
            result.host.fingerprint.get(..8).unwrap_or_default()
        );
        for verdict in &result.verdicts {
            let metric = &verdict.primary;
            let _ = writeln!(
                text,
                "{host:<34}{:<20}{:>10.3}{:>10.3}{:>9.3}  {}",
                verdict.candidate,
                metric.base_p50,
                metric.candidate_p50,
                metric.candidate_p50_over_p25,
                metric.words
            );
        }
    }
    Ok(text)
}
