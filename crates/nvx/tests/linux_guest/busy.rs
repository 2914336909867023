//! Guests that are busy on every CPU, and guests that stood still: no timer is lost, no count is wrong, and the
//! kernel does not take it for a processor that hangs.

use std::time::Duration;

use crate::copies::capture;
use crate::guest::{KernelFile, Linux, Shell, control_options, restored_shell};
use crate::support::vm::ctl;

/// Seconds that workers count between two looks.
const TURN: &str = "sleep 2";
/// How often captured and uncaptured runs are compared, until the captured one is no worse.
const ATTEMPTS: u32 = 2;
/// Seconds that a worker may take to be seen counting.
const PATIENCE: u32 = 120;
/// A standstill that the guest's watchdog, as it is set here, would take for a processor that hangs.
const STANDSTILL: Duration = Duration::from_secs(20);
/// Half the seconds after which that watchdog complains (Linux's `Documentation/admin-guide/lockup-watchdogs.rst`).
const WATCHDOG_THRESHOLD_S: u32 = 4;

#[test]
fn busy_vcpus_are_captured_and_restored() {
    busy("busy::two", 2, 10);
}

#[test]
#[ignore = "long: more vCPUs than the emulated machine has processors"]
fn four_busy_vcpus_are_captured_and_restored() {
    busy("busy::four", 4, 10);
}

#[test]
#[ignore = "long: more vCPUs than the emulated machine has processors"]
fn eight_busy_vcpus_are_captured_and_restored() {
    busy("busy::eight", 8, 10);
}

/// Every vCPU counts and sleeps in turns. No timer may be lost, which would leave a sleeper asleep, and each
/// count must be one more than the one before it. A control run without captures shows how often this kernel
/// complains by itself on such a machine.
fn busy(test: &str, vcpus: u8, rounds: u32) {
    let Some(mut linux) = Linux::begin(test, KernelFile::Cloud) else {
        return;
    };
    linux.vcpus = vcpus;
    // Whether a machine with other work stalls is also a matter of chance, so a first surprise is looked at again.
    for attempt in 0..ATTEMPTS {
        let control = uncaptured_stalls(&mut linux, rounds);
        let captured = captured_stalls(&mut linux, rounds, attempt);
        eprintln!(
            "{test}: {captured} messages of stalls in {rounds} rounds, {control} without captures"
        );
        if captured <= control {
            return;
        }
    }
    panic!("captures bring messages of stalls");
}

fn uncaptured_stalls(linux: &mut Linux, rounds: u32) -> u32 {
    linux.options.clear();
    let mut workers = Workers::start(linux.shell(), linux.vcpus);
    for round in 0..rounds {
        workers.check(round);
    }
    let stalls = workers.shell.stalls();
    workers.shell.exit(0);
    stalls
}

fn captured_stalls(linux: &mut Linux, rounds: u32, attempt: u32) -> u32 {
    let (shell, mut socket) = linux.controlled_shell();
    let mut workers = Workers::start(shell, linux.vcpus);
    for round in 0..rounds {
        let snapshot = linux.path(&format!("snapshot-{round}"));
        capture(workers.shell, &socket, &snapshot);
        socket = linux.path(&format!("control-{attempt}-{round}"));
        let rest = control_options(&socket, linux.directory.path());
        workers.shell = restored_shell(&snapshot, &rest);
        workers.check(round);
        // Its memory is mapped by now.
        std::fs::remove_dir_all(&snapshot).unwrap();
    }
    let stalls = workers.shell.stalls();
    if stalls > 0 {
        eprintln!("{}", workers.shell.stall_messages());
    }
    workers.shell.exit(0);
    stalls
}

/// One process for each vCPU in a guest, which counts.
struct Workers {
    shell: Shell,
    /// Where each stood at the last look.
    counts: Vec<u64>,
}

impl Workers {
    fn start(mut shell: Shell, vcpus: u8) -> Self {
        // Each one: a sum that only an unbroken run gets right, written out with its count.
        shell.order(&format!(
            "for w in $(seq {vcpus}); do (i=0; s=0; while :; do i=$((i+1)); s=$((s+i)); \
             if [ $((i%500)) = 0 ]; then echo $i $s > /tmp/w$w.new; mv /tmp/w$w.new /tmp/w$w; sleep 0.01; fi; done) & done; \
             for w in $(seq {vcpus}); do while [ ! -e /tmp/w$w ]; do sleep 0.1; done; done"
        ));
        Self {
            shell,
            counts: vec![0; usize::from(vcpus)],
        }
    }

    /// Lets them count for a while; each must have counted on, and right. One whose timer was lost never does.
    fn check(&mut self, round: u32) {
        self.shell.order(TURN);
        for (worker, count) in (1..).zip(&mut self.counts) {
            let place = format!("/tmp/w{worker}");
            // With more vCPUs than processors a worker may have to wait for its turn.
            let goes_on = format!(
                "i=0; while read n s < {place}; [ $n -le {count} ] && [ $i -lt {PATIENCE} ]; do i=$((i+1)); sleep 1; done"
            );
            self.shell.order(&goes_on);
            let answer = self.shell.ask(&format!("cat {place}"));
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
}

#[test]
fn a_paused_guest_does_not_take_itself_for_hanging() {
    let Some(mut linux) = Linux::begin("busy::paused", KernelFile::Cloud) else {
        return;
    };
    linux.vcpus = 2;
    let (shell, socket) = linux.controlled_shell();
    let mut workers = Workers::start(shell, 2);
    let watchdog = format!("echo {WATCHDOG_THRESHOLD_S} > /proc/sys/kernel/watchdog_thresh");
    workers.shell.order(&watchdog);
    workers.check(0);
    let before = workers.shell.stalls();
    ctl("pause", &socket).expect_code(0);
    std::thread::sleep(STANDSTILL);
    ctl("resume", &socket).expect_code(0);
    workers.check(1);
    workers.check(2);
    assert_eq!(
        workers.shell.stalls(),
        before,
        "{}",
        workers.shell.ask("dmesg | tail -n 5")
    );
    workers.shell.exit(0);
}
