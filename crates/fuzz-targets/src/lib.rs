//! Fuzz targets: each is a plain function on bytes that panics if something that must hold does not.
//!
//! What a target is about is untrusted: a file, what a guest does, what comes over a socket or a line.
//! "Must not panic" is the least that it checks; most also check that what was accepted can be written
//! and read again as the same, and that sizes stay bounded.
//!
//! The same functions run in two ways. In `fuzz/`, a workspace of its own, libFuzzer calls them with
//! inputs that it makes (`cargo xtask fuzz`). Here a test calls them with the inputs that are in the
//! tree, `fuzz/corpus/TARGET/*`: seeds, and every input that once found something.
//!
//! Where a checksum would stop each changed input at the door, a target tries the input as it is and
//! once more with the checksum set right, since whoever writes a hostile file sets it right too.
#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a target tells of a finding by panicking"
)]

mod devices;
mod guest_code;
mod images;
mod lines;
mod results;
mod snapshot;
mod temporary_file;

/// The longest input that the tree takes, in bytes.
pub const MAX_INPUT_BYTES: usize = 32 << 10;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also that of its corpus directory and of its program in `fuzz/`.
    pub name: &'static str,
    /// What its input is, in a few words.
    pub input: &'static str,
    /// Tries one input; panics if something does not hold.
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, input: &'static str, run: fn(&[u8])) -> Target {
    Target { name, input, run }
}

/// Every target.
pub const TARGETS: [Target; 16] = [
    target(
        "manifest",
        "manifest.json of a snapshot",
        snapshot::manifest,
    ),
    target(
        "state_file",
        "state.bin of a snapshot, with what is in it",
        snapshot::state_file,
    ),
    target("device_state", "saved state of one device", devices::state),
    target(
        "device_access",
        "what a guest does to the devices",
        devices::access,
    ),
    target(
        "vcpu_state",
        "saved state of a vCPU, an interrupt chip or a clock",
        guest_code::vcpu_state,
    ),
    target(
        "soft_cpu",
        "registers and code of a guest on back end soft",
        guest_code::soft_cpu,
    ),
    target(
        "kernel_image",
        "ELF with PVH notes, bzImage, libkrunfw",
        images::kernel,
    ),
    target("packed", "gzip, xz and Zstandard data", images::packed),
    target(
        "tar",
        "tar archive for an initramfs, plain or packed",
        images::tar,
    ),
    target(
        "control_request",
        "lines of the control protocol",
        lines::control_protocol,
    ),
    target(
        "control_line",
        "what a guest and the monitor say over COM2",
        lines::control_line,
    ),
    target("profile_line", "profile records", lines::profile),
    target("history_csv", "a performance history", results::history),
    target(
        "result_json",
        "a benchmark's result",
        results::lifecycle_result,
    ),
    target(
        "perf_import",
        "a result or a log of the public format",
        results::import_file,
    ),
    target(
        "history_hosts",
        "the hosts beside a performance history",
        results::hosts,
    ),
];

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
