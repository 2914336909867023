//! A history as the rules see it: logarithms, turned so that more is worse.

use crate::csv::{Direction, History};
use crate::hosts::Hosts;

/// What a metric's values are, for the question whether it shares what the others do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// Its name.
    pub(crate) name: String,
    /// Unit of its values.
    pub(crate) unit: String,
    /// Which values are good.
    pub(crate) direction: Direction,
    /// Whether it takes part in the common factor: memory sizes do not follow a host's speed.
    pub(crate) shares: bool,
}

/// A kind of host, as a number; `None` where it is not known.
pub(crate) type Host = Option<usize>;

/// Values of metrics (rows) at commits (columns); NaN where a metric was not measured.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) series: Vec<Series>,
    /// Commits, oldest first.
    pub(crate) commits: Vec<String>,
    /// Per commit: one value per series.
    pub(crate) columns: Vec<Vec<f64>>,
    /// Per commit: its host.
    pub(crate) hosts: Vec<Host>,
    /// Fingerprints of the kinds of host, each at its number.
    kinds: Vec<String>,
}

/// Units of memory sizes.
const MEMORY_UNITS: [&str; 7] = ["B", "bytes", "KiB", "MiB", "GiB", "kB", "MB"];

impl Panel {
    /// The last `limit` commits of a history.
    pub(crate) fn of(history: &History, hosts: &Hosts, limit: usize) -> Self {
        let series: Vec<Series> = history
            .metrics
            .iter()
            .map(|metric| Series {
                name: metric.name.clone(),
                unit: metric.unit.clone(),
                direction: metric.direction,
                shares: !MEMORY_UNITS.contains(&metric.unit.as_str()),
            })
            .collect();
        let first = history.commits.len().saturating_sub(limit);
        let kept = history.commits.get(first..).unwrap_or_default();
        let columns = kept
            .iter()
            .map(|commit| {
                let mut column = vec![f64::NAN; series.len()];
                for row in &commit.rows {
                    if let (Some(place), Some(series)) =
                        (column.get_mut(row.metric), series.get(row.metric))
                    {
                        *place = worse_log(series.direction, row.p50);
                    }
                }
                column
            })
            .collect();
        let mut kinds: Vec<&str> = Vec::new();
        let hosts = kept
            .iter()
            .map(|commit| Some(kind_of(hosts.fingerprint(&commit.commit)?, &mut kinds)))
            .collect();
        Self {
            hosts,
            kinds: kinds.into_iter().map(str::to_owned).collect(),
            series,
            commits: kept.iter().map(|commit| commit.commit.clone()).collect(),
            columns,
        }
    }

    /// The kind of host with a fingerprint; one that no commit has is a kind of its own.
    pub(crate) fn kind(&self, fingerprint: &str) -> usize {
        self.kinds
            .iter()
            .position(|kind| kind == fingerprint)
            .unwrap_or(self.kinds.len())
    }
}

fn kind_of<'a>(fingerprint: &'a str, kinds: &mut Vec<&'a str>) -> usize {
    kinds
        .iter()
        .position(|kind| *kind == fingerprint)
        .unwrap_or_else(|| {
            kinds.push(fingerprint);
            kinds.len() - 1
        })
}

/// The logarithm of a value, turned so that more is worse.
pub(crate) fn worse_log(direction: Direction, value: f64) -> f64 {
    match direction {
        Direction::Lower => value.ln(),
        Direction::Higher => -value.ln(),
    }
}

/// The value that a turned logarithm stands for.
pub(crate) fn value_of(direction: Direction, worse: f64) -> f64 {
    match direction {
        Direction::Lower => worse.exp(),
        Direction::Higher => (-worse).exp(),
    }
}
