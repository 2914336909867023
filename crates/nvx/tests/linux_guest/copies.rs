//! Capture and restore: what a copy keeps, what it must not share, and what its clocks say.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::guest::{KernelFile, Linux, Shell, control_options, restored_shell};
use crate::support::{arguments, run, text};

/// Starts a process that counts, and sets a nonce; both live in memory alone.
const PREPARE: &str = "cat /proc/sys/kernel/random/uuid > /tmp/nonce; \
     (i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.1; done) & \
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
fn capture(shell: Shell, socket: &Path, destination: &Path) {
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
        shell.order("true");
        // The monitor tells the time when it restores; the guest hears of it once it runs.
        let told_s = restored.elapsed().as_secs_f64();
        // A guest that was captured from outside does not wait for the repair.
        shell.order("sleep 1");
        let tolerance_s = 0.2 + told_s + exchange_s(&mut shell);
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
}

#[test]
fn busy_vcpus_are_captured_and_restored() {
    busy("copies::busy", 2, 10);
}

#[test]
#[ignore = "long: more vCPUs than the emulated machine has processors"]
fn many_busy_vcpus_are_captured_and_restored() {
    busy("copies::busy_4", 4, 10);
    busy("copies::busy_8", 8, 3);
}

/// Every vCPU counts and sleeps in turns. No timer may be lost, which would leave a sleeper asleep, and each
/// count must be one more than the one before it.
fn busy(test: &str, vcpus: u8, rounds: u32) {
    let Some(mut linux) = Linux::begin(test, KernelFile::Cloud) else {
        return;
    };
    linux.vcpus = vcpus;
    let (mut shell, mut socket) = linux.controlled_shell();
    // Each worker: a sum that only an unbroken run gets right, written out with its count.
    let start_workers = format!(
        "for w in $(seq {vcpus}); do (i=0; s=0; while :; do i=$((i+1)); s=$((s+i)); \
         if [ $((i%500)) = 0 ]; then echo $i $s > /tmp/w$w.new; mv /tmp/w$w.new /tmp/w$w; sleep 0.01; fi; done) & done; sleep 2"
    );
    shell.order(&start_workers);
    let mut counts = vec![0u64; usize::from(vcpus)];
    for round in 0..rounds {
        let snapshot = linux.path(&format!("snapshot-{round}"));
        capture(shell, &socket, &snapshot);
        socket = linux.path(&format!("control-{round}"));
        let rest = control_options(&socket, linux.directory.path());
        shell = restored_shell(&snapshot, &rest);
        shell.order("sleep 2");
        // Its memory is mapped by now.
        std::fs::remove_dir_all(&snapshot).unwrap();
        for (worker, count) in counts.iter_mut().enumerate() {
            let answer = shell.ask(&format!("cat /tmp/w{}", worker + 1));
            let words: Vec<u64> = answer
                .split(' ')
                .map(|word| word.parse().unwrap())
                .collect();
            let [now, sum] = words[..] else {
                panic!("{answer}")
            };
            assert!(
                now > *count,
                "round {round}: worker {worker} stands at {now}"
            );
            assert_eq!(sum, now * (now + 1) / 2, "round {round}: worker {worker}");
            *count = now;
        }
    }
    let stalls = shell.ask("dmesg | grep -c -E 'stall|soft lockup|clocksource.*unstable' || true");
    eprintln!("{test}: {stalls} messages of stalls in {rounds} rounds");
    shell.exit(0);
}
