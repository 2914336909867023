//! The processor, by the CPUID instruction, which every user program may execute.

use crate::probe::{ProcessorFacts, Virtualization};

/// What CPUID says of this host's processor; `None` on an architecture without it.
pub fn processor() -> Option<ProcessorFacts> {
    #[cfg(target_arch = "x86_64")]
    let facts = Some(from_cpuid(|leaf| {
        let row = std::arch::x86_64::__cpuid_count(leaf, 0);
        [row.eax, row.ebx, row.ecx, row.edx]
    }));
    #[cfg(not(target_arch = "x86_64"))]
    let facts = None;
    facts
}

/// Output registers of CPUID, as positions in a row.
#[derive(Clone, Copy)]
enum Output {
    Ebx = 1,
    Ecx = 2,
    Edx = 3,
}

/// Features that matter to virtual machines (Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E).
const FEATURES: [(u32, Output, u32, &str); 8] = [
    (0x1, Output::Ecx, 5, "VMX"),
    (0x8000_0001, Output::Ecx, 2, "SVM"),
    (0x8000_0007, Output::Edx, 8, "invariant TSC"),
    (0x1, Output::Ecx, 24, "TSC deadline"),
    (0x1, Output::Ecx, 21, "x2APIC"),
    (0x1, Output::Ecx, 30, "RDRAND"),
    (0x7, Output::Ebx, 5, "AVX2"),
    (0x7, Output::Ebx, 16, "AVX-512"),
];

/// Leaf 1 ECX: set by every hypervisor that does not hide, never by a processor.
const LEAF_1_ECX_HYPERVISOR: u32 = 1 << 31;
const LEAF_HYPERVISOR: u32 = 0x4000_0000;
const LEAF_EXTENDED: u32 = 0x8000_0000;
const LEAVES_BRAND: [u32; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];

fn from_cpuid(cpuid: impl Fn(u32) -> [u32; 4]) -> ProcessorFacts {
    let [highest, b, c, d] = cpuid(0);
    let [highest_extended, ..] = cpuid(LEAF_EXTENDED);
    // A leaf above the highest answers with another leaf's data.
    let row = |leaf: u32| {
        let limit = if leaf < LEAF_EXTENDED {
            highest
        } else {
            highest_extended
        };
        if leaf <= limit { cpuid(leaf) } else { [0; 4] }
    };
    let features = FEATURES.iter().filter_map(|&(leaf, output, bit, name)| {
        let word = row(leaf).get(output as usize).copied().unwrap_or(0);
        (word >> bit & 1 == 1).then_some(name)
    });
    let [_, _, leaf_1_ecx, _] = row(1);
    let virtualization = if leaf_1_ecx & LEAF_1_ECX_HYPERVISOR == 0 {
        Virtualization::BareMetal
    } else {
        let [_, b, c, d] = cpuid(LEAF_HYPERVISOR);
        Virtualization::Virtual {
            vendor: text(&[b, c, d]),
        }
    };
    ProcessorFacts {
        vendor: text(&[b, d, c]),
        model: text(&LEAVES_BRAND.map(row).concat()),
        features: features.collect(),
        virtualization,
    }
}

/// The characters in registers, without padding; repeated spaces of brand strings become one.
fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text: String = String::from_utf8_lossy(&bytes)
        .chars()
        .map(|c| if c.is_ascii_graphic() { c } else { ' ' })
        .collect();
    text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[u8; 12]) -> [u32; 3] {
        let (chunks, _) = text.as_chunks::<4>();
        [0, 1, 2].map(|at| u32::from_le_bytes(chunks[at]))
    }

    #[test]
    fn a_virtual_machine_names_its_hypervisor() {
        let [b, d, c] = words(b"AuthenticAMD");
        let [hb, hc, hd] = words(b"KVMKVMKVM\0\0\0");
        let facts = from_cpuid(|leaf| match leaf {
            0 => [1, b, c, d],
            1 => [0, 0, 1 << 31 | 1 << 24, 0],
            LEAF_HYPERVISOR => [LEAF_HYPERVISOR, hb, hc, hd],
            LEAF_EXTENDED => [0x8000_0001, 0, 0, 0],
            0x8000_0001 => [0, 0, 1 << 2, 0],
            // What lies above the highest leaf must not be believed.
            _ => [u32::MAX; 4],
        });
        assert_eq!(facts.vendor, "AuthenticAMD");
        assert_eq!(facts.model, "");
        assert_eq!(facts.features, ["SVM", "TSC deadline"]);
        let vendor = "KVMKVMKVM".to_owned();
        assert_eq!(facts.virtualization, Virtualization::Virtual { vendor });
    }

    #[test]
    fn bare_metal_is_the_absence_of_a_bit() {
        let facts = from_cpuid(|_| [0; 4]);
        assert_eq!(facts.virtualization, Virtualization::BareMetal);
        assert!(facts.features.is_empty());
    }

    #[test]
    fn padding_of_brand_strings_goes() {
        let brand = [*b"  Pr", *b"oc  ", *b" X\0\0"].map(u32::from_le_bytes);
        assert_eq!(text(&brand), "Proc X");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_host_has_a_processor() {
        assert!(processor().is_some_and(|facts| !facts.vendor.is_empty()));
    }
}
