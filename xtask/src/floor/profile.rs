//! Reads a capture's generation from the records that nvx writes on standard error.
//!
//! A record is one line: `NVX_PROFILE_V1 operation=capture phase=input_gate exclusive=1 duration_ns=...
//! process_elapsed_ns=... pid=...`, where `process_elapsed_ns` is the end of the phase on the process's
//! clock. Generation runs from the start of `input_gate` to the end of `publication_commit`.

use anyhow::{Context, Result, bail, ensure};

const PREFIX: &str = "NVX_PROFILE_V1 ";

/// The times of one capture.
#[derive(Debug, PartialEq)]
pub struct Generation {
    /// From the gate to the commit.
    pub total_ms: f64,
    /// The sync of the parent directory, which comes after the commit.
    pub parent_ms: Option<f64>,
    /// Every phase with its duration, in order.
    pub phases: Vec<(String, f64)>,
}

struct Record {
    phase: String,
    duration_ns: u64,
    end_ns: u64,
    pid: u64,
}

/// Finds the one capture in `text`. Missing, duplicate, foreign or unordered boundaries are errors.
pub fn generation(text: &str) -> Result<Generation> {
    let mut records = Vec::new();
    for line in text.lines() {
        if let Some(fields) = line.strip_prefix(PREFIX)
            && field(fields, "operation") == Some("capture")
        {
            records.push(record(fields).with_context(|| format!("profile record `{line}`"))?);
        }
    }
    let gate = only(&records, "input_gate")?;
    let commit = only(&records, "publication_commit")?;
    ensure!(gate.pid == commit.pid, "capture records of two processes");
    let start_ns = gate.end_ns.checked_sub(gate.duration_ns);
    let start_ns = start_ns.context("input_gate starts before its process")?;
    ensure!(
        gate.end_ns <= commit.end_ns,
        "publication_commit ends before input_gate"
    );
    let parent = records
        .iter()
        .find(|record| record.phase == "publication_parent_sync");
    Ok(Generation {
        total_ms: ms(commit.end_ns - start_ns),
        parent_ms: parent.map(|record| ms(record.duration_ns)),
        phases: records
            .iter()
            .map(|record| (record.phase.clone(), ms(record.duration_ns)))
            .collect(),
    })
}

fn only<'a>(records: &'a [Record], phase: &str) -> Result<&'a Record> {
    let mut found = records.iter().filter(|record| record.phase == phase);
    match (found.next(), found.next()) {
        (Some(record), None) => Ok(record),
        (None, _) => bail!("no profile record of capture.{phase}"),
        (Some(_), Some(_)) => bail!("two profile records of capture.{phase}"),
    }
}

fn record(fields: &str) -> Result<Record> {
    let number = |name: &str| -> Result<u64> {
        let value = field(fields, name).with_context(|| format!("no {name}"))?;
        value
            .parse()
            .with_context(|| format!("{name} is not a number"))
    };
    Ok(Record {
        phase: field(fields, "phase").context("no phase")?.to_owned(),
        duration_ns: number("duration_ns")?,
        end_ns: number("process_elapsed_ns")?,
        pid: number("pid")?,
    })
}

fn field<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields
        .split_whitespace()
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(phase: &str, duration: u64, end: u64, pid: u64) -> String {
        format!(
            "NVX_PROFILE_V1 operation=capture phase={phase} exclusive=1 duration_ns={duration} \
             process_elapsed_ns={end} pid={pid} pages=3\n"
        )
    }

    #[test]
    fn generation_spans_gate_to_commit() {
        let text = format!(
            "nvx: hello\n{}NVX_PROFILE_V1 operation=restore phase=input_gate duration_ns=x\n{}{}",
            line("input_gate", 1_000_000, 11_000_000, 7),
            line("publication_commit", 500_000, 14_000_000, 7),
            line("publication_parent_sync", 250_000, 15_000_000, 7),
        );
        let generation = generation(&text).unwrap();
        assert_eq!(generation.total_ms, 4.0);
        assert_eq!(generation.parent_ms, Some(0.25));
        assert_eq!(generation.phases[1], ("publication_commit".to_owned(), 0.5));
    }

    #[test]
    fn bad_boundaries_are_errors() {
        let gate = line("input_gate", 1, 10, 7);
        let commit = line("publication_commit", 1, 20, 7);
        for (text, message) in [
            (String::new(), "no profile record of capture.input_gate"),
            (
                gate.clone(),
                "no profile record of capture.publication_commit",
            ),
            (
                format!("{gate}{gate}{commit}"),
                "two profile records of capture.input_gate",
            ),
            (
                format!("{gate}{}", line("publication_commit", 1, 20, 8)),
                "capture records of two processes",
            ),
            (
                format!("{gate}{}", line("publication_commit", 1, 9, 7)),
                "publication_commit ends before input_gate",
            ),
            (
                format!("{}{commit}", line("input_gate", 11, 10, 7)),
                "input_gate starts before its process",
            ),
        ] {
            assert_eq!(generation(&text).unwrap_err().to_string(), message);
        }
        let broken = gate.replace("duration_ns=1 ", "duration_ns=x ");
        let error = generation(&broken).unwrap_err();
        assert!(
            error.root_cause().to_string().contains("invalid digit"),
            "{error:#}"
        );
    }
}
