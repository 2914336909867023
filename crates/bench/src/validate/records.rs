//! The records of each capture: complete, of its process, in order, and the origin of its sample.

use std::time::Duration;

use nvx_profile::ParsedRecord;

use super::fields::{FieldError, Node};
use crate::document::from_value;
use crate::lifecycle::{generation, milliseconds};
use crate::result::{MONITOR_SOURCE, PhaseRecord, ProfileSection, RawSample};

/// A stored sample may differ from its records by what whole nanoseconds cut off at both boundaries.
const TOLERANCE_MS: f64 = 2e-6;

/// Checks the records of the generation suite, where a result keeps any.
pub(super) fn check(suite: &Node<'_>, samples_ms: &[f64]) -> Result<(), FieldError> {
    let Some(profile) = suite.optional("profile") else {
        return Ok(());
    };
    let section: ProfileSection = from_value(profile.value()).map_err(|(field, error)| {
        profile.fault(format!("cannot be understood: {field}: {error}"))
    })?;
    let raw = section.raw_samples;
    if raw.is_empty() {
        return Ok(());
    }
    let list = profile.get("raw_samples")?;
    if raw.len() != samples_ms.len() {
        let (records, samples) = (raw.len(), samples_ms.len());
        return Err(list.fault(format!("are of {records} samples, there are {samples}")));
    }
    for (index, (sample, stored_ms)) in raw.iter().zip(samples_ms).enumerate() {
        let fault = |what: String| list.fault(format!("of sample {}: {what}", index + 1));
        let computed_ms = generation_ms(sample).map_err(fault)?;
        if (computed_ms - stored_ms).abs() > TOLERANCE_MS {
            return Err(fault(format!(
                "give {computed_ms} ms, samples_ms says {stored_ms}"
            )));
        }
    }
    Ok(())
}

fn generation_ms(sample: &RawSample) -> Result<f64, String> {
    let foreign = sample.records.iter().find(|one| one.pid != sample.pid);
    if let Some(PhaseRecord { phase, pid, .. }) = foreign {
        return Err(format!(
            "{phase} is of process {pid}, the monitor was {}",
            sample.pid
        ));
    }
    let parsed: Vec<ParsedRecord> = sample.records.iter().filter_map(parsed).collect();
    generation(&parsed, sample.pid)
        .map(milliseconds)
        .map_err(|error| error.to_string())
}

/// A record of the monitor; those of the observer have no place on its clock.
fn parsed(record: &PhaseRecord) -> Option<ParsedRecord> {
    let is_monitors = record.source == MONITOR_SOURCE;
    Some(ParsedRecord {
        operation: record.operation.clone(),
        phase: record.phase.clone(),
        exclusive: record.exclusive,
        duration: Duration::from_nanos(record.duration_ns),
        end: Duration::from_nanos(record.process_elapsed_ns.filter(|_| is_monitors)?),
        pid: record.pid,
        other: Vec::new(),
    })
}
