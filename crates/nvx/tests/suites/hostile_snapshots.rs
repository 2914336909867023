//! Snapshots as input: damaged, swapped, or made by an adversary. A refusal names the file, and no
//! virtual machine is built before it. What the digests of memory find, and what a private copy is for.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nvx_snapshot::{
    Digest, MANIFEST_FILE, MEMORY_FILE, Manifest, STATE_FILE, SavedRamRange, Snapshot,
};

use crate::support::vm::Vm;
use crate::support::{
    BACKEND, Finished, MIB, Probe, Process, arguments, begin, content, copy_snapshot, entries,
    inspect, manifest, nvx, restore, run, start, talk, text,
};

const SMALL: u64 = 16 * MIB;
const FILES: [&str; 3] = [MANIFEST_FILE, STATE_FILE, MEMORY_FILE];
/// How many states are altered at random.
const ALTERED_STATES: usize = 24;
/// The monitor failed.
const FAILED: i32 = 125;
/// Bad input to a command that runs no guest.
const BAD_INPUT: i32 = 2;

fn small() -> Probe {
    Probe::new("fill=top:16,seed=1", SMALL)
}

/// Runs a restore to its end, with its profile on standard error.
fn profiled(command: &[OsString]) -> Finished {
    let mut command = nvx(command);
    command.env("NVX_PROFILE", "1");
    Process::spawn(command).end()
}

/// Asserts that a restore refuses the snapshot for a reason that has `words` in it, and that it built no
/// virtual machine before.
#[track_caller]
fn assert_refused(snapshot: &Path, options: &[&str], words: &[&str]) {
    let done = profiled(&restore(snapshot, options)).expect_code(FAILED);
    for word in words {
        done.assert_said(word);
    }
    assert!(!done.messages.contains("panicked"), "{done:?}");
    assert!(!done.messages.contains("partition_create"), "{done:?}");
    assert_eq!(done.output, "");
}

fn inspected(snapshot: &Path, option: &str) -> Finished {
    run(&arguments(["inspect", option], [snapshot]))
}

fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn every_byte_of_manifest_and_state_and_64_lengths_of_every_file() {
    let Some(dir) = begin("every_byte_of_manifest_and_state_and_64_lengths_of_every_file") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    let refused = |file: &str, what: &str| {
        let error = Snapshot::open(&snapshot).unwrap_err().to_string();
        let path = format!("{}: ", text(&snapshot.join(file)));
        assert!(error.starts_with(&path), "{file}, {what}: {error}");
    };
    for file in [MANIFEST_FILE, STATE_FILE] {
        let path = snapshot.join(file);
        for (offset, byte) in fs::read(&path).unwrap().into_iter().enumerate() {
            write_at(&path, &[!byte], offset as u64);
            refused(file, &format!("byte {offset}"));
            write_at(&path, &[byte], offset as u64);
        }
    }
    for file in FILES {
        let path = snapshot.join(file);
        let whole = fs::read(&path).unwrap();
        for part in 0..64 {
            let length = whole.len() * part / 64;
            fs::write(&path, &whole[..length]).unwrap();
            refused(file, &format!("{length} bytes"));
        }
        // The program itself says the same.
        assert_refused(&snapshot, &[], &[&format!("snap/{file}: ")]);
        fs::write(&path, &whole).unwrap();
    }
    talk(&restore(&snapshot, &[]), "v\nx0\n")
        .expect_code(0)
        .line(&small().verified(0));
}

/// What a restore calls it, and who makes it at a path; a link leads to the second.
type Replacement = (&'static str, fn(&Path, &Path));

#[test]
fn what_stands_in_a_file_s_place_is_named_before_a_machine_is_built() {
    let Some(dir) = begin("what_stands_in_a_file_s_place_is_named_before_a_machine_is_built")
    else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    let secret = dir.path().join("secret");
    fs::write(&secret, "not to be changed").unwrap();
    let make: [Replacement; 5] = [
        ("is a directory", |path, _| fs::create_dir(path).unwrap()),
        ("is a FIFO", |path, _| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        }),
        ("is a socket", |path, _| {
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }),
        ("is a symbolic link", |path, secret| {
            std::os::unix::fs::symlink(secret, path).unwrap();
        }),
        ("", |path, secret| fs::hard_link(secret, path).unwrap()),
    ];
    for file in FILES {
        for (what, make) in make {
            let snapshot = dir.path().join("snap");
            copy_snapshot(&whole, &snapshot);
            fs::remove_file(snapshot.join(file)).unwrap();
            make(&snapshot.join(file), &secret);
            let place = format!("snap/{file}: ");
            assert_refused(&snapshot, &[], &[&place, what]);
            let done = inspected(&snapshot, "--verify").expect_code(BAD_INPUT);
            done.assert_said(&place);
            inspected(&snapshot, "--seal").expect_code(BAD_INPUT);
            fs::remove_dir_all(&snapshot).unwrap();
        }
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "not to be changed");
    assert_eq!(entries(dir.path()), ["secret", "whole"]);
}

#[test]
fn ram_that_is_not_where_the_machine_has_it() {
    let Some(dir) = begin("ram_that_is_not_where_the_machine_has_it") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    let range = |start, size_bytes, file_offset_bytes| SavedRamRange {
        start,
        size_bytes,
        file_offset_bytes,
    };
    for (name, ram) in [
        // Over the interrupt controllers and the slots of devices.
        (
            "gap",
            vec![range(0, MIB, 0), range(0xd000_0000, SMALL, MIB)],
        ),
        ("high", vec![range(1 << 40, SMALL, 0)]),
        (
            "split",
            vec![range(0, MIB, 0), range(MIB, SMALL - MIB, MIB)],
        ),
        ("tiny", vec![range(0, 4096, 0)]),
        ("late", vec![range(0, SMALL, MIB)]),
    ] {
        let changed = dir.path().join(name);
        copy_snapshot(&whole, &changed);
        let mut manifest = manifest(&changed);
        let end = ram.last().unwrap();
        let length = end.file_offset_bytes + end.size_bytes;
        manifest.ram = ram;
        manifest.memory[0].length_bytes = length;
        fs::write(changed.join(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
        let memory = OpenOptions::new()
            .write(true)
            .open(changed.join(MEMORY_FILE));
        memory.unwrap().set_len(length).unwrap();
        assert_refused(&changed, &[], &[&format!("{name}: ram: ")]);
    }
}

#[test]
fn reading_an_untrusted_snapshot_takes_bounded_memory() {
    let Some(dir) = begin("reading_an_untrusted_snapshot_takes_bounded_memory") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    inspected(&whole, "--seal").expect_code(0);
    // All digests right, of a terabyte that is one hole.
    let giant = dir.path().join("giant");
    copy_snapshot(&whole, &giant);
    let length = 1_u64 << 40;
    let mut large = manifest(&giant);
    large.ram = nvx_machine_layout(length);
    large.memory[0].length_bytes = length;
    large.memory[0].digests = None;
    fs::write(giant.join(MANIFEST_FILE), large.encode().unwrap()).unwrap();
    let memory = fs::File::create(giant.join(MEMORY_FILE)).unwrap();
    if memory.set_len(length).is_err() {
        // The file system has no room for such a number.
        return;
    }
    let mut cases: Vec<(PathBuf, &str, i32)> = vec![
        (giant.clone(), "--seal", 0),
        (giant.clone(), "--verify", 0),
        (whole.clone(), "--verify", 0),
    ];
    for file in FILES {
        let large = dir.path().join(format!("large-{file}"));
        copy_snapshot(&whole, &large);
        let opened = OpenOptions::new().write(true).open(large.join(file));
        opened.unwrap().set_len(1 << 30).unwrap();
        cases.push((large, "--verify", BAD_INPUT));
    }
    for (snapshot, option, code) in cases {
        // 1 GiB of addresses, threads' stacks and arenas included.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -v 1048576; exec \"$@\"", "sh"]);
        command.arg(env!("CARGO_BIN_EXE_nvx"));
        command.args(["inspect", option]).arg(&snapshot);
        let done = Process::spawn(command).end();
        assert_eq!(done.status.code(), Some(code), "{snapshot:?} {done:?}");
    }
}

/// The RAM ranges of a machine with so much RAM, above and below the gap under 4 GiB.
fn nvx_machine_layout(total_bytes: u64) -> Vec<SavedRamRange> {
    let low = 3 << 30;
    vec![
        SavedRamRange {
            start: 0,
            size_bytes: low,
            file_offset_bytes: 0,
        },
        SavedRamRange {
            start: 4 << 30,
            size_bytes: total_bytes - low,
            file_offset_bytes: low,
        },
    ]
}

#[test]
fn a_flipped_page_of_ram_is_named_by_its_chunk() {
    let Some(dir) = begin("a_flipped_page_of_ram_is_named_by_its_chunk") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    let before = content(&snapshot);
    // A linked file was never read.
    assert!(manifest(&snapshot).memory[0].digests.is_none());
    let done = inspected(&snapshot, "--verify").expect_code(BAD_INPUT);
    done.assert_said("--seal");
    done.assert_said("snap/memory.bin: the manifest has no digests");
    assert_refused(
        &snapshot,
        &["--verify"],
        &["memory.bin: the manifest has no digests"],
    );

    inspected(&snapshot, "--seal")
        .expect_code(0)
        .line_with("sealed: 16 chunks of 1 MiB");
    let after = content(&snapshot);
    assert_eq!(before[1..], after[1..]);
    let mut sealed = Manifest::decode(&after[0]).unwrap();
    sealed.memory[0].digests = None;
    assert_eq!(sealed, Manifest::decode(&before[0]).unwrap());
    assert_eq!(entries(&snapshot), [MANIFEST_FILE, MEMORY_FILE, STATE_FILE]);
    inspected(&snapshot, "--verify")
        .expect_code(0)
        .line_with("verified: 16 chunks");
    let verified = inspect_json(&snapshot, "--verify");
    assert_eq!(verified["memory_check"]["outcome"], "verified");
    assert_eq!(verified["memory_check"]["chunks"], 16);
    for options in [&["--verify"][..], &["--verify", "--private-copy"]] {
        let restored = talk(&restore(&snapshot, options), "v\nx0\n").expect_code(0);
        restored.line(&small().verified(0));
    }

    let memory = snapshot.join(MEMORY_FILE);
    for (offset, chunk) in [(15 * MIB + 4096, 15), (5 * MIB, 5), (0, 0)] {
        let mut byte = [0];
        let file = fs::File::open(&memory).unwrap();
        file.read_exact_at(&mut byte, offset).unwrap();
        write_at(&memory, &[!byte[0]], offset);
        let words = format!("snap/memory.bin: chunk {chunk} of 16, 1048576 bytes at offset ");
        inspected(&snapshot, "--verify")
            .expect_code(BAD_INPUT)
            .assert_said(&words);
        assert_refused(&snapshot, &["--verify"], &[&words]);
        assert_refused(&snapshot, &["--verify", "--private-copy"], &[&words]);
        // To seal it again blesses nothing.
        inspected(&snapshot, "--seal")
            .expect_code(BAD_INPUT)
            .assert_said(&words);
        write_at(&memory, &byte, offset);
    }
    inspected(&snapshot, "--verify").expect_code(0);
}

fn inspect_json(snapshot: &Path, option: &str) -> serde_json::Value {
    let done = run(&arguments(["inspect", "--json", option], [snapshot])).expect_code(0);
    serde_json::from_str(&done.output).unwrap()
}

#[test]
fn a_copy_makes_its_digests_as_it_writes() {
    let Some(dir) = begin("a_copy_makes_its_digests_as_it_writes") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    let probe = small();
    let first = at("first");
    let mut source = start(&probe.run(&["--snapshot", text(&first), "--continue", "--digests"]));
    source.line("PROBE-READY");
    source.ask("s", "PROBE-CONTINUED");
    // The file system may share blocks instead of copying: then there is no pass to make digests in.
    if inspect(&first)["manifest"]["capture"]["publication"] == "copy" {
        inspected(&first, "--verify").expect_code(0);
    }
    drop(source);
    // A restored machine's memory is always copied.
    let second = at("second");
    let options = ["--snapshot", text(&second), "--digests"];
    talk(&restore(&first, &options), "d\ns\n").expect_code(0);
    let digests = manifest(&second).memory[0].digests.clone().unwrap();
    assert_eq!((digests.chunk_bytes, digests.chunks.len()), (MIB, 16));
    inspected(&second, "--verify").expect_code(0);
    // The same digests as those of who reads the file.
    let third = at("third");
    copy_snapshot(&second, &third);
    let mut without = manifest(&third);
    without.memory[0].digests = None;
    fs::write(third.join(MANIFEST_FILE), without.encode().unwrap()).unwrap();
    inspected(&third, "--seal").expect_code(0);
    assert_eq!(manifest(&third), manifest(&second));
    talk(&restore(&second, &["--verify"]), "v\nx0\n")
        .expect_code(0)
        .line(&probe.verified(1));
}

#[test]
fn a_private_copy_is_out_of_reach_of_who_writes_to_the_snapshot() {
    let Some(dir) = begin("a_private_copy_is_out_of_reach_of_who_writes_to_the_snapshot") else {
        return;
    };
    let (snapshot, next) = (dir.path().join("snap"), dir.path().join("next"));
    let probe = Probe::new("fill=spread:64,seed=3", SMALL);
    probe.capture(&snapshot);
    let options = ["--private-copy", "--snapshot", text(&next)];
    let mut guest = start(&restore(&snapshot, &options));
    guest.line("PROBE-RESTORED");
    let memory = snapshot.join(MEMORY_FILE);
    write_at(&memory, &vec![0xff; SMALL as usize], 0);
    guest.ask("v", &probe.verified(0));
    let file = OpenOptions::new().write(true).open(&memory).unwrap();
    file.set_len(0).unwrap();
    guest.ask("v", &probe.verified(0));
    guest.ask("d", "PROBE-DIRTIED");
    guest.send("s\n");
    guest.end().expect_code(0);
    probe.assert_in_memory_file(&next, 1);
    let capture = inspect(&next)["manifest"]["capture"].clone();
    assert_eq!(capture["ram_backing"], "private-copy");
    assert_eq!(capture["publication"], "copy");
    talk(&restore(&next, &["--backend", BACKEND.name()]), "v\nx0\n")
        .expect_code(0)
        .line(&probe.verified(1));
}

/// Numbers that look random, from a seed that a failure tells (Marsaglia's xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Alters some bytes of one payload of a snapshot's state and sets all digests right, as somebody does who
/// writes a hostile snapshot. Tells what was altered.
fn alter_state(snapshot: &Path, random: &mut Random) -> String {
    // doc/design/snapshot.md, "state.bin".
    const HEADER_BYTES: usize = 24;
    const LENGTH_AT: usize = 64 + 64 + 4;
    const ENTRY_BYTES: usize = LENGTH_AT + 4 + 32;
    let path = snapshot.join(STATE_FILE);
    let mut bytes = fs::read(&path).unwrap();
    let count = u32::from_le_bytes(*bytes[12..].first_chunk().unwrap()) as usize;
    let mut start = HEADER_BYTES + count * ENTRY_BYTES;
    let entry_of = |index: usize| HEADER_BYTES + index * ENTRY_BYTES;
    let length_of = |bytes: &[u8], index: usize| {
        let at = entry_of(index) + LENGTH_AT;
        u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize
    };
    // Some devices have nothing to save.
    let full: Vec<usize> = (0..count).filter(|&at| length_of(&bytes, at) > 0).collect();
    let chosen = full[random.below(full.len())];
    for index in 0..chosen {
        start += length_of(&bytes, index);
    }
    let entry = entry_of(chosen);
    let length = length_of(&bytes, chosen);
    let unit = String::from_utf8_lossy(&bytes[entry..entry + 64]);
    let mut told = format!("{}:", unit.trim_end_matches('\0'));
    for _ in 0..=random.below(6) {
        let offset = random.below(length);
        let value = match random.below(4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[start + offset] ^ 1 << random.below(8),
            _ => random.below(256) as u8,
        };
        bytes[start + offset] = value;
        told.push_str(&format!(" {offset}={value:#x}"));
    }
    let digest = Digest::of(&bytes[start..start + length]);
    bytes[entry + LENGTH_AT + 4..entry + ENTRY_BYTES].copy_from_slice(digest.as_bytes());
    fs::write(&path, &bytes).unwrap();
    let mut manifest = manifest(snapshot);
    manifest.state.digest = Digest::of(&bytes);
    fs::write(snapshot.join(MANIFEST_FILE), manifest.encode().unwrap()).unwrap();
    told
}

#[test]
fn an_altered_state_with_right_digests_is_refused_or_is_some_guest() {
    let Some(dir) = begin("an_altered_state_with_right_digests_is_refused_or_is_some_guest") else {
        return;
    };
    let whole = dir.path().join("whole");
    small().capture(&whole);
    let seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    let mut random = Random(seed);
    let (mut refused, mut ran, mut captured) = (0, 0, 0);
    for turn in 0..ALTERED_STATES {
        let place = dir.path().join("place");
        fs::create_dir(&place).unwrap();
        let (altered, copy) = (place.join("altered"), place.join("copy"));
        copy_snapshot(&whole, &altered);
        let what = alter_state(&altered, &mut random);
        let what = format!("seed {seed:#x}, turn {turn}, {what}");
        let mut vm = Vm::spawn(
            &restore(&altered, &["--snapshot-root", text(&place)]),
            &place,
        );
        let socket = vm.socket.clone();
        // A machine that has ended by now, or one that can be asked.
        let is_asked = vm.guest.wait_for("a socket or an end", |guest| {
            match std::os::unix::net::UnixStream::connect(&socket) {
                Ok(_) => Some(true),
                Err(_) => guest.has_ended().then_some(false),
            }
        });
        if is_asked {
            // Whether it can be is the guest's matter; an answer is the monitor's.
            let told = vm.capture(&copy, &["--continue"]);
            assert!(!told.messages.contains("panicked"), "{what}: {told:?}");
            if told.status.code() == Some(0) {
                Snapshot::open(&copy).unwrap();
                captured += 1;
            }
        }
        let peak_bytes = vm.guest.peak_resident_bytes();
        vm.guest.signal(rustix::process::Signal::TERM);
        let done = vm.guest.end();
        assert!(!done.messages.contains("panicked"), "{what}: {done:?}");
        assert!(!done.messages.contains("system call"), "{what}: {done:?}");
        assert!(
            peak_bytes.unwrap_or(0) < SMALL + 32 * MIB,
            "{what}: {peak_bytes:?}"
        );
        match done.status.code() {
            Some(FAILED) => {
                done.assert_said("nvx: ");
                refused += 1;
            }
            // Ended by itself, or as it was asked to.
            Some(_) => ran += 1,
            None => panic!("{what}: {done:?}"),
        }
        fs::remove_dir_all(&place).unwrap();
    }
    assert!(
        refused > 0 && ran > 0 && captured > 0,
        "{refused} {ran} {captured}, seed {seed:#x}"
    );
}
