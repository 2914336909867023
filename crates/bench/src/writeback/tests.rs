//! Tests of the plan of runs, of refusals and of single runs.

use std::collections::BTreeMap;

use super::*;

const SIZE: u64 = 1 << 20;

fn request(directory: &Path) -> WritebackRequest {
    WritebackRequest {
        program: "/nonexistent/nvx".into(),
        directory: directory.to_owned(),
        size_bytes: SIZE,
        ram_files: vec![RamFileChoice::Sparse],
        writebacks: ["ascending", "ranges:4"]
            .map(|text| text.parse().unwrap())
            .into(),
        patterns: vec![Pattern::All, Pattern::Top(3), Pattern::Alternate],
        samples: 3,
        warmups: 1,
    }
}

/// Counts runs, and wants an end before a given one.
#[derive(Default)]
struct Counter {
    announced: usize,
    end_before: Option<usize>,
}

impl Onlooker for Counter {
    fn before(&mut self, _: Progress<'_>) {
        self.announced += 1;
    }

    fn is_interrupted(&mut self) -> bool {
        self.end_before.is_some_and(|run| self.announced >= run)
    }
}

fn prepare(directory: &Path, name: &str) -> RamFileChoice {
    let path = directory.join(name);
    let file = std::fs::File::create_new(&path).unwrap();
    file.set_len(SIZE).unwrap();
    RamFileChoice::Prepared(path)
}

#[test]
fn rounds_meet_every_cell_once_and_turn_round() {
    let runs = request(Path::new("/tmp")).runs();
    assert_eq!(runs.len(), 4 * 6);
    for (round, part) in runs.chunks(6).enumerate() {
        let cells: Vec<usize> = part.iter().map(|run| run.cell).collect();
        let forward: Vec<usize> = (0..6).collect();
        let backward: Vec<usize> = (0..6).rev().collect();
        assert_eq!(cells, if round % 2 == 0 { forward } else { backward });
        assert!(part.iter().all(|run| run.warmup == (round == 0)));
    }
    let mut measured = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.warmup) {
        *measured.entry(run.cell).or_insert(0) += 1;
    }
    assert!(measured.values().all(|count| *count == 3));
}

#[test]
fn unfit_requests_are_refused_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut WritebackRequest)| {
        let mut request = request(directory.path());
        change(&mut request);
        let mut counter = Counter::default();
        let error = measure(&request, &mut counter).unwrap_err();
        assert_eq!(counter.announced, 0, "{error}");
        error
    };
    use WritebackBenchError as E;
    for size in [0, 4095, 4097] {
        let error = refused(&|request| request.size_bytes = size);
        assert!(matches!(error, E::Unaligned { size_bytes } if size_bytes == size));
    }
    let error = refused(&|request| request.directory = "/nonexistent/d".into());
    assert!(matches!(error, E::Directory(_)));
    let error = refused(&|request| request.directory = "/proc/self".into());
    assert!(
        matches!(error, E::TooSmall { .. } | E::RamFile(_)),
        "{error}"
    );
    let error = refused(&|request| request.size_bytes = 1 << 50);
    assert!(matches!(error, E::TooSmall { .. }), "{error}");
    let error = refused(&|request| request.samples = 0);
    assert!(error.to_string().contains("sample"));
    let error = refused(&|request| request.patterns.clear());
    assert!(error.to_string().contains("pattern"));
    let both = vec![RamFileChoice::Dense, RamFileChoice::Sparse];
    let error = refused(&|request| request.ram_files = both.clone());
    assert!(matches!(error, E::MixedRamFiles));
}

#[test]
fn unfit_prepared_files_are_refused_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<_> = ["a", "b"]
        .map(|name| prepare(directory.path(), name))
        .into();
    let mut unfit = request(directory.path());
    unfit.ram_files = files.clone();
    let error = check(&unfit).unwrap_err();
    assert!(
        matches!(error, WritebackBenchError::FileCount { runs: 24, files: 2 }),
        "{error}"
    );
    unfit.ram_files.push(RamFileChoice::Dense);
    assert!(matches!(
        check(&unfit),
        Err(WritebackBenchError::MixedRamFiles)
    ));
    unfit.ram_files = vec![files[0].clone()];
    check(&unfit).unwrap();
    unfit.size_bytes = 2 * SIZE;
    let error = check(&unfit).unwrap_err();
    assert!(matches!(
        error,
        WritebackBenchError::RamFile(RamFileError::PreparedLength { .. })
    ));
    unfit.size_bytes = SIZE;
    let RamFileChoice::Prepared(path) = &files[0] else {
        panic!("a prepared file");
    };
    let _held = RamFile::open_prepared(path, SIZE).unwrap();
    let error = check(&unfit).unwrap_err();
    assert!(matches!(
        error,
        WritebackBenchError::RamFile(RamFileError::PreparedInUse { .. })
    ));
}

#[test]
fn a_failing_first_run_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = measure(&request(directory.path()), &mut Counter::default()).unwrap_err();
    assert!(matches!(error, WritebackBenchError::Start { .. }));
}

#[test]
fn single_runs_report_what_they_did() {
    for parent in [std::env::temp_dir(), "/dev/shm".into()] {
        let directory = tempfile::tempdir_in(&parent).unwrap();
        let in_memory = nvx_host::FileSystem::of(Directory::open(directory.path()).unwrap())
            .unwrap()
            .is_memory();
        let prepared = prepare(directory.path(), "prepared");
        for text in ["auto", "ascending", "ascending-marked", "ranges:4"] {
            // On a disk a run waits for the device to be at rest.
            if !in_memory && text.starts_with("ascending") {
                continue;
            }
            for ram_file in [RamFileChoice::Sparse, prepared.clone()] {
                let sample = single_run(&RunRequest {
                    directory: directory.path().to_owned(),
                    size_bytes: SIZE,
                    ram_file,
                    writeback: text.parse().unwrap(),
                    pattern: Pattern::Spread(5),
                })
                .unwrap();
                assert_eq!(sample.dirty_pages, 5);
                let marked = if text == "ascending-marked" { 256 } else { 0 };
                assert_eq!(sample.marked_pages, marked);
                // In memory the pages are the file, and nothing is flushed.
                let calls = match (in_memory, text) {
                    (true, _) => 0,
                    (false, "ranges:4") => 4,
                    (false, _) => 1,
                };
                assert_eq!(sample.calls, calls);
                assert!(sample.duration_ms >= sample.writeback_ms);
                assert_eq!(sample.device.is_some(), sample.device_bytes.is_some());
                assert!(sample.device.is_some() || sample.device_obstacle.is_some());
                let json = serde_json::to_string(&sample).unwrap();
                // Milliseconds lose their last digit on the way.
                let mut read: Sample = serde_json::from_str(&json).unwrap();
                assert!((read.duration_ms - sample.duration_ms).abs() < 1e-6);
                read.duration_ms = sample.duration_ms;
                read.writeback_ms = sample.writeback_ms;
                read.sync_ms = sample.sync_ms;
                read.write_amplification = sample.write_amplification;
                assert_eq!(read, sample);
            }
        }
    }
}

#[test]
fn a_run_is_told_to_its_process_by_arguments() {
    let run = RunRequest {
        directory: "/mnt/x".into(),
        size_bytes: SIZE,
        ram_file: RamFileChoice::Prepared("dense".into()),
        writeback: "ranges:2".parse().unwrap(),
        pattern: Pattern::Top(16),
    };
    let expected = [
        "bench",
        "writeback",
        "--single-run",
        "--dir",
        "/mnt/x",
        "--memory",
        "1048576",
        "--ram-file",
        "./dense",
        "--writeback",
        "ranges:2",
        "--pattern",
        "top:16",
    ];
    assert_eq!(run.arguments(), expected);
}

#[test]
fn zeros_are_found_and_timed() {
    let scan = zero_scan::measure(SIZE).unwrap();
    assert_eq!(scan.bytes, SIZE);
    assert_eq!(scan.detection.len(), scan.plain.len());
    let memory = nvx_memory::GuestMemory::anonymous(layout(SIZE).unwrap()).unwrap();
    memory.write(GuestAddress(8192), &[1]).unwrap();
    assert_eq!(memory.count_zero_pages(), 255);
}

/// A request whose runs a script stands in for: they succeed until the fourth, which does `fourth`.
fn scripted(directory: &Path, fourth: &str) -> WritebackRequest {
    let sample = single_run(&RunRequest {
        directory: directory.to_owned(),
        size_bytes: SIZE,
        ram_file: RamFileChoice::Sparse,
        writeback: WritebackChoice::Auto,
        pattern: Pattern::All,
    })
    .unwrap();
    let json = directory.join("sample.json");
    std::fs::write(&json, serde_json::to_string(&sample).unwrap()).unwrap();
    let program = directory.join("program");
    let script = format!(
        "#!/bin/sh\ncd {}\necho >> runs\n[ $(wc -l < runs) -ge 4 ] && {fourth}\ncat sample.json\n",
        directory.display()
    );
    std::fs::write(&program, script).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    WritebackRequest {
        program,
        warmups: 0,
        ..request(directory)
    }
}

fn sample_counts(report: &Report) -> Vec<usize> {
    let cells = report.cells.iter();
    cells.map(|cell| cell.samples.len()).collect()
}

#[test]
fn what_was_measured_before_a_failure_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let request = scripted(
        directory.path(),
        "echo 'nvx: device is gone' >&2 && exit 125",
    );
    let mut counter = Counter::default();
    let report = measure(&request, &mut counter).unwrap();
    assert_eq!(counter.announced, 4, "the run stops at the failure");
    assert!(!report.complete);
    assert_eq!(sample_counts(&report), [1, 1, 1, 0, 0, 0]);
    assert!(report.cells[0].duration_ms.is_some());
    assert!(report.cells[3].duration_ms.is_none());
    let reason = report.incomplete_reason.unwrap();
    assert!(reason.contains("run 4 of 18: device is gone"), "{reason}");
}

#[test]
fn what_was_measured_before_an_interruption_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    // The fourth run would not end by itself.
    let request = scripted(directory.path(), "exec sleep 600");
    let mut counter = Counter {
        end_before: Some(4),
        ..Counter::default()
    };
    let report = measure(&request, &mut counter).unwrap();
    assert_eq!(sample_counts(&report), [1, 1, 1, 0, 0, 0]);
    assert_eq!(
        report.incomplete_reason.as_deref(),
        Some("run 4 of 18: interrupted")
    );
    assert!(
        report.zero_detection.is_none(),
        "the end does not wait for it"
    );

    let mut at_once = Counter {
        end_before: Some(1),
        ..Counter::default()
    };
    let error = measure(&request, &mut at_once).unwrap_err();
    assert!(matches!(error, WritebackBenchError::Interrupted), "{error}");
}
