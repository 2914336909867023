//! Lane `linux-guest`: stock Linux guests on a complete `/dev/kvm`, on any machine.
//!
//! QEMU's software emulation offers AMD SVM with nested paging, so a Debian kernel inside it has a full KVM. Such an
//! *outer machine* is booted with an initramfs that carries the static nvx, the test binary of
//! `crates/nvx/tests/linux_guest`, and the kernels that the guests run. Times there are good as ratios only.
//!
//! An outer machine has one processor: with two, the emulator mixes up the states of guest and host once in some hundred
//! restores, and the outer kernel or the guest breaks (seen with QEMU 7.2 and 10.0). Two outer machines share the tests
//! instead. Only the speed table, asked for by name, has two processors. Should an outer kernel crash all the same, that is
//! told, and the tests that have no result yet run again. For the same reason a test that failed runs once more, alone in
//! a fresh outer machine: a fault of NVX fails twice. That is told as well.
//!
//! The kernels come from Debian packages, which are kept unpacked in `~/.cache/nvx/linux-guest` (or below
//! `XDG_CACHE_HOME`); remove that directory to fetch newer ones. Nothing is installed, and nothing needs root.

mod boot64;
mod kernels;
mod outer;
mod pack;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::kernels::Kernels;
use crate::dist;
use crate::workspace::{Workspace, cargo};

/// The test binary, an integration test of package `nvx`.
const TEST_BINARY: &str = "linux_guest";
/// Names the kernels for the test of `nvx-machine` that unpacks them.
const KERNELS_VARIABLE: &str = "NVX_TEST_KERNELS";
/// Outer machines that run at once.
const MACHINES: usize = 2;
/// The speed table among the tests. It is measured when nothing else runs, and printed.
const SPEED_TABLE: &str = "speed::table";
/// What a filter that also wants the speed table begins with.
const SPEED: &str = "speed";
/// Processors for the speed table when it is asked for by name, so that a monitor's threads run beside its vCPU, as they
/// do anywhere else. The emulator may break then.
const SPEED_PROCESSORS: u32 = 2;
/// Samples of which the speed table has the median.
const SPEED_ROUNDS: u32 = 3;
/// Ends a lane that hangs. Far above what the tests that every change runs take on an idle machine of two processors.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// The same with `--long`.
const LONG_LIMIT: Duration = Duration::from_secs(120 * 60);
/// How often an outer machine is started before its crashes break the lane. Each start goes on where the last ended.
const ATTEMPTS: u32 = 5;
/// More failures than this are no accident, and do not run again.
const MOST_REPEATED: usize = 6;
/// What tests and the place of their programs find in the environment.
const ENVIRONMENT: &str =
    "export NVX_LINUX_GUEST_LANE=1 NVX_KERNELS=/kernels NVX_BINARY=/bin/nvx RUST_BACKTRACE=0\n";

/// What to run.
pub struct Options {
    /// Also the tests that take long.
    pub long: bool,
    /// Only tests whose name contains one of these; all, if there are none.
    pub filters: Vec<String>,
}

/// How the lane went.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What the test binaries printed.
    pub output: String,
    /// Failures in the output that do not count, since their tests ran again; that result is in the output too.
    pub repeated: usize,
    /// Why the output is not the whole.
    pub broken: Option<String>,
}

/// Why the lane cannot run here; `None` if it can.
pub fn obstacle() -> Option<String> {
    let missing: Vec<&str> = [outer::QEMU, "apt-get", "dpkg-deb"]
        .into_iter()
        .filter(|program| !is_on_path(program))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "needs {} (a Debian machine with the package qemu-system-x86)",
            missing.join(" and ")
        )
    })
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Runs the lane.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Outcome> {
    let kernels = Kernels::fetch()?;
    let nvx = dist::build(workspace, &dist::Options::default())?;
    let tests = build_tests(workspace)?;
    let loaders = test_loaders(workspace, &kernels)?;

    let work = workspace.target_dir.join("linux-guest");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let lane = LinuxGuestLane {
        work,
        end: Instant::now() + if options.long { LONG_LIMIT } else { LIMIT },
        kernels: &kernels,
        nvx: &nvx,
        tests: &tests,
    };
    let mut outcome = lane.run_shared(&wanted_tests(&tests, options)?)?;
    if outcome.broken.is_none() && is_speed_wanted(options) {
        let table = [SPEED_TABLE.to_owned()];
        // Who asks for the figures can ask again; a whole run must end.
        let processors = if options.filters.is_empty() {
            1
        } else {
            SPEED_PROCESSORS
        };
        outcome.add(lane.run_until_whole("", processors, &table, speed_commands)?);
    }
    if outcome.broken.is_none() {
        lane.repeat_failures(&mut outcome)?;
    }
    outcome.output.insert_str(0, &loaders);
    Ok(outcome)
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.output.push_str(&other.output);
        self.repeated += other.repeated;
        self.broken = self.broken.take().or(other.broken);
    }
}

/// What outer machines are made of.
struct LinuxGuestLane<'a> {
    /// Files of the machines.
    work: PathBuf,
    /// When what still runs is ended.
    end: Instant,
    kernels: &'a Kernels,
    nvx: &'a Path,
    tests: &'a Path,
}

impl LinuxGuestLane<'_> {
    /// Runs the tests in several machines at once.
    fn run_shared(&self, tests: &[String]) -> Result<Outcome> {
        let mut shares = vec![Vec::new(); MACHINES];
        for (index, test) in tests.iter().enumerate() {
            shares[index % MACHINES].push(test.clone());
        }
        let mut whole = Outcome::default();
        std::thread::scope(|scope| {
            let running: Vec<_> = (1..)
                .zip(&shares)
                .map(|(number, share)| {
                    let name = format!("{number}: ");
                    scope.spawn(move || self.run_until_whole(&name, 1, share, test_commands))
                })
                .collect();
            for machine in running {
                let Ok(outcome) = machine.join() else {
                    bail!("a thread that ran an outer machine panicked");
                };
                whole.add(outcome?);
            }
            Ok(())
        })?;
        Ok(whole)
    }

    /// Runs the tests by `commands`, those that a crash left without a result again.
    fn run_until_whole(
        &self,
        name: &str,
        processors: u32,
        tests: &[String],
        commands: impl Fn(&[String]) -> String,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut left = tests.to_vec();
        for attempt in 1.. {
            if left.is_empty() {
                break;
            }
            let run = self.run(name, processors, &commands(&left))?;
            outcome.output.push_str(&run.output);
            let Some(failure) = run.failure else {
                outcome.broken = unexpected(run.status);
                break;
            };
            let results = results(&run.output);
            if !run.output.contains("test result: ") {
                outcome.output.push_str(&summary(&results));
            }
            if !run.crashed || attempt == ATTEMPTS {
                outcome.broken = Some(failure);
                break;
            }
            left.retain(|test| !results.iter().any(|(finished, _)| finished == test));
            println!(
                "{name}the outer machine's kernel crashed; the tests without a result run again"
            );
        }
        Ok(outcome)
    }

    /// Runs the tests that failed once more, each alone.
    fn repeat_failures(&self, outcome: &mut Outcome) -> Result<()> {
        let failed: Vec<String> = results(&outcome.output)
            .into_iter()
            .filter_map(|(test, passed)| (!passed).then_some(test))
            .collect();
        if failed.is_empty() || failed.len() > MOST_REPEATED {
            return Ok(());
        }
        println!("run again, each alone: {}", failed.join(", "));
        let again = self.run_until_whole("", 1, &failed, repeat_commands)?;
        let results = results(&again.output);
        outcome.add(again);
        outcome.repeated = results.len();
        for (test, passed) in results {
            let result = if passed { "passed" } else { "failed again" };
            println!("{test}: failed among others, {result} alone");
        }
        Ok(())
    }

    fn run(&self, name: &str, processors: u32, commands: &str) -> Result<outer::Run> {
        let stem = name.trim_end_matches(": ");
        let initrd = self.work.join(format!("outer{stem}.cpio"));
        let console = self.work.join(format!("outer{stem}-console.log"));
        pack::pack(&initrd, self.kernels, self.nvx, self.tests, commands)?;
        println!("{name}the outer machine starts; it prints:");
        let limit = self.end.saturating_duration_since(Instant::now());
        let machine = outer::Machine {
            name,
            processors,
            kernel: &self.kernels.cloud,
            initrd: &initrd,
            console: &console,
        };
        let run = outer::run(&machine, limit)?;
        std::fs::remove_file(&initrd)
            .with_context(|| format!("cannot remove {}", initrd.display()))?;
        Ok(run)
    }
}

/// What is wrong with the status that the tests ended with. Their harness ends with 101 when a test failed, which
/// its counts tell.
fn unexpected(status: Option<i32>) -> Option<String> {
    let status = status.filter(|status| ![0, 101].contains(status))?;
    Some(format!("the tests ended with status {status}"))
}

/// The tests in what a harness has printed so far, and whether they passed.
fn results(output: &str) -> Vec<(String, bool)> {
    output
        .lines()
        .filter_map(|line| {
            let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
            let passed = match result {
                "ok" => true,
                "FAILED" => false,
                _ => return None,
            };
            Some((test.to_owned(), passed))
        })
        .collect()
}

/// The last line of a harness that did not come to print it.
fn summary(results: &[(String, bool)]) -> String {
    let passed = results.iter().filter(|(_, passed)| *passed).count();
    let failed = results.len() - passed;
    format!("test result: cut short. {passed} passed; {failed} failed\n")
}

/// Builds the test binary as nextest does in the other lanes, so that nothing is built twice, and returns its
/// path. It is dynamic; only what is under test must be as it is shipped.
fn build_tests(workspace: &Workspace) -> Result<PathBuf> {
    let output = cargo()
        .args(["test", "--no-run", "--locked", "--workspace", "--test"])
        .args([TEST_BINARY, "--message-format", "json-render-diagnostics"])
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests could not be built");
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo did not say where the test binary is")
}

/// The test's executable in Cargo's messages, one JSON object a line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == TEST_BINARY)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Runs the loaders' test on the fetched kernels, outside the machine, where it is quick.
fn test_loaders(workspace: &Workspace, kernels: &Kernels) -> Result<String> {
    let files = [&kernels.cloud, &kernels.cloud_elf, &kernels.generic];
    let files = files.into_iter().chain(&kernels.krunfw);
    let list = std::env::join_paths(files).context("a path of the cache")?;
    let output = cargo()
        .args(["test", "--locked", "--workspace", "--test", "linux_kernels"])
        .args(["--", "--nocapture"])
        .env(KERNELS_VARIABLE, list)
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() && !text.contains("test result:") {
        bail!("the loaders' test could not be built");
    }
    Ok(text)
}

/// The tests of the binary that are to run, but the speed table.
fn wanted_tests(tests: &Path, options: &Options) -> Result<Vec<String>> {
    let all = list(tests, &[])?;
    let ignored = match options.long {
        true => Vec::new(),
        false => list(tests, &["--ignored"])?,
    };
    let is_wanted = |test: &String| {
        let filters = &options.filters;
        let is_named = filters.is_empty() || filters.iter().any(|filter| test.contains(filter));
        is_named && test != SPEED_TABLE && !ignored.contains(test)
    };
    Ok(all.into_iter().filter(is_wanted).collect())
}

/// Names of tests, asked of the binary.
fn list(tests: &Path, more: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(tests)
        .args(["--list", "--format", "terse"])
        .args(more)
        .output()
        .with_context(|| format!("cannot run {}", tests.display()))?;
    if !output.status.success() {
        bail!("{} does not list its tests", tests.display());
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

fn is_speed_wanted(options: &Options) -> bool {
    let filters = &options.filters;
    filters.is_empty() || filters.iter().any(|filter| filter.starts_with(SPEED))
}

/// What an outer machine's init runs: these tests, one after the other. Their names have no character that is
/// special to the shell.
fn test_commands(tests: &[String]) -> String {
    let names = tests.join(" ");
    format!(
        "{ENVIRONMENT}status=0\n/lane/tests --test-threads 1 --include-ignored --exact {names} || status=$?\n"
    )
}

/// The same, each in a process of its own.
fn repeat_commands(tests: &[String]) -> String {
    let mut commands = format!("{ENVIRONMENT}status=0\n");
    for test in tests {
        commands.push_str(&format!(
            "/lane/tests --include-ignored --exact {test} || status=$?\n"
        ));
    }
    commands
}

/// The same for the speed table, whose figures are shown. With one thread the harness would begin a test's line before
/// the figures and end it after them, and [`results`] would not see it.
fn speed_commands(tests: &[String]) -> String {
    let names = tests.join(" ");
    format!(
        "{ENVIRONMENT}status=0\n\
         NVX_SPEED_ROUNDS={SPEED_ROUNDS} /lane/tests --nocapture --test-threads 2 --include-ignored --exact {names} || status=$?\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_say_what_to_run() {
        let tests = ["a::b".to_owned(), "c".to_owned()];
        let commands = test_commands(&tests);
        assert!(commands.starts_with("export NVX_LINUX_GUEST_LANE=1 "));
        assert!(
            commands.ends_with("--include-ignored --exact a::b c || status=$?\n"),
            "{commands}"
        );
        assert!(repeat_commands(&tests).ends_with(
            "status=0\n/lane/tests --include-ignored --exact a::b || status=$?\n\
             /lane/tests --include-ignored --exact c || status=$?\n"
        ));
        let speed = speed_commands(&[SPEED_TABLE.to_owned()]);
        assert!(
            speed.contains("NVX_SPEED_ROUNDS=3 /lane/tests --nocapture --test-threads 2 "),
            "{speed}"
        );
    }

    #[test]
    fn the_speed_table_is_measured_unless_other_tests_are_asked_for() {
        let is_wanted = |filters: &[&str]| {
            let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
            is_speed_wanted(&Options {
                long: false,
                filters,
            })
        };
        assert!(is_wanted(&[]) && is_wanted(&["x", "speed"]));
        assert!(!is_wanted(&["boot"]));
    }

    #[test]
    fn the_test_binary_is_found_in_cargos_messages() {
        let messages = "{\"target\":{\"name\":\"nvx\"},\"executable\":\"/t/nvx\"}\nnoise\n\
                        {\"target\":{\"name\":\"linux_guest\"},\"executable\":\"/t/linux_guest-1\"}\n";
        assert_eq!(
            executable(messages),
            Some(PathBuf::from("/t/linux_guest-1"))
        );
        assert_eq!(executable(""), None);
    }

    #[test]
    fn results_are_counted_without_the_harness_last_line() {
        let output = "running 4 tests\ntest a::b ... ok\ntest c has been running for over 60 seconds\n\
                      test d ... FAILED\ntest e ... ignored, long\n";
        let results = results(output);
        assert_eq!(
            results,
            [("a::b".to_owned(), true), ("d".to_owned(), false)]
        );
        assert_eq!(crate::test::test_result_counts(&summary(&results)), (1, 1));
        assert_eq!(unexpected(Some(101)), None);
        assert!(unexpected(Some(139)).is_some());
    }
}
