//! The directory for RAM files and snapshots.

use std::path::Path;

use nvx_host::RenameMethod;
use nvx_host::probe::{ScratchError, ScratchFacts, Support};

use super::{Area, Check, Checker, Status, chain, size};

/// Below it, a RAM file of the default size and a copy of it do not fit.
const LOW_SPACE_BYTES: u64 = 2 * (128 << 20);

pub(super) fn checks(path: &Path, found: &Result<ScratchFacts, ScratchError>) -> Vec<Check> {
    let area = Checker(Area::Scratch);
    match found {
        Ok(facts) => usable(area, facts),
        Err(error) => vec![
            area.fail("directory", chain(error))
                .remedy(format!("choose another one than {}", path.display())),
        ],
    }
}

fn usable(area: Checker, facts: &ScratchFacts) -> Vec<Check> {
    vec![
        area.ok("directory", facts.path.display().to_string()),
        area.info("file system", file_system_text(facts)),
        space_check(area, facts.free_bytes),
        valid_data_length_check(area, &facts.valid_data_length),
        Feature {
            name: "nameless files",
            found: &facts.nameless_files,
            present: "RAM files have no name until they are published",
            absent: "RAM files have a name; a killed process leaves one for the next start",
            otherwise: Status::Warn,
            remedy: "use ext4, XFS, btrfs or tmpfs",
        }
        .check(area),
        rename_check(area, facts.rename_method),
        Feature {
            name: "shared mapping",
            found: &facts.shared_mapping,
            present: "guest RAM can live in a file",
            absent: "guest RAM cannot live in a file here",
            otherwise: Status::Fail,
            remedy: "choose a directory on ext4, XFS, btrfs or tmpfs",
        }
        .check(area),
        Feature {
            name: "reflink",
            found: &facts.reflink,
            present: "a capture with --continue shares blocks",
            absent: "a capture with --continue copies guest RAM",
            otherwise: Status::Info,
            remedy: "use XFS (made with reflink=1) or btrfs",
        }
        .check(area),
        Feature {
            name: "hole punching",
            found: &facts.hole_punching,
            present: "files can give space back",
            absent: "files cannot give space back",
            otherwise: Status::Warn,
            remedy: "use ext4, XFS, btrfs or tmpfs",
        }
        .check(area),
        Feature {
            name: "locks",
            found: &facts.locks,
            present: "what a killed process left is told from what is in use",
            absent: "what a killed process left stays: nobody can tell whether it is in use",
            otherwise: Status::Warn,
            remedy: "use a local file system",
        }
        .check(area),
        Feature {
            name: "directory sync",
            found: &facts.directory_sync,
            present: "a published name survives a crash of the host",
            absent: "a crash of the host may lose a name that was just published",
            otherwise: Status::Warn,
            remedy: "use ext4, XFS or btrfs",
        }
        .check(area),
    ]
}

/// A feature of the file system, and what its presence and absence mean.
struct Feature<'a> {
    name: &'static str,
    found: &'a Support,
    present: &'static str,
    absent: &'static str,
    /// The verdict where it is absent.
    otherwise: Status,
    remedy: &'static str,
}

impl Feature<'_> {
    fn check(self, area: Checker) -> Check {
        match self.found {
            Support::Yes => area.ok(self.name, self.present),
            Support::No => area
                .check(self.name, self.otherwise, format!("no: {}", self.absent))
                .remedy(self.remedy),
            Support::Unclear { reason } => area
                .check(self.name, self.otherwise, format!("cannot tell: {reason}"))
                .remedy(self.remedy),
        }
    }
}

fn file_system_text(facts: &ScratchFacts) -> String {
    let driver = &facts.driver;
    if facts.file_system.is_memory() {
        return format!("{driver}, in memory: nothing is written back");
    }
    match &facts.source {
        Some(source) => format!("{driver} on {source}"),
        None => driver.clone(),
    }
}

fn space_check(area: Checker, free_bytes: u64) -> Check {
    const NAME: &str = "free space";
    if free_bytes < LOW_SPACE_BYTES {
        let text = format!(
            "{}: guest RAM of 128M and a copy of it need {}",
            size(free_bytes),
            size(LOW_SPACE_BYTES)
        );
        area.warn(NAME, text)
            .remedy("free space, or give --scratch and --snapshot elsewhere")
    } else {
        area.ok(NAME, size(free_bytes))
    }
}

fn valid_data_length_check(area: Checker, found: &Support) -> Check {
    const NAME: &str = "valid data length";
    match found {
        Support::No => area.ok(
            NAME,
            "none: writing far into a file writes no zeros before it",
        ),
        Support::Yes => area
            .warn(
                NAME,
                "files have one: a write beyond it makes the driver write zeros first",
            )
            .remedy(
                "keep the ascending writeback; a scratch directory on ext4, XFS or tmpfs has none",
            ),
        Support::Unclear { reason } => area.info(NAME, format!("cannot tell: {reason}")),
    }
}

fn rename_check(area: Checker, method: RenameMethod) -> Check {
    const NAME: &str = "no-replace rename";
    match method {
        RenameMethod::NoReplace => area.ok(NAME, "publication is one step"),
        RenameMethod::ClaimedDirectory => area
            .warn(
                NAME,
                "no: a destination is claimed by mkdir first; a crash between leaves it empty",
            )
            .remedy("use ext4, XFS, btrfs or tmpfs"),
    }
}
