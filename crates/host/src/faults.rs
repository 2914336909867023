//! Test support: the steps of a publication, recorded, failed or cut off.
//!
//! Every function of this crate that changes a directory, and [`write_all`](crate::write_all) and
//! [`sync_data`](crate::sync_data), announce themselves here before they act. A test runs its work under
//! [`record`], to learn the steps, and then once per step under [`run_with_fault`]. What is set up holds for
//! the calling thread alone. Without the feature `test-support` an announcement is nothing.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// What kind of change a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// A new directory.
    CreateDirectory,
    /// A new file with a name.
    CreateFile,
    /// Content of a file.
    Write,
    /// A name for an open file.
    Link,
    /// A file's content to stable storage.
    SyncFile,
    /// A directory's entries to stable storage.
    SyncDirectory,
    /// Another name in the same directory.
    Rename,
    /// A name taken away, of a file or an empty directory.
    Remove,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is.
    pub kind: StepKind,
    /// The directory that it happens in, by the path that it was opened by; empty for a file that is
    /// written or synced by handle.
    pub directory: PathBuf,
    /// The entry.
    pub name: String,
    /// The new name of a rename.
    pub new_name: Option<String>,
}

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The system refuses it (EIO); what follows goes on.
    Error,
    /// The process dies before it: neither it nor anything after it happens.
    Kill,
}

#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    fault: Option<(usize, Fault)>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `work` and tells the steps that it took.
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Vec<Step>) {
    run(None, work)
}

/// Runs `work` with a fault at step number `index`, from 0; tells the steps that it tried, with those
/// that did not happen.
pub fn run_with_fault<T>(index: usize, fault: Fault, work: impl FnOnce() -> T) -> (T, Vec<Step>) {
    run(Some((index, fault)), work)
}

fn run<T>(fault: Option<(usize, Fault)>, work: impl FnOnce() -> T) -> (T, Vec<Step>) {
    let steps = Vec::new();
    PLAN.set(Some(Plan { steps, fault }));
    let result = work();
    let plan = PLAN.take().unwrap_or_default();
    (result, plan.steps)
}

/// Announces a step in a directory.
pub(crate) fn step(kind: StepKind, directory: &Path, name: &OsStr) -> Result<(), Errno> {
    announce(kind, directory, name, None)
}

/// Announces a rename.
pub(crate) fn rename_step(directory: &Path, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    announce(StepKind::Rename, directory, from, Some(to))
}

fn announce(
    kind: StepKind,
    directory: &Path,
    name: &OsStr,
    new_name: Option<&OsStr>,
) -> Result<(), Errno> {
    PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else { return Ok(()) };
        let index = plan.steps.len();
        plan.steps.push(Step {
            kind,
            directory: directory.to_owned(),
            name: name.to_string_lossy().into_owned(),
            new_name: new_name.map(|name| name.to_string_lossy().into_owned()),
        });
        match plan.fault {
            Some((at, Fault::Error)) if index == at => Err(Errno::IO),
            Some((at, Fault::Kill)) if index >= at => Err(Errno::IO),
            _ => Ok(()),
        }
    })
}
