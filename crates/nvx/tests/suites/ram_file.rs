//! Which RAM file a guest has, how a capture writes it back, and that both are recorded.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nvx_probe_guest::word;
use rustix::fs::{FallocateFlags, fallocate};

use crate::support::mounts::Tmpfs;
use crate::support::{MIB, Probe, begin, entries, manifest, restore, run, skip, start, talk, text};

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

/// An ext4 volume whose device can be made to refuse stores to a file's blocks: the device's image lies
/// on a file system in memory that can be filled up.
struct FailingVolume {
    memory: Tmpfs,
    mount: PathBuf,
}

impl FailingVolume {
    /// `Err` says what this machine lacks.
    fn mount() -> Result<Self, String> {
        let memory = Tmpfs::mount("size=160m").ok_or("mounting needs root")?;
        let [sparse, image, mount] = ["sparse", "image", "mount"].map(|name| memory.join(name));
        prepare(sparse.clone(), 64 * MIB);
        tool("mkfs.ext4", &["-q", "-F", "-b", "4096", text(&sparse)])?;
        // Each block has its memory now, so only what is taken away on purpose can fail.
        tool("cp", &["--sparse=never", text(&sparse), text(&image)])?;
        std::fs::remove_file(&sparse).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let volume = Self { memory, mount };
        volume.mount_again()?;
        Ok(volume)
    }

    fn mount_again(&self) -> Result<String, String> {
        let image = self.memory.join("image");
        tool("mount", &["-o", "loop", text(&image), text(&self.mount)])
    }

    fn unmount(&self) {
        tool("umount", &[text(&self.mount)]).unwrap();
    }

    /// Where the blocks of `file` lie in the image: offset in the file, offset in the image, length, in
    /// bytes, of each extent.
    fn blocks(file: &Path) -> Result<Vec<[u64; 3]>, String> {
        let listing = tool("filefrag", &["-b4096", "-v", text(file)])?;
        // `  0:        0..    4095:      34816..     38911:   4096:             last,eof`
        let extents = listing.lines().filter_map(|line| {
            let numbers: Vec<u64> = line
                .split(|character: char| !character.is_ascii_digit())
                .filter_map(|word| word.parse().ok())
                .collect();
            let is_extent = line.contains("..");
            match numbers[..] {
                [_, logical, _, physical, _, length, ..] if is_extent => {
                    Some([logical, physical, length].map(|blocks| blocks * 4096))
                }
                _ => None,
            }
        });
        Ok(extents.collect())
    }

    /// Makes stores to the file's blocks from `offset_bytes` on fail.
    fn refuse_stores(&self, extents: &[[u64; 3]], offset_bytes: u64) {
        let image = File::options()
            .write(true)
            .open(self.memory.join("image"))
            .unwrap();
        for &[logical, physical, length] in extents {
            let skipped = offset_bytes.saturating_sub(logical).min(length);
            if skipped < length {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&image, flags, physical + skipped, length - skipped).unwrap();
            }
        }
        let mut filler = File::create_new(self.memory.join("filler")).unwrap();
        let full = std::io::copy(&mut std::io::repeat(1), &mut filler).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    /// Lets stores succeed again.
    fn accept_stores(&self) {
        std::fs::remove_file(self.memory.join("filler")).unwrap();
    }
}

impl Drop for FailingVolume {
    fn drop(&mut self) {
        // Lazily, so that a process that is about to end cannot hold it.
        let _ = tool("umount", &["-l", text(&self.mount)]);
    }
}

fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    match Command::new(name).args(arguments).output() {
        Ok(done) if done.status.success() => Ok(String::from_utf8(done.stdout).unwrap()),
        Ok(done) => Err(format!("{name}: {}", String::from_utf8_lossy(&done.stderr))),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

#[test]
fn a_device_that_refuses_stores_rolls_the_capture_back_and_nothing_is_lost() {
    let test = "a_device_that_refuses_stores_rolls_the_capture_back_and_nothing_is_lost";
    if begin(test).is_none() {
        return;
    }
    let volume = match FailingVolume::mount() {
        Ok(volume) => volume,
        Err(reason) => return skip(test, &reason),
    };
    let [ram, snapshot] = ["ram", "snap"].map(|name| volume.mount.join(name));
    let mut file = File::create_new(&ram).unwrap();
    file.write_all(&vec![0; SMALL as usize]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let blocks = match FailingVolume::blocks(&ram) {
        Ok(blocks) => blocks,
        Err(reason) => return skip(test, &reason),
    };
    // Of four ranges the third and the fourth fail.
    volume.refuse_stores(&blocks, SMALL / 2);
    let before = entries(&volume.mount);
    let probe = Probe::new("fill=all,seed=5", SMALL);
    let options = ["--ram-file", text(&ram), "--writeback", "ranges:4"];
    let mut guest = start(&probe.run(&[&options[..], &["--snapshot", text(&snapshot)]].concat()));
    guest.line("PROBE-READY");
    guest.ask("s", "PROBE-REFUSED");
    // Linux notes a failure with the file, so the flush that sees it need not be the one that failed.
    guest.message(
        "capture failed: cannot write guest RAM back: cannot write 4194304 bytes at offset ",
    );
    guest.message(&format!("of RAM file {}: ", text(&ram)));
    // Those before it were not given up: their last page is on the device.
    let last = SMALL / 2 - 4096;
    let &[logical, physical, _] = blocks
        .iter()
        .find(|[logical, _, length]| (*logical..logical + length).contains(&last))
        .unwrap();
    let mut stored = [0; 4];
    File::open(volume.memory.join("image"))
        .unwrap()
        .read_exact_at(&mut stored, physical + last - logical)
        .unwrap();
    assert_eq!(u32::from_le_bytes(stored), word(5, last as u32));
    assert_eq!(entries(&volume.mount), before, "nothing is left");
    guest.ask("v", &probe.verified(0));

    // The system takes the refused pages for stored and would not try again by itself.
    volume.accept_stores();
    guest.send("s\n");
    guest.end().expect_code(0).assert_said("(link: ");
    volume.unmount();
    volume.mount_again().unwrap();
    probe.assert_in_memory_file(&snapshot, 0);
    let done = talk(&restore(&snapshot, &[]), "v\nx0\n").expect_code(0);
    done.line(&probe.verified(0));
}
