//! `cargo xtask test`: the test lanes.
//!
//! A lane is one environment that tests run in, and one profile of the same name in
//! `.config/nextest.toml`, whose filter says which tests belong to it:
//!
//! | lane | tests | needs |
//! | --- | --- | --- |
//! | `unit` | all but the files of the other lanes, and the documentation's examples | nothing |
//! | `native` | integration test files whose name starts with `native_` | `/dev/kvm`, read and write |
//! | `browser` | integration test files whose name starts with `browser_` | Chromium, Debian's package `chromium` |
//! | `linux-guest` | `crates/nvx/tests/linux_guest`, inside an emulated machine | QEMU, apt: see [`crate::linux_guest`] |
//! | `ntfs` | integration test files whose name starts with `ntfs_` | root, loop devices, FUSE, Debian's package `ntfs-3g`; for exFAT QEMU and a Debian kernel |
//! | `windows` | all tests that are built for Windows, under Wine ([`crate::windows`]) | root, Debian's package `debootstrap` for the first time |
//!
//! # A test that cannot run here
//!
//! It prints the reason, tells this program, and passes. The convention (each test file has its own copy
//! of these few lines, so that no crate exists only for tests):
//!
//! ```ignore
//! fn skip(test: &str, reason: &str) {
//!     eprintln!("SKIP: {test}: {reason}");
//!     if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
//!         let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
//!         std::io::Write::write_all(&mut file, format!("{test}: {reason}\n").as_bytes()).unwrap();
//!     }
//! }
//! ```
//!
//! One write of one line, since tests append at the same time. The lines are shown after the lane, and
//! their tests are counted as skipped instead of passed. Write the reason so that a reader knows what to
//! do about it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::linux_guest;
use crate::windows;
use crate::workspace::{Workspace, cargo};

/// Names the file that tests append their skips to.
const SKIPS_VARIABLE: &str = "NVX_TEST_SKIPS";

/// Names of browsers that the tests can steer.
const BROWSERS: [&str; 2] = ["chromium", "chromium-browser"];

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Lane to run; repeatable. By default all.
    #[arg(long = "lane", value_name = "NAME")]
    lanes: Vec<Lane>,
    /// Run only part A of B of each lane, such as 1/2.
    #[arg(long, value_name = "A/B")]
    shard: Option<String>,
    /// Of lane windows, run only test binaries with this text in their names; repeatable.
    #[arg(long = "windows-binary", value_name = "TEXT")]
    windows_binaries: Vec<String>,
    /// Also the tests of lane linux-guest that take long: 4 and 8 vCPUs, many rounds.
    #[arg(long)]
    long: bool,
    /// Of lane linux-guest, run only tests with this text in their names; repeatable. Without it, or with
    /// speed, the speed table is measured too.
    #[arg(long = "linux-guest-filter", value_name = "TEXT")]
    linux_guest_filters: Vec<String>,
}

/// One environment that tests run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lane {
    /// Logic and parsers; runs anywhere.
    Unit,
    /// The built binary and the back end on this machine's /dev/kvm.
    Native,
    /// Pages that people look at, in a headless browser.
    Browser,
    /// What reaches the device on a real NTFS driver.
    Ntfs,
    /// The Windows code, built for Windows and run under Wine.
    Windows,
    /// Stock Linux guests on a complete KVM, inside an emulated machine.
    LinuxGuest,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Native => "native",
            Self::Browser => "browser",
            Self::Ntfs => "ntfs",
            Self::Windows => "windows",
            Self::LinuxGuest => "linux-guest",
        }
    }

    /// Why this lane cannot run here; `None` if it can.
    fn obstacle(self) -> Option<String> {
        match self {
            // The tests of `ntfs` know best what they need, and skip themselves.
            Self::Unit | Self::Ntfs => None,
            Self::Native => kvm_obstacle(Path::new("/dev/kvm")),
            Self::LinuxGuest => linux_guest::obstacle(),
            Self::Browser => browser_obstacle(&std::env::var_os("PATH").unwrap_or_default()),
            Self::Windows => windows::obstacle(),
        }
    }
}

/// How a lane went.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    passed: usize,
    failed: usize,
    /// Reasons, one per skipped test or group of tests.
    skips: Vec<String>,
    skipped: usize,
    duration: Duration,
    /// A failure that no test stands for: the build broke, say.
    broken: Option<String>,
}

/// Runs the lanes; the exit code is 1 if a test failed or a lane could not be built.
pub fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    ensure_nextest()?;
    let lanes: &[Lane] = if options.lanes.is_empty() {
        Lane::value_variants()
    } else {
        &options.lanes
    };
    let mut results = Vec::new();
    for &lane in lanes {
        let start = Instant::now();
        let mut outcome = run_lane(workspace, lane, options)?;
        outcome.duration = start.elapsed();
        results.push((lane, outcome));
    }
    print_table(&results);
    let good = results
        .iter()
        .all(|(_, outcome)| outcome.failed == 0 && outcome.broken.is_none());
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_lane(workspace: &Workspace, lane: Lane, options: &Options) -> Result<Outcome> {
    let shard = options.shard.as_deref();
    println!("lane {}", lane.name());
    let whole = matches!(lane, Lane::Windows | Lane::LinuxGuest);
    // A lane that is one build, or one machine, belongs to the first shard.
    if whole && !shard.is_none_or(|shard| shard.starts_with("1/")) {
        return Ok(Outcome::default());
    }
    if let Some(reason) = lane.obstacle() {
        let skipped = match lane {
            // Counting them would take the build that cannot be made.
            _ if whole => 1,
            _ => count_tests(workspace, lane)?,
        };
        return Ok(Outcome {
            skipped,
            skips: vec![format!("all of lane {}: {reason}", lane.name())],
            ..Outcome::default()
        });
    }
    match lane {
        Lane::Windows => return Ok(run_windows(workspace, &options.windows_binaries)),
        Lane::LinuxGuest => return Ok(run_linux_guest(workspace, options)),
        _ => {}
    }
    let skips_file = new_skips_file(workspace, lane)?;
    let mut outcome = run_nextest(workspace, lane, shard, &skips_file)?;
    // Examples in documentation are not nextest's; shard 1 takes them all.
    if lane == Lane::Unit && shard.is_none_or(|shard| shard.starts_with("1/")) {
        let (passed, failed, broken) = run_doc_tests(workspace)?;
        outcome.passed += passed;
        outcome.failed += failed;
        outcome.broken = outcome.broken.or(broken);
    }
    let skips = std::fs::read_to_string(&skips_file).context("cannot read the skips")?;
    outcome.skipped = count_skipped(&skips);
    outcome.passed = outcome.passed.saturating_sub(outcome.skipped);
    outcome.skips = skips.lines().map(str::to_owned).collect();
    Ok(outcome)
}

fn run_windows(workspace: &Workspace, binaries: &[String]) -> Outcome {
    match windows::run(workspace, binaries) {
        Ok(report) => {
            let skipped = count_skipped(&report.skips.join("\n"));
            Outcome {
                passed: report.passed.saturating_sub(skipped),
                failed: report.failed,
                skips: report.skips,
                skipped,
                broken: report.broken,
                ..Outcome::default()
            }
        }
        // The other lanes still have something to tell.
        Err(error) => Outcome {
            broken: Some(format!("{error:#}")),
            ..Outcome::default()
        },
    }
}

/// The tests are in another machine, so nextest does not run them.
fn run_linux_guest(workspace: &Workspace, options: &Options) -> Outcome {
    let lane_options = linux_guest::Options {
        long: options.long,
        filters: options.linux_guest_filters.clone(),
    };
    let run = match linux_guest::run(workspace, &lane_options) {
        Ok(run) => run,
        // The other lanes still have something to tell.
        Err(error) => {
            return Outcome {
                broken: Some(format!("{error:#}")),
                ..Outcome::default()
            };
        }
    };
    let (passed, failed) = test_result_counts(&run.output);
    let skips: Vec<String> = run
        .output
        .lines()
        .filter_map(|line| line.split_once("SKIP: "))
        .map(|(_, skip)| skip.to_owned())
        .collect();
    let skipped = count_skipped(&skips.join("\n"));
    Outcome {
        passed: passed.saturating_sub(skipped),
        failed: failed.saturating_sub(run.repeated),
        skips,
        skipped,
        broken: run.broken,
        ..Outcome::default()
    }
}

/// Why `/dev/kvm` cannot be used; `None` if it can.
fn kvm_obstacle(device: &Path) -> Option<String> {
    let name = device.display();
    let metadata = match std::fs::metadata(device) {
        Ok(metadata) => metadata,
        Err(error) => return Some(format!("{name} is not present ({error})")),
    };
    if !metadata.file_type().is_char_device() {
        return Some(format!("{name} is not a device"));
    }
    match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => None,
        Err(error) => Some(format!(
            "{name} cannot be opened for reading and writing ({error}); it belongs to group {}",
            group_name(metadata.gid())
        )),
    }
}

/// Why no page can be shown; `None` if a browser is in one of the directories of `path`.
fn browser_obstacle(path: &OsStr) -> Option<String> {
    let found = std::env::split_paths(path)
        .flat_map(|directory| BROWSERS.map(|name| directory.join(name)))
        .any(|file| file.is_file());
    (!found).then(|| format!("no {} on the PATH (Debian package: chromium)", BROWSERS[0]))
}

fn group_name(gid: u32) -> String {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&groups, gid).unwrap_or_else(|| gid.to_string())
}

/// Looks up a group in the text of `/etc/group`: `name:password:gid:members`.
fn find_group(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == gid.to_string()).then(|| name.to_owned())
    })
}

fn ensure_nextest() -> Result<()> {
    let present = cargo()
        .args(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("cannot run cargo")?
        .success();
    if present {
        return Ok(());
    }
    println!("installing cargo-nextest");
    let status = cargo()
        .args(["install", "cargo-nextest", "--locked"])
        .status()
        .context("cannot run cargo install")?;
    if !status.success() {
        bail!("cargo-nextest is missing and could not be installed");
    }
    Ok(())
}

fn new_skips_file(workspace: &Workspace, lane: Lane) -> Result<PathBuf> {
    let directory = workspace.target_dir.join("xtask");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let file = directory.join(format!("skips-{}.txt", lane.name()));
    std::fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn nextest(workspace: &Workspace, command: &str, lane: Lane) -> Command {
    let mut nextest = cargo();
    nextest
        .args(["nextest", command, "--workspace", "--locked", "--profile"])
        .arg(lane.name())
        .current_dir(&workspace.root);
    nextest
}

fn run_nextest(
    workspace: &Workspace,
    lane: Lane,
    shard: Option<&str>,
    skips_file: &Path,
) -> Result<Outcome> {
    // nextest's store lies in the workspace, wherever the target directory is.
    let report = workspace
        .root
        .join("target/nextest")
        .join(lane.name())
        .join("junit.xml");
    // A report of an earlier run must not stand in for one that could not be built.
    if report.exists() {
        std::fs::remove_file(&report)
            .with_context(|| format!("cannot remove {}", report.display()))?;
    }
    let mut command = nextest(workspace, "run", lane);
    command
        .args(["--no-tests", "pass", "--no-fail-fast"])
        .env(SKIPS_VARIABLE, skips_file);
    if let Some(shard) = shard {
        command.arg("--partition").arg(format!("count:{shard}"));
    }
    let status = command.status().context("cannot run cargo nextest")?;
    let report = std::fs::read_to_string(&report).ok();
    let counts = report.as_deref().and_then(junit_counts);
    let (passed, failed) = counts.unwrap_or((0, 0));
    let broken = (!status.success() && failed == 0).then(|| {
        format!("cargo nextest ended with {status} before or beside the tests; see above")
    });
    Ok(Outcome {
        passed,
        failed,
        broken,
        ..Outcome::default()
    })
}

/// Passed and failed, from the first `testsuites` tag of a JUnit report.
fn junit_counts(report: &str) -> Option<(usize, usize)> {
    let tag = report.split("<testsuites ").nth(1)?.split('>').next()?;
    let attribute = |name: &str| -> Option<usize> {
        tag.split(&format!("{name}=\""))
            .nth(1)?
            .split('"')
            .next()?
            .parse()
            .ok()
    };
    let failed = attribute("failures")? + attribute("errors")?;
    Some((attribute("tests")?.checked_sub(failed)?, failed))
}

/// Distinct tests in the skips file, each line `test name: reason`.
fn count_skipped(skips: &str) -> usize {
    let tests: BTreeSet<&str> = skips
        .lines()
        .map(|line| line.split_once(": ").map_or(line, |(test, _)| test))
        .collect();
    tests.len()
}

/// How many tests the lane would run.
fn count_tests(workspace: &Workspace, lane: Lane) -> Result<usize> {
    let output = nextest(workspace, "list", lane)
        .args(["--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo nextest list")?;
    if !output.status.success() {
        bail!("cargo nextest list failed; see above");
    }
    let list = serde_json::from_slice(&output.stdout).context("cargo nextest list's JSON")?;
    Ok(count_listed(&list))
}

fn count_listed(list: &Value) -> usize {
    let suites = list["rust-suites"].as_object();
    suites
        .into_iter()
        .flat_map(|suites| suites.values())
        .filter_map(|suite| suite["testcases"].as_object())
        .flat_map(|cases| cases.values())
        .filter(|case| case["filter-match"]["status"] == "matches" && case["ignored"] == false)
        .count()
}

fn run_doc_tests(workspace: &Workspace) -> Result<(usize, usize, Option<String>)> {
    let output = cargo()
        .args(["test", "--doc", "--workspace", "--locked", "--no-fail-fast"])
        .current_dir(&workspace.root)
        .output()
        .context("cannot run cargo test --doc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (passed, failed) = test_result_counts(&text);
    if output.status.success() {
        return Ok((passed, failed, None));
    }
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let broken = (failed == 0).then(|| "cargo test --doc failed; see above".to_owned());
    Ok((passed, failed, broken))
}

/// Passed and failed: sums the lines `test result: ok. 3 passed; 0 failed; ...`.
pub(crate) fn test_result_counts(text: &str) -> (usize, usize) {
    let mut sum = (0, 0);
    for line in text.lines().filter(|line| line.starts_with("test result:")) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<usize>().ok());
            match (number, words.next()) {
                (Some(number), Some("passed")) => sum.0 += number,
                (Some(number), Some("failed")) => sum.1 += number,
                _ => {}
            }
        }
    }
    sum
}

fn print_table(results: &[(Lane, Outcome)]) {
    println!();
    for (lane, outcome) in results {
        for skip in &outcome.skips {
            println!("skipped in {}: {skip}", lane.name());
        }
        if let Some(broken) = &outcome.broken {
            println!("lane {} is broken: {broken}", lane.name());
        }
    }
    println!("lane         passed  failed  skipped      time");
    for (lane, outcome) in results {
        let remark = if outcome.broken.is_some() {
            "  BROKEN"
        } else {
            ""
        };
        println!(
            "{:<11} {:>7} {:>7} {:>8} {:>7.1} s{remark}",
            lane.name(),
            outcome.passed,
            outcome.failed,
            outcome.skipped,
            outcome.duration.as_secs_f64()
        );
    }
    let sum = |count: fn(&Outcome) -> usize| -> usize {
        results.iter().map(|(_, outcome)| count(outcome)).sum()
    };
    println!(
        "{} passed, {} failed, {} skipped",
        sum(|outcome| outcome.passed),
        sum(|outcome| outcome.failed),
        sum(|outcome| outcome.skipped)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_report_is_counted() {
        let report = r#"<?xml version="1.0"?>
<testsuites name="nextest-run" tests="7" failures="2" errors="1" uuid="x" time="0.1">
    <testsuite name="a" tests="9" failures="9" errors="9">"#;
        assert_eq!(junit_counts(report), Some((4, 3)));
        assert_eq!(junit_counts("<html>"), None);
        assert_eq!(
            junit_counts("<testsuites tests=\"x\" failures=\"1\" errors=\"0\">"),
            None
        );
    }

    #[test]
    fn skipped_tests_are_counted_once() {
        assert_eq!(count_skipped(""), 0);
        assert_eq!(count_skipped("a::b: no tmpfs\na::b: no loop\nc: why\n"), 2);
    }

    #[test]
    fn doc_tests_are_summed() {
        let text = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; finished in 0.01s\n\
                    noise 5 passed;\n\
                    test result: FAILED. 1 passed; 3 failed; 0 ignored\n";
        assert_eq!(test_result_counts(text), (3, 3));
    }

    #[test]
    fn listed_tests_are_counted() {
        let list = serde_json::json!({"rust-suites": {"x": {"testcases": {
            "a": {"ignored": false, "filter-match": {"status": "matches"}},
            "b": {"ignored": true, "filter-match": {"status": "matches"}},
            "c": {"ignored": false, "filter-match": {"status": "mismatch"}}}}}});
        assert_eq!(count_listed(&list), 1);
    }

    #[test]
    fn groups_are_named() {
        assert_eq!(
            find_group("root:x:0:\nkvm:x:104:me\n", 104),
            Some("kvm".to_owned())
        );
        assert_eq!(find_group("bad\nroot:x:0:", 104), None);
    }

    #[test]
    fn obstacles_are_named() {
        let missing = kvm_obstacle(Path::new("/nonexistent/kvm")).unwrap();
        assert!(missing.contains("not present"), "{missing}");
        let file = kvm_obstacle(Path::new("/etc/passwd")).unwrap();
        assert!(file.contains("not a device"), "{file}");
        assert_eq!(kvm_obstacle(Path::new("/dev/null")), None);
        let no_browser = browser_obstacle(OsStr::new("/nonexistent:/dev")).unwrap();
        assert!(no_browser.contains("chromium"), "{no_browser}");
    }
}
