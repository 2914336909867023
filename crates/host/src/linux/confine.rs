//! Least privilege: what a process gives up before it runs code that it does not trust.
//!
//! A guest that breaks out of its machine runs as this process. So before the first guest instruction the
//! process gives up, for good and for every thread that it starts later:
//!
//! - *paths*: beneath the declared directories files can be read, made, renamed and removed; nothing else can be
//!   opened (Landlock). What is open already stays usable. A kernel without Landlock is told of.
//! - *system calls*: those of [`calls`] remain, some with certain arguments only (seccomp). Any other ends the
//!   process with a message that names it ([`violation`]).
//! - new privileges by executing a file, ambient capabilities, core files, and more open files
//!   than a machine has a use for.

mod calls;
mod filter;
mod violation;

use std::os::fd::AsFd as _;
use std::path::Path;

use super::identity::BOOT_ID;
use crate::confinement::{ConfineError, Confined, ConfinedThread, Confinement};
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The most files that a process may have open from then on: a monitor uses some dozens, and one more
/// per control client.
const MAX_OPEN_FILES: u64 = 1024;

/// The Landlock version whose rights are given up; of an older kernel, those that it knows. Version 5 brought
/// the last right that concerns files (ioctl on devices), which machines need and keep.
const LANDLOCK_RIGHTS: ABI = ABI::V4;

/// Gives up what is not kept, for this thread and all that it starts from now on. To be called while there is no
/// other thread.
///
/// # Errors
/// Something cannot be given up although the kernel knows it. The process then has some of its privileges
/// still and must not go on.
pub fn confine(confinement: &Confinement<'_>) -> Result<Confined, ConfineError> {
    give_up_new_privileges()?;
    limit_resources()?;
    let paths = confine_paths(confinement)?;
    if confinement.filter_system_calls {
        violation::report_by_signal().map_err(system_calls)?;
        filter::install(ConfinedThread::Monitor).map_err(system_calls)?;
    }
    Ok(Confined {
        paths,
        system_calls: confinement.filter_system_calls,
    })
}

/// Narrows the filter for the calling thread, in a process that was confined with one.
///
/// # Errors
/// The kernel refuses it.
pub fn confine_thread(thread: ConfinedThread) -> Result<(), ConfineError> {
    filter::install(thread).map_err(system_calls)
}

/// Whether this kernel can confine paths, and system calls.
pub fn confinement_support() -> Confined {
    let attributes = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))
        .and_then(Ruleset::create);
    Confined {
        paths: attributes.is_ok(),
        system_calls: filter::is_supported(),
    }
}

fn give_up_new_privileges() -> Result<(), ConfineError> {
    rustix::thread::set_no_new_privs(true).map_err(attribute("new privileges"))?;
    rustix::thread::clear_ambient_capability_set().map_err(attribute("ambient capabilities"))
}

fn limit_resources() -> Result<(), ConfineError> {
    // Guest state would otherwise be found in a core file.
    limit(Resource::Core, 0).map_err(attribute("core files"))?;
    limit(Resource::Nofile, MAX_OPEN_FILES).map_err(attribute("open files"))
}

/// Lowers a limit, soft and hard; one that is lower already stays.
fn limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let lower = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    setrlimit(
        resource,
        Rlimit {
            current: lower(now.current),
            maximum: lower(now.maximum),
        },
    )
}

fn attribute(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> ConfineError {
    move |source| ConfineError::Attribute {
        what,
        source: source.into(),
    }
}

fn system_calls(source: std::io::Error) -> ConfineError {
    ConfineError::SystemCalls(source)
}

fn paths_refused(source: landlock::RulesetError) -> ConfineError {
    ConfineError::Paths(source.into())
}

/// Returns whether the kernel confines paths at all.
fn confine_paths(confinement: &Confinement<'_>) -> Result<bool, ConfineError> {
    let handled = AccessFs::from_all(LANDLOCK_RIGHTS);
    let mut rules = Ruleset::default()
        .handle_access(handled)
        .and_then(Ruleset::create)
        .map_err(paths_refused)?;
    // What a capture reads: which pages of a private view are this process's own, and which host this is.
    for path in ["/proc/self", BOOT_ID] {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile.into())?;
    }
    for path in &confinement.directories {
        let rights = handled & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock);
        rules = allow(rules, path, rights)?;
    }
    for path in &confinement.removable_in {
        rules = allow(rules, path, AccessFs::RemoveFile.into())?;
    }
    let status = rules.restrict_self().map_err(paths_refused)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn allow(
    rules: RulesetCreated,
    path: &Path,
    rights: landlock::BitFlags<AccessFs>,
) -> Result<RulesetCreated, ConfineError> {
    let directory = PathFd::new(path).map_err(|source| ConfineError::Directory {
        path: path.to_owned(),
        source: source.into(),
    })?;
    rules
        .add_rule(PathBeneath::new(directory.as_fd(), rights))
        .map_err(paths_refused)
}

#[cfg(test)]
mod tests;
