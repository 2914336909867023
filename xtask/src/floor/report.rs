//! Medians, the table and the JSON.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::SAMPLES_FOR_A_VERDICT;
use super::contender::{Contender, Sample};
use super::rows::{Row, Target};

/// Samples of one contender in one row.
pub struct Cell {
    applies: bool,
    samples: Vec<Sample>,
    /// Why it could not be measured; nothing more is tried then.
    failure: Option<String>,
}

impl Cell {
    /// An empty cell.
    pub fn new(contender: &Contender, row: &Row) -> Self {
        Self {
            applies: contender.can(row.work),
            samples: Vec::new(),
            failure: None,
        }
    }

    /// Whether another sample makes sense.
    pub fn applies(&self) -> bool {
        self.applies && self.failure.is_none()
    }

    /// Takes a sample in; one that warms up counts only if it failed.
    pub fn add(&mut self, sample: Result<Sample>, warm_up: bool) {
        match sample {
            Ok(sample) if !warm_up => self.samples.push(sample),
            Ok(_) => {}
            Err(error) => self.failure = Some(format!("{error:#}")),
        }
    }

    fn values(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| sample.value).collect()
    }

    fn median(&self) -> Option<f64> {
        if self.failure.is_some() {
            return None;
        }
        median(&self.values())
    }

    fn parent_median(&self) -> Option<f64> {
        let values: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.parent_ms).collect();
        median(&values?)
    }

    /// Medians of the phases, in the order of the first sample.
    fn phase_medians(&self) -> Vec<(&str, f64)> {
        let Some(first) = self.samples.first() else {
            return Vec::new();
        };
        let median_of = |name: &str| {
            let phases = self.samples.iter().flat_map(|sample| &sample.phases);
            let values: Vec<f64> = phases
                .filter(|(phase, _)| phase == name)
                .map(|&(_, value)| value)
                .collect();
            median(&values)
        };
        let names = first.phases.iter().map(|(name, _)| name.as_str());
        names
            .filter_map(|name| Some((name, median_of(name)?)))
            .collect()
    }
}

/// Everything that was measured.
pub struct Report<'a> {
    /// The rows, in order.
    pub rows: Vec<&'a Row>,
    /// The names of the contenders, in order.
    pub contenders: Vec<&'static str>,
    /// One list per row with one cell per contender.
    pub cells: Vec<Vec<Cell>>,
    /// Samples asked for.
    pub samples: usize,
    /// What "disk" is.
    pub disk_file_system: String,
}

impl Report<'_> {
    /// True if nothing failed.
    pub fn complete(&self) -> bool {
        self.cells
            .iter()
            .flatten()
            .all(|cell| cell.failure.is_none())
    }

    fn median(&self, row: usize, contender: &str) -> Option<f64> {
        let index = self.contenders.iter().position(|name| *name == contender)?;
        self.cells.get(row)?.get(index)?.median()
    }

    /// What the target speaks of, and whether it was reached.
    fn verdict(&self, index: usize) -> Option<(f64, bool)> {
        let own = self.median(index, "nvx")?;
        let (figure, limit) = match self.rows[index].target {
            Target::OverFloor(limit) => (own / self.median(index, "floor")?, limit),
            Target::AtMost(limit) => (own, limit),
            Target::OverRow(limit, other) => {
                let other = self.rows.iter().position(|row| row.name == other)?;
                (own / self.median(other, "nvx")?, limit)
            }
        };
        Some((figure, figure <= limit))
    }

    fn verdict_word(&self, index: usize) -> &'static str {
        match self.verdict(index) {
            _ if self.samples < SAMPLES_FOR_A_VERDICT => "too few",
            Some((_, true)) => "reached",
            Some((_, false)) => "missed",
            None => "-",
        }
    }

    /// The table for people.
    pub fn table(&self, phases: bool) -> String {
        let mut text = format!(
            "medians of {} samples; disk is {}; p50/p25 is nvx's\n\n{:<36}",
            self.samples, self.disk_file_system, "work"
        );
        for name in &self.contenders {
            push(&mut text, format_args!("{name:>11}"));
        }
        push(
            &mut text,
            format_args!(
                "{:>8} {:>8}  {:<26} verdict\n",
                "ratio", "p50/p25", "target"
            ),
        );
        for (index, row) in self.rows.iter().enumerate() {
            self.push_row(&mut text, index, row);
        }
        text.push('\n');
        for (row, cells) in self.rows.iter().zip(&self.cells) {
            self.push_parents(&mut text, row, cells);
        }
        if phases {
            text.push('\n');
            for (row, cells) in self.rows.iter().zip(&self.cells) {
                self.push_phases(&mut text, row, cells);
            }
        }
        for failure in self
            .cells
            .iter()
            .flatten()
            .filter_map(|cell| cell.failure.as_ref())
        {
            push(
                &mut text,
                format_args!("could not be measured: {failure}\n"),
            );
        }
        text
    }

    fn push_row(&self, text: &mut String, index: usize, row: &Row) {
        push(text, format_args!("{:<36}", row.name));
        for name in &self.contenders {
            let median = self.median(index, name).map(figure);
            let shown = median.map_or("-".to_owned(), |median| {
                format!("{median} {}", row.work.unit())
            });
            push(text, format_args!("{shown:>11}"));
        }
        let ratio = self
            .median(index, "nvx")
            .zip(self.median(index, "floor"))
            .map_or("-".to_owned(), |(own, floor)| format!("{:.2}", own / floor));
        let own = self.contenders.iter().position(|name| *name == "nvx");
        let spread = own
            .and_then(|own| spread(&self.cells[index][own].values()))
            .map_or("-".to_owned(), |spread| format!("{spread:.3}"));
        push(
            text,
            format_args!(
                "{ratio:>8} {spread:>8}  {:<26} {}\n",
                target_text(row),
                self.verdict_word(index)
            ),
        );
    }

    fn push_parents(&self, text: &mut String, row: &Row, cells: &[Cell]) {
        let parents: Vec<String> = self
            .contenders
            .iter()
            .zip(cells)
            .filter_map(|(name, cell)| Some(format!("{name} {} ms", figure(cell.parent_median()?))))
            .collect();
        if !parents.is_empty() {
            let list = parents.join(", ");
            push(
                text,
                format_args!("{}: then the parent's sync: {list}\n", row.name),
            );
        }
    }

    fn push_phases(&self, text: &mut String, row: &Row, cells: &[Cell]) {
        for (name, cell) in self.contenders.iter().zip(cells) {
            let phases: Vec<String> = cell
                .phase_medians()
                .iter()
                .map(|(phase, median)| format!("{phase} {median:.3}"))
                .collect();
            if !phases.is_empty() {
                let list = phases.join(", ");
                push(text, format_args!("{}, {name} in ms: {list}\n", row.name));
            }
        }
    }

    /// Every sample, for programs.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .enumerate()
            .map(|(index, row)| self.json_row(index, row))
            .collect();
        json!({
            "schema": "nvx-floor",
            "schema_version": 1,
            "samples": self.samples,
            "disk_file_system": self.disk_file_system,
            "rows": rows,
        })
    }

    fn json_row(&self, index: usize, row: &Row) -> Value {
        let results: serde_json::Map<String, Value> = self
            .contenders
            .iter()
            .zip(&self.cells[index])
            .filter(|(_, cell)| cell.applies)
            .map(|(name, cell)| {
                let phases: serde_json::Map<String, Value> = cell
                    .phase_medians()
                    .into_iter()
                    .map(|(phase, median)| (phase.to_owned(), json!(median)))
                    .collect();
                let result = json!({
                    "median": cell.median(),
                    "parent_sync_ms": cell.parent_median(),
                    "phases_ms": phases,
                    "samples": cell.values(),
                    "failure": cell.failure,
                });
                ((*name).to_owned(), result)
            })
            .collect();
        let (kind, limit, base) = match row.target {
            Target::OverFloor(limit) => ("over_floor", limit, None),
            Target::AtMost(limit) => ("at_most", limit, None),
            Target::OverRow(limit, base) => ("over_row", limit, Some(base)),
        };
        let figure = self.verdict(index).map(|(figure, _)| figure);
        json!({
            "name": row.name,
            "unit": row.work.unit(),
            "fill": row.fill,
            "memory_mib": row.memory_mib,
            "results": results,
            "target": {"kind": kind, "limit": limit, "row": base, "figure": figure,
                       "verdict": self.verdict_word(index)},
        })
    }
}

fn target_text(row: &Row) -> String {
    match row.target {
        Target::OverFloor(limit) => format!("at most {limit} x floor"),
        Target::AtMost(limit) => format!("at most {limit} {}", row.work.unit()),
        Target::OverRow(limit, _) => format!("at most {limit} x own 128 MiB"),
    }
}

/// Three significant digits, which is more than the noise allows.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// The ordinary median; `None` of nothing.
fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[middle - 1], upper))
}

/// p50 over p25, the latter by nearest rank.
fn spread(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let rank = sorted.len().div_ceil(4);
    let quartile = *sorted.get(rank.checked_sub(1)?)?;
    Some(median(values)? / quartile)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    fn cell(values: &[f64]) -> Cell {
        Cell {
            applies: true,
            samples: values
                .iter()
                .map(|&value| Sample {
                    value,
                    parent_ms: Some(0.5),
                    phases: vec![("flush".to_owned(), value / 2.0)],
                })
                .collect(),
            failure: None,
        }
    }

    fn report(floor: &[f64], own: Cell) -> Report<'static> {
        Report {
            rows: vec![&ROWS[0]],
            contenders: vec!["floor", "nvx"],
            cells: vec![vec![cell(floor), own]],
            samples: 15,
            disk_file_system: "ext4".to_owned(),
        }
    }

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        // Ten samples: p25 is the third smallest.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(spread(&ten), Some(5.5 / 3.0));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn reached_and_missed() {
        let good = report(&[2.0, 2.0, 9.0], cell(&[2.4, 2.4, 1.0]));
        let table = good.table(true);
        let line = table.lines().find(|line| line.starts_with("boot")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "boot", "2.00", "ms", "2.40", "ms", "1.20", "2.400", "at", "most", "1.25", "x",
                "floor", "reached"
            ]
        );
        assert!(table.contains("boot: then the parent's sync: floor 0.500 ms, nvx 0.500 ms"));
        assert!(table.contains("boot, nvx in ms: flush 1.200"));
        assert!(report(&[2.0], cell(&[2.6])).table(false).contains("missed"));
        let few = Report {
            samples: 3,
            ..report(&[2.0], cell(&[2.0]))
        };
        assert!(few.table(false).contains("too few"));
    }

    #[test]
    fn a_failure_is_named_and_gives_no_verdict() {
        let mut own = cell(&[2.0]);
        own.add(Err(anyhow::anyhow!("no such option")), true);
        assert!(!own.applies());
        let report = report(&[2.0], own);
        assert!(!report.complete());
        assert_eq!(report.verdict_word(0), "-");
        assert!(
            report
                .table(false)
                .contains("could not be measured: no such option")
        );
        assert_eq!(
            report.json()["rows"][0]["results"]["nvx"]["failure"],
            "no such option"
        );
    }

    #[test]
    fn growth_is_relative_to_the_other_row() {
        let rows: Vec<&Row> = ROWS
            .iter()
            .filter(|row| row.name.starts_with("generation, tmpfs, 256 pages"))
            .collect();
        let report = Report {
            rows,
            contenders: vec!["floor", "nvx"],
            cells: vec![
                vec![cell(&[1.0]), cell(&[2.0])],
                vec![cell(&[1.0]), cell(&[2.2])],
            ],
            samples: 15,
            disk_file_system: "ext4".to_owned(),
        };
        let (growth, reached) = report.verdict(1).unwrap();
        assert!((growth - 1.1).abs() < 1e-9 && reached);
        assert_eq!(report.json()["rows"][1]["target"]["kind"], "over_row");
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [123.4, 12.34, 1.234, 0.1234].map(figure);
        assert_eq!(shown, ["123", "12.3", "1.23", "0.123"]);
    }
}
