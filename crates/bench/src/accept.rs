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

/// Prepares `directory` and measures until a result is accepted or refused. `measure` gets the number of
/// the attempt.
///
/// # Errors
/// The directory cannot be used, or measuring fails.
pub fn accept<E: std::error::Error + 'static>(
    directory: &Path,
    mut measure: impl FnMut(u32) -> Result<LifecycleResult, E>,
) -> Result<Acceptance, AcceptError<E>> {
    let failed = |path: PathBuf| move |source| AcceptError::Directory { path, source };
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
        let platform = &result.controls.platform;
        check_platform(directory, platform)?;
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
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let new = directory.join(nvx_host::random_name(".nvx-result-")?);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The first error counts; the rest of the file may not be there at all.
        let _ = std::fs::remove_file(&new);
    }
    written
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

    #[test]
    fn a_failed_measurement_leaves_no_stale_acceptance() {
        let directory = tempfile::tempdir().expect("a directory");
        let accepted = directory.path().join(ACCEPTED_FILE);
        std::fs::write(&accepted, "old").expect("space");
        let outcome = accept(directory.path(), |_| Err(io::Error::other("no")));
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
    }
}
