//! One candidate against the base branch's history.

use std::collections::HashSet;
use std::path::Path;

use super::comparison::Comparison;
use super::fixed::{FixedRule, FixedVerdict, judge_rows};
use super::inputs::{
    check_fit, commit_of, joined, not_measured, read_base, read_resets, read_rows,
};
use super::{GateError, GateRequest, GateResult, GateRules};
use crate::adaptive::findings::{Finding, FindingKind, findings, of_suspicion};
use crate::adaptive::judge::{Judge, Judgement, Suspicion};
use crate::adaptive::panel::{Panel, worse_log};
use crate::adaptive::rule::Rule;
use crate::csv::History;
use crate::exit_status::ExitStatus;
use crate::hosts::Hosts;

/// How many commits of the base the adaptive rules start from: several times what a level or its
/// noise rests on, and a bound on the time that a long history takes.
const REPLAYED_COMMITS: usize = 200;
/// A suspect began before the candidate where the newest base commit is beyond this part of the limit.
const BEGAN_BEFORE_PART: f64 = 0.5;

/// Judges a candidate against the base branch's history.
///
/// # Errors
/// The input is wrong or does not belong together; nothing was judged.
pub fn gate(request: &GateRequest) -> Result<GateResult, GateError> {
    let rows = read_rows(&request.candidate)?;
    let base = read_base(&request.base, &rows)?;
    check_fit(&request.base, &base, &request.candidate, &rows)?;
    let resets = read_resets(request, &base)?;
    let mut result = GateResult {
        identity: base.identity.clone(),
        commit: commit_of(&rows),
        rules: "fixed",
        status: ExitStatus::Good,
        fixed: Vec::new(),
        findings: Vec::new(),
        judged: 0,
        warm_up: Vec::new(),
        not_measured: not_measured(&base, &rows),
        resets,
    };
    match &request.rules {
        GateRules::Fixed(rule) => judge_fixed(rule, &base, &rows, &mut result),
        GateRules::Adaptive { again, compare } => {
            let again = again.as_deref().map(|path| Ok((path, read_rows(path)?)));
            let again: Option<(&Path, History)> =
                again.transpose().map_err(|error: GateError| error)?;
            let compare = compare
                .as_deref()
                .map(|path| Ok((path, Comparison::read(path)?)));
            let compare = compare.transpose().map_err(|error: GateError| error)?;
            let second = Second { again, compare };
            second.check(request, &base, &result.commit)?;
            judge_adaptive(request, &base, &rows, &second, &mut result)?;
        }
    }
    Ok(result)
}

fn judge_fixed(rule: &FixedRule, base: &History, rows: &History, result: &mut GateResult) {
    let reset: HashSet<&str> = result.resets.iter().map(String::as_str).collect();
    let judged = judge_rows(rule, base, rows, &reset);
    for finding in &judged {
        match finding.verdict {
            FixedVerdict::WarmUp => result.warm_up.push(finding.metric.clone()),
            FixedVerdict::Passed => result.judged += 1,
            FixedVerdict::Regression => {
                result.judged += 1;
                result.status = ExitStatus::Regression;
            }
        }
    }
    result.fixed = judged;
}

/// What was measured a second time.
struct Second<'a> {
    again: Option<(&'a Path, History)>,
    compare: Option<(&'a Path, Comparison)>,
}

impl Second<'_> {
    fn check(&self, request: &GateRequest, base: &History, commit: &str) -> Result<(), GateError> {
        let same = |path: &Path, found: &str| {
            if found == commit {
                return Ok(());
            }
            Err(GateError::OtherCommit {
                path: path.to_owned(),
                found: found.to_owned(),
                wanted: commit.to_owned(),
            })
        };
        if let Some((path, rows)) = &self.again {
            check_fit(&request.base, base, path, rows)?;
            same(path, &commit_of(rows))?;
        }
        if let Some((path, comparison)) = &self.compare {
            same(path, &comparison.candidate_commit)?;
        }
        Ok(())
    }
}

fn judge_adaptive(
    request: &GateRequest,
    base: &History,
    rows: &History,
    second: &Second<'_>,
    result: &mut GateResult,
) -> Result<(), GateError> {
    let rule = Rule::STANDARD;
    result.rules = "adaptive";
    let history = joined(base, rows, &result.resets);
    let mut hosts = Hosts::read_beside(&request.base)?;
    for entry in Hosts::read_beside(&request.candidate)?.entries() {
        hosts.add(entry.clone());
    }
    let panel = Panel::of(&history, &hosts, REPLAYED_COMMITS + 1);
    let last = panel.columns.len() - 1;
    let mut before = Judge::new(&panel.series, &rule);
    for at in 0..last {
        before.step(&panel.columns[at], panel.hosts[at]);
    }
    let mut after = before.clone();
    let judgement = after.step(&panel.columns[last], panel.hosts[last]);
    count(&panel, &after, &rule, result);

    let again = second
        .again
        .as_ref()
        .map(|(path, rows)| Again::judge(path, rows, &before, &panel, &result.commit))
        .transpose()?;
    for finding in findings(&panel, last, &judgement) {
        if finding.kind != FindingKind::Suspect {
            result.findings.push(before_candidate(finding));
        }
    }
    for suspicion in &judgement.suspicions {
        let mut finding = of_suspicion(&panel.series, suspicion, &result.commit);
        if let Some(since) = began_before(&before, &panel, suspicion, &rule) {
            finding.kind = FindingKind::BeganBefore;
            finding.since = since;
            finding.to_be_sure = "the main branch's next commits".to_owned();
        } else if suspicion.metric.is_none() && after.model.host_changed(0, last) {
            finding.kind = FindingKind::HostChange;
            finding.to_be_sure = "a measurement on a host that the base was measured on".to_owned();
            if second.compare.is_some() || again.as_ref().is_some_and(|again| !again.other_host) {
                decide(&mut finding, suspicion, second, again.as_ref())?;
            }
        } else {
            decide(&mut finding, suspicion, second, again.as_ref())?;
        }
        result.findings.push(finding);
    }
    for finding in &result.findings {
        result.status = result.status.and(match finding.kind {
            FindingKind::Regression => ExitStatus::Regression,
            FindingKind::Suspect => ExitStatus::Suspect,
            FindingKind::HostChange if finding.called == result.commit => ExitStatus::Incomparable,
            _ => ExitStatus::Good,
        });
    }
    Ok(())
}

/// A shift that is called at the candidate rests on two commits before it: it is the base branch's.
fn before_candidate(mut finding: Finding) -> Finding {
    if finding.kind == FindingKind::Regression {
        finding.kind = FindingKind::BeganBefore;
        finding.to_be_sure = "nothing: the base branch has it already".to_owned();
    }
    finding
}

/// Counts what was judged and lists what could not be.
fn count(panel: &Panel, judge: &Judge<'_>, rule: &Rule, result: &mut GateResult) {
    let newest = panel.columns.len() - 1;
    for (index, series) in panel.series.iter().enumerate() {
        if !panel.columns[newest][index].is_finite() {
            continue;
        }
        // A level that has just begun is in warm-up as well: nothing can be said against it.
        if judge.model.reading(index, rule).is_some() {
            result.judged += 1;
        } else {
            result.warm_up.push(series.name.clone());
        }
    }
}

/// A second measurement's values in the panel's order.
fn values_of(panel: &Panel, rows: &History) -> Vec<f64> {
    let value = |name: &str| rows.commits.first()?.value(rows.metric_index(name)?);
    panel
        .series
        .iter()
        .map(|series| value(&series.name).map_or(f64::NAN, |p50| worse_log(series.direction, p50)))
        .collect()
}

/// The base's newest commit where a suspect metric was off there already.
fn began_before(
    before: &Judge<'_>,
    panel: &Panel,
    suspicion: &Suspicion,
    rule: &Rule,
) -> Option<String> {
    let reading = before.model.reading(suspicion.metric?, rule)?;
    let at = panel.commits.len().checked_sub(2)?;
    (reading.newest > BEGAN_BEFORE_PART * suspicion.limit
        && reading.newest > BEGAN_BEFORE_PART * suspicion.size)
        .then(|| panel.commits[at].clone())
}

/// A second measurement, judged in place of the first.
struct Again<'a> {
    path: &'a Path,
    rows: &'a History,
    judgement: Judgement,
    /// It was measured on a kind of host that the base does not have.
    other_host: bool,
}

impl<'a> Again<'a> {
    fn judge(
        path: &'a Path,
        rows: &'a History,
        before: &Judge<'_>,
        panel: &Panel,
        commit: &str,
    ) -> Result<Self, GateError> {
        let last = panel.columns.len() - 1;
        // A second measurement that says nothing of its host was made where the first one was.
        let host = match Hosts::read_beside(path)?.fingerprint(commit) {
            Some(fingerprint) => Some(panel.kind(fingerprint)),
            None => panel.hosts[last],
        };
        let mut judge = before.clone();
        let judgement = judge.step(&values_of(panel, rows), host);
        Ok(Self {
            path,
            rows,
            judgement,
            other_host: judge.model.host_changed(0, last),
        })
    }
}

/// A comparison decides; else a second measurement; else it stays a suspect.
fn decide(
    finding: &mut Finding,
    suspicion: &Suspicion,
    second: &Second<'_>,
    again: Option<&Again<'_>>,
) -> Result<(), GateError> {
    let name = finding.metrics.first().cloned();
    let lacks = |path: &Path| GateError::LacksSuspect {
        path: path.to_owned(),
        metric: finding.scope.clone(),
    };
    let (confirmed, by) = if let Some((path, comparison)) = &second.compare {
        let worse = comparison.is_worse(|metric, compared| match (&name, &suspicion.unit) {
            (Some(name), _) => metric == name,
            (None, Some(unit)) => compared.unit == *unit,
            (None, None) => true,
        });
        (
            worse.ok_or_else(|| lacks(path))?,
            "the comparison of both builds",
        )
    } else if let Some(again) = again {
        if name
            .as_ref()
            .is_some_and(|name| again.rows.metric_index(name).is_none())
        {
            return Err(lacks(again.path));
        }
        let same =
            |other: &Suspicion| other.metric == suspicion.metric && other.unit == suspicion.unit;
        (
            again.judgement.suspicions.iter().any(same),
            "the second measurement",
        )
    } else {
        return Ok(());
    };
    if confirmed {
        finding.kind = FindingKind::Regression;
        finding.to_be_sure = format!("nothing: {by} confirms it");
    } else {
        finding.kind = FindingKind::Cleared;
        finding.to_be_sure = format!("nothing: {by} does not show it");
    }
    Ok(())
}
