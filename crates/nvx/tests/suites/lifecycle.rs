//! Life of a guest as a user sees it: start, capture, restore, capture again, and what is then on
//! disk.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{
    BACKEND, Backend, MIB, Probe, Process, allocated_bytes, arguments, begin, content, entries,
    inspect, manifest, nvx, on_another_file_system, process, restore, run, skip, start, talk, text,
    value,
};
use nvx_hypervisor::soft;
use rustix::process::Signal;
use serde_json::Value;

const SMALL: u64 = 16 * MIB;

#[test]
fn demo_prints_a_table_and_leaves_its_snapshot() {
    let Some(dir) = begin("demo_prints_a_table_and_leaves_its_snapshot") else {
        return;
    };
    let words = ["demo", "--backend", BACKEND.name(), "--dir"];
    let done = run(&arguments(words, [dir.path()])).expect_code(0);
    for row in [
        "cold start",
        "snapshot generation",
        "restore",
        "capture.publication_commit",
    ] {
        done.line_with(row);
    }
    let snapshot = done.line("The snapshot is ").rsplit(' ').next().unwrap();
    let left = entries(dir.path());
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(Path::new(snapshot), dir.path().join(&left[0]));
    let restored = talk(&restore(Path::new(snapshot), &[]), "v\nx0\n").expect_code(0);
    restored.line("PROBE-VERIFY ok ");
}

#[test]
fn demo_prints_json_and_keeps_the_last_snapshot_only() {
    let Some(dir) = begin("demo_prints_json_and_keeps_the_last_snapshot_only") else {
        return;
    };
    let words = [
        "demo",
        "--backend",
        BACKEND.name(),
        "--json",
        "--samples",
        "3",
        "--memory",
        "32M",
        "--fill",
        "spread:64",
        "--dir",
    ];
    let done = run(&arguments(words, [dir.path()])).expect_code(0);
    assert_eq!(done.messages, "");
    let document: Value = serde_json::from_str(&done.output).unwrap();
    assert_eq!(document["schema"], "nvx.demo");
    assert_eq!(document["samples"], 3);
    assert_eq!(document["backend"], BACKEND.name());
    assert_eq!(document["memory_bytes"], 32 * MIB);
    for metric in [
        "cold_start_ms",
        "snapshot_generation_ms",
        "snapshot_restore_ms",
    ] {
        let samples = document[metric]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 3, "{metric}");
        assert!(
            samples.iter().all(|ms| ms.as_f64().unwrap() > 0.0),
            "{metric}: {samples:?}"
        );
    }
    let snapshot = PathBuf::from(document["snapshot"].as_str().unwrap());
    let left = entries(dir.path());
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(snapshot, dir.path().join(&left[0]));
    let again = talk(&restore(&snapshot, &[]), "x0\n").expect_code(0);
    let nonce = value(again.line("PROBE-RESTORED"), "nonce").to_owned();
    assert_eq!(document["nonce"], nonce);
}

#[test]
fn the_back_end_says_what_it_is() {
    let Some(dir) = begin("the_back_end_says_what_it_is") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let captured = Probe::new("fill=top:1,seed=1", SMALL).capture(&snapshot);
    assert_eq!(manifest(&snapshot).backend, BACKEND.name());
    let restored = talk(&restore(&snapshot, &[]), "x0\n").expect_code(0);
    for done in [captured, restored] {
        match BACKEND {
            Backend::Kvm => assert!(!done.messages.contains("back end"), "{done:?}"),
            Backend::Soft => done.assert_said(soft::PURPOSE),
        }
    }
}

#[test]
fn restore_goes_on_and_is_not_a_new_start() {
    let Some(dir) = begin("restore_goes_on_and_is_not_a_new_start") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=top:64,seed=7", SMALL);
    let mut source = start(&probe.run(&["--snapshot", text(&snapshot)]));
    let ready = source.line("PROBE-READY");
    assert_eq!(value(&ready, "count"), "0");
    source.ask("d", "PROBE-DIRTIED seed=8 count=1");
    source.ask("v", &probe.verified(1));
    source.send("s\n");
    source
        .end()
        .expect_code(0)
        .assert_said(&format!("captured to {} in ", text(&snapshot)));

    for _ in 0..2 {
        let mut restored = start(&restore(&snapshot, &[]));
        let line = restored.line("PROBE-");
        assert!(line.starts_with("PROBE-RESTORED"), "{line}");
        assert_eq!(value(&line, "nonce"), value(&ready, "nonce"));
        assert_eq!(value(&line, "count"), "3");
        let verified = restored.ask("v", "PROBE-VERIFY");
        assert_eq!(verified, format!("{}count=4", probe.verified(1)));
        restored.send("x9\n");
        restored.end().expect_code(9);
    }
    let mut anew = start(&probe.run(&[]));
    let other = anew.line("PROBE-READY");
    assert_ne!(value(&other, "nonce"), value(&ready, "nonce"));
}

#[test]
fn restores_of_one_snapshot_at_once_see_only_their_own_writes() {
    let Some(dir) = begin("restores_of_one_snapshot_at_once_see_only_their_own_writes") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=spread:300,seed=50", SMALL);
    probe.capture(&snapshot);
    let before = content(&snapshot);

    let mut running: Vec<Process> = (0..8).map(|_| start(&restore(&snapshot, &[]))).collect();
    for restored in &mut running {
        restored.line("PROBE-RESTORED");
    }
    // All of them dirty the same pages, the last one most often, and only then all look.
    for (times, restored) in running.iter_mut().enumerate() {
        restored.send(&"d\n".repeat(times));
    }
    for (times, restored) in running.iter_mut().enumerate() {
        restored.ask("v", &probe.verified(times as u32));
    }
    for mut restored in running {
        restored.send("x0\n");
        restored.end().expect_code(0);
    }
    assert!(
        content(&snapshot) == before,
        "a restore changed the snapshot"
    );
    assert_eq!(entries(dir.path()), ["snap"]);
}

#[test]
fn five_generations_hold_the_same_memory() {
    let Some(dir) = begin("five_generations_hold_the_same_memory") else {
        return;
    };
    let generation = |index: u32| dir.path().join(format!("generation-{index}"));
    let probe = Probe::new("fill=alternate,seed=3", SMALL);
    probe.capture(&generation(0));
    probe.assert_in_memory_file(&generation(0), 0);
    let mut nonces = Vec::new();
    for index in 1..=5 {
        let next = generation(index);
        let source = restore(&generation(index - 1), &["--snapshot", text(&next)]);
        let done = talk(&source, "v\ns\n").expect_code(0);
        done.line(&probe.verified(0));
        done.assert_said("(copy: guest RAM is a private view of another snapshot)");
        nonces.push(value(done.line("PROBE-RESTORED"), "nonce").to_owned());
        probe.assert_in_memory_file(&next, 0);
        // Only what the guest filled, and a few pages more, takes space.
        assert!(allocated_bytes(&next) < 9 * MIB, "{index}");
    }
    nonces.dedup();
    assert_eq!(nonces.len(), 1, "{nonces:?}");
    let last = talk(&restore(&generation(5), &[]), "v\nx0\n").expect_code(0);
    // Counted: the request of generation 0, then two lines per generation.
    assert_eq!(value(last.line("PROBE-RESTORED"), "count"), "11");
}

#[test]
fn each_generation_holds_what_was_written_in_its_life() {
    let Some(dir) = begin("each_generation_holds_what_was_written_in_its_life") else {
        return;
    };
    let generation = |index: u32| dir.path().join(format!("generation-{index}"));
    let probe = Probe::new("fill=top:500,seed=11", SMALL);
    probe.capture(&generation(0));
    for index in 1..=3 {
        let next = generation(index);
        let source = restore(&generation(index - 1), &["--snapshot", text(&next)]);
        talk(&source, "d\ns\n").expect_code(0);
    }
    for index in 0..=3 {
        probe.assert_in_memory_file(&generation(index), index);
        let done = talk(&restore(&generation(index), &[]), "v\nx0\n").expect_code(0);
        done.line(&probe.verified(index));
    }
}

#[test]
fn without_a_destination_a_request_is_refused_and_the_guest_goes_on() {
    let Some(dir) = begin("without_a_destination_a_request_is_refused_and_the_guest_goes_on")
    else {
        return;
    };
    let probe = Probe::new("fill=top:16,seed=1", SMALL);
    for place in [&[][..], &["--scratch", text(dir.path())]] {
        let mut guest = start(&probe.run(place));
        guest.line("PROBE-READY");
        guest.ask("s", "PROBE-REFUSED");
        guest.ask("v", &probe.verified(0));
        guest.send("x0\n");
        guest.end().expect_code(0);
    }
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_destination_taken_meanwhile_is_refused_and_the_guest_goes_on() {
    let Some(dir) = begin("a_destination_taken_meanwhile_is_refused_and_the_guest_goes_on") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=top:16,seed=1", SMALL);
    let mut guest = start(&probe.run(&["--snapshot", text(&snapshot)]));
    guest.line("PROBE-READY");
    std::fs::create_dir(&snapshot).unwrap();
    guest.ask("s", "PROBE-REFUSED");
    guest.message("capture failed: ");
    guest.message(&format!("{}: already exists", text(&snapshot)));
    guest.ask("v", &probe.verified(0));
    assert_eq!(entries(&snapshot), [""; 0]);
    assert_eq!(entries(dir.path()), ["snap"]);

    // The next request finds it free again.
    std::fs::remove_dir(&snapshot).unwrap();
    guest.send("s\n");
    guest.end().expect_code(0);
    probe.assert_in_memory_file(&snapshot, 0);
}

#[test]
fn a_source_that_continues_never_writes_to_the_snapshot() {
    let Some(dir) = begin("a_source_that_continues_never_writes_to_the_snapshot") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let probe = Probe::new("fill=top:200,seed=5", SMALL);
    let mut source = start(&probe.run(&["--snapshot", text(&snapshot), "--continue"]));
    let ready = source.line("PROBE-READY");
    let continued = source.ask("s", "PROBE-");
    assert!(continued.starts_with("PROBE-CONTINUED"), "{continued}");
    assert_eq!(value(&continued, "nonce"), value(&ready, "nonce"));
    source.message("the guest goes on");
    let before = content(&snapshot);
    source.ask("d", "PROBE-DIRTIED seed=6");
    source.ask("d", "PROBE-DIRTIED seed=7");
    source.ask("v", &probe.verified(2));
    // The name is taken now, by its own snapshot.
    source.ask("s", "PROBE-REFUSED");
    assert!(
        content(&snapshot) == before,
        "the source changed the snapshot"
    );
    source.send("x4\n");
    source.end().expect_code(4);

    assert!(content(&snapshot) == before, "the end changed the snapshot");
    let restored = talk(&restore(&snapshot, &[]), "v\nx0\n").expect_code(0);
    restored.line(&probe.verified(0));
    assert_ne!(
        inspect(&snapshot)["manifest"]["capture"]["publication"],
        "link"
    );
}

#[test]
fn a_restored_guest_can_be_captured_and_continue() {
    let Some(dir) = begin("a_restored_guest_can_be_captured_and_continue") else {
        return;
    };
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let probe = Probe::new("fill=top:200,seed=5", SMALL);
    probe.capture(&first);
    let mut source = start(&restore(
        &first,
        &["--snapshot", text(&second), "--continue"],
    ));
    source.line("PROBE-RESTORED");
    source.ask("d", "PROBE-DIRTIED seed=6");
    source.ask("s", "PROBE-CONTINUED");
    source.ask("d", "PROBE-DIRTIED seed=7");
    source.ask("v", &probe.verified(2));
    source.send("x0\n");
    source.end().expect_code(0);
    probe.assert_in_memory_file(&first, 0);
    probe.assert_in_memory_file(&second, 1);
    let restored = talk(&restore(&second, &[]), "v\nx0\n").expect_code(0);
    restored.line(&probe.verified(1));
}

#[test]
fn one_to_eight_vcpus() {
    let Some(dir) = begin("one_to_eight_vcpus") else {
        return;
    };
    let probe = Probe::new("fill=top:32,seed=2", SMALL);
    for vcpus in ["1", "2", "4", "8"] {
        let snapshot = dir.path().join(format!("vcpus-{vcpus}"));
        let source = probe.run(&["--vcpus", vcpus, "--snapshot", text(&snapshot)]);
        talk(&source, "s\n").expect_code(0);
        assert_eq!(manifest(&snapshot).vcpus.to_string(), vcpus);
        let again = dir.path().join(format!("vcpus-{vcpus}-again"));
        let recapture = restore(&snapshot, &["--snapshot", text(&again)]);
        talk(&recapture, "v\ns\n").expect_code(0);
        let restored = talk(&restore(&again, &[]), "v\nx0\n").expect_code(0);
        restored.line(&probe.verified(0));
        assert_eq!(inspect(&again)["manifest"]["vcpus"].to_string(), vcpus);
    }
}

#[test]
fn sizes_of_ram_up_to_beyond_the_gap_stay_sparse() {
    let Some(dir) = begin("sizes_of_ram_up_to_beyond_the_gap_stay_sparse") else {
        return;
    };
    // The least, usual ones, the last without and the first with RAM above the gap, and far above.
    let sizes = [4, 64, 1024, 3072, 3073, 4096, 6144].map(|mib| mib * MIB);
    for memory_bytes in sizes {
        let snapshot = dir.path().join(format!("ram-{memory_bytes}"));
        let probe = Probe::new("fill=top:256,seed=9", memory_bytes);
        probe.capture(&snapshot);
        let ram = manifest(&snapshot).ram;
        let expected_ranges = if memory_bytes > 3072 * MIB { 2 } else { 1 };
        assert_eq!(ram.len(), expected_ranges, "{memory_bytes}");
        probe.assert_in_memory_file(&snapshot, 0);
        assert!(allocated_bytes(&snapshot) < 8 * MIB, "{memory_bytes}");

        let again = dir.path().join("again");
        let recapture = restore(&snapshot, &["--snapshot", text(&again)]);
        talk(&recapture, "d\ns\n")
            .expect_code(0)
            .line("PROBE-DIRTIED");
        probe.assert_in_memory_file(&again, 1);
        assert!(allocated_bytes(&again) < 8 * MIB, "{memory_bytes}");
        std::fs::remove_dir_all(&again).unwrap();
        std::fs::remove_dir_all(&snapshot).unwrap();
    }
}

#[test]
fn every_fill_is_captured_and_restored() {
    let Some(dir) = begin("every_fill_is_captured_and_restored") else {
        return;
    };
    for (index, fill) in ["all", "alternate", "spread:100", "spread:1", "top:7"]
        .iter()
        .enumerate()
    {
        let snapshot = dir.path().join(format!("fill-{index}"));
        let probe = Probe::new(&format!("fill={fill},seed={index}"), SMALL);
        probe.capture(&snapshot);
        probe.assert_in_memory_file(&snapshot, 0);
        let restored = talk(&restore(&snapshot, &[]), "v\nd\nv\nx0\n").expect_code(0);
        restored.line(&probe.verified(0));
        restored.line(&probe.verified(1));
    }
}

#[test]
fn ram_on_another_file_system_is_copied_and_that_is_said() {
    let name = "ram_on_another_file_system_is_copied_and_that_is_said";
    let Some(dir) = begin(name) else {
        return;
    };
    let Some(scratch) = on_another_file_system(dir.path()) else {
        return skip(name, "/dev/shm is no file system of its own");
    };
    let probe = Probe::new("fill=spread:99,seed=4", SMALL);
    for (index, (ram, parent)) in [(scratch.path(), dir.path()), (dir.path(), scratch.path())]
        .into_iter()
        .enumerate()
    {
        let snapshot = parent.join(format!("snap-{index}"));
        let source = probe.run(&["--scratch", text(ram), "--snapshot", text(&snapshot)]);
        let done = talk(&source, "d\ns\n").expect_code(0);
        done.assert_said("(copy: the RAM file is on another file system)");
        let capture = inspect(&snapshot)["manifest"]["capture"].clone();
        assert_eq!(capture["publication"], "copy");
        assert_eq!(capture["ram_backing"], "file");
        assert_eq!(
            capture["publication_reason"],
            "the RAM file is on another file system"
        );
        probe.assert_in_memory_file(&snapshot, 1);
        // 99 pages and those of the guest itself: what was never written is a hole.
        assert!(allocated_bytes(&snapshot) < 2 * MIB);
        let restored = talk(&restore(&snapshot, &[]), "v\nx0\n").expect_code(0);
        restored.line(&probe.verified(1));
        std::fs::remove_dir_all(&snapshot).unwrap();
        assert_eq!(entries(ram), [""; 0]);
        assert_eq!(entries(parent), [""; 0]);
    }
}

#[test]
fn ram_beside_the_snapshot_is_linked_and_that_is_said() {
    let Some(dir) = begin("ram_beside_the_snapshot_is_linked_and_that_is_said") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let done = Probe::new("fill=top:9,seed=4", SMALL).capture(&snapshot);
    done.assert_said("(link: the RAM file is on the destination's file system)");
    let table = run(&arguments(["inspect"], [snapshot.as_path()])).expect_code(0);
    table.line_with("link: the RAM file is on the destination's file system");
    assert_eq!(
        inspect(&snapshot)["manifest"]["capture"]["publication"],
        "link"
    );
    // What the guest knew is its owner's only.
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&snapshot), 0o700);
    for file in entries(&snapshot) {
        assert_eq!(mode(&snapshot.join(&file)), 0o600, "{file}");
    }
}

#[test]
fn the_guests_status_is_the_exit_code() {
    let Some(_dir) = begin("the_guests_status_is_the_exit_code") else {
        return;
    };
    let probe = Probe::new("fill=top:1,seed=1", SMALL);
    for (input, code) in [("x0\n", 0), ("x\n", 0), ("x7\n", 7), ("x255\n", 255)] {
        let done = talk(&probe.run(&[]), input).expect_code(code);
        assert_eq!(done.events(), "");
    }
    // A status that does not exist ends nothing.
    let done = talk(&probe.run(&[]), "x256\nx1\n").expect_code(1);
    done.line("PROBE-WHAT");
}

#[test]
fn a_guest_without_input_runs_on() {
    let Some(_dir) = begin("a_guest_without_input_runs_on") else {
        return;
    };
    let probe = Probe::new("fill=top:1,seed=1", SMALL);
    let shell = |redirection: &str| {
        let mut command = Command::new("/bin/sh");
        let script = format!("exec \"$0\" \"$@\" {redirection}");
        command.args(["-c", &script]).arg(process::binary());
        command.args(probe.run(&[])).stdin(Stdio::null());
        Process::spawn(command)
    };
    let mut ended = start(&probe.run(&[]));
    ended.close_input();
    for mut guest in [shell("<&-"), shell("</dev/null"), ended] {
        guest.line("PROBE-READY");
        guest.signal(Signal::TERM);
        guest.end().expect_code(143).assert_said("ended by SIGTERM");
    }
}

#[test]
fn input_before_its_end_still_reaches_the_guest() {
    let Some(_dir) = begin("input_before_its_end_still_reaches_the_guest") else {
        return;
    };
    let probe = Probe::new("fill=top:1,seed=1", SMALL);
    let mut guest = start(&probe.run(&[]));
    // Far more than the monitor keeps at a time; empty lines have no answer and do not count.
    for _ in 0..20 {
        guest.send(&"\n".repeat(4_000));
        guest.send("v\n");
    }
    guest.send("x3\n");
    guest.close_input();
    let done = guest.end().expect_code(3);
    assert_eq!(done.output.matches("PROBE-VERIFY ok").count(), 20);
    done.line_with("count=20");
}

#[test]
fn a_reader_that_left_ends_nothing() {
    let Some(_dir) = begin("a_reader_that_left_ends_nothing") else {
        return;
    };
    let probe = Probe::new("fill=top:1,seed=1", SMALL);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut guest = Process::spawn_to(nvx(&probe.run(&[])), writer);
    drop(reader);
    guest.send("v\nv\nx5\n");
    let done = guest.end().expect_code(5);
    assert_eq!(done.events(), "");
}

#[test]
fn a_reader_that_does_not_read_holds_the_guest_and_not_the_monitor() {
    let Some(_dir) = begin("a_reader_that_does_not_read_holds_the_guest_and_not_the_monitor")
    else {
        return;
    };
    let probe = Probe::new("fill=top:1,seed=1", SMALL);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut guest = Process::spawn_to(nvx(&probe.run(&[])), writer);
    // Answers that are longer than any pipe.
    guest.send(&"v\n".repeat(20_000));
    reader.read_exact(&mut [0; 100]).unwrap();
    guest.signal(Signal::INT);
    guest.end().expect_code(130).assert_said("ended by SIGINT");
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    assert!(output.len() < 1 << 20, "{}", output.len());
}

#[test]
fn the_exported_guest_is_an_elf_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probe.elf");
    let export = arguments(["guest", "export"], [file.as_path()]);
    let done = run(&export).expect_code(0);
    assert_eq!((done.output.as_str(), done.messages.as_str()), ("", ""));
    assert_eq!(
        std::fs::read(&file).unwrap(),
        nvx_probe_guest::image().unwrap()
    );
}
