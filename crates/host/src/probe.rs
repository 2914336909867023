//! What this host is and what it offers, as facts.
//!
//! Nothing here judges: whether a missing interface matters, and how to get it, is the business of
//! whoever asks. Each function answers one question by trying the thing itself where that is harmless,
//! and by reading what the system publishes where it is not. Nothing stays behind: what a trial
//! needs on a file system is nameless, or lies in a locked staging directory that is removed at the
//! end, and by any later clean-up if the process is killed in between.

use std::io;
use std::path::PathBuf;

use crate::{CreateError, FileSystem, OpenError, RenameMethod};

pub use crate::os::probe::scratch::scratch;
pub use crate::os::probe::{confinement, huge_pages, kernel, machine, page_interfaces};
pub use crate::processor::processor;

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Name of the operating system's kernel, such as `Linux`.
    pub name: String,
    /// Its release, such as `6.1.0-18-amd64`.
    pub release: String,
    /// The instruction set that it runs on, such as `x86_64`.
    pub architecture: String,
}

/// What the machine has to share out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Processors that this process may use.
    pub processors: Option<usize>,
    /// All memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that a new process can have without swapping, in bytes.
    pub available_memory_bytes: Option<u64>,
}

/// The processor, as CPUID tells it to a user program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessorFacts {
    /// The vendor string, such as `GenuineIntel`.
    pub vendor: String,
    /// The brand string; empty where there is none.
    pub model: String,
    /// Features that matter to virtual machines and are there.
    pub features: Vec<&'static str>,
    /// Whether this host is itself a virtual machine.
    pub virtualization: Virtualization,
}

/// Whether a host is itself a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Virtualization {
    /// CPUID's hypervisor bit is clear.
    BareMetal,
    /// CPUID's hypervisor bit is set.
    Virtual {
        /// How the hypervisor names itself, such as `KVMKVMKVM`; may be empty.
        vendor: String,
    },
}

/// Huge pages that the kernel gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugePageFacts {
    /// The chosen mode of transparent huge pages for anonymous memory: `always`, `madvise`, `never`.
    pub transparent: Option<String>,
    /// The chosen mode of transparent huge pages for shared memory and tmpfs.
    pub shared_memory: Option<String>,
    /// Size of a reserved huge page, in bytes.
    pub reserved_page_bytes: Option<u64>,
    /// Reserved huge pages that nobody uses.
    pub reserved_free_pages: Option<u64>,
}

/// What the kernel offers for confining a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfinementFacts {
    /// A seccomp filter can be installed, and can kill the process.
    pub seccomp_filter: bool,
    /// Version of the Landlock ABI; `None` where Landlock is absent or switched off.
    pub landlock_abi: Option<u32>,
}

/// Interfaces that tell about the pages of a mapping or of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageInterfaceFacts {
    /// `/proc/self/pagemap` can be opened.
    pub page_map: bool,
    /// The page map answers `PAGEMAP_SCAN`.
    pub page_map_scan: bool,
    /// The system call `cachestat` exists.
    pub cachestat: bool,
}

/// Whether a file system can do one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can; it was tried, or follows from the kind of file system.
    Yes,
    /// It cannot.
    No,
    /// Nobody can tell.
    Unclear {
        /// Why not, in words.
        reason: String,
    },
}

/// A directory in which RAM files and snapshots are to lie.
#[derive(Clone, Debug)]
pub struct ScratchFacts {
    /// The directory.
    pub path: PathBuf,
    /// Its file system, as `statfs` has it.
    pub file_system: FileSystem,
    /// The driver's name for people: the file system's, and what is behind it where that is another.
    pub driver: String,
    /// Where it is mounted from, such as `/dev/sda1`; `None` where the system does not tell.
    pub source: Option<String>,
    /// Whether files have a valid data length, below which a write beyond it makes the driver write
    /// zeros first.
    pub valid_data_length: Support,
    /// Space that this process can still fill, in bytes.
    pub free_bytes: u64,
    /// A nameless file can be made and given a name (`O_TMPFILE`, link).
    pub nameless_files: Support,
    /// How a rename that never replaces is done.
    pub rename_method: RenameMethod,
    /// `flock` works on directories.
    pub locks: Support,
    /// A file can be mapped shared and writable.
    pub shared_mapping: Support,
    /// A file can share the blocks of another.
    pub reflink: Support,
    /// A part of a file can be turned into a hole.
    pub hole_punching: Support,
    /// The entries of a directory can be synced.
    pub directory_sync: Support,
}

/// Why a directory cannot be used for RAM files and snapshots.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// It cannot be opened.
    #[error("cannot use the directory")]
    Open(#[source] OpenError),
    /// Its file system does not answer.
    #[error("{}: cannot examine its file system", path.display())]
    Examine {
        /// The directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Nothing can be created in it.
    #[error("cannot create anything in the directory")]
    Create(#[source] CreateError),
    /// A small file cannot be written in it.
    #[error("{}: cannot write 64 KiB into a new file", path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}
