use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::csv::HEADER;

const NAME: &str = "linux-kvm-bare-metal-microvm-v2-1vcpu.csv";

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn write(&self, name: &str, rows: &[(char, &str, &str)]) -> PathBuf {
        let path = self.directory.path().join(name);
        let body: String = rows
            .iter()
            .map(|(digit, metric, p50)| {
                let commit = digit.to_string().repeat(40);
                format!("linux-kvm-bare-metal,2,1,{commit},{metric},ms,lower,{p50}\n")
            })
            .collect();
        fs::write(&path, format!("{HEADER}\n{body}")).expect("written");
        path
    }

    fn request(&self, rows: PathBuf) -> PersistRequest {
        PersistRequest {
            history: self.directory.path().join(NAME),
            rows: vec![rows],
            rename_metrics: None,
        }
    }

    fn history(&self) -> String {
        fs::read_to_string(self.directory.path().join(NAME)).expect("read")
    }

    /// Names in the directory, so that litter is seen.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.directory.path())
            .expect("listed")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

#[test]
fn only_new_rows_are_appended_and_none_is_overwritten() {
    let place = Place::new();
    let rows = place.write("rows.csv", &[('a', "cold", "1"), ('a', "warm", "2")]);
    let first = persist(&place.request(rows)).expect("created");
    assert!(first.created);
    assert_eq!(first.appended.len(), 2);
    let before = place.history();

    let rows = place.write(
        "rows.csv",
        &[('a', "cold", "9"), ('a', "new", "3"), ('b', "cold", "4")],
    );
    let second = persist(&place.request(rows.clone())).expect("appended");
    assert_eq!(second.kept.len(), 1);
    assert_eq!(second.appended.len(), 2);
    let after = place.history();
    assert!(after.starts_with(&before));
    assert!(after.ends_with(&format!("{},cold,ms,lower,4\n", "b".repeat(40))));
    assert!(!after.contains("lower,9"));

    let third = persist(&place.request(rows)).expect("a no-op");
    assert!(!third.changed());
    assert_eq!(place.history(), after);
    assert_eq!(place.names(), [NAME, "rows.csv"]);
}

#[test]
fn rows_are_never_put_into_the_past() {
    let place = Place::new();
    place.write(NAME, &[('a', "cold", "1"), ('b', "cold", "1")]);
    let before = place.history();
    let rows = place.write("rows.csv", &[('a', "warm", "2")]);
    let error = persist(&place.request(rows)).expect_err("the past");
    assert!(matches!(error, PersistError::Past { .. }), "{error}");
    assert_eq!(place.history(), before);
}

#[test]
fn bad_input_writes_nothing() {
    let place = Place::new();
    place.write(NAME, &[('a', "openvmm_cold_start", "1")]);
    let before = place.history();
    for rows in [
        vec![('b', "nvx_cold_start", "1")],
        vec![('b', "x", "0")],
        vec![('b', "x", "1"), ('c', "x", "1"), ('b', "y", "1")],
    ] {
        let rows = place.write("rows.csv", &rows);
        assert!(persist(&place.request(rows)).is_err());
        assert_eq!(place.history(), before);
    }
    let rows = place.write("rows.csv", &[('b', "x", "1")]);
    let other = fs::read_to_string(&rows)
        .expect("read")
        .replace(",2,1,", ",2,4,");
    fs::write(&rows, other).expect("written");
    let error = persist(&place.request(rows.clone())).expect_err("another identity");
    assert!(
        matches!(error, PersistError::OtherIdentity { .. }),
        "{error}"
    );
    let mut request = place.request(rows);
    request.history = place.directory.path().join("history.csv");
    assert!(matches!(
        persist(&request),
        Err(PersistError::NewName { .. })
    ));
    request.rows.clear();
    assert!(matches!(
        persist(&request),
        Err(PersistError::Nothing { .. })
    ));
    assert_eq!(place.names(), [NAME, "rows.csv"]);
}

#[test]
fn renaming_changes_every_lifecycle_metric_and_nothing_else() {
    let place = Place::new();
    place.write(
        NAME,
        &[
            ('a', "openvmm_cold_start", "1"),
            ('a', "virtfs_read", "1.50"),
        ],
    );
    let request = PersistRequest {
        history: place.directory.path().join(NAME),
        rows: vec![place.write("rows.csv", &[('b', "nvx_cold_start", "2")])],
        rename_metrics: Some(Prefix::Nvx),
    };
    let result = persist(&request).expect("renamed");
    assert_eq!(
        result.renamed,
        [("openvmm_cold_start".to_owned(), "nvx_cold_start".to_owned())]
    );
    let after = place.history();
    assert!(!after.contains("openvmm"));
    assert!(after.contains("virtfs_read,ms,lower,1.50\n"));
    assert!(after.contains(&format!("{},nvx_cold_start,ms,lower,2\n", "b".repeat(40))));
}

#[test]
fn two_batches_of_one_commit_are_one_block() {
    let place = Place::new();
    let mut request = place.request(place.write("one.csv", &[('a', "cold", "1")]));
    request
        .rows
        .push(place.write("two.csv", &[('a', "warm", "1"), ('a', "cold", "7")]));
    let result = persist(&request).expect("appended");
    assert_eq!((result.appended.len(), result.kept.len()), (2, 1));
}

#[test]
fn a_link_is_followed_and_rights_are_kept() {
    let place = Place::new();
    let real = place.directory.path().join("real");
    fs::create_dir(&real).expect("created");
    let target = place.write(&format!("real/{NAME}"), &[('a', "cold", "1")]);
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).expect("set");
    std::os::unix::fs::symlink(&target, place.directory.path().join(NAME)).expect("linked");
    let rows = place.write("rows.csv", &[('b', "cold", "1")]);
    persist(&place.request(rows)).expect("appended");
    assert!(place.directory.path().join(NAME).is_symlink());
    assert_eq!(
        fs::read_to_string(&target).expect("read").lines().count(),
        3
    );
    assert_eq!(
        fs::metadata(&target).expect("known").permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_second_writer_is_refused() {
    let place = Place::new();
    let rows = place.write("rows.csv", &[('a', "cold", "1")]);
    let request = place.request(rows);
    let first = ReplaceGuard::take(&request.history).expect("taken");
    let error = persist(&request).expect_err("busy");
    assert!(
        matches!(error, PersistError::Replace(ReplaceError::Busy { .. })),
        "{error}"
    );
    drop(first);
    persist(&request).expect("free again");
}

/// A crash before the rename leaves a temporary file and the old content; the next run is not
/// disturbed by it. A crash after it leaves the new content.
#[test]
fn what_a_crash_leaves_disturbs_nobody() {
    let place = Place::new();
    place.write(NAME, &[('a', "cold", "1")]);
    fs::write(
        place.directory.path().join(".nvx-perf-0123456789abcdef"),
        "half a li",
    )
    .expect("written");
    let rows = place.write("rows.csv", &[('b', "cold", "1")]);
    persist(&place.request(rows)).expect("appended");
    assert_eq!(place.history().lines().count(), 3);
}

#[test]
fn hosts_beside_the_rows_go_beside_the_history() {
    let place = Place::new();
    let rows = place.write("rows.csv", &[('a', "cold", "1")]);
    let line = |fingerprint: &str| {
        format!(
            "{{\"commit\":\"{}\",\"fingerprint\":\"{fingerprint}\"}}\n",
            "a".repeat(40)
        )
    };
    fs::write(Hosts::path_beside(&rows), line("blue")).expect("written");
    let result = persist(&place.request(rows.clone())).expect("persisted");
    assert_eq!(result.hosts, ["a".repeat(40)]);
    let beside = Hosts::path_beside(&place.directory.path().join(NAME));
    assert_eq!(fs::read_to_string(&beside).expect("read"), line("blue"));
    // An accepted run's host stays what it was.
    fs::write(Hosts::path_beside(&rows), line("green")).expect("written");
    assert!(
        !persist(&place.request(rows.clone()))
            .expect("a no-op")
            .changed()
    );
    assert_eq!(fs::read_to_string(&beside).expect("read"), line("blue"));
    fs::write(Hosts::path_beside(&rows), "{}\n").expect("written");
    assert!(matches!(
        persist(&place.request(rows)),
        Err(PersistError::Hosts(_))
    ));
}
