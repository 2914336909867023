//! What a monitor has to be able to do to be measured beside others.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PeerError;
use crate::lifecycle::LifecycleRequest;
use crate::monitor::Monitor;

/// The files of one turn of one monitor.
pub(super) struct TurnFiles {
    /// The probe guest's ELF file, the same for all.
    pub(super) kernel: PathBuf,
    /// Where the snapshot goes.
    pub(super) snapshot: PathBuf,
    /// The monitor's control socket.
    pub(super) socket: PathBuf,
    /// A configuration file, for those that want one.
    pub(super) configuration: PathBuf,
}

impl TurnFiles {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self {
            kernel: directory.join("probe.elf"),
            snapshot: directory.join("snapshot"),
            socket: directory.join("socket"),
            configuration: directory.join("configuration.json"),
        }
    }
}

/// What a capture gave.
pub(super) struct Captured {
    /// From the request to the monitor's word that the snapshot is there, on the observer's clock.
    pub(super) elapsed: Duration,
    /// The monitor's peak resident set by then.
    pub(super) peak_rss_bytes: Option<u64>,
}

/// What is done to a monitor, in words that can be tried by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// What for.
    pub step: String,
    /// A command line, or requests to the monitor.
    pub command: String,
}

/// A monitor that runs the probe guest.
pub(super) trait Contender {
    /// Its name in results.
    fn name(&self) -> &'static str;
    /// Its program.
    fn program(&self) -> &Path;
    /// Writes what it wants to find before it starts.
    fn prepare(&self, _request: &LifecycleRequest, _files: &TurnFiles) -> Result<(), PeerError> {
        Ok(())
    }
    /// The arguments that boot the guest.
    fn start(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString>;
    /// Captures the guest that is ready; the monitor is gone afterwards.
    fn capture(&self, monitor: Monitor, files: &TurnFiles) -> Result<Captured, PeerError>;
    /// The arguments of the process that restores.
    fn restore(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString>;
    /// Whatever else makes the started process restore.
    fn resume(&self, _monitor: &mut Monitor, _files: &TurnFiles) -> Result<(), PeerError> {
        Ok(())
    }
    /// What the restored guest says first, and what has to be typed for it to do so.
    fn first_words(&self) -> FirstWords;
    /// What is sent to the monitor besides its command lines, by step.
    fn requests(&self, files: &TurnFiles) -> Vec<Explained>;
}

/// A restored guest's next output.
pub(super) struct FirstWords {
    /// Typed before the process exists.
    pub(super) input: &'static str,
    /// How the answer begins.
    pub(super) marker: &'static str,
}

/// A guest that was restored without being told says nothing by itself, so it is asked something that it
/// answers at once. The empty line before it is for a serial line that receives one byte before its state
/// is restored, and loses it.
pub(super) const UNTOLD: FirstWords = FirstWords {
    input: "\n?",
    marker: "PROBE-WHAT",
};

/// A word for a POSIX shell.
pub(super) fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A whole command line.
pub(super) fn command_line(program: &Path, arguments: &[OsString]) -> String {
    let words = [program.as_os_str()]
        .into_iter()
        .chain(arguments.iter().map(OsString::as_os_str));
    words.map(quoted).collect::<Vec<_>>().join(" ")
}
