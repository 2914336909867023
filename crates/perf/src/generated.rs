//! Histories with known events, made from a seed: test data that may be committed as code.

use crate::csv::{CommitRows, Direction, History, Metric, Row};
use crate::evaluate::random::SplitMix64;
use crate::identity::Identity;

/// What to make.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) seed: u64,
    pub(crate) commits: usize,
    /// Metrics in ms (lower is better), ops/s (higher is better) and MiB (lower is better).
    pub(crate) milliseconds: usize,
    pub(crate) operations: usize,
    pub(crate) sizes: usize,
    /// Noise of one point.
    pub(crate) sigma: f64,
    /// Commits measured on the slower kind of host, on which everything but sizes takes longer.
    pub(crate) slow_host: Vec<usize>,
    /// How much longer, as a logarithm.
    pub(crate) slow_by: f64,
    /// Changes: metric, from commit, to commit (excluded), size as a logarithm; above zero is worse.
    pub(crate) changes: Vec<(usize, usize, usize, f64)>,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            seed: 1,
            commits: 40,
            milliseconds: 12,
            operations: 6,
            sizes: 2,
            sigma: 0.015,
            slow_host: Vec::new(),
            slow_by: 0.12,
            changes: Vec::new(),
        }
    }
}

/// The commit with a number.
pub(crate) fn commit(number: usize) -> String {
    format!("{number:040x}")
}

/// A nearly normal number: the sum of twelve uniform ones.
fn normal(random: &mut SplitMix64) -> f64 {
    (0..12)
        .map(|_| random.next() as f64 / u64::MAX as f64)
        .sum::<f64>()
        - 6.0
}

impl Recipe {
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let metric = |name: String, unit: &str, direction| Metric {
            name,
            unit: unit.to_owned(),
            direction,
        };
        let times = (0..self.milliseconds)
            .map(|index| metric(format!("time_{index}"), "ms", Direction::Lower));
        let rates = (0..self.operations)
            .map(|index| metric(format!("rate_{index}"), "ops/s", Direction::Higher));
        let sizes =
            (0..self.sizes).map(|index| metric(format!("size_{index}"), "MiB", Direction::Lower));
        times.chain(rates).chain(sizes).collect()
    }

    pub(crate) fn history(&self) -> History {
        let metrics = self.metrics();
        let mut random = SplitMix64::new(self.seed);
        let commits = (0..self.commits)
            .map(|at| {
                let shared = 0.3 * self.sigma * normal(&mut random);
                let slow = if self.slow_host.contains(&at) {
                    self.slow_by
                } else {
                    0.0
                };
                let rows = metrics
                    .iter()
                    .enumerate()
                    .map(|(index, metric)| {
                        let own = self.sigma * normal(&mut random);
                        let change: f64 = self
                            .changes
                            .iter()
                            .filter(|(metric, from, to, _)| {
                                *metric == index && (*from..*to).contains(&at)
                            })
                            .map(|(_, _, _, size)| size)
                            .sum();
                        let worse = if metric.unit == "MiB" {
                            0.05 * own + change
                        } else {
                            own + shared + slow + change
                        };
                        let level = 100.0 * (index + 1) as f64;
                        let p50 = match metric.direction {
                            Direction::Lower => level * worse.exp(),
                            Direction::Higher => level * (-worse).exp(),
                        };
                        Row { metric: index, p50 }
                    })
                    .collect();
                CommitRows {
                    commit: commit(at),
                    rows,
                }
            })
            .collect();
        History {
            metrics,
            commits,
            ..History::empty(Identity {
                platform: "linux-kvm-bare-metal".to_owned(),
                microvm_abi_version: 2,
                processors: 1,
            })
        }
    }
}

/// The part of a history from one commit on, up to another.
pub(crate) fn part(history: &History, commits: std::ops::Range<usize>) -> History {
    History {
        commits: history.commits[commits].to_vec(),
        ..history.clone()
    }
}
