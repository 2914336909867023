//! Bad input to `nvx perf`: exit code 2, one line that names file, line and column, and nothing written.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod perf_support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use perf_support::{
    BAD_INPUT, HEADER, HISTORY, PLATFORM, commit, entries, perf, quiet, rows, text, write,
};

/// A good history of one commit with two rows.
fn good() -> String {
    let start = format!("{PLATFORM},2,1,{}", commit(1));
    format!("{HEADER}\n{start},first,ms,lower,10\n{start},second,MB/s,higher,20\n")
}

fn with(from: &str, to: &str) -> Vec<u8> {
    let good = good();
    assert!(good.contains(from), "{from}");
    good.replacen(from, to, 1).into_bytes()
}

/// A row of a commit after the good ones.
fn and_row(rest: &str) -> Vec<u8> {
    format!("{}{PLATFORM},2,1,{rest}\n", good()).into_bytes()
}

fn thousands_of_metrics() -> Vec<u8> {
    let mut text = format!("{HEADER}\n");
    for metric in 0..5000 {
        writeln!(
            text,
            "{PLATFORM},2,1,{},metric_{metric},ms,lower,1",
            commit(1)
        )
        .unwrap();
    }
    text.into_bytes()
}

/// What is wrong, the file, where the message must say it is, and words of the message.
fn table() -> Vec<(&'static str, Vec<u8>, String, &'static str)> {
    let line = |line: usize, column: usize, name: &str| {
        let name = if name.is_empty() {
            String::new()
        } else {
            format!(" ({name})")
        };
        format!(":{line}: column {column}{name}: ")
    };
    let first = commit(1);
    let next = commit(2);
    vec![
        ("wrong header", with("p50", "p51"), line(1, 8, ""), "header"),
        (
            "short line",
            with(",lower,10", ",lower"),
            line(2, 8, "p50"),
            "7 of 8",
        ),
        (
            "extra column",
            with(",lower,10", ",lower,10,1"),
            line(2, 9, ""),
            "one column too many",
        ),
        (
            "CR LF",
            good().replace('\n', "\r\n").into_bytes(),
            line(1, 8, ""),
            "autocrlf",
        ),
        (
            "BOM",
            [b"\xef\xbb\xbf", good().as_bytes()].concat(),
            line(1, 1, ""),
            "byte order mark",
        ),
        (
            "a commit in two blocks",
            [
                and_row(&format!("{next},first,ms,lower,1")),
                format!("{PLATFORM},2,1,{first},third,ms,lower,1\n").into_bytes(),
            ]
            .concat(),
            line(5, 4, "commit"),
            "must stand together",
        ),
        (
            "duplicate key",
            and_row(&format!("{first},first,ms,lower,1")),
            line(4, 5, "metric"),
            "line 2",
        ),
        (
            "unit change",
            and_row(&format!("{next},first,s,lower,1")),
            line(4, 6, "unit"),
            "since line 2",
        ),
        (
            "direction change",
            and_row(&format!("{next},first,ms,higher,1")),
            line(4, 7, "direction"),
            "since line 2",
        ),
        (
            "not finite",
            with(",lower,10", ",lower,NaN"),
            line(2, 8, "p50"),
            "'NaN'",
        ),
        (
            "infinite",
            with(",lower,10", ",lower,inf"),
            line(2, 8, "p50"),
            "'inf'",
        ),
        (
            "zero",
            with(",lower,10", ",lower,0"),
            line(2, 8, "p50"),
            "not above zero",
        ),
        (
            "negative",
            with(",lower,10", ",lower,-3"),
            line(2, 8, "p50"),
            "not above zero",
        ),
        (
            "1e400",
            with(",lower,10", ",lower,1e400"),
            line(2, 8, "p50"),
            "not finite",
        ),
        ("empty file", Vec::new(), line(1, 1, ""), "empty"),
        (
            "cut in mid-line",
            good().trim_end().as_bytes().to_vec(),
            line(3, 8, ""),
            "cut off",
        ),
        (
            "another platform",
            with(PLATFORM, "linux-mshv-bare-metal"),
            line(2, 1, "platform"),
            "the file's name says",
        ),
        (
            "another ABI",
            with(",2,1,", ",1,1,"),
            line(2, 2, "microvm_abi_version"),
            "the file's name says",
        ),
        (
            "3 processors",
            with(",2,1,", ",2,3,"),
            line(2, 3, "processors"),
            "'3'",
        ),
        (
            "5 processors",
            with(",2,1,", ",2,5,"),
            line(2, 3, "processors"),
            "'5'",
        ),
        (
            "short commit",
            with(&first, "abcdef0"),
            line(2, 4, "commit"),
            "40 or 64",
        ),
        (
            "upper-case commit",
            with(&first, &"A".repeat(40)),
            line(2, 4, "commit"),
            "lower-case",
        ),
        (
            "thousands of metrics",
            thousands_of_metrics(),
            String::from(": column 5 (metric): "),
            "more than",
        ),
        (
            "not UTF-8",
            with("first", "f\u{1}irst")
                .into_iter()
                .map(|byte| if byte == 1 { 0xff } else { byte })
                .collect(),
            line(2, 5, ""),
            "UTF-8",
        ),
        (
            "both prefixes",
            and_row(&format!(
                "{next},nvx_a,ms,lower,1\n{PLATFORM},2,1,{next},openvmm_a,ms,lower,1"
            )),
            line(5, 5, "metric"),
            "two names",
        ),
    ]
}

/// Checks that the command fails with one line that says where, and leaves the directory as it was.
#[track_caller]
fn check(here: &Path, what: &str, arguments: &[&str], place: &str, word: &str) {
    assert_eq!(fault(here, what, arguments, place, word), None);
}

/// What is not as [`check`] wants it.
fn fault(here: &Path, what: &str, arguments: &[&str], place: &str, word: &str) -> Option<String> {
    let before = contents(here);
    let done = perf(arguments);
    let said = &done.messages;
    let wrong = if done.code != Some(BAD_INPUT) {
        format!("ends with {:?}", done.code)
    } else if !said.starts_with("nvx: ") || said.lines().count() != 1 {
        "not one line".to_owned()
    } else if !said.contains(place) {
        format!("no '{place}'")
    } else if !said.contains(word) {
        format!("no '{word}'")
    } else if !done.output.is_empty() {
        "something was printed".to_owned()
    } else if contents(here) != before {
        "something was written".to_owned()
    } else {
        return None;
    };
    Some(format!("{what}: {wrong}: nvx perf {arguments:?}: {said}"))
}

fn contents(here: &Path) -> Vec<(String, Vec<u8>)> {
    entries(here)
        .into_iter()
        .filter(|name| here.join(name).is_file())
        .map(|name| (name.clone(), fs::read(here.join(name)).unwrap()))
        .collect()
}

#[test]
fn every_command_names_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let page = here.join("page.html");
    let batch = write(here, "rows.csv", rows(PLATFORM, 9..10, quiet));
    let mut faults = Vec::new();
    for (what, content, place, word) in table() {
        let history = write(here, HISTORY, content);
        let history = text(&history);
        let place = format!("{HISTORY}{place}");
        // Thousands of metrics are found at the line that is one too many.
        let place = if what == "thousands of metrics" {
            place.replacen(HISTORY, "", 1)
        } else {
            place
        };
        for arguments in [
            vec!["gate", "--replay", history],
            vec!["gate", "--base", history, "--candidate", text(&batch)],
            vec!["evaluate", history],
            vec!["report", history, "--html", text(&page)],
            vec!["persist", history, text(&batch)],
            vec!["persist", history, "--rename-metrics", "nvx"],
        ] {
            faults.extend(fault(here, what, &arguments, &place, word));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join(""));
}

#[test]
fn rows_are_looked_at_as_closely_as_a_history() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let history = here.join(HISTORY);
    let base = write(here, "base.csv", rows(PLATFORM, 0..3, quiet));
    fs::rename(base, &history).unwrap();
    let mut faults = Vec::new();
    for (what, content, place, word) in table() {
        // What the file's name says is no question for rows, but they must fit to the history.
        if what == "another platform" || what == "another ABI" {
            continue;
        }
        let batch = write(here, "new.csv", content);
        let place = if what == "thousands of metrics" {
            place
        } else {
            format!("new.csv{place}")
        };
        for arguments in [
            vec!["persist", text(&history), text(&batch)],
            vec![
                "gate",
                "--base",
                text(&history),
                "--candidate",
                text(&batch),
            ],
        ] {
            faults.extend(fault(here, what, &arguments, &place, word));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join(""));
    for (what, from, to) in [
        ("another platform", PLATFORM, "windows-whp-bare-metal"),
        ("8 processors", ",2,1,", ",2,8,"),
    ] {
        let batch = write(here, "new.csv", good().replace(from, to));
        check(
            here,
            what,
            &["persist", text(&history), text(&batch)],
            "new.csv: ",
            "the history is of",
        );
    }
}

#[test]
fn files_that_are_none_and_names_that_lie() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let place = here.join(HISTORY);
    let replay = ["gate", "--replay", text(&place)];
    check(here, "missing", &replay, HISTORY, "No such file");
    fs::create_dir(&place).unwrap();
    check(here, "a directory", &replay, HISTORY, "is a directory");
    check(
        here,
        "a directory",
        &["persist", text(&place), text(&place)],
        HISTORY,
        "is a directory",
    );
    for name in ["history.csv", "linux-kvm-microvm-v2-1vcpu.csv"] {
        let path = write(here, name, good());
        check(
            here,
            name,
            &["gate", "--replay", text(&path)],
            name,
            "the file's name must have the form",
        );
    }
    let path = write(here, "linux-kvm-bare-metal-microvm-v2-2vcpu.csv", good());
    let where_ = "2vcpu.csv:2: column 3 (processors): ";
    check(
        here,
        "another name",
        &["report", text(&path), "--json"],
        where_,
        "the file's name says '2'",
    );
    // A new history gets the name of what its rows are about, or none.
    let batch = write(here, "rows.csv", good());
    let new = here.join("new.csv");
    check(
        here,
        "a new name",
        &["persist", text(&new), text(&batch)],
        "new.csv",
        HISTORY,
    );
    let nowhere = here.join("no/such").join(HISTORY);
    check(
        here,
        "no directory",
        &["persist", text(&nowhere), text(&batch)],
        "no/such",
        "cannot open",
    );
    for hosts in ["{}\n", "x", "{\"commit\":\"1\",\"fingerprint\":\"a\"}\n"] {
        let history = write(
            here,
            "linux-soft-emulated-microvm-v2-1vcpu.csv",
            good().replace(PLATFORM, "linux-soft-emulated"),
        );
        write(
            here,
            "linux-soft-emulated-microvm-v2-1vcpu.hosts.jsonl",
            hosts,
        );
        check(
            here,
            hosts,
            &["gate", "--replay", text(&history)],
            ".hosts.jsonl:1: ",
            "",
        );
    }
}

#[test]
fn a_candidate_must_belong_to_its_base() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let base = write(here, HISTORY, rows(PLATFORM, 0..12, quiet));
    let candidate = write(here, "rows.csv", rows(PLATFORM, 12..13, quiet));
    let two = write(here, "two.csv", rows(PLATFORM, 12..14, quiet));
    let other = write(here, "other.csv", rows(PLATFORM, 13..14, quiet));
    let platform = write(
        here,
        "platform.csv",
        rows("linux-kvm-emulated", 12..13, quiet),
    );
    let renamed = rows(PLATFORM, 12..13, quiet).replace("nvx_", "openvmm_");
    let renamed = write(here, "renamed.csv", renamed);
    let unit = write(
        here,
        "unit.csv",
        rows(PLATFORM, 12..13, quiet).replace(",ms,", ",s,"),
    );
    let json = write(here, "compare.json", "{\"schema\": \"other\"}");
    let garbage = write(here, "garbage.json", "{");
    for (what, candidate, more, place, word) in [
        ("two commits", &two, None, "two.csv", "exactly one"),
        (
            "another platform",
            &platform,
            None,
            "platform.csv",
            "linux-kvm-emulated",
        ),
        (
            "other names",
            &renamed,
            None,
            "renamed.csv",
            "collect them under the history's names",
        ),
        (
            "another unit",
            &unit,
            None,
            "unit.csv",
            "metric nvx_cold_start is in s",
        ),
        (
            "another commit",
            &candidate,
            Some(("--again", &other)),
            "other.csv",
            "is of commit",
        ),
        (
            "no comparison",
            &candidate,
            Some(("--compare", &json)),
            "compare.json",
            "not a comparison",
        ),
        (
            "no JSON",
            &candidate,
            Some(("--compare", &garbage)),
            "garbage.json",
            "line 1 column",
        ),
    ] {
        let mut arguments = vec![
            "gate",
            "--base",
            text(&base),
            "--candidate",
            text(candidate),
        ];
        if let Some((option, path)) = more {
            arguments.extend([option, text(path)]);
        }
        check(here, what, &arguments, place, word);
    }
    for (what, path) in [("no JSON", &garbage), ("no result", &json)] {
        check(here, what, &["collect", text(path)], ".json", "");
    }
}
