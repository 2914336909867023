//! Which back end to use.

use std::str::FromStr;

use crate::error::OpenError;
use crate::soft::{self, Soft};
use crate::traits::Hypervisor;

/// This system's hypervisor.
#[cfg(target_os = "linux")]
mod native {
    use super::{BackendChoice, Hypervisor, OpenError};
    use crate::kvm::Kvm;

    pub(super) const CHOICE: BackendChoice = BackendChoice::Kvm;

    pub(super) fn open() -> Result<Box<dyn Hypervisor>, OpenError> {
        Ok(Box::new(Kvm::open()?))
    }
}

/// This system's hypervisor.
#[cfg(windows)]
mod native {
    use super::{BackendChoice, Hypervisor, OpenError};
    use crate::whp::Whp;

    pub(super) const CHOICE: BackendChoice = BackendChoice::Whp;

    pub(super) fn open() -> Result<Box<dyn Hypervisor>, OpenError> {
        Ok(Box::new(Whp::open()?))
    }
}

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The best that this host has; for a snapshot, the back end that it was captured on.
    #[default]
    Auto,
    /// Linux's `/dev/kvm`.
    Kvm,
    /// The Windows Hypervisor Platform.
    Whp,
    /// The CPU in software, for the built-in guest only.
    Soft,
}

impl BackendChoice {
    /// The name, as `--backend` has it.
    fn name(self) -> &'static str {
        BACKEND_CHOICES
            .iter()
            .find(|(_, choice)| *choice == self)
            .map_or("auto", |(name, _)| name)
    }
}

/// Every choice with its name.
pub const BACKEND_CHOICES: [(&str, BackendChoice); 4] = [
    ("auto", BackendChoice::Auto),
    ("kvm", BackendChoice::Kvm),
    ("whp", BackendChoice::Whp),
    (soft::NAME, BackendChoice::Soft),
];

/// A name that no back end has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no back end is called '{name}' (known: auto, kvm, whp, soft)")]
pub struct UnknownBackend {
    /// The name as it was given.
    pub name: String,
}

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        BACKEND_CHOICES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, choice)| *choice)
            .ok_or_else(|| UnknownBackend {
                name: name.to_owned(),
            })
    }
}

/// A back end that is open, and what the user should know about it.
pub struct Selected {
    /// The back end.
    pub backend: Box<dyn Hypervisor>,
    /// Why it was taken and what it is not good for; `None` where there is nothing to tell.
    pub notice: Option<String>,
}

/// Opens the back end that was asked for. `captured_on` is the name of the back end that a
/// snapshot to be restored was captured on.
///
/// # Errors
/// The back end is not usable on this host.
pub fn open_backend(
    choice: BackendChoice,
    captured_on: Option<&str>,
) -> Result<Selected, OpenError> {
    match (choice, captured_on) {
        (BackendChoice::Kvm | BackendChoice::Whp, _) => native(choice),
        (BackendChoice::Auto, Some("kvm")) => native(BackendChoice::Kvm),
        (BackendChoice::Auto, Some("whp")) => native(BackendChoice::Whp),
        (BackendChoice::Soft, _) => Ok(software("")),
        (BackendChoice::Auto, Some(soft::NAME)) => Ok(software("the snapshot is of it; ")),
        (BackendChoice::Auto, _) => Ok(native(native::CHOICE).unwrap_or_else(|error| {
            let name = native::CHOICE.name().to_uppercase();
            software(&format!("no {name} ({}); ", causes(&error)))
        })),
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

fn software(why: &str) -> Selected {
    Selected {
        backend: Box::new(Soft::new()),
        notice: Some(format!("back end {}: {why}{}", soft::NAME, soft::PURPOSE)),
    }
}

/// Opens a hypervisor, which is there if it is this system's.
fn native(choice: BackendChoice) -> Result<Selected, OpenError> {
    if choice != native::CHOICE {
        return Err(OpenError::NotOnThisSystem {
            backend: choice.name(),
        });
    }
    Ok(Selected {
        backend: native::open()?,
        notice: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_choices() {
        for (name, choice) in BACKEND_CHOICES {
            assert_eq!(name.parse(), Ok(choice));
        }
        let error = "hvf".parse::<BackendChoice>().expect_err("unknown");
        assert!(error.to_string().contains("auto, kvm, whp, soft"));
    }

    #[test]
    fn the_software_back_end_always_opens_and_says_what_it_is() {
        let selected = open_backend(BackendChoice::Soft, None).expect("always there");
        assert_eq!(selected.backend.name(), soft::NAME);
        assert!(
            selected
                .notice
                .is_some_and(|text| text.contains(soft::PURPOSE))
        );
    }

    #[test]
    fn a_snapshot_s_back_end_is_taken_before_a_better_one() {
        let selected = open_backend(BackendChoice::Auto, Some(soft::NAME)).expect("always there");
        assert_eq!(selected.backend.name(), soft::NAME);
    }
}
