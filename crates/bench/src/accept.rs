//! Measure, validate, accept: the whole policy of a result that may enter a history.
//!
//! An unstable result is measured once more on the same host. Both attempts are kept; only a valid one is
//! copied to `acceptance.json`, and a stale one is removed before anything is measured, so that the file
//! is there exactly if the last run was accepted.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::result::LifecycleResult;
use crate::validate::{Validation, Verdict, validate};

/// The accepted result in the directory.
pub const ACCEPTED_FILE: &str = "acceptance.json";
/// How often is measured at most.
const MAX_ATTEMPTS: u32 = 2;

/// Why nothing was accepted or refused.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError<E: std::error::Error + 'static> {
    /// The directory cannot be used.
    #[error("--accept: {}", path.display())]
    Directory {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory is of another platform than the run.
    #[error("--accept: {} is of platform {of}, this run is of {platform}", path.display())]
    OtherPlatform {
        /// The directory.
        path: PathBuf,
        /// Its platform.
        of: String,
        /// The run's.
        platform: String,
    },
    /// Measuring failed.
    #[error(transparent)]
    Measure(E),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Acceptance {
    /// One per attempt.
    pub attempts: Vec<Validation>,
    /// Where the accepted result is, if there is one.
    pub accepted: Option<PathBuf>,
}

impl Acceptance {
    /// 0 accepted, 75 unstable twice, 2 anything else.
    pub fn exit_code(&self) -> u8 {
        match (&self.accepted, self.attempts.last()) {
            (Some(_), _) => 0,
            (None, Some(last)) if last.verdict == Verdict::Unstable => 75,
            _ => 2,
        }
    }
}

/// The file of an attempt, counted from 1.
pub fn attempt_file(attempt: u32) -> String {
    format!("acceptance-attempt-{attempt}.json")
}

/// Prepares `directory` and measures until a result is accepted or refused. `platform` is what the results
/// will be of; `measure` gets the number of the attempt.
///
/// # Errors
/// The directory is of another platform (told before anything is measured or removed) or cannot be used, or
/// measuring fails.
pub fn accept<E: std::error::Error + 'static>(
    directory: &Path,
    platform: &str,
    mut measure: impl FnMut(u32) -> Result<LifecycleResult, E>,
) -> Result<Acceptance, AcceptError<E>> {
    let failed = |path: PathBuf| move |source| AcceptError::Directory { path, source };
    check_platform(directory, platform)?;
    std::fs::create_dir_all(directory).map_err(failed(directory.to_owned()))?;
    let accepted = directory.join(ACCEPTED_FILE);
    let attempts = (1..=MAX_ATTEMPTS).map(|attempt| directory.join(attempt_file(attempt)));
    for stale in attempts.chain([accepted.clone()]) {
        remove(&stale).map_err(failed(stale.clone()))?;
    }
    let mut acceptance = Acceptance {
        attempts: Vec::new(),
        accepted: None,
    };
    for attempt in 1..=MAX_ATTEMPTS {
        let mut result = measure(attempt).map_err(AcceptError::Measure)?;
        let document = serde_json::to_value(&result)
            .map_err(io::Error::other)
            .map_err(failed(directory.to_owned()))?;
        let validation = validate(&document, Some(platform));
        result.controls.validated = validation.acceptable;
        let path = directory.join(attempt_file(attempt));
        write_json(&path, &result).map_err(failed(path.clone()))?;
        let (verdict, acceptable) = (validation.verdict, validation.acceptable);
        acceptance.attempts.push(validation);
        if verdict == Verdict::Valid && acceptable {
            write_json(&accepted, &result).map_err(failed(accepted.clone()))?;
            acceptance.accepted = Some(accepted);
            break;
        }
        if verdict != Verdict::Unstable {
            break;
        }
    }
    Ok(acceptance)
}

/// Refuses a directory that names another platform than the result's, such as a real one's for a result
/// that was measured on an emulated machine.
fn check_platform<E: std::error::Error + 'static>(
    directory: &Path,
    platform: &str,
) -> Result<(), AcceptError<E>> {
    match platform_of(directory) {
        Some(of) if of != platform => Err(AcceptError::OtherPlatform {
            path: directory.to_owned(),
            of,
            platform: platform.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The platform that a path names in one of its parts.
pub fn platform_of(directory: &Path) -> Option<String> {
    let kinds = ["-bare-metal", "-virtual-machine", "-emulated"];
    let is_platform = |word: &str| {
        kinds
            .iter()
            .filter_map(|kind| word.strip_suffix(kind))
            .any(|rest| rest.split('-').count() == 2)
    };
    directory
        .components()
        .filter_map(|part| part.as_os_str().to_str())
        .rfind(|word| is_platform(word))
        .map(str::to_owned)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a document so that the file holds, at any moment, the old one or the new one.
///
/// # Errors
/// The system's.
pub fn write_json(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(document).map_err(io::Error::other)?;
    text.push('\n');
    let new = directory_of(path).join(nvx_host::random_name(".nvx-result-")?);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The first error counts; the rest of the file may not be there at all.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Whether a document could be written to `path`, before what it is to hold takes minutes to measure.
///
/// # Errors
/// The system's.
pub fn check_writable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let new = directory_of(path).join(nvx_host::random_name(".nvx-result-")?);
    std::fs::write(&new, "")?;
    std::fs::remove_file(&new)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_found_in_paths() {
        for (path, platform) in [
            (
                "data/runs/linux-kvm-bare-metal/microvm-v2/1vcpu",
                Some("linux-kvm-bare-metal"),
            ),
            ("linux-soft-emulated", Some("linux-soft-emulated")),
            ("/tmp/x", None),
            ("not-emulated", None),
        ] {
            assert_eq!(platform_of(Path::new(path)).as_deref(), platform, "{path}");
        }
        let checked =
            |path: &str| check_platform::<io::Error>(Path::new(path), "linux-kvm-emulated");
        assert!(checked("a/linux-kvm-emulated").is_ok() && checked("a/b").is_ok());
        let error = checked("a/linux-kvm-virtual-machine")
            .expect_err("another")
            .to_string();
        assert!(error.contains("linux-kvm-virtual-machine"), "{error}");
    }

    const PLATFORM: &str = "linux-kvm-emulated";

    /// A result as a run leaves it, whose captures' flushes took `flush_ms`.
    fn result(flush_ms: &[f64]) -> LifecycleResult {
        serde_json::from_value(crate::example::result(flush_ms)).expect("a result")
    }

    fn steady() -> LifecycleResult {
        result(&[
            100.0, 101.0, 99.0, 100.5, 98.5, 102.0, 100.2, 99.7, 100.9, 101.3,
        ])
    }

    fn torn() -> LifecycleResult {
        result(&[
            100.0, 101.0, 99.0, 100.5, 98.5, 102.0, 230.2, 229.7, 230.9, 231.3,
        ])
    }

    /// Runs the policy over `results`, one per attempt, with stale files in its directory.
    fn policy(results: Vec<LifecycleResult>) -> (Acceptance, tempfile::TempDir, usize) {
        let directory = tempfile::tempdir().expect("a directory");
        for stale in [ACCEPTED_FILE, &attempt_file(1), &attempt_file(2)] {
            std::fs::write(directory.path().join(stale), "old").expect("space");
        }
        let mut results = results.into_iter();
        let mut measured = 0;
        let acceptance = accept(directory.path(), PLATFORM, |attempt| {
            measured += 1;
            assert_eq!(attempt as usize, measured);
            let stale = directory.path().join(ACCEPTED_FILE);
            assert!(
                !stale.exists(),
                "a stale acceptance goes before anything is measured"
            );
            Ok::<_, io::Error>(results.next().expect("no further attempt"))
        });
        (acceptance.expect("a usable directory"), directory, measured)
    }

    fn generation(directory: &tempfile::TempDir, file: &str) -> Option<Vec<f64>> {
        let text = std::fs::read(directory.path().join(file)).ok()?;
        let result: LifecycleResult = serde_json::from_slice(&text).expect("a result");
        Some(result.snapshot_capture["kvm"].time.samples_ms.clone())
    }

    #[test]
    fn a_valid_result_is_accepted_at_once() {
        let (acceptance, directory, measured) = policy(vec![steady()]);
        assert_eq!((acceptance.exit_code(), measured), (0, 1));
        let accepted = generation(&directory, ACCEPTED_FILE);
        assert_eq!(accepted, generation(&directory, &attempt_file(1)));
        assert!(accepted.is_some() && generation(&directory, &attempt_file(2)).is_none());
        let path = directory.path().join(ACCEPTED_FILE);
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.contains("\"validated\": true"));
    }

    #[test]
    fn an_unstable_result_is_measured_once_more_and_both_are_kept() {
        let (acceptance, directory, measured) = policy(vec![torn(), steady()]);
        assert_eq!((acceptance.exit_code(), measured), (0, 2));
        let attempts = [1, 2].map(|attempt| generation(&directory, &attempt_file(attempt)));
        let expected = [torn(), steady()]
            .map(|result| Some(result.snapshot_capture["kvm"].time.samples_ms.clone()));
        assert_eq!(attempts, expected);
        assert_eq!(generation(&directory, ACCEPTED_FILE), expected[1]);
    }

    #[test]
    fn a_second_unstable_result_fails() {
        let (acceptance, directory, measured) = policy(vec![torn(), torn()]);
        assert_eq!((acceptance.exit_code(), measured), (75, 2));
        assert_eq!(acceptance.attempts.len(), 2);
        assert!(generation(&directory, &attempt_file(2)).is_some());
        assert!(!directory.path().join(ACCEPTED_FILE).exists());
    }

    #[test]
    fn what_is_wrong_for_good_is_not_measured_again() {
        let mut wrong = steady();
        wrong.controls.marker = "HELLO".to_owned();
        let (acceptance, directory, measured) = policy(vec![wrong]);
        assert_eq!((acceptance.exit_code(), measured), (2, 1));
        assert!(!directory.path().join(ACCEPTED_FILE).exists());

        let mut disturbed = steady();
        disturbed.controls.disturbed = true;
        let (acceptance, directory, measured) = policy(vec![disturbed]);
        assert_eq!((acceptance.exit_code(), measured), (2, 1));
        assert!(!directory.path().join(ACCEPTED_FILE).exists());
    }

    #[test]
    fn another_platforms_directory_is_refused_before_anything_is_measured() {
        let directory = tempfile::tempdir().expect("a directory");
        let other = directory.path().join("linux-kvm-bare-metal");
        std::fs::create_dir(&other).expect("a directory");
        let accepted = other.join(ACCEPTED_FILE);
        std::fs::write(&accepted, "another's").expect("space");
        let outcome = accept(&other, PLATFORM, |_| -> io::Result<LifecycleResult> {
            panic!("nothing is measured");
        });
        assert!(matches!(outcome, Err(AcceptError::OtherPlatform { .. })));
        let text = std::fs::read_to_string(&accepted).expect("still there");
        assert_eq!(text, "another's");
    }

    #[test]
    fn a_failed_measurement_leaves_no_stale_acceptance() {
        let directory = tempfile::tempdir().expect("a directory");
        let accepted = directory.path().join(ACCEPTED_FILE);
        std::fs::write(&accepted, "old").expect("space");
        let outcome = accept(directory.path(), PLATFORM, |_| Err(io::Error::other("no")));
        assert!(matches!(outcome, Err(AcceptError::Measure(_))));
        assert!(!accepted.exists());
    }

    #[test]
    fn documents_are_replaced_and_leave_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        write_json(&path, &1).expect("space");
        write_json(&path, &2).expect("space");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "2\n");
        assert_eq!(
            std::fs::read_dir(directory.path())
                .expect("entries")
                .count(),
            1
        );
        assert!(write_json(&directory.path().join("no/a.json"), &1).is_err());
        assert!(check_writable(&path).is_ok() && check_writable(Path::new("a.json")).is_ok());
        for wrong in [directory.path(), &directory.path().join("no/a.json")] {
            assert!(check_writable(wrong).is_err(), "{}", wrong.display());
        }
        let entries = std::fs::read_dir(directory.path()).expect("entries");
        assert_eq!(entries.count(), 1, "a check leaves nothing");
    }
}
