//! What a user is told when something is wrong: the exit code, and the words that must be there.
//!
//! Nothing that fails may hang, leave files behind, or harm a guest that can go on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::Path;

use crate::support::mounts::Tmpfs;
use crate::support::{
    BACKEND, MIB, Probe, arguments, begin, copy_snapshot, entries, leftovers, manifest, restore,
    run, skip, start, talk, text,
};
use nvx_snapshot::{Device, MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE};

const SMALL: u64 = 16 * MIB;
/// The monitor failed.
const FAILED: i32 = 125;
/// Bad arguments or input to a command that runs no guest.
const BAD_INPUT: i32 = 2;

/// One row of a matrix: arguments, exit code, words of the message.
type Row<'a> = (Vec<OsString>, i32, &'a [&'a str]);

fn check(rows: &[Row<'_>]) {
    for (arguments, code, words) in rows {
        let done = run(arguments);
        let row = format!("nvx {arguments:?}: {done:?}");
        assert_eq!(done.status.code(), Some(*code), "{row}");
        for word in *words {
            assert!(done.messages.contains(word), "no {word:?}: {row}");
        }
        assert!(!done.output.contains("PROBE-READY"), "started: {row}");
        assert!(!done.messages.contains("panicked"), "{row}");
    }
}

fn words(line: &str) -> Vec<OsString> {
    arguments(line.split_ascii_whitespace(), [])
}

/// A small probe with `option path` added.
fn with(option: &str, path: &Path) -> Vec<OsString> {
    small().run(&[option, text(path)])
}

fn small() -> Probe {
    Probe::new("fill=top:16,seed=1", SMALL)
}

#[test]
fn command_lines_that_make_no_sense() {
    check(&[
        (words(""), BAD_INPUT, &["Usage: nvx <COMMAND>", "demo"]),
        (words("bogus"), BAD_INPUT, &["'bogus'"]),
        (words("--bogus"), BAD_INPUT, &["'--bogus'"]),
        (words("demo --bogus"), BAD_INPUT, &["'--bogus'"]),
        (words("demo --samples 0"), BAD_INPUT, &["--samples", "1..="]),
        (
            words("demo --fill bogus"),
            BAD_INPUT,
            &["bogus", "spread:PAGES"],
        ),
        (words("demo --memory 12Q"), BAD_INPUT, &["'12Q'", "128M"]),
        (words("inspect"), BAD_INPUT, &["<DIR>"]),
        (words("guest"), BAD_INPUT, &["export"]),
        (words("guest bogus"), BAD_INPUT, &["'bogus'"]),
        (words("guest export"), BAD_INPUT, &["<FILE>"]),
        (words("restore"), FAILED, &["<DIR>"]),
        (words("restore x --bogus"), FAILED, &["'--bogus'"]),
        (words("run --bogus"), FAILED, &["'--bogus'"]),
        (words("run extra"), FAILED, &["'extra'"]),
        (words("run --continue"), FAILED, &["--snapshot <DIR>"]),
        (words("run --guest bogus"), FAILED, &["'bogus'", "probe"]),
        (words("run --backend bogus"), FAILED, &["'bogus'", "kvm"]),
        (words("run --memory 12Q"), FAILED, &["'12Q'", "128M"]),
        (words("run --memory 1M"), FAILED, &["--memory", "4 MiB"]),
        (
            words("run --memory 4097K"),
            FAILED,
            &["--memory", "page size"],
        ),
        (words("run --memory 2000G"), FAILED, &["--memory", "1 TiB"]),
        (words("run --vcpus 0"), FAILED, &["0 vCPUs", "1 to 8"]),
        (words("run --vcpus 9"), FAILED, &["9 vCPUs", "1 to 8"]),
        (words("run --vcpus many"), FAILED, &["--vcpus", "'many'"]),
        (
            words("run --probe fill=bogus"),
            FAILED,
            &["bogus", "alternate"],
        ),
        (
            words("run --probe fill=top:0"),
            FAILED,
            &["'0'", "at least 1"],
        ),
        (words("run --probe seed=x"), FAILED, &["seed=x", "decimal"]),
        (words("run --probe speed=1"), FAILED, &["'speed'", "seed"]),
        (
            words("run --memory 16M --probe fill=top:3585"),
            FAILED,
            &["--probe", "fill=top:3585", "at most 3584 pages"],
        ),
    ]);
}

#[test]
fn destinations_that_cannot_be_used() {
    let Some(dir) = begin("destinations_that_cannot_be_used") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::create_dir(at("full")).unwrap();
    std::fs::write(at("full/kept"), "content").unwrap();
    std::fs::write(at("file"), "content").unwrap();
    std::os::unix::fs::symlink(at("empty"), at("link")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    let before = entries(dir.path());
    let snapshot = |name: &str| with("--snapshot", &at(name));
    check(&[
        (snapshot("empty"), FAILED, &["empty: already exists"]),
        (snapshot("full"), FAILED, &["full: already exists"]),
        (snapshot("file"), FAILED, &["file: already exists"]),
        (snapshot("link"), FAILED, &["link: already exists"]),
        (snapshot("dangling"), FAILED, &["dangling: already exists"]),
        (
            snapshot("missing/snap"),
            FAILED,
            &[
                "missing/snap: the parent directory",
                "missing does not exist",
            ],
        ),
        (
            snapshot("file/snap"),
            FAILED,
            &[
                "file/snap: the parent",
                "file is a regular file, not a directory",
            ],
        ),
        (snapshot(".."), FAILED, &["name of a new directory"]),
        (
            with("--snapshot", Path::new("/")),
            FAILED,
            &["name of a new directory"],
        ),
        (with("--snapshot", Path::new("")), FAILED, &["--snapshot"]),
        (
            with("--snapshot", Path::new("/proc/snap")),
            FAILED,
            &["/proc"],
        ),
    ]);
    assert_eq!(entries(dir.path()), before);
    assert_eq!(std::fs::read_to_string(at("full/kept")).unwrap(), "content");
    assert_eq!(entries(&at("empty")), [""; 0]);
}

#[test]
fn the_next_destination_of_a_restore_is_checked_too() {
    let Some(dir) = begin("the_next_destination_of_a_restore_is_checked_too") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    let missing = dir.path().join("missing/next");
    let to = |next: &Path| restore(&snapshot, &["--snapshot", text(next)]);
    check(&[
        (to(&snapshot), FAILED, &["snap: already exists"]),
        (to(&missing), FAILED, &["missing does not exist"]),
    ]);
    assert_eq!(entries(dir.path()), ["snap"]);
}

#[test]
fn scratch_directories_that_cannot_be_used() {
    let Some(dir) = begin("scratch_directories_that_cannot_be_used") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    let scratch = |name: &str| with("--scratch", &at(name));
    check(&[
        (
            scratch("missing"),
            FAILED,
            &[
                "guest RAM cannot be set up: ",
                "missing",
                "missing: does not exist",
            ],
        ),
        (
            scratch("file"),
            FAILED,
            &[
                "no directory for a RAM file",
                "file: is a regular file, not a directory",
            ],
        ),
        (
            with("--scratch", Path::new("/proc")),
            FAILED,
            &["cannot create a RAM file in /proc"],
        ),
    ]);
    assert_eq!(entries(dir.path()), ["file"]);
}

#[test]
fn a_read_only_file_system() {
    let name = "a_read_only_file_system";
    if begin(name).is_none() {
        return;
    }
    let Some(tmpfs) = Tmpfs::mount("ro,size=64k") else {
        return skip(name, "mounting needs root");
    };
    check(&[
        (
            with("--snapshot", &tmpfs.join("snap")),
            FAILED,
            &["snap: cannot write to the parent directory: Read-only file system"],
        ),
        (
            with("--scratch", tmpfs.path()),
            FAILED,
            &["cannot create a RAM file in", "Read-only file system"],
        ),
        (
            arguments(["guest", "export"], [tmpfs.join("probe.elf").as_path()]),
            BAD_INPUT,
            &["cannot create", "probe.elf", "Read-only file system"],
        ),
        (
            arguments(["demo", "--dir"], [tmpfs.path()]),
            FAILED,
            &["Read-only file system"],
        ),
    ]);
}

#[test]
fn the_disk_is_full_at_capture() {
    let name = "the_disk_is_full_at_capture";
    let Some(scratch) = begin(name) else {
        return;
    };
    let Some(tmpfs) = Tmpfs::mount("size=256k") else {
        return skip(name, "mounting needs root");
    };
    let snapshot = tmpfs.join("snap");
    // 1 MiB of filled pages into 256 KiB.
    let probe = Probe::new("fill=top:256,seed=1", SMALL);
    let place = [
        "--scratch",
        text(scratch.path()),
        "--snapshot",
        text(&snapshot),
    ];
    let mut guest = start(&probe.run(&place));
    guest.line("PROBE-READY");
    guest.ask("s", "PROBE-REFUSED");
    guest.message("capture failed: no space for guest RAM in ");
    guest.message(&format!(
        "{}/memory.bin: No space left on device",
        text(&snapshot)
    ));
    assert_eq!(entries(tmpfs.path()), [""; 0]);
    guest.ask("v", &probe.verified(0));
    guest.ask("d", "PROBE-DIRTIED");
    // With room the same guest is captured after all.
    tmpfs.remount("size=8m");
    guest.send("s\n");
    guest.end().expect_code(0);
    assert_eq!(entries(tmpfs.path()), ["snap"]);
    probe.assert_in_memory_file(&snapshot, 1);
}

#[test]
fn a_capture_that_fails_at_any_of_its_files_can_be_tried_again() {
    let name = "a_capture_that_fails_at_any_of_its_files_can_be_tried_again";
    if begin(name).is_none() {
        return;
    }
    // A tmpfs counts inodes: the root and the RAM file are two; the next may be the staging
    // directory, state.bin and, after RAM was linked, manifest.json.
    for (inodes, at) in [
        (2, "the staging directory"),
        (3, STATE_FILE),
        (4, MANIFEST_FILE),
    ] {
        let Some(tmpfs) = Tmpfs::mount(&format!("size=8m,nr_inodes={inodes}")) else {
            return skip(name, "mounting needs root");
        };
        let snapshot = tmpfs.join("snap");
        let probe = small();
        let mut guest = start(&probe.run(&["--snapshot", text(&snapshot)]));
        guest.line("PROBE-READY");
        guest.ask("s", "PROBE-REFUSED");
        guest.message(&format!("snap: cannot create {at}: "));
        guest.message("No space left on device");
        assert_eq!(entries(tmpfs.path()), [""; 0], "{at}");
        tmpfs.remount("nr_inodes=100");
        guest.ask("v", &probe.verified(0));
        guest.ask("d", "PROBE-DIRTIED");
        guest.send("s\n");
        guest.end().expect_code(0);
        probe.assert_in_memory_file(&snapshot, 1);
        assert_eq!(entries(tmpfs.path()), ["snap"], "{at}");
        let restored = talk(&restore(&snapshot, &[]), "v\nx0\n").expect_code(0);
        restored.line(&probe.verified(1));
    }
}

#[test]
fn the_file_system_of_ram_is_full() {
    let name = "the_file_system_of_ram_is_full";
    if begin(name).is_none() {
        return;
    }
    for option in ["--scratch", "--snapshot"] {
        let Some(tmpfs) = Tmpfs::mount("size=256k") else {
            return skip(name, "mounting needs root");
        };
        let path = match option {
            "--scratch" => tmpfs.path().to_owned(),
            _ => tmpfs.join("snap"),
        };
        let probe = Probe::new("fill=top:256,seed=1", SMALL);
        let done = run(&probe.run(&[option, text(&path)])).expect_code(FAILED);
        done.assert_said(&format!("RAM file {}/", text(tmpfs.path())));
        done.assert_said("its file system is full");
        assert_eq!(entries(tmpfs.path()), [""; 0], "{option}");
    }
}

/// Truncates a file of a snapshot that may be in use.
fn truncate(snapshot: &Path, file: &str, length_bytes: u64) {
    let file = OpenOptions::new()
        .write(true)
        .open(snapshot.join(file))
        .unwrap();
    file.set_len(length_bytes).unwrap();
}

#[test]
fn memory_truncated_under_a_running_restore() {
    let Some(dir) = begin("memory_truncated_under_a_running_restore") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    // In the middle the filled pages are gone, at 1 MiB the guest's own code as well.
    for length_bytes in [SMALL / 2, MIB, 0] {
        for command in ["v", "d"] {
            let snapshot = dir.path().join("snap");
            copy_snapshot(&whole, &snapshot);
            let mut guest = start(&restore(&snapshot, &[]));
            guest.line("PROBE-RESTORED");
            truncate(&snapshot, MEMORY_FILE, length_bytes);
            guest.send(&format!("{command}\n"));
            let done = guest.end().expect_code(FAILED);
            done.assert_said(&format!("{}/memory.bin", text(&snapshot)));
            done.assert_said("file truncated");
            std::fs::remove_dir_all(&snapshot).unwrap();
        }
    }
}

#[test]
fn memory_truncated_under_a_restore_is_never_captured() {
    let Some(dir) = begin("memory_truncated_under_a_restore_is_never_captured") else {
        return;
    };
    let (snapshot, next) = (dir.path().join("snap"), dir.path().join("next"));
    // Pages at 2 MiB on, so that the pages that are lost are those that the guest filled.
    let probe = Probe::new("fill=all,seed=1", SMALL);
    probe.capture(&snapshot);
    let mut guest = start(&restore(&snapshot, &["--snapshot", text(&next)]));
    guest.line("PROBE-RESTORED");
    truncate(&snapshot, MEMORY_FILE, SMALL / 2);
    guest.ask("s", "PROBE-REFUSED");
    guest.message("snap/memory.bin: 8388608 bytes, guest RAM needs 16777216");
    assert_eq!(entries(dir.path()), ["snap"]);
    guest.send("v\n");
    guest.end().expect_code(FAILED).assert_said("memory.bin");
}

#[test]
fn what_is_no_snapshot() {
    let Some(dir) = begin("what_is_no_snapshot") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::create_dir(at("other")).unwrap();
    std::fs::write(at("other/notes.txt"), "content").unwrap();
    std::fs::write(at("file"), "content").unwrap();
    small().capture(&at("snap"));
    std::os::unix::fs::symlink(at("snap"), at("link")).unwrap();
    for missing in [MANIFEST_FILE, STATE_FILE, MEMORY_FILE] {
        copy_snapshot(&at("snap"), &at(&format!("without-{missing}")));
        std::fs::remove_file(at(&format!("without-{missing}/{missing}"))).unwrap();
        let swapped = at(&format!("linked-{missing}"));
        copy_snapshot(&at("snap"), &swapped);
        std::fs::remove_file(swapped.join(missing)).unwrap();
        std::os::unix::fs::symlink(at("snap").join(missing), swapped.join(missing)).unwrap();
    }
    for (name, expected) in [
        ("missing", "missing: does not exist".to_owned()),
        (
            "empty",
            "empty: no snapshot, the directory is empty".to_owned(),
        ),
        ("other", "other/manifest.json: does not exist".to_owned()),
        (
            "file",
            "file: is a regular file, not a directory".to_owned(),
        ),
        (
            "link",
            "link: is a symbolic link, not a directory".to_owned(),
        ),
    ]
    .into_iter()
    .chain(
        [MANIFEST_FILE, STATE_FILE, MEMORY_FILE]
            .into_iter()
            .flat_map(|file| {
                let (without, linked) = match file {
                    MANIFEST_FILE => ("without-manifest.json", "linked-manifest.json"),
                    STATE_FILE => ("without-state.bin", "linked-state.bin"),
                    _ => ("without-memory.bin", "linked-memory.bin"),
                };
                [
                    (without, format!("{without}/{file}: does not exist")),
                    (linked, format!("{linked}/{file}: is a symbolic link")),
                ]
            }),
    ) {
        let path = at(name);
        check(&[
            (
                restore(&path, &[]),
                FAILED,
                &["cannot be opened", &expected],
            ),
            (
                arguments(["inspect"], [path.as_path()]),
                BAD_INPUT,
                &[&expected],
            ),
        ]);
    }
}

/// A change of a manifest, and what a restore then says.
type Change = (&'static str, fn(&mut Manifest), &'static [&'static str]);

#[test]
fn snapshots_of_another_kind_of_machine() {
    let Some(dir) = begin("snapshots_of_another_kind_of_machine") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    let changes: [Change; 6] = [
        (
            "contract",
            |manifest| manifest.machine_contract += 1,
            &["made by machine contract 2, this build has contract 1"],
        ),
        (
            "vendor",
            |manifest| manifest.cpu.vendor = "CentaurHauls".to_owned(),
            &["captured on a CPU of vendor 'CentaurHauls'"],
        ),
        (
            "features",
            |manifest| {
                for word in &mut manifest.cpu.features {
                    word.bits = u32::MAX;
                }
            },
            &["CPU features that this host lacks: "],
        ),
        (
            "backend",
            |manifest| manifest.backend = "whp".to_owned(),
            &["captured on back end 'whp', this is '"],
        ),
        (
            "devices",
            |manifest| {
                manifest.devices.push(Device {
                    name: "jukebox".to_owned(),
                    kind: "jukebox".to_owned(),
                    version: 1,
                });
            },
            &["its devices are [", "jukebox], this build has ["],
        ),
        (
            "vcpus",
            |manifest| manifest.vcpus += 1,
            &["state.bin", "vcpu.1"],
        ),
    ];
    for (name, change, expected) in changes {
        let changed = dir.path().join(name);
        copy_snapshot(&whole, &changed);
        let mut manifest = manifest(&changed);
        change(&mut manifest);
        std::fs::write(changed.join(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
        let on = ["--backend", BACKEND.name()];
        let done = run(&restore(&changed, &on)).expect_code(FAILED);
        done.assert_said(&format!("{}: ", text(&changed)));
        for part in expected {
            done.assert_said(part);
        }
        assert_eq!(done.output, "", "{name}");
    }
}

#[test]
fn a_newer_schema_is_called_newer_and_not_broken() {
    let Some(dir) = begin("a_newer_schema_is_called_newer_and_not_broken") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    let path = snapshot.join(MANIFEST_FILE);
    let newer = std::fs::read_to_string(&path)
        .unwrap()
        .replace("\"schema_version\": 1", "\"schema_version\": 7");
    std::fs::write(&path, newer).unwrap();
    let words = [
        "manifest.json: schema_version 7, this build reads 1",
        "nvx 0.",
    ];
    check(&[
        (restore(&snapshot, &[]), FAILED, &words),
        (
            arguments(["inspect"], [snapshot.as_path()]),
            BAD_INPUT,
            &words,
        ),
    ]);
}

#[test]
fn damaged_files_are_named() {
    let Some(dir) = begin("damaged_files_are_named") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    let damage = |file: &str, what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let damaged = dir.path().join("damaged");
        copy_snapshot(&whole, &damaged);
        let mut bytes = std::fs::read(damaged.join(file)).unwrap();
        change(&mut bytes);
        std::fs::write(damaged.join(file), bytes).unwrap();
        let done = run(&restore(&damaged, &[]));
        let told = format!("{file}, {what}: {done:?}");
        assert_eq!(done.status.code(), Some(FAILED), "{told}");
        let path = format!("{}/{file}: ", text(&damaged));
        assert!(done.messages.contains(&path), "{told}");
        assert_eq!(done.output, "", "{told}");
        std::fs::remove_dir_all(&damaged).unwrap();
    };
    for file in [MANIFEST_FILE, STATE_FILE] {
        let length = std::fs::metadata(whole.join(file)).unwrap().len() as usize;
        for part in 0..=8 {
            let at = (length - 1) * part / 8;
            damage(file, &format!("cut at {at}"), &|bytes| bytes.truncate(at));
            damage(file, &format!("bit at {at}"), &|bytes| bytes[at] ^= 1);
        }
        damage(file, "longer", &|bytes| bytes.push(b'\n'));
    }
    // Of memory a plain restore knows the length only.
    for length_bytes in [0, MIB as usize, SMALL as usize - 1, SMALL as usize + 1] {
        damage(MEMORY_FILE, "length", &|bytes| {
            bytes.resize(length_bytes, 0)
        });
    }
}

#[test]
fn an_export_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
    let export = |name: &str| arguments(["guest", "export"], [at(name).as_path()]);
    check(&[
        (
            export("file"),
            BAD_INPUT,
            &["cannot create", "/file: File exists"],
        ),
        (
            export("link"),
            BAD_INPUT,
            &["cannot create", "/link: File exists"],
        ),
        (
            export("missing/file"),
            BAD_INPUT,
            &["cannot create", "No such file"],
        ),
    ]);
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "content");
    assert_eq!(entries(dir.path()), ["file", "link"]);
}

#[test]
fn a_failed_demo_says_why_and_leaves_nothing() {
    let Some(dir) = begin("a_failed_demo_says_why_and_leaves_nothing") else {
        return;
    };
    let missing = dir.path().join("missing");
    let demo = |words: &[&str]| {
        let on = ["demo", "--backend", BACKEND.name()];
        let words = on.iter().chain(words).copied();
        arguments(words.chain(["--dir"]), [dir.path()])
    };
    check(&[
        (demo(&["--vcpus", "9"]), FAILED, &["9 vCPUs", "1 to 8"]),
        (demo(&["--memory", "1M"]), FAILED, &["4 MiB"]),
        (
            demo(&["--fill", "top:999999"]),
            FAILED,
            &["at most 32256 pages"],
        ),
        (
            demo(&["--scratch", text(&missing)]),
            FAILED,
            &["missing", "missing: does not exist"],
        ),
    ]);
    assert_eq!(leftovers(dir.path()), [""; 0]);
    assert_eq!(entries(dir.path()), [""; 0]);
}
