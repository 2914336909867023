//! The interleaved comparison of two builds, as the gate reads it.
//!
//! A JSON object with `schema` = [`COMPARISON_SCHEMA`] and `schema_version` =
//! [`COMPARISON_SCHEMA_VERSION`]; other members are ignored. The comparison counts only when the two
//! builds took turns on one host.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::GateError;
use crate::csv::read_bytes;

/// The value of `schema`.
pub const COMPARISON_SCHEMA: &str = "nvx.comparison";
/// The value of `schema_version`.
pub const COMPARISON_SCHEMA_VERSION: u32 = 1;
/// A difference is a regression from this on, in percent: smaller ones are not worth a verdict.
const WORTH_PERCENT: f64 = 5.0;

/// Base against candidate, measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: String,
    /// [`COMPARISON_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Whether the builds took turns on one host.
    pub interleaved: bool,
    /// Commit of the base build.
    pub base_commit: String,
    /// Commit of the candidate build.
    pub candidate_commit: String,
    /// What was compared, by the history's metric names.
    pub metrics: BTreeMap<String, ComparedMetric>,
}

/// One metric's difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedMetric {
    /// Its unit.
    pub unit: String,
    /// How much worse the candidate is, in percent of the base; below zero is better.
    pub worse_percent: f64,
    /// Lower end of the 95 % interval of `worse_percent`.
    pub worse_percent_low: f64,
    /// Upper end of the 95 % interval of `worse_percent`.
    pub worse_percent_high: f64,
}

impl Comparison {
    /// Reads a comparison.
    ///
    /// # Errors
    /// It cannot be read, or is not what a gate can rely on.
    pub fn read(path: &Path) -> Result<Self, GateError> {
        let content = read_bytes(path)?;
        let comparison: Self =
            serde_json::from_slice(&content).map_err(|source| GateError::ComparisonJson {
                path: path.to_owned(),
                source,
            })?;
        let fault = |what: String| GateError::Comparison {
            path: path.to_owned(),
            what,
        };
        if comparison.schema != COMPARISON_SCHEMA
            || comparison.schema_version != COMPARISON_SCHEMA_VERSION
        {
            return Err(fault(format!(
                "schema is '{}' version {}, must be '{COMPARISON_SCHEMA}' version \
                 {COMPARISON_SCHEMA_VERSION}",
                comparison.schema, comparison.schema_version
            )));
        }
        if !comparison.interleaved {
            return Err(fault("the builds did not take turns".to_owned()));
        }
        for (name, metric) in &comparison.metrics {
            let ordered = metric.worse_percent_low <= metric.worse_percent
                && metric.worse_percent <= metric.worse_percent_high;
            if !ordered {
                return Err(fault(format!(
                    "metric {name}: the interval does not hold the difference"
                )));
            }
        }
        Ok(comparison)
    }

    /// Whether the metrics that `counts`, taken together, are worse; `None` where there are none.
    pub(crate) fn is_worse(&self, counts: impl Fn(&str, &ComparedMetric) -> bool) -> Option<bool> {
        let counted = || {
            self.metrics
                .iter()
                .filter(|(name, metric)| counts(name, metric))
        };
        let median = |value: fn(&ComparedMetric) -> f64| {
            let values: Vec<f64> = counted().map(|(_, metric)| value(metric)).collect();
            nvx_bench::statistics::median(&values)
        };
        let size = median(|metric| metric.worse_percent)?;
        let low = median(|metric| metric.worse_percent_low)?;
        Some(low > 0.0 && size >= WORTH_PERCENT)
    }
}
