//! What the tests of the built binary share: a process under observation, guests' answers, and
//! what a snapshot on disk holds.
//!
//! Each suite of tests in `suites/` is included by two test files: `native_<suite>.rs` runs it on
//! KVM, `<suite>_soft.rs` on the back end that every machine has ([`BACKEND`]).
//!
//! A test begins with [`begin`], which gives it a directory of its own or says why it cannot run
//! here. A [`Process`] is the binary with its console on a pipe and both outputs in files, so that a
//! test may look at either while the process runs; every wait has a limit, and dropping it ends it.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test harness fails by panicking, also in its helper functions"
)]

pub mod mounts;
pub mod process;
pub mod vm;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nvx_hypervisor::soft;
use nvx_probe_guest::{PAGE_BYTES, ProbeParams, SECTOR_BYTES, Span, checksum, word};
use nvx_snapshot::{MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE};
use serde_json::Value;
use tempfile::TempDir;

#[allow(unused_imports, reason = "each test file uses a part")]
pub use process::{Finished, Process, arguments, nvx, run, start, talk};

pub const MIB: u64 = 1 << 20;

/// What carries out the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Kvm,
    Soft,
}

impl Backend {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Soft => soft::NAME,
        }
    }
}

/// Whether this test file is the one that lane linux-guest runs inside an emulated machine.
pub const IN_LINUX_GUEST_LANE: bool = matches!(
    env!("CARGO_CRATE_NAME").as_bytes(),
    [b'l', b'i', b'n', b'u', b'x', b'_', ..]
);

/// The back end of this test file: KVM if the file's name begins with `native_`, as it does for
/// every test that needs `/dev/kvm`, or if it runs in lane linux-guest.
pub const BACKEND: Backend = match env!("CARGO_CRATE_NAME").as_bytes() {
    [b'n', b'a', b't', b'i', b'v', b'e', b'_', ..] => Backend::Kvm,
    _ if IN_LINUX_GUEST_LANE => Backend::Kvm,
    _ => Backend::Soft,
};

/// The test's own directory; `None`, with the reason told, where it needs a /dev/kvm that cannot be
/// used.
pub fn begin(test: &str) -> Option<TempDir> {
    if IN_LINUX_GUEST_LANE && std::env::var_os("NVX_LINUX_GUEST_LANE").is_none() {
        skip(test, "runs in lane linux-guest of cargo xtask test");
        return None;
    }
    if BACKEND == Backend::Kvm
        && let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm")
    {
        skip(test, &format!("/dev/kvm cannot be opened: {error}"));
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

/// Says why a test, or a part of it, does not run here.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}

/// Whether this process may do what only root may, such as mounting.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Names in a directory, sorted, hidden ones included.
pub fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Names of staging directories and RAM files in `directory`.
pub fn leftovers(directory: &Path) -> Vec<String> {
    let mut names = entries(directory);
    names.retain(|name| name.starts_with(".nvx-"));
    names
}

/// Every byte of a snapshot's three files.
pub fn content(snapshot: &Path) -> [Vec<u8>; 3] {
    [MANIFEST_FILE, STATE_FILE, MEMORY_FILE].map(|name| std::fs::read(snapshot.join(name)).unwrap())
}

/// Bytes of disk that a snapshot's memory takes.
pub fn allocated_bytes(snapshot: &Path) -> u64 {
    // `st_blocks` counts units of 512 bytes (stat(2)).
    snapshot.join(MEMORY_FILE).metadata().unwrap().blocks() * 512
}

/// A copy of a snapshot, to be damaged.
pub fn copy_snapshot(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in entries(from) {
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// The manifest of a snapshot.
pub fn manifest(snapshot: &Path) -> Manifest {
    Manifest::decode(&std::fs::read(snapshot.join(MANIFEST_FILE)).unwrap()).unwrap()
}

/// The 32-bit word at `address` in a snapshot's memory.
pub fn memory_word(snapshot: &Path, address: u32) -> u32 {
    let mut word = [0; 4];
    File::open(snapshot.join(MEMORY_FILE))
        .and_then(|file| file.read_exact_at(&mut word, u64::from(address)))
        .unwrap();
    u32::from_le_bytes(word)
}

/// What `nvx inspect --json` says of a snapshot.
pub fn inspect(snapshot: &Path) -> Value {
    let done = run(&arguments(["inspect", "--json"], [snapshot])).expect_code(0);
    serde_json::from_str(&done.output).unwrap()
}

/// The probe guest and the RAM it has.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub params: ProbeParams,
    pub memory_bytes: u64,
}

impl Probe {
    pub fn new(params: &str, memory_bytes: u64) -> Self {
        Self {
            params: params.parse().unwrap(),
            memory_bytes,
        }
    }

    /// `run` of this probe, followed by `rest`.
    pub fn run(self, rest: &[&str]) -> Vec<std::ffi::OsString> {
        let memory = self.memory_bytes.to_string();
        let probe = self.params.to_string();
        let backend = BACKEND.name();
        let words = [
            "run",
            "--backend",
            backend,
            "--memory",
            &memory,
            "--probe",
            &probe,
        ];
        let mut all = arguments(words, []);
        all.extend(rest.iter().map(Into::into));
        all
    }

    fn span(self) -> Span {
        // The guest reaches no RAM above the gap below 4 GiB.
        self.params.span(self.memory_bytes.min(3 << 30))
    }

    /// The answer to `v` after `dirtied` times `d`, as far as the seed.
    pub fn verified(self, dirtied: u32) -> String {
        let seed = self.params.seed + dirtied;
        let sum = checksum(seed, self.span());
        format!("PROBE-VERIFY ok checksum={sum:08x} seed={seed} ")
    }

    /// Asserts that a snapshot's memory holds every word of this probe after `dirtied` times `d`,
    /// and has RAM's length.
    pub fn assert_in_memory_file(self, snapshot: &Path, dirtied: u32) {
        let path = snapshot.join(MEMORY_FILE);
        let file = File::open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), self.memory_bytes);
        let seed = self.params.seed + dirtied;
        let mut page = [0; PAGE_BYTES as usize];
        for address in self.span().pages() {
            file.read_exact_at(&mut page, u64::from(address)).unwrap();
            for sector in (0..PAGE_BYTES).step_by(SECTOR_BYTES as usize) {
                let found = page[sector as usize..].first_chunk::<4>().unwrap();
                assert_eq!(
                    u32::from_le_bytes(*found),
                    word(seed, address + sector),
                    "{} at {:#x}",
                    path.display(),
                    address + sector
                );
            }
        }
    }

    /// Captures a new guest to `destination`.
    pub fn capture(self, destination: &Path) -> Finished {
        let done = talk(
            &self.run(&["--snapshot", destination.to_str().unwrap()]),
            "s\n",
        )
        .expect_code(0);
        done.assert_said("captured to ");
        done
    }
}

/// The value of `name=` in a line of the guest.
pub fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let key = format!("{name}=");
    line.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(key.as_str()))
        .unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

/// `restore SNAPSHOT`, followed by `rest`; the back end is that of the snapshot.
pub fn restore(snapshot: &Path, rest: &[&str]) -> Vec<std::ffi::OsString> {
    let mut all = arguments(["restore"], [snapshot]);
    all.extend(rest.iter().map(Into::into));
    all
}

/// Text of a path that tests made.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A directory on another file system than `other`; `None` if this machine has none at hand.
pub fn on_another_file_system(other: &Path) -> Option<TempDir> {
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    let shm = PathBuf::from("/dev/shm");
    if device(&shm)? == device(other)? {
        return None;
    }
    tempfile::tempdir_in(shm).ok()
}
