//! Capture and restore: what a copy keeps, what it must not share, and what its clocks say.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::guest::{KernelFile, Linux, Shell, control_options, restored_shell};
use crate::support::{arguments, run, text};

/// Starts a process that counts and one that watches the monotonic clock, and sets a nonce; all live in memory alone.
const PREPARE: &str = "cat /proc/sys/kernel/random/uuid > /tmp/nonce; \
     (i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.1; done) & \
     (last=0; while :; do read up rest < /proc/uptime; now=${up%.*}${up#*.}; \
     [ $now -ge $last ] || echo \"$last then $now\" >> /tmp/went-back; last=$now; done) & \
     sleep 1";

/// The guest's clocks in seconds, since boot and since the Unix epoch, read when a second has just begun: its
/// `date` tells whole seconds only.
fn clocks(shell: &mut Shell) -> (f64, f64) {
    let edge = "s=$(date +%s); while n=$(date +%s); [ $n = $s ]; do :; done; \
                echo $n; cut -d ' ' -f 1 /proc/uptime";
    let answer = shell.ask(edge);
    let words: Vec<f64> = answer
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let [wall, uptime] = words[..] else {
        panic!("{answer}")
    };
    (uptime, wall)
}

/// How long a question and its answer take, the longest of some.
fn exchange_s(shell: &mut Shell) -> f64 {
    let exchanges = (0..5).map(|_| {
        let begin = Instant::now();
        shell.ask("date +%s");
        begin.elapsed().as_secs_f64()
    });
    exchanges.fold(0.0, f64::max)
}

fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// Captures the VM at `socket` from outside; it ends.
pub fn capture(shell: Shell, socket: &Path, destination: &Path) {
    run(&arguments(
        ["capture", text(destination), "--control"],
        [socket],
    ))
    .expect_code(0);
    shell.0.end().expect_code(0);
}

#[test]
fn memory_and_processes_live_on_through_rounds() {
    rounds("copies::rounds", 5, 1);
}

#[test]
#[ignore = "long: twenty rounds"]
fn memory_and_processes_live_on_through_many_rounds() {
    rounds("copies::many_rounds", 20, 2);
}

fn rounds(test: &str, rounds: u32, vcpus: u8) {
    let Some(mut linux) = Linux::begin(test, KernelFile::Cloud) else {
        return;
    };
    linux.vcpus = vcpus;
    let (mut shell, mut socket) = linux.controlled_shell();
    shell.order(PREPARE);
    let nonce = shell.ask("cat /tmp/nonce");
    assert_eq!(nonce.len(), 36, "{nonce}");
    let mut count: u64 = shell.ask("cat /tmp/count").parse().unwrap();
    for round in 0..rounds {
        let snapshot = linux.path(&format!("snapshot-{round}"));
        capture(shell, &socket, &snapshot);
        socket = linux.path(&format!("control-{round}"));
        let rest = control_options(&socket, linux.directory.path());
        shell = restored_shell(&snapshot, &rest);
        assert_eq!(shell.ask("cat /tmp/nonce"), nonce, "round {round}");
        let later: u64 = shell.ask("sleep 1; cat /tmp/count").parse().unwrap();
        assert!(
            later > count,
            "round {round}: {later} is not more than {count}"
        );
        count = later;
        assert_eq!(
            shell.ask("cat /tmp/went-back 2>/dev/null || echo never"),
            "never",
            "round {round}"
        );
        std::fs::remove_dir_all(&snapshot).unwrap();
    }
    shell.exit(0);
}

#[test]
fn the_clock_policies_hold() {
    let Some(mut linux) = Linux::begin("copies::clock", KernelFile::Cloud) else {
        return;
    };
    let (mut shell, socket) = linux.controlled_shell();
    let (captured_uptime, captured_wall) = clocks(&mut shell);
    let last_exchange = Instant::now();
    let snapshot = linux.path("snapshot");
    capture(shell, &socket, &snapshot);
    // What ran after the last look at the clocks, at most.
    let ran_on_s = last_exchange.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(3));

    for policy in ["advance", "freeze"] {
        let restored = Instant::now();
        let mut shell = restored_shell(&snapshot, &["--clock".to_owned(), policy.to_owned()]);
        // The monitor tells the time when it restores; the guest sets its clock once it has heard that.
        let (window_ms, _) = repair_window_ms(&mut shell);
        let tolerance_s = 0.2 + window_ms / 1e3 + exchange_s(&mut shell);
        let (uptime, wall) = clocks(&mut shell);
        let host = now_s();
        let at_most_s = ran_on_s + restored.elapsed().as_secs_f64() + 0.2;
        let uptime_s = uptime - captured_uptime;
        assert!(
            uptime_s >= 0.0,
            "{policy}: the time since boot went back by {uptime_s} s"
        );
        assert!(
            uptime_s <= at_most_s,
            "{policy}: the time since boot jumped by {uptime_s} s"
        );
        match policy {
            "advance" => {
                eprintln!(
                    "copies::clock: {:.3} s behind, {tolerance_s:.3} s are allowed",
                    host - wall
                );
                assert!(
                    (host - wall).abs() <= tolerance_s,
                    "the guest says {wall}, the host {host}, and {tolerance_s} s are allowed"
                );
            }
            _ => assert!(
                (0.0..=at_most_s).contains(&(wall - captured_wall)),
                "the guest says {wall}, and {captured_wall} before"
            ),
        }
        shell.exit(0);
    }
}

#[test]
fn copies_share_no_random_numbers() {
    let Some(mut linux) = Linux::begin("copies::random", KernelFile::Cloud) else {
        return;
    };
    let snapshot = linux.path("snapshot");
    linux.options = vec!["--snapshot".into(), text(&snapshot).into()];
    let mut shell = linux.shell();
    // The next command of each copy, so that nothing lies between the repair and the reading.
    shell.0.send("/.nvx/bin/nvx guest snapshot; echo \"STATUS $? $(head -c 16 /dev/urandom | od -An -tx1)\"\n");
    shell.0.end().expect_code(0);
    let numbers: Vec<String> = (0..2)
        .map(|_| {
            let mut copy = restored_shell(&snapshot, &[]);
            let line = copy.0.line("STATUS ");
            assert!(line.starts_with("STATUS 0 "), "{line}");
            copy.0.line("GUEST-DONE 0");
            copy.exit(0);
            line
        })
        .collect();
    assert_eq!(numbers[0].len(), numbers[1].len());
    assert_ne!(numbers[0], numbers[1]);
}

#[test]
fn the_guest_is_told_what_became_of_its_request() {
    let Some(mut linux) = Linux::begin("copies::outcome", KernelFile::Cloud) else {
        return;
    };
    // Nothing was declared, so it is refused.
    let mut shell = linux.shell();
    assert_eq!(shell.ask("/.nvx/bin/nvx guest snapshot; echo $?"), "10");
    // A program of this guest can use the port: it has asked, and reads 1.
    let ask_port = "/.nvx/bin/nvx guest snapshot --ask-port; echo $?";
    assert_eq!(shell.ask(ask_port), "a1");
    shell.exit(0);
    let snapshot = linux.path("snapshot");
    linux.options = vec![
        "--snapshot".into(),
        text(&snapshot).into(),
        "--continue".into(),
    ];
    let mut shell = linux.shell();
    assert_eq!(shell.ask("/.nvx/bin/nvx guest snapshot; echo $?"), "11");
    shell.exit(0);
    let mut copy = restored_shell(&snapshot, &[]);
    assert_eq!(copy.0.line("ANSWER "), "ANSWER 0");
    copy.0.line("GUEST-DONE 0");
    copy.exit(0);
    // A copy asks too. QEMU's emulated processor refuses it the port, since its task state segment is marked as in
    // use, as any running one is; so the request goes over the control line.
    let again = linux.path("again");
    let rest = ["--snapshot".to_owned(), text(&again).to_owned()];
    let mut copy = restored_shell(&snapshot, &rest);
    copy.0.line("GUEST-DONE 0");
    copy.0
        .send("/.nvx/bin/nvx guest snapshot; echo \"AGAIN $?\"\n");
    copy.0.end().expect_code(0);
    let mut copy = restored_shell(&again, &[]);
    assert_eq!(copy.0.line("AGAIN "), "AGAIN 0");
    copy.0.line("GUEST-DONE 0");
    copy.exit(0);
}

/// Milliseconds in a restored guest's report of its repair: from going on to the report, and of those the
/// guest's own.
fn repair_window_ms(shell: &mut Shell) -> (f64, f64) {
    const REPORT: &str = "nvx: the copy has a clock and random numbers of its own, ";
    shell.0.message(REPORT);
    let messages = shell.0.messages();
    let report = messages.split(REPORT).nth(1).unwrap();
    let mut numbers = report.split(|c: char| !c.is_ascii_digit() && c != '.');
    let mut number = || numbers.find_map(|word| word.parse().ok()).unwrap();
    (number(), number())
}

/// A capture from outside: nobody in the guest waits for the repair, so how long that took is told.
#[test]
fn copies_captured_from_outside_differ_and_tell_when() {
    let Some(mut linux) = Linux::begin("copies::outside", KernelFile::Cloud) else {
        return;
    };
    linux.contents = ["--on-restore", "echo GENERATION $NVX_GENERATION"]
        .map(str::to_owned)
        .into();
    let (shell, socket) = linux.controlled_shell();
    let snapshot = linux.path("snapshot");
    capture(shell, &socket, &snapshot);
    let copies: Vec<(String, String)> = (0..2)
        .map(|_| {
            let mut copy = restored_shell(&snapshot, &[]);
            let generation = copy.0.line("GENERATION ");
            assert_eq!(generation.len(), "GENERATION ".len() + 32, "{generation}");
            let (window_ms, own_ms) = repair_window_ms(&mut copy);
            eprintln!(
                "copies::outside: repaired after {window_ms} ms, {own_ms} ms of them its own"
            );
            assert!(own_ms <= window_ms, "{own_ms} of {window_ms} ms");
            let random = copy.ask("head -c 16 /dev/urandom | od -An -tx1");
            copy.exit(0);
            (generation, random)
        })
        .collect();
    assert_ne!(copies[0].0, copies[1].0, "generation IDs");
    assert_ne!(copies[0].1, copies[1].1, "random numbers");
}

/// The generic kernel hears of a copy by itself, from the device that holds its generation ID.
#[test]
fn a_kernel_with_a_driver_for_generation_ids_hears_of_each_copy() {
    let Some(mut linux) = Linux::begin("copies::generation_id", KernelFile::Generic) else {
        return;
    };
    linux.memory_mib = 320;
    let (mut shell, socket) = linux.controlled_shell();
    let reseeds = "dmesg | grep -c 'crng reseeded due to virtual machine fork' || true";
    assert_eq!(shell.ask(reseeds), "0");
    let snapshot = linux.path("snapshot");
    capture(shell, &socket, &snapshot);
    for _ in 0..2 {
        let mut copy = restored_shell(&snapshot, &[]);
        assert_eq!(copy.ask(&format!("sleep 1; {reseeds}")), "1");
        copy.exit(0);
    }
}
