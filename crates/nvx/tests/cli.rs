//! The command line as text: help, suggestions, exit codes of arguments that do not parse, and
//! what goes to which output. No guest is started, so these tests run on every host.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use nvx_host::{Directory, RAM_FILE_PREFIX, STAGING_PREFIX, create_locked_directory};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// The monitor failed: `run` and `restore` keep every other code for the guest.
const FAILED: i32 = 125;
/// Bad arguments to any other command.
const BAD_INPUT: i32 = 2;
/// A screen.
const LINES: usize = 40;
const COLUMNS: usize = 100;
/// The control character that every escape code begins with.
const ESCAPE: char = '\x1b';

struct Done {
    code: Option<i32>,
    output: String,
    messages: String,
}

fn nvx(arguments: &[&str]) -> Done {
    let done = Command::new(env!("CARGO_BIN_EXE_nvx"))
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

fn words(line: &str) -> Vec<&str> {
    line.split_ascii_whitespace().collect()
}

/// Names of subcommands in a help text.
fn subcommands(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Further lines of a description are indented deeper.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_ascii_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

/// Checks the help of a command and of those below it; returns how many there are.
fn check_help(command: &[&str]) -> usize {
    let mut arguments = command.to_vec();
    arguments.push("--help");
    let done = nvx(&arguments);
    let what = format!("nvx {}", arguments.join(" "));
    assert_eq!(done.code, Some(0), "{what}");
    assert_eq!(done.messages, "", "{what}");
    let help = done.output;
    assert!(help.contains("Usage: nvx"), "{what}:\n{help}");
    assert!(help.lines().count() <= LINES, "{what}:\n{help}");
    assert!(!help.contains(ESCAPE), "{what}:\n{help}");
    for line in help.lines() {
        assert!(line.chars().count() <= COLUMNS, "{what}: {line}");
    }
    let spelled_out = nvx(&[&["help"], command].concat());
    assert_eq!(spelled_out.output, help, "nvx help {}", command.join(" "));
    let below = subcommands(&help);
    if below.is_empty() {
        assert!(help.contains("Example"), "{what}:\n{help}");
        assert!(help.contains(&what[..what.len() - 7]), "{what}:\n{help}");
    }
    let mut count = 1;
    for name in below {
        let mut deeper = command.to_vec();
        deeper.push(name);
        count += check_help(&deeper);
    }
    count
}

/// A closed standard descriptor must not lend its number to the file that is written.
#[test]
fn closed_standard_descriptors_do_not_reach_files() {
    let place = tempfile::tempdir().unwrap();
    let export = |name: &str, script: &str| {
        let file = place.path().join(name);
        let status = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_nvx"), "guest", "export"])
            .arg(&file)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{script}");
        std::fs::read(&file).unwrap()
    };
    let open = export("open.elf", "exec \"$0\" \"$@\"");
    assert!(open.starts_with(b"\x7fELF"));
    for (name, script) in [
        ("no-input.elf", "exec \"$0\" \"$@\" <&-"),
        ("no-output.elf", "exec \"$0\" \"$@\" >&-"),
        ("none.elf", "exec \"$0\" \"$@\" <&- >&- 2>&-"),
    ] {
        assert_eq!(export(name, script), open, "{script}");
    }
}

#[test]
fn every_help_fits_a_screen_and_every_command_has_an_example() {
    let count = check_help(&[]);
    // The commands are found, not listed here; these are there at least.
    assert!(count >= 12, "{count} helps");
    let done = nvx(&["man", "--help"]);
    assert!(done.output.contains("Example"), "hidden from the list only");
}

#[test]
fn usage_errors_have_the_code_of_their_command() {
    for (line, code) in [
        ("", BAD_INPUT),
        ("--bogus", BAD_INPUT),
        ("run --bogus", FAILED),
        ("run --memory 1Q", FAILED),
        ("run --vcpus x", FAILED),
        ("restore", FAILED),
        ("restore a b", FAILED),
        ("demo --bogus", BAD_INPUT),
        ("capture", BAD_INPUT),
        ("ctl bogus --control x", BAD_INPUT),
        ("inspect", BAD_INPUT),
        ("guest", BAD_INPUT),
        ("guest export", BAD_INPUT),
        ("bench", BAD_INPUT),
        ("doctor extra", BAD_INPUT),
        ("doctor --scratch a --clean b", BAD_INPUT),
        ("completions", BAD_INPUT),
        ("completions tcsh", BAD_INPUT),
        ("man", BAD_INPUT),
    ] {
        let done = nvx(&words(line));
        assert_eq!(done.code, Some(code), "nvx {line}");
        assert_eq!(done.output, "", "nvx {line}");
        assert!(done.messages.contains("Usage:") || done.messages.contains("--help"));
        assert!(!done.messages.contains(ESCAPE), "nvx {line}");
    }
}

#[test]
fn unknown_values_list_the_known_and_guess_what_was_meant() {
    for (line, known, meant) in [
        ("restroe", "", "'restore'"),
        ("run --memroy 1M", "", "'--memory'"),
        ("run --guest prob", "probe", "'probe'"),
        ("run --backend kvn", "auto, kvm, whp, soft", "'kvm'"),
        ("run --backend sof", "auto, kvm, whp, soft", "'soft'"),
        ("run --probe sede=1", "fill, seed", "'seed'"),
        ("run --probe fill=alternat", "alternate", "'alternate'"),
        ("demo --fill spred:9", "spread:PAGES", "'spread'"),
        ("ctl statsu --control x", "pause", "'status'"),
        (
            "completions bsh",
            "bash, elvish, fish, powershell, zsh",
            "'bash'",
        ),
    ] {
        let said = nvx(&words(line)).messages;
        assert!(said.contains(known), "nvx {line}: no {known} in {said}");
        assert!(said.contains(meant), "nvx {line}: no {meant} in {said}");
    }
}

#[test]
fn arguments_are_refused_before_any_file_is_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("made");
    let made = made.to_str().unwrap();
    for arguments in [
        vec!["run", "--control", made, "--snapshot", made, "--bogus"],
        vec!["man", made, "--bogus"],
        vec!["guest", "export", made, "--bogus"],
        vec!["inspect", "/nonexistent/place", "--bogus"],
        vec!["restore", "/nonexistent/place", "--bogus"],
        vec!["doctor", "--clean", "/nonexistent/place", "--bogus"],
    ] {
        let said = nvx(&arguments).messages;
        assert!(said.contains("'--bogus'"), "{arguments:?}: {said}");
        assert!(!said.contains("No such file"), "{arguments:?}: {said}");
    }
    assert!(!Path::new(made).exists());
}

/// What the command writes to a terminal.
fn on_a_terminal(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let open = || {
        let mut options = File::options();
        options.read(true).write(true);
        options.open(name.to_str().unwrap()).unwrap()
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvx"))
        .args(arguments)
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR")
        // A CI system is taken to show colours whatever its terminal says.
        .env_remove("CI")
        .env("TERM", "xterm")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(open())
        .stderr(open())
        .spawn()
        .unwrap();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // The last writer's end is an error here, not an end of file.
        let _ = File::from(master).read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
fn colours_are_for_terminals_whose_user_wants_them() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = directory.path().to_str().unwrap();
    for arguments in [
        vec!["--help"],
        vec!["--bogus"],
        vec!["doctor", "--scratch", scratch],
    ] {
        let coloured = on_a_terminal(&arguments, &[]);
        assert!(coloured.contains(ESCAPE), "{arguments:?}: {coloured}");
        for unwanted in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = on_a_terminal(&arguments, &[unwanted]);
            assert!(!plain.is_empty(), "{arguments:?}");
            assert!(
                !plain.contains(ESCAPE),
                "{arguments:?} {unwanted:?}: {plain}"
            );
        }
    }
    let document = on_a_terminal(&["doctor", "--json", "--scratch", scratch], &[]);
    assert!(!document.contains(ESCAPE), "{document}");
}

#[test]
fn completions_know_every_command() {
    let names = nvx(&["--help"]).output;
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let done = nvx(&["completions", shell]);
        assert_eq!(done.code, Some(0), "{shell}");
        assert_eq!(done.messages, "", "{shell}");
        for name in subcommands(&names) {
            assert!(done.output.contains(name), "{shell}: {name}");
        }
        // fish writes options without their dashes.
        assert!(done.output.contains("scratch"), "{shell}");
    }
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    let done = nvx(&["man", pages.to_str().unwrap()]);
    assert_eq!((done.code, done.output.as_str()), (Some(0), ""));
    for name in subcommands(&nvx(&["--help"]).output) {
        let page = std::fs::read_to_string(pages.join(format!("nvx-{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    assert!(pages.join("nvx.1").exists());
    assert!(!pages.join("nvx-man.1").exists(), "it is hidden");

    // A file in the directory's place.
    let file = pages.join("nvx.1");
    let done = nvx(&["man", file.to_str().unwrap()]);
    assert_eq!(done.code, Some(BAD_INPUT));
    assert!(done.messages.contains("nvx.1"), "{}", done.messages);
}

fn json(done: &Done) -> Value {
    serde_json::from_str(&done.output).unwrap()
}

#[test]
fn the_doctor_reports_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = directory.path().to_str().unwrap();
    let done = nvx(&["doctor", "--scratch", scratch, "--json"]);
    let report = json(&done);
    assert_eq!(report["schema"], "nvx.doctor");
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["scratch"], scratch);
    let can_run = report["can_run_demo"].as_bool().unwrap();
    assert_eq!(done.code, Some(i32::from(!can_run)));
    assert_eq!(done.messages, "");
    for check in report["checks"].as_array().unwrap() {
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "info", "warn", "fail"].contains(&status), "{check}");
        let needs_remedy = ["warn", "fail"].contains(&status);
        assert!(!needs_remedy || check["remedy"].is_string(), "{check}");
    }

    let table = nvx(&["doctor", "--scratch", scratch]);
    assert_eq!(table.code, done.code);
    for line in table.output.lines() {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
    for part in ["kvm", "soft", "built-in guest only", "reflink", "Landlock"] {
        assert!(table.output.contains(part), "no {part}: {}", table.output);
    }
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
}

#[test]
fn the_doctor_says_no_to_a_scratch_directory_that_cannot_be_used() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in ["/nonexistent/place", file.path().to_str().unwrap(), "/proc"] {
        let done = nvx(&["doctor", "--scratch", path, "--json"]);
        assert_eq!(done.code, Some(1), "{path}");
        let report = json(&done);
        assert_eq!(report["can_run_demo"], false, "{path}");
        let checks = report["checks"].as_array().unwrap();
        assert!(
            checks.iter().any(|check| check["area"] == "scratch"
                && check["status"] == "fail"
                && check["detail"].as_str().unwrap().contains(path)),
            "{report}"
        );
    }
}

/// A name of the form that NVX gives, with `digit` as its random part.
fn name(prefix: &str, digit: char) -> String {
    format!("{prefix}{}", digit.to_string().repeat(16))
}

#[test]
fn cleaning_removes_what_is_stale_and_says_why_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let stale_staging = name(STAGING_PREFIX, '0');
    let stale_ram = name(RAM_FILE_PREFIX, '1');
    let foreign = name(STAGING_PREFIX, '2');
    std::fs::create_dir(path.join(&stale_staging)).unwrap();
    std::fs::write(path.join(&stale_staging).join("state.bin"), "x").unwrap();
    std::fs::write(path.join(&stale_ram), "x").unwrap();
    std::fs::create_dir_all(path.join(&foreign).join("deeper")).unwrap();
    std::fs::write(path.join("mine"), "x").unwrap();
    let parent = Directory::open(path).unwrap();
    let in_use = create_locked_directory(&parent, STAGING_PREFIX).unwrap();

    let done = nvx(&["doctor", "--clean", path.to_str().unwrap(), "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.messages);
    let report = json(&done);
    assert_eq!(report["schema"], "nvx.doctor.clean");
    let removed = report["removed"].as_array().unwrap();
    assert_eq!(removed.len(), 2, "{report}");
    assert!(removed.contains(&stale_staging.as_str().into()), "{report}");
    assert!(removed.contains(&stale_ram.as_str().into()), "{report}");
    let left = report["left"].as_array().unwrap();
    assert_eq!(left.len(), 2, "{report}");
    for entry in left {
        let reason = entry["reason"].as_str().unwrap();
        let expected = if entry["name"] == in_use.name.as_str() {
            "running process"
        } else {
            "deeper is a directory"
        };
        assert!(reason.contains(expected), "{report}");
    }
    assert!(path.join("mine").exists());
    assert!(path.join(&foreign).exists());

    let done = nvx(&["doctor", "--clean", path.to_str().unwrap()]);
    assert!(!done.output.contains("removed"), "{}", done.output);
    assert_eq!(done.output.matches("left ").count(), 2, "{}", done.output);
    let done = nvx(&["doctor", "--clean", "/nonexistent/place"]);
    assert_eq!(done.code, Some(BAD_INPUT));
    assert!(done.messages.contains("/nonexistent/place"));
}
