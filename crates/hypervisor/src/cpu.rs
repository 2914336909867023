//! The CPU as a guest sees it, and whether another host can offer the same.

mod baseline;

pub use baseline::BelowBaseline;

/// One row of CPUID.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CpuidEntry {
    /// The leaf (input EAX).
    #[prost(uint32, tag = "1")]
    pub leaf: u32,
    /// The subleaf (input ECX), where it matters.
    #[prost(uint32, tag = "2")]
    pub subleaf: u32,
    /// The subleaf matters.
    #[prost(bool, tag = "3")]
    pub has_subleaf: bool,
    /// Output EAX.
    #[prost(uint32, tag = "4")]
    pub eax: u32,
    /// Output EBX.
    #[prost(uint32, tag = "5")]
    pub ebx: u32,
    /// Output ECX.
    #[prost(uint32, tag = "6")]
    pub ecx: u32,
    /// Output EDX.
    #[prost(uint32, tag = "7")]
    pub edx: u32,
}

/// All rows of CPUID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuModel {
    /// The rows, each (leaf, subleaf) once.
    pub entries: Vec<CpuidEntry>,
}

/// An output register of CPUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the registers' own names say what they are")]
pub enum FeatureRegister {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

impl FeatureRegister {
    /// The register's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eax => "eax",
            Self::Ebx => "ebx",
            Self::Ecx => "ecx",
            Self::Edx => "edx",
        }
    }

    /// The register of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Eax, Self::Ebx, Self::Ecx, Self::Edx]
            .into_iter()
            .find(|register| register.name() == name)
    }
}

/// A register of CPUID each of whose bits is a feature that a guest may have come to rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureWord {
    /// The leaf.
    pub leaf: u32,
    /// The subleaf.
    pub subleaf: u32,
    /// The output register.
    pub register: FeatureRegister,
    /// Its bits.
    pub bits: u32,
}

/// The words that are compared: every register of CPUID that holds nothing but feature bits
/// (Intel SDM volume 2, table 3-8; AMD APM volume 3, appendix E; of KVM's own, Linux
/// `Documentation/virt/kvm/x86/cpuid.rst`).
const FEATURE_WORDS: [(u32, u32, FeatureRegister); 13] = [
    (0x1, 0, FeatureRegister::Ecx),
    (0x1, 0, FeatureRegister::Edx),
    (0x7, 0, FeatureRegister::Ebx),
    (0x7, 0, FeatureRegister::Ecx),
    (0x7, 0, FeatureRegister::Edx),
    (0x7, 1, FeatureRegister::Eax),
    (0x7, 1, FeatureRegister::Edx),
    (0xd, 0, FeatureRegister::Eax),
    (0xd, 1, FeatureRegister::Eax),
    (0x4000_0001, 0, FeatureRegister::Eax),
    (0x8000_0001, 0, FeatureRegister::Ecx),
    (0x8000_0001, 0, FeatureRegister::Edx),
    (0x8000_0008, 0, FeatureRegister::Ebx),
];

/// Bits of leaf 1 ECX that follow the guest's own settings and so say nothing of the host:
/// OSXSAVE (27).
const LEAF_1_ECX_DYNAMIC: u32 = 1 << 27;
/// The same of leaf 1 EDX: APIC (9), which a guest can switch off.
const LEAF_1_EDX_DYNAMIC: u32 = 1 << 9;
/// The same of leaf 7 ECX: OSPKE (4).
const LEAF_7_ECX_DYNAMIC: u32 = 1 << 4;

/// Leaf 1 EDX: the package has more than one processor, so leaf 1 EBX says how many.
const LEAF_1_EDX_HTT: u32 = 1 << 28;
/// Fields of a cache's EAX: its type, the processors that share it, and the cores of the package.
const CACHE_TYPE: u32 = 0x1f;
const CACHE_SHARING: u32 = 0xfff << 14;
const CACHE_CORES: u32 = 0x3f << 26;

impl CpuModel {
    /// The row of a leaf and subleaf.
    pub fn entry(&self, leaf: u32, subleaf: u32) -> Option<&CpuidEntry> {
        self.entries
            .iter()
            .find(|entry| entry.leaf == leaf && (!entry.has_subleaf || entry.subleaf == subleaf))
    }

    /// The vendor string of leaf 0, such as `GenuineIntel`; empty where there is none.
    pub fn vendor(&self) -> String {
        let Some(entry) = self.entry(0, 0) else {
            return String::new();
        };
        let bytes: Vec<u8> = [entry.ebx, entry.edx, entry.ecx]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.trim_end_matches('\0').to_owned()
    }

    /// The feature words that a snapshot keeps and a restoring host is compared against.
    pub fn features(&self) -> Vec<FeatureWord> {
        FEATURE_WORDS
            .iter()
            .filter_map(|&(leaf, subleaf, register)| {
                let entry = self.entry(leaf, subleaf)?;
                let bits = match register {
                    FeatureRegister::Eax => entry.eax,
                    FeatureRegister::Ebx => entry.ebx,
                    FeatureRegister::Ecx => entry.ecx,
                    FeatureRegister::Edx => entry.edx,
                };
                let bits = bits & !dynamic_bits(leaf, register);
                (bits != 0).then_some(FeatureWord {
                    leaf,
                    subleaf,
                    register,
                    bits,
                })
            })
            .collect()
    }

    /// The same model for a machine of `vcpus` processors, each a core of one package: what a kernel
    /// reads to learn which processors share what (Intel SDM volume 2, CPUID leaves 1, 4 and 0xb; AMD APM
    /// volume 3, functions 0x8000_0008, 0x8000_001d and 0x8000_001e). Then [`Self::for_vcpu`].
    #[must_use]
    pub fn with_topology(&self, vcpus: u8) -> Self {
        let cores = u32::from(vcpus.max(1));
        let core_bits = cores.next_power_of_two().trailing_zeros();
        let mut model = self.clone();
        model
            .entries
            .retain(|entry| !matches!(entry.leaf, 0xb | 0x1f));
        for entry in &mut model.entries {
            match entry.leaf {
                0x1 => {
                    entry.ebx = entry.ebx & !0x00ff_0000 | cores << 16;
                    entry.edx =
                        entry.edx & !LEAF_1_EDX_HTT | if cores > 1 { LEAF_1_EDX_HTT } else { 0 };
                }
                // Caches of level 1 and 2 are each core's own, the one of level 3 is the package's.
                0x4 | 0x8000_001d if entry.eax & CACHE_TYPE != 0 => {
                    let shared = (entry.eax >> 5) & 0b111 >= 3;
                    let sharing = if shared { cores - 1 } else { 0 };
                    entry.eax = entry.eax & !CACHE_SHARING | sharing << 14;
                    if entry.leaf == 0x4 {
                        entry.eax = entry.eax & !CACHE_CORES | (cores - 1) << 26;
                    }
                }
                0x8000_0008 => entry.ecx = entry.ecx & !0xf0ff | (cores - 1) | core_bits << 12,
                _ => {}
            }
        }
        let maximum = model.entry(0, 0).map_or(0, |entry| entry.eax);
        if maximum >= 0xb {
            // One thread in a core, all cores in the package.
            for (subleaf, eax, ebx, kind) in [(0, 0, 1, 1), (1, core_bits, cores, 2)] {
                model.entries.push(CpuidEntry {
                    leaf: 0xb,
                    subleaf,
                    has_subleaf: true,
                    eax,
                    ebx,
                    ecx: kind << 8 | subleaf,
                    edx: 0,
                });
            }
        }
        model
    }

    /// The same model for vCPU `index`: its APIC id stands in leaf 1 EBX bits 24-31, in EDX of
    /// the topology leaves 0xb and 0x1f, and on AMD in leaf 0x8000_001e, with the number of its core.
    pub fn for_vcpu(&self, index: u8) -> Self {
        let mut model = self.clone();
        for entry in &mut model.entries {
            match entry.leaf {
                0x1 => entry.ebx = (entry.ebx & 0x00ff_ffff) | (u32::from(index) << 24),
                0xb | 0x1f => entry.edx = u32::from(index),
                0x8000_001e => {
                    entry.eax = u32::from(index);
                    // One thread in each core, one node.
                    entry.ebx = u32::from(index);
                    entry.ecx = 0;
                }
                _ => {}
            }
        }
        model
    }
}

fn dynamic_bits(leaf: u32, register: FeatureRegister) -> u32 {
    match (leaf, register) {
        (0x1, FeatureRegister::Ecx) => LEAF_1_ECX_DYNAMIC,
        (0x1, FeatureRegister::Edx) => LEAF_1_EDX_DYNAMIC,
        (0x7, FeatureRegister::Ecx) => LEAF_7_ECX_DYNAMIC,
        _ => 0,
    }
}

/// Names of the features in `needed` that `offered` lacks; a bit without a name here is given by
/// its place.
pub fn missing_features(needed: &[FeatureWord], offered: &[FeatureWord]) -> Vec<String> {
    let mut missing = Vec::new();
    for word in needed {
        let here = offered
            .iter()
            .find(|other| {
                other.leaf == word.leaf
                    && other.subleaf == word.subleaf
                    && other.register == word.register
            })
            .map_or(0, |other| other.bits);
        let lacking = word.bits & !here;
        for bit in (0..32).filter(|bit| lacking & (1 << bit) != 0) {
            missing.push(feature_name(word, bit));
        }
    }
    missing
}

fn feature_name(word: &FeatureWord, bit: u32) -> String {
    let named = NAMES.iter().find(|(leaf, subleaf, register, at, _)| {
        (*leaf, *subleaf, *register, *at) == (word.leaf, word.subleaf, word.register, bit)
    });
    match named {
        Some((.., name)) => (*name).to_owned(),
        None => format!(
            "CPUID leaf {:#x}.{} {} bit {bit}",
            word.leaf,
            word.subleaf,
            word.register.name()
        ),
    }
}

/// Names of the features that users know; the source is that of [`FEATURE_WORDS`].
#[rustfmt::skip]
const NAMES: &[(u32, u32, FeatureRegister, u32, &str)] = {
    use FeatureRegister::{Eax, Ebx, Ecx, Edx};
    &[
        (0x1, 0, Ecx, 0, "sse3"), (0x1, 0, Ecx, 1, "pclmulqdq"), (0x1, 0, Ecx, 5, "vmx"),
        (0x1, 0, Ecx, 9, "ssse3"), (0x1, 0, Ecx, 12, "fma"), (0x1, 0, Ecx, 13, "cx16"),
        (0x1, 0, Ecx, 17, "pcid"), (0x1, 0, Ecx, 19, "sse4.1"), (0x1, 0, Ecx, 20, "sse4.2"),
        (0x1, 0, Ecx, 21, "x2apic"), (0x1, 0, Ecx, 22, "movbe"), (0x1, 0, Ecx, 23, "popcnt"),
        (0x1, 0, Ecx, 24, "tsc_deadline_timer"), (0x1, 0, Ecx, 25, "aes"),
        (0x1, 0, Ecx, 26, "xsave"), (0x1, 0, Ecx, 28, "avx"), (0x1, 0, Ecx, 29, "f16c"),
        (0x1, 0, Ecx, 30, "rdrand"),
        (0x1, 0, Edx, 4, "tsc"), (0x1, 0, Edx, 8, "cx8"), (0x1, 0, Edx, 15, "cmov"),
        (0x1, 0, Edx, 23, "mmx"), (0x1, 0, Edx, 24, "fxsr"), (0x1, 0, Edx, 25, "sse"),
        (0x1, 0, Edx, 26, "sse2"),
        (0x7, 0, Ebx, 0, "fsgsbase"), (0x7, 0, Ebx, 3, "bmi1"), (0x7, 0, Ebx, 4, "hle"),
        (0x7, 0, Ebx, 5, "avx2"), (0x7, 0, Ebx, 7, "smep"), (0x7, 0, Ebx, 8, "bmi2"),
        (0x7, 0, Ebx, 9, "erms"), (0x7, 0, Ebx, 10, "invpcid"), (0x7, 0, Ebx, 11, "rtm"),
        (0x7, 0, Ebx, 16, "avx512f"), (0x7, 0, Ebx, 17, "avx512dq"), (0x7, 0, Ebx, 18, "rdseed"),
        (0x7, 0, Ebx, 19, "adx"), (0x7, 0, Ebx, 20, "smap"), (0x7, 0, Ebx, 21, "avx512ifma"),
        (0x7, 0, Ebx, 23, "clflushopt"), (0x7, 0, Ebx, 24, "clwb"), (0x7, 0, Ebx, 28, "avx512cd"),
        (0x7, 0, Ebx, 29, "sha_ni"), (0x7, 0, Ebx, 30, "avx512bw"), (0x7, 0, Ebx, 31, "avx512vl"),
        (0x7, 0, Ecx, 1, "avx512vbmi"), (0x7, 0, Ecx, 2, "umip"), (0x7, 0, Ecx, 3, "pku"),
        (0x7, 0, Ecx, 6, "avx512_vbmi2"), (0x7, 0, Ecx, 8, "gfni"), (0x7, 0, Ecx, 9, "vaes"),
        (0x7, 0, Ecx, 10, "vpclmulqdq"), (0x7, 0, Ecx, 11, "avx512_vnni"),
        (0x7, 0, Ecx, 12, "avx512_bitalg"), (0x7, 0, Ecx, 14, "avx512_vpopcntdq"),
        (0x7, 0, Ecx, 16, "la57"), (0x7, 0, Ecx, 22, "rdpid"),
        (0x7, 0, Edx, 4, "fsrm"), (0x7, 0, Edx, 22, "amx_bf16"), (0x7, 0, Edx, 23, "avx512_fp16"),
        (0x7, 0, Edx, 24, "amx_tile"), (0x7, 0, Edx, 25, "amx_int8"),
        (0x7, 0, Edx, 26, "spec_ctrl"), (0x7, 0, Edx, 29, "arch_capabilities"),
        (0x7, 1, Eax, 4, "avx_vnni"), (0x7, 1, Eax, 5, "avx512_bf16"),
        (0xd, 1, Eax, 0, "xsaveopt"), (0xd, 1, Eax, 1, "xsavec"), (0xd, 1, Eax, 3, "xsaves"),
        (0x4000_0001, 0, Eax, 0, "kvm_clocksource"), (0x4000_0001, 0, Eax, 3, "kvm_clocksource2"),
        (0x4000_0001, 0, Eax, 4, "kvm_async_pf"), (0x4000_0001, 0, Eax, 5, "kvm_steal_time"),
        (0x4000_0001, 0, Eax, 6, "kvm_pv_eoi"), (0x4000_0001, 0, Eax, 7, "kvm_pv_unhalt"),
        (0x4000_0001, 0, Eax, 9, "kvm_pv_tlb_flush"), (0x4000_0001, 0, Eax, 11, "kvm_pv_send_ipi"),
        (0x4000_0001, 0, Eax, 12, "kvm_poll_control"), (0x4000_0001, 0, Eax, 13, "kvm_pv_sched_yield"),
        (0x4000_0001, 0, Eax, 14, "kvm_async_pf_int"),
        (0x4000_0001, 0, Eax, 24, "kvm_clocksource_stable"),
        (0x8000_0001, 0, Ecx, 0, "lahf_lm"), (0x8000_0001, 0, Ecx, 2, "svm"),
        (0x8000_0001, 0, Ecx, 5, "abm"), (0x8000_0001, 0, Ecx, 6, "sse4a"),
        (0x8000_0001, 0, Edx, 11, "syscall"), (0x8000_0001, 0, Edx, 20, "nx"),
        (0x8000_0001, 0, Edx, 26, "pdpe1gb"), (0x8000_0001, 0, Edx, 27, "rdtscp"),
        (0x8000_0001, 0, Edx, 29, "lm"),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    fn model(entries: &[(u32, u32, [u32; 4])]) -> CpuModel {
        CpuModel {
            entries: entries
                .iter()
                .map(|&(leaf, subleaf, [eax, ebx, ecx, edx])| CpuidEntry {
                    leaf,
                    subleaf,
                    has_subleaf: leaf == 7,
                    eax,
                    ebx,
                    ecx,
                    edx,
                })
                .collect(),
        }
    }

    #[test]
    fn vendor_reads_ebx_edx_ecx() {
        let intel = model(&[(0, 0, [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69])]);
        assert_eq!(intel.vendor(), "GenuineIntel");
        assert_eq!(CpuModel::default().vendor(), "");
    }

    #[test]
    fn lacking_features_are_named() {
        let saved = model(&[
            (1, 0, [0, 0, 1 << 30 | 1 << 13, 1 << 26]),
            (7, 0, [0, 1 << 16, 0, 0]),
            (7, 1, [1 << 2, 0, 0, 0]),
        ]);
        let host = model(&[(1, 0, [0, 0, 1 << 13, 1 << 26 | 1 << 4])]);
        assert_eq!(
            missing_features(&saved.features(), &host.features()),
            ["rdrand", "avx512f", "CPUID leaf 0x7.1 eax bit 2"]
        );
        assert!(missing_features(&host.features(), &host.features()).is_empty());
    }

    #[test]
    fn bits_that_the_guest_switches_are_no_features() {
        let osxsave = model(&[(1, 0, [0, 0, LEAF_1_ECX_DYNAMIC, LEAF_1_EDX_DYNAMIC])]);
        assert!(osxsave.features().is_empty());
    }

    #[test]
    fn the_topology_is_one_package_of_cores() {
        let host = model(&[
            (0, 0, [0x1f, 0, 0, 0]),
            (1, 0, [0, 0x0020_0000, 0, 1 << 28]),
            (4, 0, [0xfc00_4121, 0, 0, 0]),
            (4, 3, [0xfc1f_c163, 0, 0, 0]),
            (0xb, 0, [5, 64, 0x100, 9]),
            (0x1f, 0, [5, 64, 0x100, 9]),
            (0x8000_0008, 0, [0, 0, 0x7fff, 0]),
            (0x8000_001e, 0, [9, 0x101, 0x301, 0]),
        ]);
        let row = |model: &CpuModel, leaf| {
            let found = model.entries.iter().find(|entry| entry.leaf == leaf);
            found.copied().expect("a row of that leaf")
        };
        let six = host.with_topology(6).for_vcpu(5);
        assert_eq!((row(&six, 1).ebx, row(&six, 1).edx), (0x0506_0000, 1 << 28));
        let shared: Vec<_> = six.entries.iter().filter(|entry| entry.leaf == 4).collect();
        assert_eq!(shared[0].eax, 0x1400_0121, "six cores, a cache of one");
        assert_eq!(shared[1].eax, 0x1401_4163, "six cores, a cache of six");
        let levels: Vec<_> = six.entries.iter().filter(|row| row.leaf == 0xb).collect();
        assert_eq!((levels[0].eax, levels[0].ebx, levels[0].ecx), (0, 1, 0x100));
        assert_eq!((levels[1].eax, levels[1].ebx, levels[1].ecx), (3, 6, 0x201));
        assert_eq!((levels[0].edx, levels[1].edx), (5, 5));
        assert!(!six.entries.iter().any(|entry| entry.leaf == 0x1f));
        assert_eq!(row(&six, 0x8000_0008).ecx, 0x3f00 & 0x0f00 | 0x3005);
        let amd = row(&six, 0x8000_001e);
        assert_eq!((amd.eax, amd.ebx, amd.ecx), (5, 5, 0));

        let one = host.with_topology(1);
        assert_eq!((row(&one, 1).ebx, row(&one, 1).edx), (0x0001_0000, 0));
    }

    #[test]
    fn apic_ids_follow_the_index() {
        let model = model(&[(1, 0, [0, 0x00aa_bbcc, 0, 0]), (0xb, 0, [0; 4])]).for_vcpu(3);
        assert_eq!(model.entries[0].ebx, 0x03aa_bbcc);
        assert_eq!(model.entries[1].edx, 3);
    }
}
