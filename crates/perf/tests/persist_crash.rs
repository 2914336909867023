//! A writer that is killed at any moment leaves the old history or the new one.

#![cfg(target_os = "linux")]
#![allow(
    clippy::expect_used,
    missing_docs,
    reason = "a test stops where something is wrong"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nvx_perf::{HEADER, History, NameRule, PersistRequest, persist};

const HISTORY: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.csv";
const DIRECTORY: &str = "NVX_PERF_TEST_DIRECTORY";
const METRICS: usize = 40;
/// Most commits that one writer appends, so that it ends by itself if nobody kills it.
const MOST_COMMITS: usize = 2000;
const KILLS: u64 = 12;

fn rows(commit: usize) -> String {
    let row = |metric: usize| {
        format!(
            "linux-kvm-bare-metal,2,1,{commit:040x},metric_{metric},ms,lower,{}\n",
            commit + 1
        )
    };
    format!("{HEADER}\n{}", (0..METRICS).map(row).collect::<String>())
}

/// The writer: appends one commit after the other. Started by the test below.
#[test]
#[ignore = "the other test starts it"]
fn writer() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return;
    };
    let history = directory.join(HISTORY);
    let first = if history.exists() {
        commits(&history)
    } else {
        0
    };
    for commit in first..first + MOST_COMMITS {
        let path = directory.join("rows.csv");
        fs::write(&path, rows(commit)).expect("written");
        let request = PersistRequest {
            history: history.clone(),
            rows: vec![path],
            rename_metrics: None,
        };
        persist(&request).expect("persisted");
    }
}

/// How many commits the history has; every one of them must be whole.
fn commits(history: &Path) -> usize {
    let history = History::read(history, NameRule::History).expect("a history that can be read");
    for (at, block) in history.commits.iter().enumerate() {
        assert_eq!(block.commit, format!("{at:040x}"));
        assert_eq!(block.rows.len(), METRICS, "commit {at} is whole");
    }
    history.commits.len()
}

/// Waits until the writer has written something, or has ended; at most about 20 seconds.
fn wait_for_growth(history: &Path, child: &mut Child) {
    let length = || fs::metadata(history).map_or(0, |metadata| metadata.len());
    let before = length();
    for _ in 0..4000 {
        if length() > before || !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_writer_leaves_the_old_history_or_the_new_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let history = directory.path().join(HISTORY);
    let mut last = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "writer", "--ignored"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        wait_for_growth(&history, &mut child);
        sleep(Duration::from_millis(kill));
        // One that has ended by itself has nothing left to be killed.
        let _ = child.kill();
        child.wait().expect("waited for");
        if history.exists() {
            let now = commits(&history);
            assert!(now >= last, "{now} commits after {last}");
            last = now;
        }
    }
    assert!(last > 0, "no writer came so far as to write");
}
