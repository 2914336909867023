//! What is measured, and what nvx must reach.

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// Name as printed.
    pub name: &'static str,
    /// What a sample is.
    pub work: Work,
    /// Where RAM and snapshots lie.
    pub place: Place,
    /// The probe guest's fill parameter.
    pub fill: &'static str,
    /// Guest RAM in MiB.
    pub memory_mib: u64,
    /// What nvx must reach.
    pub target: Target,
}

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Milliseconds from before process creation to the guest's ready line.
    Boot,
    /// The same with a snapshot destination declared, so that RAM lives in a file beside it.
    BootForCapture,
    /// Milliseconds from before process creation to the line of the guest that goes on.
    Restore,
    /// Milliseconds of a linked capture, from the guest's request to the commit.
    Generation,
    /// Milliseconds of the capture of a restored guest that has dirtied its pages again.
    Recapture,
    /// Peak resident MiB when the guest is ready, without the guest pages that the fill touched.
    BootMemory,
    /// Peak resident MiB when a restored guest goes on.
    RestoreMemory,
}

impl Work {
    /// Unit of a sample.
    pub fn unit(self) -> &'static str {
        match self {
            Self::BootMemory | Self::RestoreMemory => "MiB",
            _ => "ms",
        }
    }
}

/// Where RAM files and snapshots lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// /dev/shm.
    Memory,
    /// The directory on disk.
    Disk,
}

/// What nvx must reach, in terms of medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At most this many times the floor.
    OverFloor(f64),
    /// At most this, in the row's unit.
    AtMost(f64),
    /// At most this many times nvx's own figure in another row: (limit, name of that row).
    OverRow(f64, &'static str),
}

const GENERATION_TMPFS: &str = "generation, tmpfs, 256 pages";
const GENERATION_DISK: &str = "generation, disk, 256 pages";

const fn row(
    name: &'static str,
    work: Work,
    place: Place,
    fill: &'static str,
    target: Target,
) -> Row {
    Row {
        name,
        work,
        place,
        fill,
        memory_mib: 128,
        target,
    }
}

const fn with_4_gib(row: Row) -> Row {
    Row {
        memory_mib: 4096,
        ..row
    }
}

/// The pages of `top:256`, which the probe guest touches before it is ready.
pub const FILLED_MIB: f64 = 1.0;

/// Rows in memory come first: what the disk still does after a row then disturbs disk rows only.
pub const ROWS: &[Row] = {
    use Place::{Disk, Memory};
    use Target::{AtMost, OverFloor, OverRow};
    use Work::{Boot, BootForCapture, BootMemory, Generation, Recapture, Restore, RestoreMemory};
    &[
        // One page, so that the guest's own work weighs little beside the monitor's.
        row("boot", Boot, Memory, "top:1", OverFloor(1.25)),
        row(
            "boot, RAM file on tmpfs",
            BootForCapture,
            Memory,
            "top:1",
            OverFloor(1.25),
        ),
        row(
            "boot, RAM file on disk",
            BootForCapture,
            Disk,
            "top:1",
            OverFloor(1.25),
        ),
        row(
            "restore, tmpfs",
            Restore,
            Memory,
            "top:256",
            OverFloor(1.15),
        ),
        row("restore, disk", Restore, Disk, "top:256", OverFloor(1.15)),
        row(
            "peak RSS, booted",
            BootMemory,
            Memory,
            "top:256",
            AtMost(3.5),
        ),
        row(
            "peak RSS, restored",
            RestoreMemory,
            Memory,
            "top:256",
            AtMost(3.5),
        ),
        row(GENERATION_TMPFS, Generation, Memory, "top:256", AtMost(0.4)),
        row(
            "generation, tmpfs, 16384 pages",
            Generation,
            Memory,
            "top:16384",
            AtMost(0.5),
        ),
        with_4_gib(row(
            "generation, tmpfs, 256 pages, 4 GiB",
            Generation,
            Memory,
            "top:256",
            OverRow(1.2, GENERATION_TMPFS),
        )),
        row(
            "recapture, tmpfs, 256 pages",
            Recapture,
            Memory,
            "top:256",
            OverFloor(1.25),
        ),
        row(
            GENERATION_DISK,
            Generation,
            Disk,
            "top:256",
            OverFloor(1.25),
        ),
        row(
            "generation, disk, 256 spread",
            Generation,
            Disk,
            "spread:256",
            OverFloor(1.25),
        ),
        with_4_gib(row(
            "generation, disk, 256 pages, 4 GiB",
            Generation,
            Disk,
            "top:256",
            OverRow(1.2, GENERATION_DISK),
        )),
        row(
            "recapture, disk, 256 pages",
            Recapture,
            Disk,
            "top:256",
            OverFloor(1.25),
        ),
        row(
            "generation, disk, 16384 pages",
            Generation,
            Disk,
            "top:16384",
            OverFloor(1.1),
        ),
        row(
            "generation, disk, every other page",
            Generation,
            Disk,
            "alternate",
            OverFloor(1.1),
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_references_lead_somewhere() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(
                ROWS[..index].iter().all(|other| other.name != row.name),
                "{}",
                row.name
            );
            if let Target::OverRow(_, other) = row.target {
                assert!(ROWS.iter().any(|row| row.name == other), "{other}");
            }
        }
    }
}
