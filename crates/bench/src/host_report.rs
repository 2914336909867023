//! What a host offers for running, capturing and measuring microVMs, what it lacks, and how to get it.
//!
//! Lower crates find facts ([`nvx_host::probe`], [`nvx_hypervisor::probe_backends`],
//! [`nvx_hypervisor::measure_execution`]); here they become [`Check`]s: one line each with a verdict
//! and, where something is missing, a remedy. The same report says on what a measurement was
//! made: times of an emulated guest are never mixed with those of a processor.

mod backends;
mod machine;
mod scratch;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::error::Error;
use std::path::Path;

use nvx_host::probe;
use nvx_hypervisor::{BackendChoice, open_backend, probe_backends};
use serde::Serialize;

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is there.
    Ok,
    /// A fact without a verdict.
    Info,
    /// It is missing or limited, and NVX does without, at a cost that the detail names.
    Warn,
    /// `nvx demo` cannot run.
    Fail,
}

impl Status {
    /// The word for it, which is also the one in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Kernel, processor, memory.
    Machine,
    /// What carries out a guest's instructions.
    BackEnds,
    /// The directory for RAM files and snapshots.
    Scratch,
    /// What the kernel offers beyond.
    KernelInterfaces,
}

impl Area {
    /// A heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Machine => "Machine",
            Self::BackEnds => "Back ends",
            Self::Scratch => "Scratch directory",
            Self::KernelInterfaces => "Kernel interfaces",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about.
    pub area: Area,
    /// What was looked at.
    pub name: &'static str,
    /// The verdict.
    pub status: Status,
    /// What was found, and what follows from it.
    pub detail: String,
    /// How to get what is missing.
    pub remedy: Option<String>,
}

/// A part of a hypervisor's interface and what the hypervisor answers for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapabilityRow {
    /// The back end.
    pub backend: &'static str,
    /// The capability's name in the interface's documentation.
    pub name: &'static str,
    /// What NVX uses it for.
    pub purpose: &'static str,
    /// Whether NVX can do without.
    pub required: bool,
    /// 0 for absent; some have a number to tell.
    pub value: i32,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// `nvx demo` can run here, if only on the software back end.
    pub can_run_demo: bool,
    /// The back end that `--backend auto` takes; `None` if it takes one that does not run.
    pub backend: Option<&'static str>,
    /// `hardware` or `emulated`; where nobody can tell, `emulated`.
    pub execution: &'static str,
    /// Guest instructions per millisecond of a fixed loop on that back end.
    pub instructions_per_ms: Option<u64>,
    /// Every check, grouped by area.
    pub checks: Vec<Check>,
    /// Every capability that is used of the hypervisor's interface.
    pub capabilities: Vec<CapabilityRow>,
}

/// Examines this host, and the directory `scratch` for RAM files and snapshots. Takes a few tenths
/// of a second, most of it for the trial run of a guest. Nothing stays behind.
#[must_use]
pub fn examine(scratch: &Path) -> HostReport {
    let mut checks = machine::checks(
        &probe::kernel(),
        probe::processor().as_ref(),
        &probe::machine(),
        &probe::huge_pages(),
    );

    let found = probe_backends();
    let capabilities = backends::capability_rows(&found);
    let chosen = open_backend(BackendChoice::Auto, None);
    let trial = backends::Trial::run(chosen);
    checks.extend(backends::checks(&found, &trial));

    checks.extend(scratch::checks(scratch, &probe::scratch(scratch)));
    checks.extend(machine::interface_checks(
        probe::confinement(),
        probe::page_interfaces(),
    ));
    HostReport {
        can_run_demo: checks.iter().all(|check| check.status != Status::Fail),
        backend: trial.speed.is_ok().then_some(trial.backend).flatten(),
        execution: backends::execution_name(&trial),
        instructions_per_ms: trial
            .speed
            .as_ref()
            .ok()
            .map(|speed| speed.instructions_per_ms),
        checks,
        capabilities,
    }
}

/// Makes checks of one area.
#[derive(Clone, Copy)]
struct Checker(Area);

impl Checker {
    fn ok(self, name: &'static str, detail: impl Into<String>) -> Check {
        self.check(name, Status::Ok, detail)
    }

    fn info(self, name: &'static str, detail: impl Into<String>) -> Check {
        self.check(name, Status::Info, detail)
    }

    fn warn(self, name: &'static str, detail: impl Into<String>) -> Check {
        self.check(name, Status::Warn, detail)
    }

    fn fail(self, name: &'static str, detail: impl Into<String>) -> Check {
        self.check(name, Status::Fail, detail)
    }

    fn check(self, name: &'static str, status: Status, detail: impl Into<String>) -> Check {
        Check {
            area: self.0,
            name,
            status,
            detail: detail.into(),
            remedy: None,
        }
    }
}

impl Check {
    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// A size for people.
fn size(bytes: u64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    let gib = bytes as f64 / GIB;
    if gib >= 1.0 {
        format!("{gib:.1} GiB")
    } else {
        format!("{:.0} MiB", gib * 1024.0)
    }
}
