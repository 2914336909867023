//! What a disturbed series is due to, in words.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::Node;
use crate::result::{PhaseRecord, ProfileSection};
use crate::stability::{Trend, widest_split};
use crate::statistics::median;
use crate::storage::StorageTelemetry;
use crate::warnings::is_part;

/// Phases that wait for the storage of the host.
const STORAGE_PHASES: [&str; 7] = [
    "mapped_memory_flush",
    "memory_handle_flush",
    "publication_state",
    "publication_memory",
    "publication_manifest",
    "publication_staging_sync",
    "publication_commit",
];

pub(super) fn trend_in_words(trend: Trend, samples: usize) -> String {
    match trend {
        Trend::Step { start, ratio } => format!(
            "samples {start}-{samples} are {ratio:.2} x samples 1-{}",
            start - 1
        ),
        Trend::LateSlow { start, ratio } => format!(
            "the last samples ({start}-{samples}) are slow, {ratio:.2} x the others: too few to tell"
        ),
        Trend::Drift { ratio } => {
            format!("the series drifts: its end is {ratio:.2} x its begin")
        }
    }
}

/// Which samples are slow, as a trend or else the widest split says.
fn slow_samples(samples: &[f64], trend: Option<Trend>) -> Vec<bool> {
    let n = samples.len();
    match trend {
        Some(Trend::Step { start, ratio } | Trend::LateSlow { start, ratio }) => (1..=n)
            .map(|number| (number >= start) == (ratio >= 1.0))
            .collect(),
        Some(Trend::Drift { ratio }) => (0..n)
            .map(|index| (2 * index >= n) == (ratio >= 1.0))
            .collect(),
        None => {
            let quick = widest_split(samples).map_or(n, |(_, quick)| quick);
            let mut sorted = samples.to_vec();
            sorted.sort_by(f64::total_cmp);
            let limit = sorted.get(quick).copied().unwrap_or(f64::INFINITY);
            samples.iter().map(|sample| *sample >= limit).collect()
        }
    }
}

/// The phase that carries the difference, what that points to, and what the device tells.
pub(super) fn causes(
    document: &Value,
    metric: &str,
    node: &Node<'_>,
    samples: &[f64],
    trend: Option<Trend>,
) -> Vec<String> {
    let slow = slow_samples(samples, trend);
    let mut words = Vec::new();
    let profile = node
        .optional("profile")
        .and_then(|profile| serde_json::from_value::<ProfileSection>(profile.value().clone()).ok());
    if let Some(profile) = profile {
        words.extend(carrier(&profile, samples, &slow));
    }
    let telemetry = document
        .get("storage_telemetry")
        .and_then(|section| serde_json::from_value::<StorageTelemetry>(section.clone()).ok());
    if let Some(telemetry) = telemetry {
        words.extend(other_writers(&telemetry, metric, &slow));
    }
    words
}

/// Medians of `of` over the slow and over the other samples, and their difference.
fn difference(values: &[f64], slow: &[bool]) -> Option<f64> {
    let group = |wanted: bool| -> Vec<f64> {
        let chosen = values.iter().zip(slow).filter(|(_, slow)| **slow == wanted);
        chosen.map(|(value, _)| *value).collect()
    };
    Some(median(&group(true))? - median(&group(false))?)
}

fn carrier(profile: &ProfileSection, samples: &[f64], slow: &[bool]) -> Option<String> {
    if profile.raw_samples.len() != samples.len() {
        return None;
    }
    let total = difference(samples, slow).filter(|total| *total > 0.0)?;
    let mut phases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (index, sample) in profile.raw_samples.iter().enumerate() {
        for record in is_part(&sample.records) {
            let durations = phases
                .entry(&record.phase)
                .or_insert_with(|| vec![0.0; samples.len()]);
            durations[index] += milliseconds(record);
        }
    }
    let gaps: Vec<f64> = profile
        .raw_samples
        .iter()
        .zip(samples)
        .map(|(sample, total)| total - is_part(&sample.records).map(milliseconds).sum::<f64>())
        .collect();
    let shares = phases
        .iter()
        .map(|(name, durations)| (*name, durations))
        .chain([("the time between phases", &gaps)])
        .filter_map(|(name, durations)| Some((name, difference(durations, slow)? / total)));
    let (name, share) = shares.max_by(|a, b| a.1.total_cmp(&b.1))?;
    if share < 0.3 {
        return Some("no phase carries it: all of them grew".to_owned());
    }
    let meaning = if STORAGE_PHASES.contains(&name) {
        "the host's storage"
    } else if [
        "quiesce",
        "save_state",
        "vcpu_stop",
        "the time between phases",
    ]
    .contains(&name)
    {
        "a stall of the host's processors"
    } else {
        "the monitor or the guest"
    };
    Some(format!(
        "{name} carries {:.0} % of it, which points to {meaning}",
        share * 100.0
    ))
}

fn milliseconds(record: &PhaseRecord) -> f64 {
    record.duration_ns as f64 / 1e6
}

fn other_writers(telemetry: &StorageTelemetry, metric: &str, slow: &[bool]) -> Option<String> {
    let suite = match metric {
        "snapshot_generation" => "generation",
        "snapshot_restore" => "restore",
        other => other,
    };
    let seen = |wanted: bool| -> Option<(usize, usize)> {
        let others: Vec<bool> = slow
            .iter()
            .enumerate()
            .filter(|(_, slow)| **slow == wanted)
            .filter_map(|(index, _)| telemetry.of_sample(suite, index as u32)?.other_writers())
            .map(crate::storage::OtherWriters::is_certain)
            .collect();
        (!others.is_empty()).then(|| {
            (
                others.iter().filter(|certain| **certain).count(),
                others.len(),
            )
        })
    };
    let (during_slow, slow_samples) = seen(true)?;
    let (during_quick, quick_samples) = seen(false).unwrap_or((0, 0));
    Some(
        match (
            2 * during_slow >= slow_samples,
            2 * during_quick >= quick_samples.max(1),
        ) {
            (true, false) => "the device had other writers".to_owned(),
            (true, true) => "the device had other writers all the time".to_owned(),
            (false, _) => "no other writers were seen on the device".to_owned(),
        },
    )
}
