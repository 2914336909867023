//! A CPU that every host of one vendor can offer, so that a snapshot is portable between hosts.
//!
//! It has what x86-64-v2 asks for (the x86-64 psABI's table of microarchitecture levels), what every
//! processor with hardware virtualization has beside it, and what KVM emulates itself. All else is
//! masked, whatever the host has: extended state (XSAVE, and AVX with it), and mitigations' controls.
//! A guest's own mitigations then take the forms that work everywhere.

use super::{CpuModel, CpuidEntry};

/// Leaf 1 ECX: sse3, ssse3, cx16, sse4.1, sse4.2, x2apic, popcnt, tsc_deadline_timer, hypervisor.
const LEAF_1_ECX: u32 =
    1 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 23 | 1 << 24 | 1 << 31;
/// Leaf 1 EDX: all of the first 29 but psn (18), ds (21), acpi (22) and ss (27), and the reserved ones.
const LEAF_1_EDX: u32 = 0x178b_fbff;
/// Leaf 6 EAX: the local APIC's timer never stops.
const LEAF_6_EAX: u32 = 1 << 2;
/// Leaf 0x40000001 EAX, KVM's own features (Linux `Documentation/virt/kvm/x86/cpuid.rst`): clock, no I/O
/// delay, clock at new MSRs, end of interrupt, unhalt, stable clock.
const KVM_FEATURES: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 24;
/// Leaf 0x80000001 ECX: lahf_lm, and AMD's topology leaf.
const EXTENDED_ECX: u32 = 1 | 1 << 22;
/// Leaf 0x80000001 EDX: syscall, nx, rdtscp, lm.
const EXTENDED_EDX: u32 = 1 << 11 | 1 << 20 | 1 << 27 | 1 << 29;
/// The bits of leaf 1 EDX that AMD repeats there.
const EXTENDED_EDX_REPEATED: u32 = 0x0183_f3ff;
/// Leaf 0x80000007 EDX: the TSC runs at one rate.
const INVARIANT_TSC: u32 = 1 << 8;
/// Leaf 0x80000008 EAX: 48 bits of linear addresses, and of physical ones as many as the largest machine
/// needs.
const ADDRESS_BITS: u32 = 48 << 8 | 40;
/// The highest leaves: 0xb for the topology, 0x8000001e for AMD's.
const MAX_LEAF: u32 = 0xb;
const MAX_EXTENDED_LEAF: u32 = 0x8000_001e;

/// What x86-64-v2 asks for: names, and where CPUID says it.
const NEEDED: [(&str, u32, Register, u32); 11] = [
    ("cmov", 1, Register::Edx, 15),
    ("cx8", 1, Register::Edx, 8),
    ("fxsr", 1, Register::Edx, 24),
    ("sse2", 1, Register::Edx, 26),
    ("sse3", 1, Register::Ecx, 0),
    ("ssse3", 1, Register::Ecx, 9),
    ("cx16", 1, Register::Ecx, 13),
    ("sse4.1", 1, Register::Ecx, 19),
    ("sse4.2", 1, Register::Ecx, 20),
    ("popcnt", 1, Register::Ecx, 23),
    ("lahf_lm", 0x8000_0001, Register::Ecx, 0),
];

#[derive(Clone, Copy, Debug)]
enum Register {
    Ecx,
    Edx,
}

/// A host that is less than the baseline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host's CPU lacks {} of the baseline (x86-64-v2)", missing.join(", "))]
pub struct BelowBaseline {
    /// Names of the features.
    pub missing: Vec<&'static str>,
}

impl CpuModel {
    /// The baseline as far as this host's model says more.
    ///
    /// # Errors
    /// The host lacks a part of it.
    pub fn baseline(&self) -> Result<Self, BelowBaseline> {
        let missing: Vec<_> = NEEDED
            .iter()
            .filter(|(_, leaf, register, bit)| {
                let entry = self.entry(*leaf, 0).copied().unwrap_or_default();
                let word = match register {
                    Register::Ecx => entry.ecx,
                    Register::Edx => entry.edx,
                };
                word & 1 << bit == 0
            })
            .map(|(name, ..)| *name)
            .collect();
        if !missing.is_empty() {
            return Err(BelowBaseline { missing });
        }
        Ok(Self {
            entries: self.entries.iter().filter_map(masked).collect(),
        })
    }
}

/// The row as the baseline has it; none if it has none.
fn masked(entry: &CpuidEntry) -> Option<CpuidEntry> {
    let mut entry = *entry;
    match entry.leaf {
        0x0 => entry.eax = entry.eax.min(MAX_LEAF),
        0x1 => {
            entry.ecx &= LEAF_1_ECX;
            entry.edx &= LEAF_1_EDX;
        }
        0x2 | 0x4 | 0xb => {}
        0x6 => {
            entry.eax &= LEAF_6_EAX;
            (entry.ebx, entry.ecx, entry.edx) = (0, 0, 0);
        }
        0x7 if entry.subleaf == 0 => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        0x4000_0000 => {}
        0x4000_0001 => {
            entry.eax &= KVM_FEATURES;
            entry.edx = 0;
        }
        0x8000_0000 => entry.eax = entry.eax.min(MAX_EXTENDED_LEAF),
        0x8000_0001 => {
            entry.ecx &= EXTENDED_ECX;
            entry.edx &= EXTENDED_EDX | EXTENDED_EDX_REPEATED;
        }
        0x8000_0002..=0x8000_0006 | 0x8000_001d | 0x8000_001e => {}
        0x8000_0007 => {
            (entry.eax, entry.ebx, entry.ecx) = (0, 0, 0);
            entry.edx &= INVARIANT_TSC;
        }
        0x8000_0008 => {
            entry.eax = ADDRESS_BITS;
            entry.ebx = 0;
        }
        _ => return None,
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that has every bit of every leaf that there may be.
    fn host(word: u32) -> CpuModel {
        let leaves = (0..0x20)
            .chain([0x4000_0000, 0x4000_0001])
            .chain(0x8000_0000..0x8000_0022);
        CpuModel {
            entries: leaves
                .map(|leaf| CpuidEntry {
                    leaf,
                    eax: word,
                    ebx: word,
                    ecx: word,
                    edx: word,
                    ..Default::default()
                })
                .collect(),
        }
    }

    #[test]
    fn what_not_every_host_has_is_masked() {
        let baseline = host(u32::MAX).baseline().expect("a host that has it all");
        let at = |leaf| baseline.entry(leaf, 0).copied();
        let one = at(1).expect("leaf 1");
        for absent in [1, 3, 5, 12, 17, 26, 27, 28, 29, 30] {
            assert_eq!(one.ecx & 1 << absent, 0, "leaf 1 ECX bit {absent}");
        }
        for absent in [10, 18, 20, 21, 22, 27, 29, 30, 31] {
            assert_eq!(one.edx & 1 << absent, 0, "leaf 1 EDX bit {absent}");
        }
        assert_eq!(
            at(7).map(|row| (row.eax, row.ebx, row.ecx, row.edx)),
            Some((0, 0, 0, 0))
        );
        for gone in [
            0x5,
            0xa,
            0xd,
            0x14,
            0x1f,
            0x8000_000a,
            0x8000_001f,
            0x8000_0021,
        ] {
            assert_eq!(at(gone), None, "{gone:#x}");
        }
        let extended = at(0x8000_0001).expect("leaf 0x80000001");
        assert_eq!(
            extended.edx & (1 << 26 | 1 << 22),
            0,
            "pages of 1 GiB, mmxext"
        );
        assert_eq!(at(0).map(|row| row.eax), Some(0xb));
    }

    #[test]
    fn what_level_2_asks_for_is_kept_and_a_host_without_it_refused() {
        let kept = host(u32::MAX).baseline().expect("a host that has it all");
        assert!(kept.baseline().is_ok(), "the baseline is its own baseline");
        let error = host(0).baseline().expect_err("a host without anything");
        assert_eq!(error.missing.len(), NEEDED.len());
        let mut almost = host(u32::MAX);
        almost.entries[1].ecx &= !(1 << 23);
        let text = almost.baseline().expect_err("no popcnt").to_string();
        assert!(text.contains("lacks popcnt of the baseline"), "{text}");
    }
}
