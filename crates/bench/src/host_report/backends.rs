//! What carries out a guest's instructions, and how fast.

use nvx_hypervisor::{
    BackendFacts, Capability, Execution, ExecutionSpeed, HARDWARE_INSTRUCTIONS_PER_MS, OpenError,
    Selected, TrialError, measure_execution,
};

use super::{Area, CapabilityRow, Check, Checker, chain};

/// What came of running a guest on the back end that `auto` takes.
pub(super) struct Trial {
    /// The back end's name; `None` if none could be opened.
    pub(super) backend: Option<&'static str>,
    /// How fast the guest ran, or why it did not.
    pub(super) speed: Result<ExecutionSpeed, NoTrial>,
}

/// Why no guest ran.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoTrial {
    #[error("no back end can be opened")]
    Open(#[source] OpenError),
    #[error("a small guest does not run")]
    Run(#[source] TrialError),
}

impl Trial {
    pub(super) fn run(chosen: Result<Selected, OpenError>) -> Self {
        match chosen {
            Ok(Selected { backend, .. }) => Self {
                backend: Some(backend.name()),
                speed: measure_execution(backend.as_ref()).map_err(NoTrial::Run),
            },
            Err(error) => Self {
                backend: None,
                speed: Err(NoTrial::Open(error)),
            },
        }
    }
}

/// `hardware` or `emulated`. What cannot be told counts as emulated.
pub(super) fn execution_name(trial: &Trial) -> &'static str {
    match trial.speed.as_ref().map(|speed| speed.execution()) {
        Ok(Execution::Hardware) => "hardware",
        Ok(Execution::Emulated) | Err(_) => "emulated",
    }
}

pub(super) fn capability_rows(backends: &[BackendFacts]) -> Vec<CapabilityRow> {
    let rows = |backend: &BackendFacts| {
        let name = backend.name;
        let capabilities = backend.capabilities.as_deref().unwrap_or_default();
        let row = |capability: &Capability| CapabilityRow {
            backend: name,
            name: capability.name,
            purpose: capability.purpose,
            required: capability.required,
            value: capability.value,
        };
        capabilities.iter().map(row).collect::<Vec<_>>()
    };
    backends.iter().flat_map(rows).collect()
}

pub(super) fn checks(backends: &[BackendFacts], trial: &Trial) -> Vec<Check> {
    let area = Checker(Area::BackEnds);
    let mut checks = Vec::new();
    for backend in backends {
        match (&backend.capabilities, backend.purpose) {
            (Ok(_), Some(purpose)) => checks.push(area.info(backend.name, purpose)),
            (Ok(capabilities), None) => {
                let interface = backend.interface.unwrap_or(backend.name);
                checks.push(area.ok(backend.name, format!("{interface} can be opened")));
                checks.extend(trust_check(area, backend.name));
                checks.push(capability_check(area, capabilities));
            }
            (Err(error), _) => {
                checks.push(closed_check(area, backend.name, error));
                checks.extend(trust_check(area, backend.name));
            }
        }
    }
    checks.push(trial_check(area, trial));
    checks
}

fn capability_check(area: Checker, capabilities: &[Capability]) -> Check {
    const NAME: &str = "capabilities";
    let missing = |required: bool| {
        let names = capabilities
            .iter()
            .filter(|found| found.required == required && !found.is_present())
            .map(|found| format!("{} ({})", found.name, found.purpose));
        names.collect::<Vec<_>>().join(", ")
    };
    let (needed, wanted) = (missing(true), missing(false));
    if !needed.is_empty() {
        area.fail(NAME, format!("missing: {needed}"))
            .remedy("use Linux 5.17 or later; --backend soft runs the built-in guest")
    } else if !wanted.is_empty() {
        area.warn(NAME, format!("NVX does without: {wanted}"))
            .remedy("use a newer kernel")
    } else {
        area.ok(NAME, format!("all {} that NVX uses", capabilities.len()))
    }
}

/// What should be known of a back end that no host has proved yet.
fn trust_check(area: Checker, name: &'static str) -> Option<Check> {
    (name == "whp").then(|| {
        area.warn(
            "whp is new",
            "verified against a test double of WinHvPlatform.dll, on no Windows hypervisor yet, and \
             with no Linux guest",
        )
        .remedy("see doc/windows.md; --backend soft runs the built-in guest")
    })
}

fn closed_check(area: Checker, name: &'static str, error: &OpenError) -> Check {
    let remedy = error.remedy();
    let detail = match error {
        OpenError::NotPresent { device } => format!("{} is not present", device.display()),
        OpenError::NoPermission { device, group, .. } => {
            format!("no permission for {} (group '{group}')", device.display())
        }
        other => chain(other),
    };
    let check = area.warn(name, detail);
    match remedy {
        Some(remedy) => check.remedy(remedy),
        None => check,
    }
}

fn trial_check(area: Checker, trial: &Trial) -> Check {
    const NAME: &str = "a guest on auto";
    let speed = match &trial.speed {
        Ok(speed) => speed,
        Err(error) => {
            return area
                .fail(NAME, chain(error))
                .remedy("--backend soft runs the built-in guest");
        }
    };
    let backend = trial.backend.unwrap_or("unknown");
    let count = thousands(speed.instructions_per_ms);
    match speed.execution() {
        Execution::Hardware => area.ok(
            NAME,
            format!("back end {backend}, on the processor: {count} instructions per ms"),
        ),
        Execution::Emulated => area
            .warn(
                NAME,
                format!(
                    "back end {backend}, emulated: {count} instructions per ms, below {}; times are \
                     good as ratios only",
                    thousands(HARDWARE_INSTRUCTIONS_PER_MS)
                ),
            )
            .remedy(
                "measure where /dev/kvm is backed by a processor with VMX or SVM; in a virtual \
                 machine, switch nested virtualization on",
            ),
    }
}

/// A number with its digits in groups of three.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        let texts = [0, 999, 1000, 2_000_000].map(thousands);
        assert_eq!(texts, ["0", "999", "1 000", "2 000 000"]);
    }
}
