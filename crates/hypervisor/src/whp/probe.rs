//! What this host's hypervisor platform offers.

use windows_sys::Win32::System::Hypervisor::{
    WHvCapabilityCodeFeatures, WHvCapabilityCodeProcessorClockFrequency,
};

use super::Whp;
use crate::error::OpenError;
use crate::probe::Capability;

/// `WHV_CAPABILITY_FEATURES`: a local APIC in the hypervisor, and logs of the pages that a guest writes.
const FEATURE_LOCAL_APIC: u64 = 1 << 1;
const FEATURE_DIRTY_PAGES: u64 = 1 << 3;

/// Opens the platform and reads what NVX uses of it.
///
/// # Errors
/// As [`Whp::open`].
pub fn capabilities() -> Result<Vec<Capability>, OpenError> {
    let whp = Whp::open()?;
    let features: u64 = whp.library.capability(WHvCapabilityCodeFeatures)?;
    let rate_hz: u64 = whp
        .library
        .capability(WHvCapabilityCodeProcessorClockFrequency)?;
    let flag = |bit: u64| i32::from(features & bit != 0);
    Ok(vec![
        Capability {
            name: "LocalApicEmulation",
            purpose: "interrupts of a guest",
            required: true,
            value: flag(FEATURE_LOCAL_APIC),
        },
        Capability {
            name: "DirtyPageTracking",
            purpose: "a capture of a restored guest copies only what was written",
            required: false,
            value: flag(FEATURE_DIRTY_PAGES),
        },
        Capability {
            name: "ProcessorClockFrequency",
            purpose: "the guest's clock, in MHz",
            required: true,
            value: i32::try_from(rate_hz / 1_000_000).unwrap_or(i32::MAX),
        },
    ])
}
