//! Facts about a Windows host.
#![expect(
    unsafe_code,
    reason = "versions and sizes of memory come in structures"
)]

pub mod scratch;

use windows_sys::Wdk::System::SystemServices::RtlGetVersion;
use windows_sys::Win32::System::Memory::GetLargePageMinimum;
use windows_sys::Win32::System::SystemInformation::{
    GlobalMemoryStatusEx, MEMORYSTATUSEX, OSVERSIONINFOW,
};

use crate::probe::{
    ConfinementFacts, HugePageFacts, KernelFacts, MachineFacts, PageInterfaceFacts,
};

/// The running kernel.
#[must_use]
pub fn kernel() -> KernelFacts {
    let mut version = OSVERSIONINFOW {
        dwOSVersionInfoSize: size_of::<OSVERSIONINFOW>() as u32,
        ..Default::default()
    };
    // SAFETY: the structure says its length and lives until the call returns, which cannot fail.
    unsafe { RtlGetVersion(&raw mut version) };
    KernelFacts {
        name: "Windows".to_owned(),
        release: format!(
            "{}.{}.{}",
            version.dwMajorVersion, version.dwMinorVersion, version.dwBuildNumber
        ),
        architecture: std::env::consts::ARCH.to_owned(),
    }
}

/// Processors and memory.
#[must_use]
pub fn machine() -> MachineFacts {
    let mut memory = MEMORYSTATUSEX {
        dwLength: size_of::<MEMORYSTATUSEX>() as u32,
        ..Default::default()
    };
    // SAFETY: the structure says its length and lives until the call returns.
    let told = unsafe { GlobalMemoryStatusEx(&raw mut memory) } != 0;
    MachineFacts {
        processors: std::thread::available_parallelism().ok().map(Into::into),
        memory_bytes: told.then_some(memory.ullTotalPhys),
        available_memory_bytes: told.then_some(memory.ullAvailPhys),
    }
}

/// Large pages, which Windows gives to a process with the right to lock memory.
#[must_use]
pub fn huge_pages() -> HugePageFacts {
    // SAFETY: the call takes nothing and gives a number, 0 where there are none.
    let bytes = unsafe { GetLargePageMinimum() } as u64;
    HugePageFacts {
        reserved_page_bytes: (bytes > 0).then_some(bytes),
        ..Default::default()
    }
}

/// Seccomp and Landlock are Linux's.
#[must_use]
pub fn confinement() -> ConfinementFacts {
    ConfinementFacts {
        seccomp_filter: false,
        landlock_abi: None,
    }
}

/// The page map and `cachestat` are Linux's.
#[must_use]
pub fn page_interfaces() -> PageInterfaceFacts {
    PageInterfaceFacts {
        page_map: false,
        page_map_scan: false,
        cachestat: false,
    }
}
