//! What a running VM's process has given up, as the kernel tells it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::fs;

use crate::support::vm::Vm;
use crate::support::{MIB, Probe, begin, restore, start, text};

fn small() -> Probe {
    Probe::new("fill=top:16,seed=1", 16 * MIB)
}

/// The value of a field of `/proc/PID/task/TID/status`, for each thread by its name.
fn of_each_thread(process: u32, field: &str) -> Vec<(String, String)> {
    fs::read_dir(format!("/proc/{process}/task"))
        .unwrap()
        .map(|thread| {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let value = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(name)).unwrap();
                line.split_once(':').unwrap().1.trim().to_owned()
            };
            (value("Name:"), value(field))
        })
        .collect()
}

#[test]
fn every_thread_is_confined_before_the_guest_runs() {
    let Some(dir) = begin("every_thread_is_confined_before_the_guest_runs") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    small().capture(&snapshot);
    for (arguments, ready) in [
        (small().run(&["--vcpus", "4"]), "PROBE-READY"),
        (restore(&snapshot, &[]), "PROBE-RESTORED"),
    ] {
        let mut guest = start(&arguments);
        // The guest's first words: by then everything has been given up.
        guest.line(ready);
        for (thread, filters) in of_each_thread(guest.id(), "Seccomp_filters:") {
            // A vCPU's thread has one more; what the kernel itself adds to the process inherits one.
            let least = if thread.starts_with("vcpu") { 2 } else { 1 };
            assert!(
                filters.parse::<u32>().unwrap() >= least,
                "{thread}: {filters}"
            );
        }
        for (thread, value) in of_each_thread(guest.id(), "NoNewPrivs:") {
            assert_eq!(value, "1", "{thread}");
        }
        for (thread, ambient) in of_each_thread(guest.id(), "CapAmb:") {
            assert_eq!(ambient, "0000000000000000", "{thread}");
        }
        let limits = fs::read_to_string(format!("/proc/{}/limits", guest.id())).unwrap();
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"))
            .unwrap();
        assert_eq!(core.split_whitespace().nth(5), Some("0"), "{core}");
        guest.send("x7\n");
        guest.end().expect_code(7);
    }
}

#[test]
fn guest_ram_is_kept_out_of_core_files() {
    let Some(dir) = begin("guest_ram_is_kept_out_of_core_files") else {
        return;
    };
    let scratch = text(dir.path());
    let mut guest = start(&small().run(&["--scratch", scratch]));
    guest.line("PROBE-READY");
    let maps = fs::read_to_string(format!("/proc/{}/smaps", guest.id())).unwrap();
    let ram = maps
        .split("VmFlags:")
        .find(|mapping| mapping.contains("Size:              16384 kB"));
    let at = maps.find(ram.unwrap()).unwrap() + ram.unwrap().len();
    let flags = maps[at..].lines().next().unwrap();
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    guest.send("x0\n");
    guest.end().expect_code(0);
}

#[test]
fn the_filter_can_be_left_out_and_only_that() {
    let Some(dir) = begin("the_filter_can_be_left_out_and_only_that") else {
        return;
    };
    let vm = Vm::start(&small().run(&["--no-seccomp"]), dir.path(), "PROBE-READY");
    let process = vm.guest.id();
    for (thread, filters) in of_each_thread(process, "Seccomp_filters:") {
        assert_eq!(filters, "0", "{thread}");
    }
    for (thread, value) in of_each_thread(process, "NoNewPrivs:") {
        assert_eq!(value, "1", "{thread}");
    }
}
