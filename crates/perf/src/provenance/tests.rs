use std::fs;
use std::process::Command;

use super::*;

/// A repository with two bases and one change applied to both.
struct Repository {
    directory: tempfile::TempDir,
}

impl Repository {
    fn new() -> Self {
        let repository = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    fn git(&self, arguments: &[&str]) {
        let status = Command::new("git")
            .arg("-C")
            .arg(self.directory.path())
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@b",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("git runs");
        assert!(
            status.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&status.stderr)
        );
    }

    fn commit(&self, files: &[(&str, &str)], tag: &str) {
        for (name, content) in files {
            fs::write(self.directory.path().join(name), content).expect("written");
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", tag]);
        self.git(&["tag", tag]);
    }

    fn compare(&self, left: &str, right: &str) -> Result<Provenance, GitError> {
        provenance(&ProvenanceRequest {
            repository: self.directory.path().to_owned(),
            left: left.to_owned(),
            right: right.to_owned(),
        })
    }
}

#[test]
fn ranges_are_the_same_tree_the_same_patch_or_different() {
    let repository = Repository::new();
    repository.commit(&[("code", "1\n2\n3\n"), ("other", "a\n")], "base");
    repository.commit(&[("code", "1\n2\nfast\n")], "measured");
    repository.git(&["checkout", "--quiet", "-b", "shipped-branch", "base"]);
    repository.commit(&[("other", "b\n")], "moved-base");
    repository.commit(&[("code", "1\n2\nfast\n")], "shipped");
    repository.commit(&[("code", "1\n2\nslow\n"), ("extra", "x\n")], "changed");

    let same = repository
        .compare("base..measured", "base..measured")
        .expect("compared");
    assert_eq!(same.verdict, ProvenanceVerdict::SameTree);
    assert_eq!(same.to_text(), "same tree\n");

    let patch = repository
        .compare("base..measured", "moved-base..shipped")
        .expect("compared");
    assert_eq!(
        patch.verdict,
        ProvenanceVerdict::SamePatch {
            files: vec!["code".to_owned()]
        }
    );
    assert!(patch.to_text().contains("bases differ"));
    assert_eq!(patch.left.patch_id, patch.right.patch_id);
    let json = serde_json::to_string(&patch).expect("JSON");
    assert_eq!(
        serde_json::from_str::<Provenance>(&json).expect("read back"),
        patch
    );

    let different = repository
        .compare("base..measured", "moved-base..changed")
        .expect("compared");
    assert_eq!(
        different.verdict,
        ProvenanceVerdict::Different {
            patch_ids_differ: true,
            files: vec!["code".to_owned(), "extra".to_owned()],
            left_off: 0,
        }
    );
    assert!(!different.verdict.is_same());

    let empty = repository
        .compare("base..base", "moved-base..moved-base")
        .expect("compared");
    assert!(
        !empty.verdict.is_same(),
        "nothing changed in trees that differ"
    );
}

#[test]
fn the_same_patch_to_another_content_is_different() {
    let repository = Repository::new();
    let body = |first: &str, last: &str| format!("{first}\n1\n2\n3\n4\n5\n6\n7\n8\n9\n{last}\n");
    repository.commit(&[("code", &body("a", "z"))], "base");
    repository.commit(&[("code", &body("a", "fast"))], "measured");
    repository.git(&["checkout", "--quiet", "-b", "other", "base"]);
    repository.commit(&[("code", &body("b", "z"))], "moved-base");
    repository.commit(&[("code", &body("b", "fast"))], "shipped");
    let result = repository
        .compare("base..measured", "moved-base..shipped")
        .expect("compared");
    assert_eq!(result.left.patch_id, result.right.patch_id);
    assert!(
        matches!(&result.verdict, ProvenanceVerdict::Different { patch_ids_differ: false, files, .. } if files == &["code"]),
        "{:?}",
        result.verdict
    );
}

#[test]
fn what_is_no_range_or_no_repository_is_refused() {
    let repository = Repository::new();
    repository.commit(&[("code", "1\n")], "base");
    for range in ["base", "base...base", "..base", "base..", "--all..base"] {
        let result = repository.compare(range, "base..base");
        assert!(matches!(result, Err(GitError::Range { .. })), "{range}");
    }
    let result = repository.compare("base..nothing", "base..base");
    assert!(matches!(result, Err(GitError::Failed { .. })), "{result:?}");
    assert!(is_repository(repository.directory.path()));
    assert!(!is_repository(
        tempfile::tempdir().expect("a directory").path()
    ));
}
