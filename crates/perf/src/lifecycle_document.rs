//! A lifecycle result as `collect` and `import` read it.
//!
//! Two formats share their section and field names:
//!
//! - ours: `schema` = `nvx.lifecycle`, `schema_version` = 1. `controls` must say `validated` (true),
//!   `disturbed` (false), `complete` (true), `emulated` (a boolean), `commit` (the measured build's
//!   commit), `platform` (derived from the recorded host), `backend`, `microvm_abi_version`,
//!   `processors`, `suite` (`lifecycle`), `memory_mib` (128), `runs` and `teardown_mode`
//!   (`guest-exit`). `host`, where there is one, is an object with the text `fingerprint`.
//! - the public NVX/OpenVMM format: no `schema`; `controls` has `suite` (`e2e`), `memory_mib`,
//!   `runs`, `backend`, `teardown_mode`, `marker`, `restore_marker`, `snapshot_capture_timing` and
//!   `snapshot_restore_guest_exit_prequeued`; `platform` may be null, and without an ABI version and
//!   processors they are 1.
//!
//! In both, `backends`, `snapshot_capture` and `snapshot_restore` hold one object per back end, with
//! sample lists and medians. Medians must equal what their samples give, so that a row is never
//! something else than what was measured. Whatever else a document holds is kept and not looked at.

use std::path::{Path, PathBuf};

use nvx_bench::stability::{MAX_RATIO, UnstableRule, unstable_rule};
use nvx_bench::statistics::median;
use serde_json::{Map, Value};

use crate::csv::{CommitRows, Direction, History, HistoryError, Metric, Row, read_bytes};
use crate::identity::{Identity, plain_number};
use crate::metric_name::Prefix;

/// The value of `schema` in our own results.
pub const LIFECYCLE_SCHEMA: &str = "nvx.lifecycle";
/// The value of `schema_version` in our own results.
pub const LIFECYCLE_SCHEMA_VERSION: u64 = 1;
/// Guest RAM of an accepted result, in MiB.
const MEMORY_MIB: u64 = 128;
/// Fewest samples of an accepted result.
const MINIMUM_RUNS: u64 = 10;
const BYTES_PER_MIB: f64 = 1_048_576.0;

/// One metric of a lifecycle result.
struct Source {
    ending: &'static str,
    section: &'static str,
    p50: &'static str,
    samples: &'static str,
    in_bytes: bool,
}

const fn time(ending: &'static str, section: &'static str) -> Source {
    Source {
        ending,
        section,
        p50: "p50_ms",
        samples: "samples_ms",
        in_bytes: false,
    }
}

const fn teardown(ending: &'static str, section: &'static str) -> Source {
    Source {
        ending,
        section,
        p50: "teardown_p50_ms",
        samples: "teardown_samples_ms",
        in_bytes: false,
    }
}

const fn peak_rss(ending: &'static str, section: &'static str) -> Source {
    Source {
        ending,
        section,
        p50: "peak_rss_p50_bytes",
        samples: "peak_rss_samples_bytes",
        in_bytes: true,
    }
}

const SOURCES: [Source; 8] = [
    time("cold_start", "backends"),
    time("snapshot_generation", "snapshot_capture"),
    time("snapshot_restore", "snapshot_restore"),
    teardown("cold_start_guest_exit_teardown", "backends"),
    teardown("snapshot_restore_guest_exit_teardown", "snapshot_restore"),
    peak_rss("cold_start_peak_rss", "backends"),
    peak_rss("snapshot_generation_peak_rss", "snapshot_capture"),
    peak_rss("snapshot_restore_peak_rss", "snapshot_restore"),
];

/// Why a result gives no rows.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] HistoryError),
    /// It is not JSON.
    #[error("{}: not JSON", path.display())]
    Json {
        /// The result.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A member is missing or of the wrong kind.
    #[error("{}: {field} must be {wanted}", path.display())]
    Field {
        /// The result.
        path: PathBuf,
        /// The member, with its parents.
        field: String,
        /// What it must be.
        wanted: String,
    },
    /// A member has another value than an accepted result has.
    #[error("{}: {field} is {found}, must be {wanted}: the result is {name}", path.display())]
    Refused {
        /// The result.
        path: PathBuf,
        /// What is wrong, in one word: `unvalidated`, `disturbed`, `incomplete`, `emulated` or
        /// `mismatched`.
        name: &'static str,
        /// The member, with its parents.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        wanted: String,
    },
}

/// A result that was read.
pub(crate) struct Document {
    path: PathBuf,
    pub(crate) root: Map<String, Value>,
}

impl Document {
    pub(crate) fn read(path: &Path) -> Result<Self, DocumentError> {
        Self::parse(path, &read_bytes(path)?)
    }

    pub(crate) fn parse(path: &Path, content: &[u8]) -> Result<Self, DocumentError> {
        let root = serde_json::from_slice(content).map_err(|source| DocumentError::Json {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            root,
        })
    }

    /// A member by its path, as in `controls.runs`.
    pub(crate) fn member(&self, field: &str) -> Option<&Value> {
        let mut names = field.split('.');
        let mut value = self.root.get(names.next()?)?;
        for name in names {
            value = value.get(name)?;
        }
        Some(value)
    }

    pub(crate) fn text(&self, field: &str) -> Result<&str, DocumentError> {
        self.member(field)
            .and_then(Value::as_str)
            .ok_or_else(|| self.fault(field, "a text"))
    }

    fn number(&self, field: &str) -> Result<u64, DocumentError> {
        self.member(field)
            .and_then(Value::as_u64)
            .ok_or_else(|| self.fault(field, "a whole number"))
    }

    pub(crate) fn fault(&self, field: &str, wanted: &str) -> DocumentError {
        DocumentError::Field {
            path: self.path.clone(),
            field: field.to_owned(),
            wanted: wanted.to_owned(),
        }
    }

    pub(crate) fn refusal(
        &self,
        name: &'static str,
        field: &str,
        found: impl ToString,
        wanted: impl ToString,
    ) -> DocumentError {
        DocumentError::Refused {
            path: self.path.clone(),
            name,
            field: field.to_owned(),
            found: found.to_string(),
            wanted: wanted.to_string(),
        }
    }

    /// Refuses a result whose member has another value than wanted; a missing one is refused too.
    pub(crate) fn expect(
        &self,
        name: &'static str,
        field: &str,
        wanted: &Value,
    ) -> Result<(), DocumentError> {
        let found = self.member(field).unwrap_or(&Value::Null);
        if found == wanted {
            return Ok(());
        }
        Err(self.refusal(name, field, found, wanted))
    }

    /// What both formats must say to be accepted.
    pub(crate) fn expect_accepted_controls(&self, suite: &str) -> Result<(), DocumentError> {
        self.expect("mismatched", "controls.suite", &suite.into())?;
        self.expect("mismatched", "controls.memory_mib", &MEMORY_MIB.into())?;
        self.expect("mismatched", "controls.teardown_mode", &"guest-exit".into())?;
        let runs = self.number("controls.runs")?;
        if runs < MINIMUM_RUNS {
            let wanted = format!("at least {MINIMUM_RUNS}");
            return Err(self.refusal("incomplete", "controls.runs", runs, wanted));
        }
        Ok(())
    }

    /// What the result is about. `platform` is what the caller says; it must agree with the result's
    /// own, where that has one.
    pub(crate) fn identity(&self, platform: Option<&str>) -> Result<Identity, DocumentError> {
        let recorded = self.member("controls.platform").and_then(Value::as_str);
        let platform = match (recorded, platform) {
            (Some(recorded), Some(named)) if recorded != named => {
                return Err(self.refusal("mismatched", "controls.platform", recorded, named));
            }
            (Some(platform), _) | (None, Some(platform)) => platform,
            (None, None) => {
                return Err(self.fault("controls.platform", "a text, or be named by the caller"));
            }
        };
        let number = |field: &str| match self.member(field) {
            None | Some(Value::Null) => Ok(1),
            Some(value) => plain_number(&value.to_string())
                .ok_or_else(|| self.fault(field, "a small whole number")),
        };
        Ok(Identity {
            platform: platform.to_owned(),
            microvm_abi_version: number("controls.microvm_abi_version")?,
            processors: number("controls.processors")?,
        })
    }

    /// The rows of the result, named with a prefix.
    pub(crate) fn rows(
        &self,
        identity: Identity,
        commit: &str,
        prefix: Prefix,
    ) -> Result<History, DocumentError> {
        let backend = self.text("controls.backend")?;
        let runs = self.number("controls.runs")?;
        let mut history = History::empty(identity);
        let mut rows = Vec::new();
        for (index, source) in SOURCES.iter().enumerate() {
            let place = format!("{}.{backend}", source.section);
            let p50 = self.median_of(&place, source, runs)?;
            history.metrics.push(Metric {
                name: format!("{}{}", prefix.text(), source.ending),
                unit: if source.in_bytes { "MiB" } else { "ms" }.to_owned(),
                direction: Direction::Lower,
            });
            rows.push(Row {
                metric: index,
                p50: if source.in_bytes {
                    p50 / BYTES_PER_MIB
                } else {
                    p50
                },
            });
        }
        self.expect_stable_generation(backend, runs)?;
        for section in ["backends", "snapshot_restore"] {
            let field = format!("{section}.{backend}.teardown_timeout_count");
            if let Some(count) = self.member(&field) {
                self.expect("incomplete", &field, &Value::from(0))
                    .map_err(|_| self.refusal("incomplete", &field, count, 0))?;
            }
        }
        history.commits.push(CommitRows {
            commit: commit.to_owned(),
            rows,
        });
        Ok(history)
    }

    /// Refuses captures that the validator would have refused, whatever the controls say of it.
    fn expect_stable_generation(&self, backend: &str, runs: u64) -> Result<(), DocumentError> {
        let field = format!("snapshot_capture.{backend}.samples_ms");
        let samples = self.samples_of(&field, runs)?;
        let ratio = match unstable_rule(&samples) {
            None => return Ok(()),
            Some(UnstableRule::Median { ratio } | UnstableRule::Groups { ratio, .. }) => ratio,
        };
        let found = format!("unstable by a ratio of {ratio:.2}");
        let wanted = format!("within {MAX_RATIO}");
        Err(self.refusal("unvalidated", &field, found, wanted))
    }

    /// Samples that are all there, and all possible.
    fn samples_of(&self, field: &str, runs: u64) -> Result<Vec<f64>, DocumentError> {
        let listed = self
            .member(field)
            .and_then(Value::as_array)
            .ok_or_else(|| self.fault(field, "a list of samples"))?;
        let samples: Vec<f64> = listed.iter().filter_map(Value::as_f64).collect();
        if listed.len() as u64 != runs || samples.len() != listed.len() {
            let found = format!("{} numbers", samples.len());
            return Err(self.refusal("incomplete", field, found, format!("{runs} numbers")));
        }
        match samples
            .iter()
            .find(|sample| !(sample.is_finite() && **sample > 0.0))
        {
            Some(bad) => Err(self.refusal("mismatched", field, bad, "finite and above zero")),
            None => Ok(samples),
        }
    }

    /// A median that its samples confirm.
    fn median_of(&self, place: &str, source: &Source, runs: u64) -> Result<f64, DocumentError> {
        let samples = self.samples_of(&format!("{place}.{}", source.samples), runs)?;
        let field = format!("{place}.{}", source.p50);
        let stored = self
            .member(&field)
            .and_then(Value::as_f64)
            .ok_or_else(|| self.fault(&field, "a number"))?;
        let computed = median(&samples).unwrap_or(f64::NAN);
        // A median of bytes is stored without its half.
        let slack = if source.in_bytes {
            0.5
        } else {
            1e-9 * computed
        };
        if (stored - computed).abs() <= slack {
            return Ok(stored);
        }
        Err(self.refusal("mismatched", &field, stored, computed))
    }
}
