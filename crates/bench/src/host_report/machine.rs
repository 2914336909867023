//! Kernel, processor and memory, and the kernel's interfaces beyond KVM and files.

use nvx_host::probe::{
    ConfinementFacts, HugePageFacts, KernelFacts, MachineFacts, PageInterfaceFacts, ProcessorFacts,
    Virtualization,
};

use super::{Area, Check, Checker, size};

/// The one architecture that a hypervisor back end is written for.
const ARCHITECTURE: &str = "x86_64";

pub(super) fn checks(
    kernel: &KernelFacts,
    processor: Option<&ProcessorFacts>,
    machine: &MachineFacts,
    huge_pages: &HugePageFacts,
) -> Vec<Check> {
    let area = Checker(Area::Machine);
    vec![
        area.info("kernel", format!("{} {}", kernel.name, kernel.release)),
        if kernel.architecture == ARCHITECTURE {
            area.ok("architecture", ARCHITECTURE)
        } else {
            area.warn(
                "architecture",
                format!(
                    "{}: only the software back end runs here",
                    kernel.architecture
                ),
            )
            .remedy(format!("use a host with an {ARCHITECTURE} processor"))
        },
        processor_check(area, processor, machine.processors),
        virtualization_check(area, processor),
        memory_check(area, machine),
        area.info("huge pages", huge_page_text(huge_pages)),
    ]
}

fn processor_check(
    area: Checker,
    processor: Option<&ProcessorFacts>,
    count: Option<usize>,
) -> Check {
    let count = count.map_or_else(String::new, |count| format!("{count} x "));
    let text = match processor {
        Some(found) => {
            let name = if found.model.is_empty() {
                &found.vendor
            } else {
                &found.model
            };
            format!("{count}{name} ({})", found.features.join(", "))
        }
        None => format!("{count}unknown"),
    };
    area.info("processor", text)
}

fn virtualization_check(area: Checker, processor: Option<&ProcessorFacts>) -> Check {
    let text = match processor.map(|found| &found.virtualization) {
        Some(Virtualization::BareMetal) => "bare metal".to_owned(),
        Some(Virtualization::Virtual { vendor }) if vendor.is_empty() => {
            "a virtual machine".to_owned()
        }
        Some(Virtualization::Virtual { vendor }) => {
            format!("a virtual machine of {}", hypervisor_name(vendor))
        }
        None => "unknown".to_owned(),
    };
    area.info("this host is", text)
}

/// The usual name of the hypervisor that signs itself so in CPUID.
fn hypervisor_name(vendor: &str) -> &str {
    const NAMES: [(&str, &str); 7] = [
        ("KVMKVMKVM", "KVM"),
        ("TCGTCGTCGTCG", "QEMU's emulator"),
        ("Microsoft Hv", "Hyper-V"),
        ("VMwareVMware", "VMware"),
        ("VBoxVBoxVBox", "VirtualBox"),
        ("XenVMMXenVMM", "Xen"),
        ("bhyve bhyve", "bhyve"),
    ];
    NAMES
        .iter()
        .find(|(signature, _)| *signature == vendor)
        .map_or(vendor, |(_, name)| name)
}

fn memory_check(area: Checker, machine: &MachineFacts) -> Check {
    let text = match (machine.memory_bytes, machine.available_memory_bytes) {
        (Some(all), Some(free)) => format!("{}, {} available", size(all), size(free)),
        (Some(all), None) => size(all),
        _ => "unknown".to_owned(),
    };
    area.info("memory", text)
}

fn huge_page_text(facts: &HugePageFacts) -> String {
    let unknown = || "unknown".to_owned();
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(unknown);
    let mut text = format!(
        "transparent: {}; shared memory and tmpfs: {}",
        mode(&facts.transparent),
        mode(&facts.shared_memory)
    );
    if let (Some(free), Some(page)) = (facts.reserved_free_pages, facts.reserved_page_bytes) {
        text.push_str(&format!("; reserved: {free} of {}", size(page)));
    }
    text
}

pub(super) fn interface_checks(
    confinement: ConfinementFacts,
    pages: PageInterfaceFacts,
) -> Vec<Check> {
    let area = Checker(Area::KernelInterfaces);
    vec![
        if confinement.seccomp_filter {
            area.ok("seccomp", "filters that kill the process")
        } else {
            area.warn("seccomp", "absent: a monitor cannot be confined")
                .remedy("use a kernel with CONFIG_SECCOMP_FILTER, 4.14 or later")
        },
        match confinement.landlock_abi {
            Some(version) => area.ok("Landlock", format!("ABI version {version}")),
            None => area
                .warn(
                    "Landlock",
                    "absent: a monitor cannot be confined to its files",
                )
                .remedy("use Linux 5.13 or later, with landlock in the boot parameter lsm="),
        },
        page_map_check(area, pages),
        if pages.cachestat {
            area.ok("cachestat", "tells what of a file is cached")
        } else {
            area.info(
                "cachestat",
                "absent: mincore tells what of a file is cached",
            )
            .remedy("use Linux 6.5 or later")
        },
    ]
}

fn page_map_check(area: Checker, pages: PageInterfaceFacts) -> Check {
    const NAME: &str = "page map";
    match (pages.page_map, pages.page_map_scan) {
        (true, true) => area.ok(NAME, "PAGEMAP_SCAN finds the pages that a capture copies"),
        (true, false) => area
            .warn(
                NAME,
                "no PAGEMAP_SCAN: captures of large restored VMs look at every page",
            )
            .remedy("use Linux 6.7 or later"),
        (false, _) => area
            .warn(
                NAME,
                "/proc/self/pagemap cannot be opened: restored VMs keep the hypervisor's dirty log",
            )
            .remedy("mount /proc, and use a kernel with CONFIG_PROC_PAGE_MONITOR"),
    }
}
