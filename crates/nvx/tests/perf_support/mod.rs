//! What the tests of `nvx perf` share: the built binary, histories and results with known events that
//! are made here, and a scratch git repository.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test harness fails by panicking, also in its helper functions"
)]

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

pub const GOOD: i32 = 0;
pub const REGRESSION: i32 = 1;
pub const BAD_INPUT: i32 = 2;
pub const INCOMPARABLE: i32 = 3;
pub const SUSPECT: i32 = 75;

pub const HEADER: &str = "platform,microvm_abi_version,processors,commit,metric,unit,direction,p50";
pub const PLATFORM: &str = "linux-kvm-bare-metal";
/// Name of a history of [`PLATFORM`].
pub const HISTORY: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.csv";
pub const HOSTS: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.hosts.jsonl";

/// Name, unit, direction and level of every metric that is made.
pub const METRICS: [(&str, &str, &str, f64); 14] = [
    ("nvx_cold_start", "ms", "lower", 120.0),
    ("nvx_snapshot_generation", "ms", "lower", 80.0),
    ("nvx_snapshot_restore", "ms", "lower", 25.0),
    ("nvx_cold_start_guest_exit_teardown", "ms", "lower", 12.0),
    (
        "nvx_snapshot_restore_guest_exit_teardown",
        "ms",
        "lower",
        14.0,
    ),
    ("nvx_cold_start_peak_rss", "MiB", "lower", 9.0),
    ("nvx_snapshot_generation_peak_rss", "MiB", "lower", 11.0),
    ("nvx_snapshot_restore_peak_rss", "MiB", "lower", 8.0),
    ("network_restore_wall", "ms", "lower", 60.0),
    ("live_read", "MB/s", "higher", 900.0),
    ("live_write", "MB/s", "higher", 400.0),
    ("random_read", "ops/s", "higher", 5200.0),
    ("random_write", "ops/s", "higher", 4100.0),
    ("exchange", "ops/s", "higher", 310.0),
];
/// Metrics of a lifecycle result; they are the first ones.
pub const LIFECYCLE_METRICS: usize = 8;

/// How one run of the binary ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub output: String,
    pub messages: String,
}

impl Done {
    /// Checks the exit code.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs `nvx perf`.
pub fn perf(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Done {
    let done = Command::new(env!("CARGO_BIN_EXE_nvx"))
        .arg("perf")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Done {
        code: done.status.code(),
        output: String::from_utf8(done.stdout).unwrap(),
        messages: String::from_utf8(done.stderr).unwrap(),
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a file below `directory` and gives its path.
pub fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Names in a directory, sorted.
pub fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A name that looks like a commit's and ends with its number.
pub fn commit(number: usize) -> String {
    format!("{:016x}{number:024x}", mixed(number as u64 + 1))
}

/// A number that looks random.
fn mixed(mut state: u64) -> u64 {
    state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// A number between -1 and 1 that looks random and is nearly normal.
fn noise(metric: usize, commit: usize) -> f64 {
    let seed = (metric as u64) << 32 | (commit as u64) << 3;
    let uniform = |part: u64| (mixed(seed + part) >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    (1..7).map(uniform).sum::<f64>() / 3.0
}

/// The value of a metric at a commit, with 2 % noise, worse by a factor.
pub fn value(metric: usize, commit: usize, worse: f64) -> f64 {
    let (_, unit, direction, level) = METRICS[metric];
    let spread = if unit == "MiB" { 0.002 } else { 0.02 };
    let noisy = level * (1.0 + spread * noise(metric, commit));
    if direction == "lower" {
        noisy * worse
    } else {
        noisy / worse
    }
}

/// Rows of commits, with a header. `worse` gives a factor for a metric's name at a commit.
pub fn rows(platform: &str, commits: Range<usize>, worse: impl Fn(&str, usize) -> f64) -> String {
    let mut csv = format!("{HEADER}\n");
    for at in commits {
        for (metric, (name, unit, direction, _)) in METRICS.iter().enumerate() {
            // As the format writes it, so that rows come back as they are.
            let p50 = nvx_perf::format_p50(value(metric, at, worse(name, at)));
            let name_at = commit(at);
            writeln!(
                csv,
                "{platform},2,1,{name_at},{name},{unit},{direction},{p50}"
            )
            .unwrap();
        }
    }
    csv
}

/// Nothing is worse.
pub fn quiet(_: &str, _: usize) -> f64 {
    1.0
}

/// One metric is worse from a commit on.
pub fn step(metric: &'static str, from: usize, factor: f64) -> impl Fn(&str, usize) -> f64 {
    move |name, at| {
        if name == metric && at >= from {
            factor
        } else {
            1.0
        }
    }
}

/// A result of `nvx bench lifecycle`, accepted, as its run number `run` gives it.
pub fn result(commit: &str, run: usize, worse: impl Fn(&str) -> f64) -> Value {
    let p50 = |metric: usize| value(metric, run, worse(METRICS[metric].0));
    let times = |metric: usize| {
        let level = p50(metric);
        // Five below and five above; their median is the level.
        let samples: Vec<f64> = (0..10)
            .map(|at| level + (f64::from(at) - 4.5) / 100.0)
            .collect();
        (json!(samples), json!(median(&samples)))
    };
    let sizes = |metric: usize| {
        let level = (p50(metric) * 1_048_576.0).round();
        (json!(vec![level as u64; 10]), json!(level as u64))
    };
    let section = |time: usize, teardown: Option<usize>, size: usize| {
        let (samples, p50) = times(time);
        let (bytes, bytes_p50) = sizes(size);
        let mut section = json!({
            "samples_ms": samples, "p50_ms": p50,
            "peak_rss_samples_bytes": bytes, "peak_rss_p50_bytes": bytes_p50,
        });
        if let Some(teardown) = teardown {
            let (samples, p50) = times(teardown);
            section["teardown_samples_ms"] = samples;
            section["teardown_p50_ms"] = p50;
            section["teardown_timeout_count"] = json!(0);
        }
        section
    };
    json!({
        "schema": "nvx.lifecycle", "schema_version": 1,
        "controls": {
            "suite": "lifecycle", "validated": true, "disturbed": false, "complete": true,
            "emulated": false, "commit": commit, "platform": PLATFORM, "backend": "kvm",
            "microvm_abi_version": 2, "processors": 1, "memory_mib": 128, "runs": 10,
            "teardown_mode": "guest-exit",
        },
        "host": {"fingerprint": "the-runner"},
        "backends": {"kvm": section(0, Some(3), 5)},
        "snapshot_capture": {"kvm": section(1, None, 6)},
        "snapshot_restore": {"kvm": section(2, Some(4), 7)},
    })
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[4] + sorted[5]) / 2.0
}

/// Says why a test does not run here.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}

/// A real public history, which is not part of the repository.
pub fn public_history(test: &str, name: &str) -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared =
        std::env::var_os("NVX_SHARED").map_or_else(|| repository.join("../shared"), PathBuf::from);
    let path = shared.join("data/history").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(
        test,
        "the public histories are not here (NVX_SHARED names the directory with data/history)",
    );
    None
}

/// Runs git in a directory and gives what it printed, trimmed.
pub fn git(directory: &Path, arguments: &[&str]) -> String {
    let done = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args([
            "-c",
            "user.name=A Tester",
            "-c",
            "user.email=tester@example.invalid",
        ])
        .args([
            "-c",
            "commit.gpgsign=false",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(arguments)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "git {arguments:?}: {errors}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}
