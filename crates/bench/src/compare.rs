//! Comparing builds on one host.
//!
//! The builds take turns in mirrored rounds (A B C, then C B A), so that a drift of the host falls on all
//! of them alike; the two samples of a build in the same half round are a pair. Each further build is
//! compared with the first. Per metric the differences of the pairs' logarithms are tested
//! ([`crate::statistics::signed_rank`]).
//!
//! One metric, the *primary*, decides; the others are secondary. All of a comparison's tests together raise
//! a false alarm in at most [`ALPHA`]: [`PRIMARY_ALPHA`] of it is divided evenly among the builds'
//! primaries, and the rest is spent on the secondaries by Holm's procedure. Without secondaries the
//! primary has all of it. Each interval has the error probability that its test was decided at, so an
//! interval and its verdict never disagree.

mod measure;
mod program_format;
mod table;
mod verdict;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::host::HostFingerprint;
use crate::statistics::signed_rank::{pairs_to_reach, smallest_p};
pub(crate) use measure::turns;
pub use measure::{CompareError, ComparePlan, NamedBuild, check_builds, run_comparison};
pub use table::{Incomparable, merge, text};
pub use verdict::{ComparisonVerdict, MetricVerdict, judge};

/// The value of `schema`.
pub const COMPARISON_SCHEMA: &str = "nvx.comparison";
/// The value of `schema_version`.
pub const COMPARISON_SCHEMA_VERSION: u32 = 1;
/// The probability of any false alarm in a comparison.
pub const ALPHA: f64 = 0.05;
/// The primary metric's part of it. What is left suffices for seven secondaries with ten samples:
/// 0.02 / 7 is above the smallest p of ten pairs, 2 / 1024.
pub const PRIMARY_ALPHA: f64 = 0.03;

/// A metric that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Process creation to the ready marker.
    ColdStart,
    /// Input gate to commit.
    SnapshotGeneration,
    /// Process creation to the restored marker.
    SnapshotRestore,
    /// Exit request to the process's end.
    ColdStartGuestExitTeardown,
    /// Restored marker to the process's end.
    SnapshotRestoreGuestExitTeardown,
    /// Peak resident set of a cold start.
    ColdStartPeakRss,
    /// Peak resident set of a capture.
    SnapshotGenerationPeakRss,
    /// Peak resident set of a restore.
    SnapshotRestorePeakRss,
}

impl MetricKind {
    /// Every metric.
    pub const ALL: [Self; 8] = [
        Self::ColdStart,
        Self::SnapshotGeneration,
        Self::SnapshotRestore,
        Self::ColdStartGuestExitTeardown,
        Self::SnapshotRestoreGuestExitTeardown,
        Self::ColdStartPeakRss,
        Self::SnapshotGenerationPeakRss,
        Self::SnapshotRestorePeakRss,
    ];

    /// The name in a history, without its prefix.
    pub fn ending(self) -> &'static str {
        match self {
            Self::ColdStart => "cold_start",
            Self::SnapshotGeneration => "snapshot_generation",
            Self::SnapshotRestore => "snapshot_restore",
            Self::ColdStartGuestExitTeardown => "cold_start_guest_exit_teardown",
            Self::SnapshotRestoreGuestExitTeardown => "snapshot_restore_guest_exit_teardown",
            Self::ColdStartPeakRss => "cold_start_peak_rss",
            Self::SnapshotGenerationPeakRss => "snapshot_generation_peak_rss",
            Self::SnapshotRestorePeakRss => "snapshot_restore_peak_rss",
        }
    }

    /// `ms` or `MiB`.
    pub fn unit(self) -> &'static str {
        match self {
            Self::ColdStartPeakRss
            | Self::SnapshotGenerationPeakRss
            | Self::SnapshotRestorePeakRss => "MiB",
            _ => "ms",
        }
    }
}

impl std::str::FromStr for MetricKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let short = match text {
            "generation" => "snapshot_generation",
            "restore" => "snapshot_restore",
            other => other.strip_prefix("nvx_").unwrap_or(other),
        };
        Self::ALL
            .into_iter()
            .find(|metric| metric.ending() == short)
            .ok_or_else(|| {
                let known: Vec<&str> = Self::ALL.iter().map(|metric| metric.ending()).collect();
                format!("'{text}' is no metric; there are {}", known.join(", "))
            })
    }
}

/// The samples of one build, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildSamples {
    /// The build's name.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// BLAKE3 of the program, hexadecimal.
    pub program_blake3: String,
    /// BLAKE3 of the guest that it brings along, hexadecimal; empty in results of earlier versions.
    #[serde(default)]
    pub kernel_blake3: String,
    /// The build's commit, if it was told.
    #[serde(default)]
    pub commit: Option<String>,
    /// Samples by metric, in the metric's unit.
    pub samples: BTreeMap<MetricKind, Vec<f64>>,
}

/// Which tests are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestPlan {
    /// The metric that decides.
    pub primary: MetricKind,
    /// The others that are tested.
    pub secondaries: Vec<MetricKind>,
    /// A change within this many percent does not matter.
    pub margin_percent: f64,
}

impl TestPlan {
    /// The error probability of the primary of each of `pairs` comparisons with the first build.
    pub fn primary_alpha(&self, pairs: usize) -> f64 {
        let all = if self.secondaries.is_empty() {
            ALPHA
        } else {
            PRIMARY_ALPHA
        };
        all / pairs.max(1) as f64
    }

    /// The error probability of all secondaries together.
    pub fn secondary_alpha(&self) -> f64 {
        ALPHA - PRIMARY_ALPHA
    }

    /// The fewest samples with which each test can be significant at all.
    pub fn samples_needed(&self, pairs: usize) -> usize {
        let secondary = self.secondary_alpha() / (self.secondaries.len() * pairs).max(1) as f64;
        let strictest = match self.secondaries.is_empty() {
            true => self.primary_alpha(pairs),
            false => self.primary_alpha(pairs).min(secondary),
        };
        pairs_to_reach(strictest)
    }

    /// Whether `samples` can reach significance.
    ///
    /// # Errors
    /// They cannot; the samples that can.
    pub fn check(&self, samples: usize, pairs: usize) -> Result<(), usize> {
        let needed = self.samples_needed(pairs);
        if samples >= needed {
            return Ok(());
        }
        debug_assert!(smallest_p(samples) > 0.0);
        // Rounds are mirrored, so samples come in twos.
        Err(needed.next_multiple_of(2))
    }
}

/// A whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonResult {
    /// [`COMPARISON_SCHEMA`].
    pub schema: String,
    /// [`COMPARISON_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When the comparison began.
    pub timestamp_utc: String,
    /// The builds took turns on one host.
    pub interleaved: bool,
    /// Commit of the first build; empty if it was not told.
    pub base_commit: String,
    /// Commit of the second build; empty if it was not told.
    pub candidate_commit: String,
    /// The second build against the first, by the history's names.
    pub metrics: BTreeMap<String, ComparedMetric>,
    /// What was tested.
    pub tests: TestPlan,
    /// Whether one build was compared with itself.
    pub aa: bool,
    /// Whether guest code was emulated.
    pub emulated: bool,
    /// The host.
    pub host: HostFingerprint,
    /// What was run besides the builds: guest size, vCPUs, probe, back end.
    pub subject: BTreeMap<String, String>,
    /// Every sample.
    pub builds: Vec<BuildSamples>,
    /// What the tests say.
    pub verdicts: Vec<ComparisonVerdict>,
}

/// One metric of the second build against the first, as a gate reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedMetric {
    /// `ms` or `MiB`.
    pub unit: String,
    /// How much worse the second is, in percent of the first; below zero is better.
    pub worse_percent: f64,
    /// Lower end of its interval.
    pub worse_percent_low: f64,
    /// Upper end of its interval.
    pub worse_percent_high: f64,
}

impl ComparisonResult {
    /// Whether any metric changed between any two builds.
    pub fn has_change(&self) -> bool {
        let mut metrics = self.verdicts.iter().flat_map(ComparisonVerdict::all);
        metrics.any(MetricVerdict::is_change)
    }

    /// The exit code of a comparison of a build with itself is 1 if there was a false alarm, else 0. Of
    /// others it is 1 if any build is worse, 75 if of any it cannot be told, else 0.
    pub fn exit_code(&self) -> u8 {
        if self.aa {
            return u8::from(self.has_change());
        }
        let primaries = || self.verdicts.iter().map(|verdict| &verdict.primary.verdict);
        if primaries().any(|verdict| verdict == "worse") {
            1
        } else if primaries().any(|verdict| verdict == "cannot tell") {
            75
        } else {
            0
        }
    }

    /// Fills in everything that follows from the samples.
    #[must_use]
    pub fn judged(mut self) -> Self {
        self.verdicts = judge(&self.builds, &self.tests);
        let number = |percent: Option<f64>, otherwise: f64| percent.unwrap_or(otherwise);
        if let Some(first) = self.verdicts.first() {
            self.metrics = first
                .all()
                .map(|metric| {
                    let compared = ComparedMetric {
                        unit: metric.unit.clone(),
                        worse_percent: metric.worse_percent,
                        // JSON has no infinity: the largest change that the format can carry.
                        worse_percent_low: number(metric.low_percent, -100.0),
                        worse_percent_high: number(metric.high_percent, f64::MAX),
                    };
                    (format!("nvx_{}", metric.metric.ending()), compared)
                })
                .collect();
        }
        self
    }
}

#[cfg(test)]
mod tests;
