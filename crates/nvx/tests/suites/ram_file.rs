//! Which RAM file a guest has, how a capture writes it back, and that both are recorded.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs::File;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::support::{MIB, Probe, begin, entries, manifest, restore, run, start, talk, text};

const SMALL: u64 = 16 * MIB;
/// The monitor's own failure.
const FAILED: i32 = 125;

/// A sparse file of this length.
fn prepare(path: PathBuf, length_bytes: u64) -> PathBuf {
    let file = File::create_new(&path).unwrap();
    file.set_len(length_bytes).unwrap();
    path
}

fn probe() -> Probe {
    Probe::new("fill=spread:50,seed=3", SMALL)
}

fn assert_restores(snapshot: &Path) {
    probe().assert_in_memory_file(snapshot, 0);
    let done = talk(&restore(snapshot, &[]), "v\nx0\n").expect_code(0);
    done.line(&probe().verified(0));
}

#[test]
fn every_ram_file_and_strategy_is_used_and_recorded() {
    let Some(dir) = begin("every_ram_file_and_strategy_is_used_and_recorded") else {
        return;
    };
    for (index, (file, backing, strategy)) in [
        ("auto", "file", "auto"),
        ("sparse", "file", "ranges:8"),
        ("dense", "dense-file", "ascending"),
        ("dense", "dense-file", "ascending-marked"),
    ]
    .into_iter()
    .enumerate()
    {
        let snapshot = dir.path().join(format!("snap-{index}"));
        let options = ["--ram-file", file, "--writeback", strategy, "--snapshot"];
        talk(
            &probe().run(&[&options[..], &[text(&snapshot)]].concat()),
            "s\n",
        )
        .expect_code(0);
        let capture = manifest(&snapshot).capture;
        assert_eq!(capture.ram_backing, backing);
        match strategy {
            // Chosen by the file system, and that is said.
            "auto" => assert!(capture.strategy.starts_with("ascending ("), "{capture:?}"),
            _ => assert_eq!(capture.strategy, format!("{strategy} (asked for)")),
        }
        assert_restores(&snapshot);
    }
}

#[test]
fn a_prepared_file_becomes_the_snapshots_memory() {
    let Some(dir) = begin("a_prepared_file_becomes_the_snapshots_memory") else {
        return;
    };
    let [files, snapshots] = ["files", "snapshots"].map(|name| dir.path().join(name));
    std::fs::create_dir(&files).unwrap();
    std::fs::create_dir(&snapshots).unwrap();
    let file = prepare(files.join("ram"), SMALL);
    let snapshot = snapshots.join("snap");
    let options = ["--ram-file", text(&file)];
    // Without a capture it stays, and is as it was to the next guest only if nothing ran in it.
    talk(&probe().run(&options), "x0\n").expect_code(0);
    let again = talk(&probe().run(&options), "").expect_code(FAILED);
    again.assert_said(&format!("{} is not empty at offset", text(&file)));
    std::fs::remove_file(&file).unwrap();

    prepare(file.clone(), SMALL);
    let both = [&options[..], &["--snapshot", text(&snapshot)]].concat();
    let mut guest = start(&probe().run(&both));
    guest.line("PROBE-READY");
    let mode = file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "what the guest knows is its owner's");
    let second = talk(&probe().run(&options), "").expect_code(FAILED);
    second.assert_said(&format!("{} is in use", text(&file)));
    guest.send("s\n");
    guest.end().expect_code(0).assert_said("(link: ");
    let capture = manifest(&snapshot).capture;
    assert_eq!(capture.ram_backing, "prepared-file");
    assert_eq!(capture.ram_backing_reason, "the RAM file was given");
    assert_eq!(entries(&files), [""; 0], "nobody else may write to it");
    assert_restores(&snapshot);
}

#[test]
fn an_unfit_ram_file_is_refused_before_a_machine_is_built() {
    let Some(dir) = begin("an_unfit_ram_file_is_refused_before_a_machine_is_built") else {
        return;
    };
    let short = prepare(dir.path().join("short"), SMALL - 4096);
    let full = prepare(dir.path().join("full"), SMALL);
    File::options()
        .write(true)
        .open(&full)
        .unwrap()
        .write_all_at(b"x", SMALL - 1)
        .unwrap();
    let linked = prepare(dir.path().join("linked"), SMALL);
    std::fs::hard_link(&linked, dir.path().join("second")).unwrap();
    let before = entries(dir.path());
    let missing = dir.path().join("missing");
    for (file, part) in [
        (text(&short), "but guest RAM needs"),
        (text(&full), "is not empty at offset"),
        (text(&linked), "has 2 names"),
        (text(&missing), "cannot open prepared RAM file"),
        (text(dir.path()), "cannot open prepared RAM file"),
        ("/dev/null", "is not a regular file"),
        ("dense", "neither a snapshot destination nor a scratch"),
        ("", "no RAM file is named"),
    ] {
        let done = run(&probe().run(&["--ram-file", file])).expect_code(FAILED);
        done.assert_said(part);
        assert_eq!(done.output, "");
    }
    let done = run(&probe().run(&["--writeback", "ranges:2"])).expect_code(FAILED);
    done.assert_said("needs a directory");
    let done = run(&probe().run(&["--writeback", "ranges:9"])).expect_code(FAILED);
    done.assert_said("N from 1 to 8");
    assert_eq!(entries(dir.path()), before);
}
