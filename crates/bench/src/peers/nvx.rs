//! NVX itself: RAM in a file, the guest asks for the capture, the records tell when it is published.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::PeerError;
use super::contender::{Captured, Contender, Explained, FirstWords, TurnFiles};
use crate::lifecycle::LifecycleRequest;
use crate::monitor::Monitor;
use crate::sampling::RESTORED_MARKER;

pub(super) struct Nvx {
    pub(super) program: PathBuf,
}

impl Contender for Nvx {
    fn name(&self) -> &'static str {
        "nvx"
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn start(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        request.run_arguments(Some(&files.snapshot))
    }

    fn capture(&self, mut monitor: Monitor, _files: &TurnFiles) -> Result<Captured, PeerError> {
        let requested = monitor.age();
        monitor.send_line("s")?;
        let ended = monitor.wait_for_end(0)?;
        let seen = ended.capture_seen.ok_or(PeerError::NoRecords)?;
        Ok(Captured {
            elapsed: seen.elapsed.saturating_sub(requested),
            peak_rss_bytes: seen.peak_rss_bytes,
        })
    }

    fn restore(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        request.restore_arguments(&files.snapshot)
    }

    fn first_words(&self) -> FirstWords {
        FirstWords {
            input: "",
            marker: RESTORED_MARKER,
        }
    }

    fn requests(&self, _files: &TurnFiles) -> Vec<Explained> {
        vec![Explained {
            step: "capture".to_owned(),
            command: "the line 's' on the guest's console".to_owned(),
        }]
    }
}
