//! The history of this project's own accepted runs, `data` in the repository.

#![allow(
    clippy::expect_used,
    missing_docs,
    reason = "a test stops where something is wrong"
)]

use std::fs;
use std::path::Path;

use nvx_perf::{ExitStatus, History, Hosts, NameRule, ReplayRequest, replay};

#[test]
fn own_rows_are_a_history_that_can_be_judged() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    let files: Vec<_> = fs::read_dir(&directory)
        .expect("the repository's data")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "csv"))
        .collect();
    assert!(!files.is_empty());
    for path in &files {
        let history = History::read(path, NameRule::History).expect("a history");
        let hosts = Hosts::read_beside(path).expect("hosts");
        assert!(!history.commits.is_empty());
        for rows in &history.commits {
            assert_eq!(rows.rows.len(), 8, "the metrics of a lifecycle run");
            assert!(hosts.fingerprint(&rows.commit).is_some());
        }
        let text = fs::read_to_string(path).expect("readable");
        assert_eq!(history.to_csv(), text, "written by persist, kept by git");
    }
    let result = replay(&ReplayRequest { files, fixed: None }).expect("replayed");
    assert_eq!(result.status, ExitStatus::Good);
}
