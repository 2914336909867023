//! Every input in the tree passes its target, and the tree has inputs for every target.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test, which names the input before it tries it"
)]

use std::fs;
use std::path::{Path, PathBuf};

use nvx_fuzz_targets::{MAX_INPUT_BYTES, TARGETS, find};

fn fuzz_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs a target's corpus; the name of the input stands before a panic.
fn run_corpus(name: &str) {
    let target = find(name).unwrap();
    let directory = fuzz_directory().join("corpus").join(name);
    let inputs = names_in(&directory);
    assert!(!inputs.is_empty(), "{name} has no inputs");
    for input in inputs {
        println!("{name}/{input}");
        let bytes = fs::read(directory.join(&input)).unwrap();
        assert!(bytes.len() <= MAX_INPUT_BYTES, "{input} is too long");
        (target.run)(&bytes);
        // What an input begins with is an input too.
        for length in [0, 1, bytes.len() / 2, bytes.len().saturating_sub(1)] {
            (target.run)(&bytes[..length.min(bytes.len())]);
        }
    }
}

macro_rules! corpora {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            run_corpus(stringify!($name));
        })*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

corpora!(
    manifest,
    state_file,
    device_state,
    device_access,
    vcpu_state,
    soft_cpu,
    kernel_image,
    packed,
    tar,
    control_request,
    control_line,
    profile_line,
    history_csv,
    result_json,
    perf_import,
    history_hosts,
);

#[test]
fn targets_corpora_programs_and_tests_are_the_same_ones() {
    let mut targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(TESTED, targets, "a target without a test");
    targets.sort_unstable();
    assert_eq!(names_in(&fuzz_directory().join("corpus")), targets);
    let programs: Vec<String> = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names_in(&fuzz_directory().join("fuzz_targets")), programs);
    let manifest = fs::read_to_string(fuzz_directory().join("Cargo.toml")).unwrap();
    for name in targets {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is no program in fuzz/Cargo.toml"
        );
    }
}

/// The whole of them is cloned by everybody.
#[test]
fn corpora_are_small() {
    let corpus = fuzz_directory().join("corpus");
    let mut total_bytes = 0;
    for name in names_in(&corpus) {
        let directory = corpus.join(name);
        for input in names_in(&directory) {
            total_bytes += fs::metadata(directory.join(input)).unwrap().len();
        }
    }
    assert!(total_bytes < 2 << 20, "{total_bytes} bytes");
}
