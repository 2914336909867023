//! Whether a lifecycle result can be believed.
//!
//! The order is fixed: structure and values first, then the stability of the generation series, then
//! teardown and resident sets. Only the second asks to measure again; everything else that is wrong is
//! wrong for good.
//!
//! Two formats are known. A document with `schema` is ours and is held to our markers and timing word; one
//! without is of the public format and is held to that one's, to the letter, with the two rules for sets
//! of samples only. Of ours, a step or a drift above the same ratio is unstable as well.

mod explain;
mod fields;
mod records;

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::result::{CAPTURE_TIMING, LIFECYCLE_SCHEMA, LIFECYCLE_SCHEMA_VERSION, LIFECYCLE_SUITE};
use crate::sampling::{READY_MARKER, RESTORED_MARKER};
use crate::stability::{Trend, UnstableRule, trend, unstable_rule, widest_split};
use crate::statistics::{median, nearest_rank};
pub use fields::FieldError;
pub(crate) use fields::Node;

/// Guest RAM of a result that can be accepted.
pub const ACCEPTED_MEMORY_MIB: u64 = 128;
/// Fewest samples of a result that can be accepted.
pub const MIN_RUNS: u64 = 10;
/// `controls.cache_state` where the main suite's restores were cold.
const COLD_RESTORES: &str = "cold";
/// `controls.guest` of results that enter a history, whose rows do not say which guest they are of.
const PROBE_GUEST: &str = "probe";

/// Whose rules a document is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValidationProfile {
    /// Ours.
    Nvx,
    /// The public format.
    Openvmm,
}

/// What the validator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The result is valid.
    Valid,
    /// Its generation series is unstable: measure again.
    Unstable,
    /// Something else is wrong.
    Invalid,
}

impl Verdict {
    /// The exit code: 0, 75 or 2.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Unstable => 75,
            Self::Invalid => 2,
        }
    }
}

/// What was found in one series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesFinding {
    /// `cold_start`, `snapshot_generation`, `snapshot_restore` or a teardown.
    pub metric: String,
    /// Whether it decides the verdict.
    pub gating: bool,
    /// p50 over p25.
    pub p50_over_p25: f64,
    /// The widest ratio of neighbours with two samples on each side.
    pub widest_split: f64,
    /// Whether the two rules or, in our format, the order of the samples make it unstable.
    pub unstable: bool,
    /// What is wrong with it, in words; empty if nothing is.
    pub findings: Vec<String>,
}

/// A validated result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// `nvx.validation`.
    pub schema: &'static str,
    /// 1.
    pub schema_version: u32,
    /// Whose rules were applied.
    pub profile: ValidationProfile,
    /// What they say.
    pub verdict: Verdict,
    /// Whether the result may be accepted into a history: valid, of the accepted size, whole and
    /// undisturbed.
    pub acceptable: bool,
    /// Why the verdict is what it is; one line.
    pub reason: String,
    /// Every timing series.
    pub series: Vec<SeriesFinding>,
}

/// Reads and validates a result file.
///
/// # Errors
/// It cannot be read, or is no JSON.
pub fn validate_file(path: &Path, platform: Option<&str>) -> Result<Validation, FieldError> {
    let content = std::fs::read(path).map_err(|source| FieldError::Read {
        path: path.to_owned(),
        source,
    })?;
    let document: Value = serde_json::from_slice(&content).map_err(|source| FieldError::Json {
        path: path.to_owned(),
        source,
    })?;
    Ok(validate(&document, platform))
}

/// Validates a result. `platform`, if given, must be the one that the result names.
pub fn validate(document: &Value, platform: Option<&str>) -> Validation {
    let profile = match document.get("schema") {
        None => ValidationProfile::Openvmm,
        Some(_) => ValidationProfile::Nvx,
    };
    let mut validation = Validation {
        schema: "nvx.validation",
        schema_version: 1,
        profile,
        verdict: Verdict::Invalid,
        acceptable: false,
        reason: String::new(),
        series: Vec::new(),
    };
    if let Err(fault) = judge(document, platform, &mut validation) {
        validation.verdict = Verdict::Invalid;
        validation.acceptable = false;
        validation.reason = fault.to_string();
    }
    validation
}

fn judge(
    document: &Value,
    platform: Option<&str>,
    validation: &mut Validation,
) -> Result<(), FieldError> {
    let root = Node::root(document);
    let profile = validation.profile;
    let facts = structure(&root, profile, platform)?;
    let generation = section(&root, "snapshot_capture", &facts)?;
    let captures_ms = timing(&generation, "", facts.runs)?;
    if profile == ValidationProfile::Nvx {
        records::check(&generation, &captures_ms)?;
    }
    let cold_start = section(&root, "backends", &facts)?;
    let restore = section(&root, "snapshot_restore", &facts)?;
    timing(&cold_start, "", facts.runs)?;
    timing(&restore, "", facts.runs)?;

    for (metric, node, gating) in [
        ("snapshot_generation", &generation, true),
        ("cold_start", &cold_start, false),
        ("snapshot_restore", &restore, false),
    ] {
        let finding = examine(document, metric, node, gating, profile)?;
        validation.series.push(finding);
    }
    if let Some(unstable) = validation
        .series
        .iter()
        .find(|series| series.gating && series.unstable)
    {
        validation.verdict = Verdict::Unstable;
        validation.reason = format!("snapshot_generation: {}", unstable.findings.join("; "));
        return Ok(());
    }
    if facts.other_size {
        validation.verdict = Verdict::Valid;
        validation.reason = format!(
            "stable; not of {ACCEPTED_MEMORY_MIB} MiB, so nothing else is checked and it is never accepted"
        );
        return Ok(());
    }
    for node in [&cold_start, &restore] {
        teardown(node, facts.runs)?;
        resident_set(node, facts.runs)?;
    }
    resident_set(&generation, facts.runs)?;
    validation.verdict = Verdict::Valid;
    validation.acceptable = facts.never_accepted.is_none();
    validation.reason = match facts.never_accepted {
        Some(why) => format!("valid; {why}, so it is never accepted"),
        None => "valid".to_owned(),
    };
    Ok(())
}

/// What the controls say.
struct Facts {
    backend: String,
    runs: usize,
    other_size: bool,
    /// Why a valid result enters no history, if so.
    never_accepted: Option<&'static str>,
}

fn structure(
    root: &Node<'_>,
    profile: ValidationProfile,
    platform: Option<&str>,
) -> Result<Facts, FieldError> {
    let controls = root.get("controls")?;
    let words: [(&str, &str); 5] = match profile {
        ValidationProfile::Nvx => {
            root.get("schema")?.expect(&LIFECYCLE_SCHEMA.into())?;
            root.get("schema_version")?
                .expect(&LIFECYCLE_SCHEMA_VERSION.into())?;
            controls.get("complete")?.expect(&true.into())?;
            [
                ("suite", LIFECYCLE_SUITE),
                ("teardown_mode", "guest-exit"),
                ("marker", READY_MARKER),
                ("restore_marker", RESTORED_MARKER),
                ("snapshot_capture_timing", CAPTURE_TIMING),
            ]
        }
        ValidationProfile::Openvmm => [
            ("suite", "e2e"),
            ("teardown_mode", "guest-exit"),
            ("marker", "ALPINE-MICROVM-BOOT-OK"),
            ("restore_marker", "OPENVMM-SNAPSHOT-RESTORE-OK"),
            (
                "snapshot_capture_timing",
                "openvmm-input-gate-to-publication",
            ),
        ],
    };
    for (name, word) in words {
        controls.get(name)?.expect(&word.into())?;
    }
    controls
        .get("snapshot_restore_guest_exit_prequeued")?
        .expect(&true.into())?;
    if let (Some(wanted), Some(found)) = (platform, controls.optional("platform")) {
        found.expect(&wanted.into())?;
    }
    let runs = controls.get("runs")?;
    if runs.whole()? < MIN_RUNS {
        return Err(runs.fault(format!("must be at least {MIN_RUNS}, is {}", runs.whole()?)));
    }
    let disturbed = match controls.optional("disturbed") {
        Some(disturbed) => disturbed.boolean()?,
        None => false,
    };
    let cold = match controls.optional("cache_state") {
        Some(state) => state.text()? == COLD_RESTORES,
        None => false,
    };
    let other_guest = match controls.optional("guest") {
        Some(guest) => profile == ValidationProfile::Nvx && guest.text()? != PROBE_GUEST,
        None => false,
    };
    let never_accepted = match (disturbed, cold, other_guest) {
        (true, _, _) => Some("disturbed on purpose"),
        (_, true, _) => Some("its restores were of a cold page cache"),
        (_, _, true) => Some("not of the probe guest"),
        _ => None,
    };
    Ok(Facts {
        backend: controls.get("backend")?.text()?.to_owned(),
        runs: runs.whole()? as usize,
        other_size: controls.get("memory_mib")?.whole()? != ACCEPTED_MEMORY_MIB,
        never_accepted,
    })
}

fn section<'a>(root: &Node<'a>, name: &str, facts: &Facts) -> Result<Node<'a>, FieldError> {
    root.get(name)?.get(&facts.backend)
}

/// A series of milliseconds with its stored statistics. `prefix` is that of its fields.
fn timing(node: &Node<'_>, prefix: &str, runs: usize) -> Result<Vec<f64>, FieldError> {
    let list = node.get(&format!("{prefix}samples_ms"))?;
    let samples = list.samples()?;
    if samples.len() != runs {
        return Err(list.fault(format!(
            "has {} samples, controls.runs says {runs}",
            samples.len()
        )));
    }
    let stored = |name: &str| node.get(&format!("{prefix}{name}_ms"));
    stored("p50")?.equals(median(&samples).unwrap_or_default())?;
    stored("min")?.equals(nearest_rank(&samples, 0.0).unwrap_or_default())?;
    stored("max")?.equals(nearest_rank(&samples, 1.0).unwrap_or_default())?;
    Ok(samples)
}

fn teardown(node: &Node<'_>, runs: usize) -> Result<(), FieldError> {
    node.get("teardown_timeout_count")?.expect(&0.into())?;
    timing(node, "teardown_", runs).map(|_| ())
}

fn resident_set(node: &Node<'_>, runs: usize) -> Result<(), FieldError> {
    let list = node.get("peak_rss_samples_bytes")?;
    let samples = list.samples()?;
    if samples.len() != runs {
        return Err(list.fault(format!(
            "has {} samples, controls.runs says {runs}",
            samples.len()
        )));
    }
    // The median of bytes is stored without its half.
    node.get("peak_rss_p50_bytes")?
        .equals(median(&samples).unwrap_or_default().trunc())?;
    node.get("peak_rss_min_bytes")?
        .equals(nearest_rank(&samples, 0.0).unwrap_or_default())?;
    node.get("peak_rss_max_bytes")?
        .equals(nearest_rank(&samples, 1.0).unwrap_or_default())
}

fn examine(
    document: &Value,
    metric: &str,
    node: &Node<'_>,
    gating: bool,
    profile: ValidationProfile,
) -> Result<SeriesFinding, FieldError> {
    let samples = node.get("samples_ms")?.samples()?;
    let rule = unstable_rule(&samples);
    let trend = trend(&samples);
    let mut findings: Vec<String> = rule.map(rule_in_words).into_iter().collect();
    findings.extend(trend.map(|trend| explain::trend_in_words(trend, samples.len())));
    if rule.is_some() || trend.is_some() {
        findings.extend(explain::causes(document, metric, node, &samples, trend));
    }
    let ordered = profile == ValidationProfile::Nvx && trend.is_some_and(Trend::is_unstable);
    let p25 = nearest_rank(&samples, 0.25).unwrap_or(f64::NAN);
    Ok(SeriesFinding {
        metric: metric.to_owned(),
        gating,
        p50_over_p25: median(&samples).unwrap_or(f64::NAN) / p25,
        widest_split: widest_split(&samples).map_or(f64::NAN, |(ratio, _)| ratio),
        unstable: rule.is_some() || ordered,
        findings,
    })
}

fn rule_in_words(rule: UnstableRule) -> String {
    match rule {
        UnstableRule::Median { ratio } => {
            format!("p50 is {ratio:.2} x p25, more than 1.25")
        }
        UnstableRule::Groups { ratio, quick } => format!(
            "the {quick} quickest samples and the others are {ratio:.2} x apart, more than 1.25"
        ),
    }
}

/// How often `of` results whose generation series look like these would have been accepted: each is
/// drawn from the samples, and measured once more if it is unstable.
pub fn acceptance_rate(samples: &[f64], of: u32) -> Option<(u32, u32)> {
    if samples.len() < MIN_RUNS as usize {
        return None;
    }
    // A fixed congruential generator: the figure is to be the same whenever it is asked for.
    let mut state: u64 = 0x5851_f42d_4c95_7f2d;
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        samples[(state >> 33) as usize % samples.len()]
    };
    let mut stable = || {
        let drawn: Vec<f64> = (0..samples.len()).map(|_| draw()).collect();
        unstable_rule(&drawn).is_none() && !trend(&drawn).is_some_and(Trend::is_unstable)
    };
    let accepted = (0..of).filter(|_| stable() || stable()).count() as u32;
    Some((accepted, of))
}

#[cfg(test)]
mod tests;
