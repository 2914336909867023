//! What the reader of a result should know before believing it.

use crate::result::{LifecycleResult, ProfileSection};
use crate::statistics::median;

/// What of a metric the exclusive phases may leave unexplained: this share of it, or this many
/// milliseconds, whichever is more. Between two phases lies the bookkeeping of the profile itself.
const SLACK_SHARE: f64 = 0.05;
const SLACK_MS: f64 = 0.3;
/// From this load per processor on, the processors are taken to have been busy.
const BUSY_LOAD: f64 = 0.5;

/// The warnings of a result.
pub(crate) fn of(result: &LifecycleResult) -> Vec<String> {
    let mut warnings = Vec::new();
    let host = &result.host;
    if result.controls.emulated {
        warnings.push(
            "guest code was emulated, or it could not be told that it was not: good for ratios on this \
             host only"
                .to_owned(),
        );
    }
    if host.scratch.network {
        warnings.push(format!(
            "the scratch directory is on a network file system ({}): its times are the network's",
            host.scratch.file_system
        ));
    }
    let load_per_processor = host.load_1min_at_start / host.logical_processors.max(1) as f64;
    if load_per_processor > BUSY_LOAD {
        warnings.push(format!(
            "the host was busy at the start: load {:.1} on {} processors",
            host.load_1min_at_start, host.logical_processors
        ));
    }
    if !result.controls.disturbances.is_empty() {
        warnings.push(format!(
            "disturbed on purpose: {}",
            result.controls.disturbances.join(", ")
        ));
    }
    let sections = result
        .backends
        .values()
        .map(|start| ("cold start", &start.time.samples_ms, &start.profile))
        .chain(
            result
                .snapshot_capture
                .values()
                .map(|capture| ("generation", &capture.time.samples_ms, &capture.profile)),
        )
        .chain(
            result
                .snapshot_restore
                .values()
                .map(|start| ("restore", &start.time.samples_ms, &start.profile)),
        );
    for (name, totals, profile) in sections {
        warnings.extend(unexplained(name, totals, profile));
    }
    warnings
}

/// Whether the exclusive phases leave too much of a metric unexplained.
fn unexplained(name: &str, totals_ms: &[f64], profile: &ProfileSection) -> Option<String> {
    let gaps: Vec<f64> = totals_ms
        .iter()
        .zip(&profile.raw_samples)
        .filter(|(_, sample)| !sample.records.is_empty())
        .map(|(total, sample)| total - explained_ms(&sample.records))
        .collect();
    let gap = median(&gaps)?;
    let total = median(totals_ms)?;
    (gap.abs() > (SLACK_SHARE * total).max(SLACK_MS)).then(|| {
        format!("{name}: the exclusive phases leave {gap:.3} of {total:.3} ms unexplained")
    })
}

/// The exclusive phases that lie within the metric: of a capture those up to the commit.
pub(crate) fn explained_ms(records: &[crate::result::PhaseRecord]) -> f64 {
    is_part(records)
        .map(|record| record.duration_ns as f64 / 1e6)
        .sum()
}

/// The records that add up to a metric: the exclusive ones of the metric's own interval.
pub(crate) fn is_part(
    records: &[crate::result::PhaseRecord],
) -> impl Iterator<Item = &crate::result::PhaseRecord> {
    let commit_end = records
        .iter()
        .find(|record| record.operation == "capture" && record.phase == "publication_commit")
        .and_then(|record| record.process_elapsed_ns);
    // Of a start, what follows the marker (the teardown's phases) is beyond the last phase that the
    // observer's filler starts from.
    let ready_ns = records
        .iter()
        .find(|record| record.phase == "process_launch_to_readiness")
        .map(|record| record.duration_ns);
    records.iter().filter(move |record| {
        let within = match (commit_end, ready_ns, record.process_elapsed_ns) {
            (Some(commit), _, Some(end)) => record.operation == "capture" && end <= commit,
            (None, Some(ready), Some(end)) => end <= ready,
            _ => true,
        };
        record.exclusive && within
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{PhaseRecord, RawSample};
    use std::time::Duration;

    fn phase(name: &str, duration_ms: u64, end_ms: u64) -> PhaseRecord {
        PhaseRecord {
            process_elapsed_ns: Some(end_ms * 1_000_000),
            ..PhaseRecord::of_observer("capture", name, true, Duration::from_millis(duration_ms), 7)
        }
    }

    #[test]
    fn what_follows_the_commit_does_not_explain_generation() {
        let records = vec![
            phase("input_gate", 4, 4),
            phase("publication_commit", 6, 10),
            phase("publication_parent_sync", 50, 60),
        ];
        assert_eq!(explained_ms(&records), 10.0);
        let profile = ProfileSection::of(vec![RawSample {
            records,
            ..Default::default()
        }]);
        assert_eq!(unexplained("generation", &[10.2], &profile), None);
        let warning = unexplained("generation", &[20.0], &profile).expect("a gap");
        assert!(warning.contains("10.000 of 20.000 ms"), "{warning}");
    }

    #[test]
    fn a_network_file_system_and_emulation_are_warned_of() {
        let document = crate::example::result(&[100.0, 101.0]);
        let mut result: LifecycleResult = serde_json::from_value(document).expect("a result");
        result.host.scratch.network = true;
        result.host.scratch.file_system = "nfs4".to_owned();
        let warnings = of(&result);
        let warned = |part: &str| warnings.iter().any(|warning| warning.contains(part));
        assert!(warned("on a network file system (nfs4)") && warned("emulated"));
        result.host.scratch.network = false;
        result.controls.emulated = false;
        let warnings = of(&result);
        let warned = |part: &str| warnings.iter().any(|warning| warning.contains(part));
        assert!(!warned("network") && !warned("emulated"), "{warnings:?}");
    }
}
