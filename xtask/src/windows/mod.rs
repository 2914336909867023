//! Lane `windows`: the workspace built for `x86_64-pc-windows-gnu`, and its tests run under Wine.
//!
//! The toolchain lives in a folder of its own ([`toolchain`]), a small Debian system that is made once
//! per machine and entered by `chroot` with mounts that nobody else sees ([`sandbox`]). What is real
//! here is the Windows code of every crate against Wine's implementation of the system calls; what is
//! not is NTFS (the volume under Wine is this machine's file system) and the hypervisor, whose library
//! a test double stands for.

mod sandbox;
mod toolchain;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::sandbox::{Sandbox, TARGET_DIR};
pub use self::toolchain::obstacle;
use crate::workspace::{Workspace, cargo};

/// What is built for.
const TARGET: &str = "x86_64-pc-windows-gnu";
/// Test binaries whose names start so need the double of WinHvPlatform.dll in place of the system's.
const DOUBLE_PREFIX: &str = "windows_whp";
/// The file name by which the back end loads the hypervisor's library.
const HYPERVISOR_LIBRARY: &str = "WinHvPlatform.dll";
/// The package of the double, and the file that building it gives.
const DOUBLE_PACKAGE: &str = "nvx-whp-double";
const DOUBLE_FILE: &str = "nvx_whp_double.dll";
/// Integration test files that are built beside all unit tests: those for Windows, and those that need
/// nothing of Linux.
const INTEGRATION_TESTS: [&str; 7] = [
    "windows*",
    "golden",
    "hostile",
    "hostile_guest",
    "limits",
    "soft",
    "soft_probe",
];
/// Tests that are left out: these two draw random series, have nothing of a system in them, and take
/// longer than all others together; lane `unit` runs them.
const LEFT_OUT: [&str; 2] = [
    "stability::tests::trendless_series_have_no_steps",
    "compare::tests::a_comparison_of_equal_builds",
];
/// The name of the test that is a script, as of a test binary.
const CTRL_C: &str = "ctrl_c";
/// Longest time that one test binary may take.
const BINARY_LIMIT_SECONDS: u32 = 240;
/// The file that tests append their skips to, as Wine and as the sandbox name it.
const SKIPS_IN_WINE: &str = r"Z:\nvx\target\skips.txt";
const SKIPS_FILE: &str = "/nvx/target/skips.txt";
/// What such a line is reported by, in the output of the whole run.
const SKIP_MARK: &str = "nvx-lane-windows-skip ";
/// What a test binary's end is reported by, in the output of the whole run.
const END_MARK: &str = "nvx-lane-windows-end";

/// What came of the lane.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that said that they cannot run here, each `test: reason`; they are among those that passed.
    pub skips: Vec<String>,
    /// What is wrong beside failed tests.
    pub broken: Option<String>,
}

/// Builds everything and runs its tests; `binaries` restricts the run to test binaries whose names have
/// one of these texts in them.
pub fn run(workspace: &Workspace, binaries: &[String]) -> Result<Report> {
    let root = toolchain::ensure()?;
    fetch(workspace)?;
    let sandbox = Sandbox::new(&root, workspace)?;
    let executables = build(&sandbox, workspace)?;
    let wanted = |path: &&PathBuf| {
        let name = binary_name(path);
        binaries.is_empty() || binaries.iter().any(|part| name.contains(part.as_str()))
    };
    let (with_double, without): (Vec<_>, Vec<_>) = executables
        .iter()
        .filter(wanted)
        .partition(|path| binary_name(path).starts_with(DOUBLE_PREFIX));
    let mut report = Report::default();
    run_binaries(&sandbox, &without, None, &mut report)?;
    if binaries.is_empty() || binaries.iter().any(|part| CTRL_C.contains(part.as_str())) {
        run_ctrl_c(&sandbox, &mut report)?;
    }
    if !with_double.is_empty() {
        let double = Path::new(TARGET_DIR)
            .join(TARGET)
            .join("debug")
            .join(DOUBLE_FILE);
        run_binaries(&sandbox, &with_double, Some(&double), &mut report)?;
    }
    Ok(report)
}

/// Fetches the dependencies with this machine's own Cargo, so that the sandbox's finds them.
fn fetch(workspace: &Workspace) -> Result<()> {
    let status = cargo()
        .args(["fetch", "--locked"])
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo fetch")?;
    if !status.success() {
        bail!("cargo fetch failed; see above");
    }
    Ok(())
}

/// Builds all test binaries, `nvx.exe` and the double; the paths are those in the sandbox.
fn build(sandbox: &Sandbox, workspace: &Workspace) -> Result<Vec<PathBuf>> {
    println!("building for {TARGET} (the standard library too, the first time)");
    let has_double = workspace
        .packages
        .iter()
        .any(|package| package.name == DOUBLE_PACKAGE);
    let mut arguments: Vec<String> = [
        "test",
        "--no-run",
        "--locked",
        "--workspace",
        "--exclude",
        "xtask",
        // Built by itself below: what another process loads has no tests of its own.
        "--exclude",
        DOUBLE_PACKAGE,
        // The same readers with the same corpora: lane unit runs them.
        "--exclude",
        "nvx-fuzz-targets",
        "--lib",
        "--bins",
        "--target",
        TARGET,
        "-Zbuild-std=std,panic_unwind,test",
        "--message-format=json-render-diagnostics",
    ]
    .map(str::to_owned)
    .into();
    for pattern in INTEGRATION_TESTS {
        arguments.extend(["--test".to_owned(), pattern.to_owned()]);
    }
    let output = sandbox.cargo(&arguments)?;
    let executables = test_executables(&output)?;
    if has_double {
        arguments = [
            "build",
            "--locked",
            "--package",
            DOUBLE_PACKAGE,
            "--target",
            TARGET,
            "-Zbuild-std=std,panic_unwind,test",
        ]
        .map(str::to_owned)
        .into();
        sandbox.cargo(&arguments)?;
    }
    Ok(executables)
}

/// The test binaries in Cargo's messages, each once, in the order of their names.
fn test_executables(messages: &str) -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of Cargo")?;
        if message["profile"]["test"] == true
            && let Some(executable) = message["executable"].as_str()
        {
            found.insert(PathBuf::from(executable));
        }
    }
    Ok(found.into_iter().collect())
}

/// The name of a test binary without Cargo's hash.
fn binary_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match stem.rsplit_once('-') {
        Some((name, _)) => name.to_owned(),
        None => stem.into_owned(),
    }
}

/// Runs the binaries one after the other in one sandbox, so that they share one Wine server.
fn run_binaries(
    sandbox: &Sandbox,
    binaries: &[&PathBuf],
    double: Option<&Path>,
    report: &mut Report,
) -> Result<()> {
    let mut script = String::from("set -u\nlibrary=\"$WINEPREFIX/drive_c/windows/system32/");
    script.push_str(HYPERVISOR_LIBRARY);
    script.push_str("\"\nrm -f \"$library\"\n");
    script.push_str(&format!(
        "rm -f {SKIPS_FILE}\nexport NVX_TEST_SKIPS='{SKIPS_IN_WINE}'\n"
    ));
    if let Some(double) = double {
        script.push_str(&format!("cp '{}' \"$library\"\n", double.display()));
    }
    let left_out = LEFT_OUT.map(|part| format!("--skip {part}")).join(" ");
    for binary in binaries {
        let name = binary_name(binary);
        // Cargo runs each test binary in its package's directory; none here looks for files there.
        script.push_str(&format!(
            "echo 'running {name}'\n\
             timeout --kill-after=5 {BINARY_LIMIT_SECONDS} wine '{}' {left_out} < /dev/null 2>&1\n\
             echo \"{END_MARK} $? {name}\"\n",
            binary.display()
        ));
    }
    script.push_str(&format!(
        "[ ! -e {SKIPS_FILE} ] || sed 's/^/{SKIP_MARK}/' {SKIPS_FILE}\n"
    ));
    script.push_str(
        "rm -f \"$library\"\nrm -rf \"$WINEPREFIX\"/drive_c/users/*/AppData/Local/Temp/*\n",
    );
    let output = sandbox.script(&script)?;
    let skips = output
        .lines()
        .filter_map(|line| line.strip_prefix(SKIP_MARK));
    report.skips.extend(skips.map(str::to_owned));
    let (passed, failed, broken) = judge(&output, binaries.len());
    report.passed += passed;
    report.failed += failed;
    report.broken = report.broken.take().or(broken);
    Ok(())
}

/// Presses Ctrl-C at a running VM, which no test can do from inside Wine.
fn run_ctrl_c(sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let output = sandbox.script(&format!(
        "echo 'running {CTRL_C}'\n\
         sh xtask/src/windows/ctrl_c.sh {TARGET_DIR}/{TARGET}/debug/nvx.exe 2>&1\n\
         echo \"{END_MARK} $? {CTRL_C}\"\n"
    ))?;
    let (passed, failed, broken) = judge(&output, 1);
    report.passed += passed;
    report.failed += failed;
    report.broken = report.broken.take().or(broken);
    Ok(())
}

/// Counts what the binaries said, and notices those that said nothing or ended badly.
fn judge(output: &str, binaries: usize) -> (usize, usize, Option<String>) {
    let (passed, failed) = crate::test::test_result_counts(output);
    let mut ended = 0;
    let mut broken = None;
    for line in output.lines() {
        let Some(rest) = line.trim().strip_prefix(END_MARK) else {
            continue;
        };
        ended += 1;
        let (code, name) = rest.trim().split_once(' ').unwrap_or((rest, ""));
        match code {
            "0" => {}
            "124" | "137" => {
                broken = Some(format!(
                    "{name} took longer than {BINARY_LIMIT_SECONDS} s and was killed"
                ));
            }
            // 101 is how a test binary says that tests failed.
            "101" if failed > 0 => {}
            _ => broken = Some(format!("{name} ended with code {code}; see above")),
        }
    }
    if ended != binaries {
        broken = Some(format!(
            "{ended} of {binaries} test binaries came to an end"
        ));
    }
    (passed, failed, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_hash() {
        let path = Path::new("/t/deps/windows_whp_lifecycle-0123abcd.exe");
        assert_eq!(binary_name(path), "windows_whp_lifecycle");
        assert_eq!(binary_name(Path::new("/t/one.exe")), "one");
    }

    #[test]
    fn only_test_binaries_are_taken() {
        let messages = r#"
{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/b.exe"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/a.exe"}
{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/nvx.exe"}
{"reason":"build-finished","success":true}
"#;
        let found = test_executables(messages).unwrap();
        assert_eq!(
            found,
            [PathBuf::from("/t/a.exe"), PathBuf::from("/t/b.exe")]
        );
    }

    #[test]
    fn a_binary_that_vanishes_is_noticed() {
        let good = format!("test result: ok. 3 passed; 0 failed\n{END_MARK} 0 one\n");
        assert_eq!(judge(&good, 1), (3, 0, None));
        let (_, _, broken) = judge(&good, 2);
        assert!(broken.is_some_and(|text| text.starts_with("1 of 2")));
        let bad = format!("test result: FAILED. 1 passed; 2 failed\n{END_MARK} 101 one\n");
        assert_eq!(judge(&bad, 1), (1, 2, None));
        let (_, _, broken) = judge(&format!("{END_MARK} 124 slow\n"), 1);
        assert!(broken.is_some_and(|text| text.contains("slow took longer")));
        let (_, _, broken) = judge(&format!("{END_MARK} 5 crash\n"), 1);
        assert!(broken.is_some_and(|text| text.contains("crash ended with code 5")));
    }
}
