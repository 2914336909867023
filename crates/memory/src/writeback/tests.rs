//! Tests of strategies, plans, and how plans are carried out.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

/// Some error of the system.
const EIO: i32 = 5;

fn workers(count: u8) -> Strategy {
    Strategy::Ranges {
        workers: WorkerCount::new(count).unwrap(),
    }
}

fn extent(offset_bytes: u64, size_bytes: u64) -> FileExtent {
    FileExtent {
        offset_bytes,
        size_bytes,
    }
}

#[test]
fn strategies_are_read_as_they_are_written() {
    for text in [
        "ascending",
        "ascending-marked",
        "ranges:1",
        "ranges:4",
        "ranges:8",
    ] {
        assert_eq!(text.parse::<Strategy>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "Ascending",
        "ranges",
        "ranges:",
        "ranges:0",
        "ranges:9",
        "ranges:+4",
        "ranges:04",
        "ranges:256",
    ] {
        assert_eq!(
            text.parse::<Strategy>(),
            Err(UnknownStrategy {
                text: text.to_owned()
            })
        );
    }
    assert_eq!(Strategy::default().to_string(), "ascending");
}

#[test]
fn ascending_is_one_worker_with_one_flush_per_extent() {
    let extents = [extent(0, 8192), extent(65536, 4096)];
    let plan = Strategy::Ascending {
        mark_every_page: true,
    }
    .plan(&extents);
    assert_eq!(
        plan,
        Plan {
            mark_every_page: true,
            workers: vec![extents.to_vec()]
        }
    );
}

#[test]
fn eight_workers_share_128_mib_equally() {
    let plan = workers(8).plan(&[extent(0, 128 << 20)]);
    let expected: Vec<_> = (0..8).map(|n| vec![extent(n << 24, 16 << 20)]).collect();
    assert_eq!(plan.workers, expected);
}

#[test]
fn a_share_may_consist_of_parts_of_two_ranges() {
    let plan = workers(2).plan(&[extent(0, 3 * 4096), extent(65536, 3 * 4096 + 8192)]);
    assert_eq!(
        plan.workers,
        [
            vec![extent(0, 3 * 4096), extent(65536, 4096)],
            vec![extent(65536 + 4096, 4 * 4096)]
        ]
    );
}

proptest! {
    #[test]
    fn each_page_is_flushed_exactly_once(
        gaps in proptest::collection::vec((0u64..5, 1u64..300), 1..6),
        count in 1u8..=8,
    ) {
        let mut at = 0;
        let mut extents = Vec::new();
        for (gap, pages) in gaps {
            at += gap * 4096;
            extents.push(extent(at, pages * 4096));
            at += pages * 4096;
        }
        let total: u64 = extents.iter().map(|e| e.size_bytes).sum();
        let plan = workers(count).plan(&extents);
        prop_assert!(plan.workers.len() <= usize::from(count));
        let largest = plan.workers.iter().map(|w| w.iter().map(|e| e.size_bytes).sum::<u64>()).max();
        prop_assert!(largest.unwrap() <= (total / 4096).div_ceil(u64::from(count)) * 4096);
        let flushed: Vec<u64> = plan.workers.iter().flatten()
            .flat_map(|e| (e.offset_bytes..e.end_bytes()).step_by(4096)).collect();
        let wanted: Vec<u64> = extents.iter()
            .flat_map(|e| (e.offset_bytes..e.end_bytes()).step_by(4096)).collect();
        prop_assert_eq!(flushed, wanted);
    }
}

/// Carries out a plan while the flushes that `fails` names fail; returns what was flushed, ascending,
/// and the result.
fn run_with_faults(
    plan: &Plan,
    fails: impl Fn(&FileExtent) -> bool + Sync,
) -> (Vec<FileExtent>, Result<(), PlanFailure>) {
    let seen = std::sync::Mutex::new(Vec::new());
    let result = plan.run(&|extent: &FileExtent| {
        seen.lock().unwrap().push(*extent);
        if fails(extent) {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|extent| extent.offset_bytes);
    (seen, result)
}

#[test]
fn all_workers_finish_and_the_lowest_failure_is_told() {
    let plan = workers(8).plan(&[extent(0, 128 << 20)]);
    for failing in 1_u32..256 {
        let fails = |extent: &FileExtent| failing >> (extent.offset_bytes >> 24) & 1 == 1;
        let (seen, result) = run_with_faults(&plan, fails);
        assert_eq!(seen.len(), 8, "every worker has flushed its range");
        let lowest = u64::from(failing.trailing_zeros()) << 24;
        match result {
            Err(PlanFailure::Flush { extent, source }) => {
                assert_eq!(extent.offset_bytes, lowest);
                assert_eq!(source.raw_os_error(), Some(EIO));
            }
            other => panic!("{other:?}"),
        }
    }
    let (seen, result) = run_with_faults(&plan, |_| false);
    assert_eq!(seen.len(), 8);
    assert!(result.is_ok());
}

#[test]
fn a_worker_ends_at_its_first_failure() {
    let extents = [extent(0, 4096), extent(8192, 4096), extent(65536, 4096)];
    let plan = Strategy::default().plan(&extents);
    let (seen, result) = run_with_faults(&plan, |extent| extent.offset_bytes > 0);
    assert_eq!(seen, extents[..2]);
    assert!(matches!(result, Err(PlanFailure::Flush { extent, .. }) if extent == extents[1]));
}

#[test]
fn a_worker_that_ends_abnormally_fails_the_plan() {
    let plan = workers(2).plan(&[extent(0, 8192)]);
    let result = plan.run(&|extent: &FileExtent| {
        assert_eq!(extent.offset_bytes, 0, "the second worker is to end here");
        Ok(())
    });
    assert!(matches!(result, Err(PlanFailure::Worker(_))));
}

/// Injects failures beneath a real writeback, between its plan and the system.
#[test]
fn a_failed_flush_names_the_file_and_the_part_and_can_be_repeated() {
    use crate::{RamFile, RamLayout, RamRange};
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: 1 << 20,
        file_offset_bytes: 0,
    }])
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ram = RamFile::create(directory.path(), layout.file_len_bytes()).unwrap();
    let view = ram.try_clone_file().unwrap();
    let memory = GuestMemory::shared_file(layout, view, Path::new("the-ram")).unwrap();
    memory.write(GuestAddress(0), &[7; 1 << 20]).unwrap();
    let shared = memory.shared_view().unwrap();
    let plan = workers(4).plan(&[extent(0, 1 << 20)]);
    let failure = plan
        .run(&|extent: &FileExtent| match extent.offset_bytes {
            0x40000 | 0xc0000 => Err(io::Error::from_raw_os_error(EIO)),
            _ => shared.flush(extent),
        })
        .unwrap_err();
    let error = shared.describe(failure);
    let text = error.to_string();
    assert!(
        text.contains("the-ram") && text.contains(&0x40000.to_string()),
        "{text}"
    );
    assert!(matches!(
        error,
        WritebackError::Flush {
            offset_bytes: 0x40000,
            size_bytes: 0x40000,
            ..
        }
    ));
    // RAM is as it was, and the next writeback brings what this one left.
    let mut bytes = vec![0; 1 << 20];
    memory.read(GuestAddress(0), &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    memory.writeback(workers(4)).unwrap();
    ram.file().sync_data().unwrap();
    let mut file = ram.file();
    std::io::Seek::rewind(&mut file).unwrap();
    let stored = std::io::Read::read_exact(&mut file, &mut bytes);
    stored.unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn the_common_part_has_whole_pages_and_spans_no_two_extents() {
    let extents = [extent(0, 65536), extent(65536, 65536)];
    let mut data = ExtentList::new();
    data.push(5000, 1);
    data.push(61440, 8192);
    data.push(131_000, 1 << 20);
    let parts = [
        extent(4096, 4096),
        extent(61440, 4096),
        extent(65536, 4096),
        extent(126_976, 4096),
    ];
    assert_eq!(intersection(&extents, &data), parts);
    assert_eq!(intersection(&extents, &ExtentList::new()), []);
}
