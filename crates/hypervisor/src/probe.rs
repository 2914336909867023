//! What each back end is, and whether this host can carry it, as facts to be shown.

use crate::error::OpenError;
use crate::soft;

/// One back end on this host.
#[derive(Debug)]
pub struct BackendFacts {
    /// Its name, as `--backend` has it.
    pub name: &'static str,
    /// By what it is reached, such as `/dev/kvm`; `None` for one that needs nothing of the host.
    pub interface: Option<&'static str>,
    /// What it is good for; `None` for one that runs any guest.
    pub purpose: Option<&'static str>,
    /// What it offers, or why it cannot be used.
    pub capabilities: Result<Vec<Capability>, OpenError>,
}

/// An optional or required part of a hypervisor's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name in the interface's documentation.
    pub name: &'static str,
    /// What NVX uses it for.
    pub purpose: &'static str,
    /// Whether NVX can do without.
    pub required: bool,
    /// What the hypervisor answers: 0 for absent; some have a number to tell.
    pub value: i32,
}

impl Capability {
    /// The hypervisor has it.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.value > 0
    }
}

/// Every back end of this build, the best first.
#[must_use]
pub fn probe_backends() -> Vec<BackendFacts> {
    vec![
        BackendFacts {
            name: native::NAME,
            interface: Some(native::INTERFACE),
            purpose: None,
            capabilities: native::capabilities(),
        },
        BackendFacts {
            name: soft::NAME,
            interface: None,
            purpose: Some(soft::PURPOSE),
            capabilities: Ok(Vec::new()),
        },
    ]
}

/// This system's hypervisor.
#[cfg(target_os = "linux")]
mod native {
    pub(super) use crate::kvm::probe::capabilities;

    pub(super) const NAME: &str = "kvm";
    pub(super) const INTERFACE: &str = "/dev/kvm";
}

/// This system's hypervisor.
#[cfg(windows)]
mod native {
    pub(super) use crate::whp::NAME;
    pub(super) use crate::whp::probe::capabilities;

    pub(super) const INTERFACE: &str = "WinHvPlatform.dll";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_software_back_end_is_always_there_and_says_what_it_is_for() {
        let all = probe_backends();
        let [native, soft] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!((native.name, native.purpose), (native::NAME, None));
        assert_eq!(soft.name, soft::NAME);
        assert_eq!(soft.purpose, Some(soft::PURPOSE));
        assert!(soft.capabilities.is_ok());
    }
}
