//! What measurements in turns have in common: progress, an early end, and where the result goes.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use nvx_bench::accept::write_json;
use nvx_host::{Termination, TerminationSignals};
use serde::Serialize;

use super::lifecycle::remaining;
use crate::exit::Failure;
use crate::output;

/// Turns while they are taken.
pub struct Turns<'a> {
    signals: &'a TerminationSignals,
    line: output::ProgressLine,
    began: Instant,
    interrupted: Option<Termination>,
}

impl<'a> Turns<'a> {
    /// None is taken yet.
    pub fn begin(signals: &'a TerminationSignals) -> Self {
        Self {
            signals,
            line: output::ProgressLine::new(),
            began: Instant::now(),
            interrupted: None,
        }
    }

    /// Shows where the measurement is; whether it shall go on.
    pub fn go_on(&mut self, done: u32, total: u32) -> bool {
        self.interrupted = self.interrupted.or_else(|| self.signals.take());
        let left = remaining(self.began.elapsed(), done, total);
        self.line.show(&format!("{}/{total} turns{left}", done + 1));
        self.interrupted.is_none()
    }

    /// What ended the measurement early, if anything did.
    pub fn end(self) -> Option<Termination> {
        self.interrupted.or_else(|| self.signals.take())
    }
}

/// Writes a result where it was asked for.
pub fn keep(path: Option<&Path>, result: &impl Serialize) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    write_json(path, result)
        .with_context(|| format!("--output {}", path.display()))
        .map_err(Failure::input)
}
