//! Facts about a Linux host.
#![expect(
    unsafe_code,
    reason = "whether a system call exists is found by calling it, and the crates that are used wrap none of these"
)]

pub mod scratch;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::probe::{
    ConfinementFacts, HugePageFacts, KernelFacts, MachineFacts, PageInterfaceFacts,
};

/// `_IOWR('f', 16, struct pm_scan_arg)` of `linux/fs.h`; the structure has twelve 64-bit fields.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
/// `landlock_create_ruleset` with this flag gives the ABI's version (landlock_create_ruleset(2)).
const LANDLOCK_CREATE_RULESET_VERSION: libc::c_ulong = 1;
/// `cachestat`, numbered alike on every architecture (`asm-generic/unistd.h`).
const SYS_CACHESTAT: libc::c_long = 451;

/// The running kernel.
#[must_use]
pub fn kernel() -> KernelFacts {
    let name = rustix::system::uname();
    KernelFacts {
        name: name.sysname().to_string_lossy().into_owned(),
        release: name.release().to_string_lossy().into_owned(),
        architecture: name.machine().to_string_lossy().into_owned(),
    }
}

/// Processors and memory.
#[must_use]
pub fn machine() -> MachineFacts {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    MachineFacts {
        processors: std::thread::available_parallelism().ok().map(Into::into),
        memory_bytes: kib_line(&memory, "MemTotal:"),
        available_memory_bytes: kib_line(&memory, "MemAvailable:"),
    }
}

/// Huge pages, transparent and reserved.
#[must_use]
pub fn huge_pages() -> HugePageFacts {
    let chosen = |name: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
        chosen_mode(&std::fs::read_to_string(path).ok()?)
    };
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    HugePageFacts {
        transparent: chosen("enabled"),
        shared_memory: chosen("shmem_enabled"),
        reserved_page_bytes: kib_line(&memory, "Hugepagesize:"),
        reserved_free_pages: number_of(&memory, "HugePages_Free:"),
    }
}

/// Seccomp and Landlock.
#[must_use]
pub fn confinement() -> ConfinementFacts {
    ConfinementFacts {
        seccomp_filter: has_seccomp_filter(),
        landlock_abi: landlock_abi(),
    }
}

/// `/proc/self/pagemap` and `cachestat`.
#[must_use]
pub fn page_interfaces() -> PageInterfaceFacts {
    let page_map = File::open("/proc/self/pagemap").ok();
    PageInterfaceFacts {
        page_map_scan: page_map.as_ref().is_some_and(has_page_map_scan),
        page_map: page_map.is_some(),
        cachestat: has_cachestat(),
    }
}

/// Asks whether a filter may kill the process, the action that a confined monitor needs.
fn has_seccomp_filter() -> bool {
    let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the operation reads the four bytes at `action`, which live through the call, and
    // changes nothing (seccomp(2), SECCOMP_GET_ACTION_AVAIL).
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    result == 0
}

fn landlock_abi() -> Option<u32> {
    // SAFETY: with this flag the call takes no attributes and makes no ruleset
    // (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<u8>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// A kernel with the request fails to read its arguments; one without does not know the number.
fn has_page_map_scan(page_map: &File) -> bool {
    // SAFETY: the kernel copies the arguments from the null address, which fails; it writes nothing.
    let result = unsafe { libc::ioctl(page_map.as_raw_fd(), PAGEMAP_SCAN, ptr::null_mut::<u8>()) };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// A kernel with the call looks at the descriptor, or at the null arguments; one without knows
/// neither.
fn has_cachestat() -> bool {
    // SAFETY: there is no descriptor -1, so the call fails, and the kernel copies nothing to or from
    // the null addresses.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            -1,
            ptr::null::<u8>(),
            ptr::null_mut::<u8>(),
            0,
        )
    };
    result < 0
        && matches!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::EBADF | libc::EFAULT)
        )
}

/// The word in brackets of a list such as `always [madvise] never`.
fn chosen_mode(list: &str) -> Option<String> {
    let (_, rest) = list.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    Some(mode.to_owned())
}

/// The value of a line of `/proc/meminfo` in KiB, in bytes.
fn kib_line(text: &str, name: &str) -> Option<u64> {
    number_of(text, name)?.checked_mul(1024)
}

fn number_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_meminfo_are_read() {
        let text = "MemTotal:  16 kB\nHugePages_Free:    3\nHugepagesize:    2048 kB\nX: y kB\n";
        assert_eq!(kib_line(text, "MemTotal:"), Some(16384));
        assert_eq!(kib_line(text, "Hugepagesize:"), Some(2 << 20));
        assert_eq!(number_of(text, "HugePages_Free:"), Some(3));
        assert_eq!(number_of(text, "X:"), None);
        assert_eq!(number_of(text, "Gone:"), None);
    }

    #[test]
    fn the_mode_in_brackets_is_the_chosen_one() {
        let mode = chosen_mode("always [madvise] never\n");
        assert_eq!(mode.as_deref(), Some("madvise"));
        assert_eq!(chosen_mode("none"), None);
    }

    #[test]
    fn the_kernel_has_a_name() {
        let facts = kernel();
        assert_eq!(facts.name, "Linux");
        assert!(facts.release.contains('.'), "{facts:?}");
        assert!(machine().processors.is_some_and(|count| count > 0));
        assert!(machine().memory_bytes > machine().available_memory_bytes);
    }

    #[test]
    fn asking_for_interfaces_changes_nothing() {
        // A filter or a ruleset in force would make the second answers differ.
        assert_eq!(confinement(), confinement());
        let facts = page_interfaces();
        assert_eq!(facts, page_interfaces());
        assert!(facts.page_map || !facts.page_map_scan);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(number_of(&status, "Seccomp_filters:").unwrap_or(0), {
            let again = std::fs::read_to_string("/proc/self/status").unwrap();
            number_of(&again, "Seccomp_filters:").unwrap_or(0)
        });
    }

    #[test]
    fn the_request_number_is_that_of_the_header() {
        // _IOWR('f', 16, 96 bytes): direction, size, type, number.
        let expected = 3 << 30 | 96 << 16 | u32::from(b'f') << 8 | 16;
        assert_eq!(PAGEMAP_SCAN as u32, expected);
    }
}
