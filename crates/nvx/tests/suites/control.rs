//! Control of a running VM from outside: captures that the host asks for, pause and resume, the
//! directories that snapshots may go to, and clients that behave badly.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::os::unix::fs::symlink;
use std::path::Path;

use nvx_probe_guest::{TURNS_ADDRESS, checksum};
use rustix::process::Signal;

use crate::support::vm::{Vm, ctl};
use crate::support::{
    BACKEND, MIB, Probe, begin, content, entries, inspect, memory_word, restore, talk, text, value,
};

const SMALL: u64 = 16 * MIB;
/// Bad arguments or input to a command that runs no guest.
const BAD_INPUT: i32 = 2;
const CONTINUE: &[&str] = &["--continue"];
const STATUS: &str = r#"{"version":1,"id":"s","command":"status"}"#;

fn small() -> Probe {
    Probe::new("fill=top:64,seed=1", SMALL)
}

/// A small guest that waits for input; its RAM file, its socket and its snapshots are in `directory`.
fn idle(directory: &Path) -> Vm {
    let command = small().run(&["--scratch", text(directory)]);
    Vm::start(&command, directory, "PROBE-READY")
}

/// What restores of a snapshot of an idle `small` guest prove.
fn assert_restores(snapshot: &Path, dirtied: u32) {
    let done = talk(&restore(snapshot, &[]), "v\nx0\n").expect_code(0);
    done.line("PROBE-RESTORED");
    done.line(&small().verified(dirtied));
}

#[test]
fn an_idle_guest_is_captured_and_ends() {
    let Some(dir) = begin("an_idle_guest_is_captured_and_ends") else {
        return;
    };
    let snapshot = dir.path().join("snap");
    let mut vm = idle(dir.path());
    vm.guest.ask("d", "PROBE-DIRTIED");
    // The client has its answer though the VM ends by the capture.
    let told = vm.capture(&snapshot, &[]).expect_code(0);
    assert_eq!(told.messages, "");
    told.line_with(&format!("captured to {} in ", text(&snapshot)));
    told.line_with("(link: the RAM file is on the destination's file system); the guest ended");
    let done = vm.guest.end().expect_code(0);
    done.assert_said(&format!("captured to {} in ", text(&snapshot)));
    assert_eq!(entries(dir.path()), ["snap"]);
    small().assert_in_memory_file(&snapshot, 1);
    assert_restores(&snapshot, 1);
}

#[test]
fn an_idle_guest_is_captured_and_continues() {
    let Some(dir) = begin("an_idle_guest_is_captured_and_continues") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    let mut vm = idle(dir.path());
    let told = vm
        .capture(&at("one"), &["--continue", "--json"])
        .expect_code(0);
    let told: serde_json::Value = serde_json::from_str(&told.output).unwrap();
    let told = &told["captured"];
    assert_eq!(told["destination"], text(&at("one")));
    assert_eq!(told["continues"], true);
    assert!(told["generation_ms"].as_f64().unwrap() > 0.0, "{told}");
    let before = content(&at("one"));
    let capture = inspect(&at("one"))["manifest"]["capture"].clone();
    assert_eq!(capture["publication"], told["publication"]);
    // The source was not asked to say anything, and goes on.
    vm.guest.ask("d", "PROBE-DIRTIED seed=2 count=1");
    vm.capture(&at("two"), CONTINUE).expect_code(0);
    vm.guest.ask("d", "PROBE-DIRTIED seed=3 count=2");
    assert_eq!(vm.status()["status"]["captures"], 2);
    vm.stop();
    assert!(content(&at("one")) == before, "the source changed it");
    assert_eq!(entries(dir.path()), ["one", "two"]);
    assert_restores(&at("one"), 0);
    assert_restores(&at("two"), 1);
}

#[test]
fn a_busy_guest_is_captured_between_any_two_stores() {
    let Some(dir) = begin("a_busy_guest_is_captured_between_any_two_stores") else {
        return;
    };
    let probe = Probe::new("fill=all,seed=1", SMALL);
    let command = probe.run(&["--scratch", text(dir.path())]);
    let mut vm = Vm::start(&command, dir.path(), "PROBE-READY");
    vm.guest.send(&"d\n".repeat(3_000));
    let mut last_seed = 0;
    for turn in 0..4 {
        vm.guest.line("PROBE-DIRTIED");
        let snapshot = dir.path().join(format!("snap-{turn}"));
        vm.capture(&snapshot, CONTINUE).expect_code(0);
        vm.guest.line("PROBE-DIRTIED");
        // The copy ends what it was at, and then holds the words of one seed.
        let done = talk(&restore(&snapshot, &[]), "v\nx0\n").expect_code(0);
        let line = done.line("PROBE-VERIFY ok");
        let seed: u32 = value(line, "seed").parse().unwrap();
        let sum = checksum(seed, probe.params.span(SMALL));
        assert_eq!(value(line, "checksum"), format!("{sum:08x}"));
        assert!(seed > last_seed, "{seed} after {last_seed}");
        last_seed = seed;
    }
    // Work is left, so the guest was busy all the time.
    vm.stop();
}

#[test]
fn a_guest_that_spins_without_exits_is_captured() {
    let Some(dir) = begin("a_guest_that_spins_without_exits_is_captured") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    let mut vm = idle(dir.path());
    vm.guest.ask("l", "PROBE-LOOPING count=1");
    wait_for_turns(&vm, dir.path(), 0);
    vm.capture(&at("first"), CONTINUE).expect_code(0);
    let turns = memory_word(&at("first"), TURNS_ADDRESS);
    wait_for_turns(&vm, dir.path(), turns);
    vm.capture(&at("last"), &[]).expect_code(0);
    vm.guest.end().expect_code(0);

    // The copy goes on counting, where it was. It says nothing: it never reads the news of its
    // restore.
    let sockets = tempfile::tempdir().unwrap();
    let turns = memory_word(&at("last"), TURNS_ADDRESS);
    let command = restore(&at("last"), &["--snapshot-root", text(dir.path())]);
    let copy = Vm::start_mute(&command, sockets.path());
    wait_for_turns(&copy, dir.path(), turns);
    assert_eq!(copy.stop().output, "");
}

/// Waits until the guest has counted beyond `turns`, looking by captures.
fn wait_for_turns(vm: &Vm, directory: &Path, turns: u32) {
    let look = directory.join("look");
    for _ in 0..1_000 {
        vm.capture(&look, CONTINUE).expect_code(0);
        let found = memory_word(&look, TURNS_ADDRESS);
        std::fs::remove_dir_all(&look).unwrap();
        if found > turns {
            return;
        }
    }
    panic!("the guest does not count beyond {turns}");
}

#[test]
fn a_paused_guest_stands_still_and_stays_paused_by_a_capture() {
    let Some(dir) = begin("a_paused_guest_stands_still_and_stays_paused_by_a_capture") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    let mut vm = idle(dir.path());
    vm.guest.ask("l", "PROBE-LOOPING");
    wait_for_turns(&vm, dir.path(), 0);
    for _ in 0..2 {
        let told = vm.ctl("pause").expect_code(0);
        assert_eq!((told.output.as_str(), told.messages.as_str()), ("", ""));
    }
    vm.capture(&at("one"), CONTINUE).expect_code(0);
    assert_eq!(vm.status()["status"]["state"], "paused");
    vm.capture(&at("two"), CONTINUE).expect_code(0);
    let turns = memory_word(&at("one"), TURNS_ADDRESS);
    assert_eq!(memory_word(&at("two"), TURNS_ADDRESS), turns);
    for _ in 0..2 {
        vm.ctl("resume").expect_code(0);
    }
    assert_eq!(vm.status()["status"]["state"], "running");
    wait_for_turns(&vm, dir.path(), turns);
    // A refused capture does not wake it either.
    vm.ctl("pause").expect_code(0);
    vm.capture(&at("one"), CONTINUE).expect_code(BAD_INPUT);
    assert_eq!(vm.status()["status"]["state"], "paused");
    vm.stop();
}

#[test]
fn a_paused_guest_takes_its_input_later() {
    let Some(dir) = begin("a_paused_guest_takes_its_input_later") else {
        return;
    };
    let mut vm = idle(dir.path());
    vm.ctl("pause").expect_code(0);
    let before = vm.guest.output();
    vm.guest.send("d\nv\n");
    for _ in 0..3 {
        assert_eq!(vm.status()["status"]["state"], "paused");
    }
    assert_eq!(vm.guest.output(), before);
    vm.ctl("resume").expect_code(0);
    vm.guest.line(&small().verified(1));
    // Paused or not, it ends when it is told to.
    vm.ctl("pause").expect_code(0);
    vm.guest.signal(Signal::TERM);
    vm.guest
        .end()
        .expect_code(143)
        .assert_said("ended by SIGTERM");
}

#[test]
fn the_status_tells_what_the_vm_is() {
    let Some(dir) = begin("the_status_tells_what_the_vm_is") else {
        return;
    };
    let command = small().run(&["--vcpus", "2"]);
    let vm = Vm::start(&command, dir.path(), "PROBE-READY");
    let expected = serde_json::json!({"status": {
        "state": "running",
        "pid": vm.guest.id(),
        "backend": BACKEND.name(),
        "vcpus": 2,
        "memory_bytes": SMALL,
        "ram": "anonymous",
        "captures": 0,
    }});
    assert_eq!(vm.status(), expected);
    let told = vm.ctl("status").expect_code(0);
    let line = format!(
        "running: process {}, 2 vCPU, 16 MiB RAM (anonymous), back end {}, 0 captures\n",
        vm.guest.id(),
        BACKEND.name()
    );
    assert_eq!((told.output, told.messages.as_str()), (line, ""));
    vm.stop();
}

#[test]
fn snapshots_go_below_the_declared_roots_only() {
    let Some(dir) = begin("snapshots_go_below_the_declared_roots_only") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    for name in ["one", "two", "two/deep", "outside", "scratch"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    symlink(at("outside"), at("one/way-out")).unwrap();
    symlink(at("two"), at("way-in")).unwrap();
    let roots = ["one", "two"].map(at);
    let options = [
        "--scratch",
        text(&at("scratch")),
        "--snapshot-root",
        text(&roots[0]),
        "--snapshot-root",
        text(&roots[1]),
    ]
    .map(str::to_owned);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut vm = Vm::start(&small().run(&options), dir.path(), "PROBE-READY");
    let outside = "not below a declared snapshot root";
    for (destination, words) in [
        ("outside/snap", outside),
        ("snap", outside),
        ("one", outside),
        ("one/../snap", outside),
        ("one/../outside/snap", outside),
        ("one/way-out/snap", outside),
        // The scratch directory is a root only where none is declared.
        ("scratch/snap", outside),
        ("one/missing/snap", "missing does not exist"),
        ("one/..", "name of a new directory"),
        ("two/deep", "already exists"),
        ("one/way-out", "already exists"),
    ] {
        let told = vm
            .capture(&at(destination), CONTINUE)
            .expect_code(BAD_INPUT);
        told.assert_said(words);
        told.assert_said(text(&at(destination)));
        assert_eq!(told.output, "");
    }
    let told = vm.capture(&at("outside/snap"), CONTINUE);
    told.assert_said(&format!("({}, {})", text(&roots[0]), text(&roots[1])));
    vm.guest.ask("v", &small().verified(0));
    for name in ["outside", "scratch"] {
        assert_eq!(entries(&at(name)), [""; 0], "{name}");
    }
    for good in [
        "one/snap",
        "two/deep/snap",
        "two/deep/../snap",
        "way-in/via-link",
    ] {
        vm.capture(&at(good), CONTINUE).expect_code(0);
        assert_restores(&at(good), 0);
    }
    vm.stop();
    assert_eq!(entries(&at("two")), ["deep", "snap", "via-link"]);
}

#[test]
fn the_scratch_directory_and_the_snapshots_parent_are_roots_without_being_declared() {
    let name = "the_scratch_directory_and_the_snapshots_parent_are_roots_without_being_declared";
    let Some(dir) = begin(name) else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    for name in ["scratch", "parent", "sockets"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let declared = at("parent/declared");
    for (options, good, bad) in [
        (vec!["--scratch", "scratch"], "scratch/snap", "parent/snap"),
        (
            vec!["--snapshot", "parent/declared"],
            "parent/snap",
            "scratch/snap",
        ),
        (vec![], "", "scratch/snap"),
    ] {
        let options: Vec<String> = match options.as_slice() {
            [option, path] => vec![(*option).to_owned(), text(&at(path)).to_owned()],
            _ => Vec::new(),
        };
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let vm = Vm::start(&small().run(&options), &at("sockets"), "PROBE-READY");
        let told = vm.capture(&at(bad), CONTINUE).expect_code(BAD_INPUT);
        told.assert_said("not below a declared snapshot root");
        if good.is_empty() {
            told.assert_said("none is declared");
        } else {
            vm.capture(&at(good), CONTINUE).expect_code(0);
            assert_restores(&at(good), 0);
        }
        vm.stop();
    }
    assert!(!declared.exists());
}

#[test]
fn a_guests_own_request_and_the_hosts_go_to_their_own_places() {
    let Some(dir) = begin("a_guests_own_request_and_the_hosts_go_to_their_own_places") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    let command = small().run(&["--snapshot", text(&at("own")), "--continue"]);
    let mut vm = Vm::start(&command, dir.path(), "PROBE-READY");
    vm.capture(&at("hosts"), CONTINUE).expect_code(0);
    vm.guest.ask("d", "PROBE-DIRTIED seed=2");
    vm.guest.ask("s", "PROBE-CONTINUED");
    vm.guest.ask("d", "PROBE-DIRTIED seed=3");
    vm.capture(&at("last"), &[]).expect_code(0);
    vm.guest.end().expect_code(0);
    for (name, dirtied) in [("hosts", 0), ("own", 1), ("last", 2)] {
        small().assert_in_memory_file(&at(name), dirtied);
        assert_restores(&at(name), dirtied);
    }
}

#[test]
fn captures_that_are_asked_for_at_once_are_made_one_after_the_other() {
    let Some(dir) = begin("captures_that_are_asked_for_at_once_are_made_one_after_the_other")
    else {
        return;
    };
    let at = |index: u32| dir.path().join(format!("snap-{index}"));
    let probe = Probe::new("fill=all,seed=1", 4 * SMALL);
    let mut vm = Vm::start(
        &probe.run(&["--scratch", text(dir.path())]),
        dir.path(),
        "PROBE-READY",
    );
    let clients: Vec<_> = (0..4)
        .map(|index| vm.start_capture(&at(index), CONTINUE))
        .collect();
    for client in clients {
        client.end().expect_code(0);
    }
    for index in 0..4 {
        probe.assert_in_memory_file(&at(index), 0);
        std::fs::remove_dir_all(at(index)).unwrap();
    }
    vm.guest.ask("v", &probe.verified(0));
    // For one destination only the first finds it free.
    let clients: Vec<_> = (0..4).map(|_| vm.start_capture(&at(0), CONTINUE)).collect();
    let done: Vec<_> = clients.into_iter().map(|client| client.end()).collect();
    let count = |code| {
        done.iter()
            .filter(|done| done.status.code() == Some(code))
            .count()
    };
    assert_eq!((count(0), count(BAD_INPUT)), (1, 3), "{done:?}");
    // Of those that end the VM one is made, and the others are told.
    let clients: Vec<_> = (1..5)
        .map(|index| vm.start_capture(&at(index), &[]))
        .collect();
    vm.guest.end().expect_code(0);
    let done: Vec<_> = clients.into_iter().map(|client| client.end()).collect();
    let made = done.iter().filter(|done| done.status.code() == Some(0));
    assert_eq!(made.count(), 1, "{done:?}");
    for refused in done.iter().filter(|done| done.status.code() != Some(0)) {
        assert_eq!(refused.status.code(), Some(BAD_INPUT), "{refused:?}");
        assert_eq!(refused.output, "");
    }
    let made: Vec<_> = (1..5).map(at).filter(|path| path.exists()).collect();
    assert_eq!(made.len(), 1);
    probe.assert_in_memory_file(&made[0], 0);
    assert_eq!(entries(dir.path()).len(), 2, "{:?}", entries(dir.path()));
}

#[test]
fn two_clients_at_once_are_both_served() {
    let Some(dir) = begin("two_clients_at_once_are_both_served") else {
        return;
    };
    let vm = idle(dir.path());
    let (mut one, mut two) = (vm.connect(), vm.connect());
    for turn in 0..50 {
        for (name, client) in [("one", &mut one), ("two", &mut two)] {
            let id = format!("{name}-{turn}");
            let request = format!(r#"{{"version":1,"id":"{id}","command":"status"}}"#);
            let answer = client.ask(&request);
            assert_eq!(answer["id"], id.as_str());
            assert_eq!(answer["status"]["state"], "running");
        }
    }
    // Many requests in one go are answered in order.
    let many: String = (0..100)
        .map(|index| format!("{{\"version\":1,\"id\":\"{index}\",\"command\":\"resume\"}}\n"))
        .collect();
    assert!(two.send(many.as_bytes()));
    for index in 0..100 {
        assert_eq!(two.answer().unwrap()["id"], index.to_string());
    }
    vm.stop();
    assert_eq!(one.answer(), None);
}

#[test]
fn a_client_that_talks_nonsense_harms_nobody() {
    let Some(dir) = begin("a_client_that_talks_nonsense_harms_nobody") else {
        return;
    };
    let mut vm = idle(dir.path());
    let mut client = vm.connect();
    for (request, code, words) in [
        ("hello", "bad-request", "not a request"),
        ("\u{0}\u{1b}[2J\u{7f}", "bad-request", "not a request"),
        ("[[[[[[[[", "bad-request", "not a request"),
        ("{}", "bad-request", "version"),
        ("", "bad-request", "not a request"),
        (
            r#"{"version":9,"command":"status"}"#,
            "bad-request",
            "version 9 is unknown, this is version 1",
        ),
        (
            r#"{"version":1,"command":"reboot"}"#,
            "bad-request",
            "'reboot' is unknown (known: status, pause, resume, stop, capture)",
        ),
        (
            r#"{"version":1,"command":"capture","destination":"snap"}"#,
            "bad-request",
            "absolute",
        ),
        (
            r#"{"version":1,"command":"capture","destination":"/nowhere/snap"}"#,
            "capture-failed",
            "the parent directory /nowhere does not exist",
        ),
        (
            r#"{"version":1,"command":"capture","destination":"/snap"}"#,
            "outside-roots",
            "/snap: not below a declared snapshot root",
        ),
    ] {
        let answer = client.ask(request);
        assert_eq!(answer["version"], 1, "{request:?}: {answer}");
        assert_eq!(answer["error"]["code"], code, "{request:?}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{request:?}: {message}");
    }
    // Not even text.
    assert!(client.send(b"\xff\xfe\x80\n"));
    assert_eq!(client.answer().unwrap()["error"]["code"], "bad-request");
    assert_eq!(client.ask(STATUS)["status"]["state"], "running");
    vm.guest.ask("v", &small().verified(0));
    vm.stop();
}

#[test]
fn half_a_line_keeps_nobody_waiting() {
    let Some(dir) = begin("half_a_line_keeps_nobody_waiting") else {
        return;
    };
    let mut vm = idle(dir.path());
    let (head, tail) = STATUS.split_at(STATUS.len() / 2);
    let (mut slow, mut gone) = (vm.connect(), vm.connect());
    assert!(slow.send(head.as_bytes()));
    assert!(gone.send(br#"{"version":1,"command":"stop"}"#));
    drop(gone);
    vm.guest.ask("v", &small().verified(0));
    assert_eq!(vm.status()["status"]["state"], "running");
    // The other half makes it a request; one that never ended is none.
    assert_eq!(slow.ask(tail)["status"]["state"], "running");
    vm.stop();
}

#[test]
fn a_line_without_end_is_refused() {
    let Some(dir) = begin("a_line_without_end_is_refused") else {
        return;
    };
    let mut vm = idle(dir.path());
    let mut client = vm.connect();
    // 10 MiB; the VM hangs up long before.
    let piece = vec![b'x'; 64 << 10];
    let taken = (0..160).take_while(|_| client.send(&piece)).count();
    assert!(taken < 160, "all of it was taken");
    if let Some(answer) = client.answer() {
        assert_eq!(answer["error"]["code"], "too-long");
    }
    vm.guest.ask("v", &small().verified(0));
    assert_eq!(vm.status()["status"]["state"], "running");
    vm.stop();
}

#[test]
fn a_client_that_never_reads_keeps_nobody_waiting() {
    let Some(dir) = begin("a_client_that_never_reads_keeps_nobody_waiting") else {
        return;
    };
    let mut vm = idle(dir.path());
    let mut deaf = vm.connect();
    deaf.stream.set_nonblocking(true).unwrap();
    // Written until the VM takes no more, or has hung up.
    let requests = format!("{STATUS}\n").repeat(1_000);
    for turn in 0..50 {
        deaf.send(requests.as_bytes());
        if turn % 10 == 0 {
            vm.guest.ask("v", &small().verified(0));
            assert_eq!(vm.status()["status"]["state"], "running");
        }
    }
    vm.capture(&dir.path().join("snap"), CONTINUE)
        .expect_code(0);
    vm.guest.ask("v", &small().verified(0));
    vm.stop();
    assert_restores(&dir.path().join("snap"), 0);
}

#[test]
fn more_clients_than_places_are_told() {
    let Some(dir) = begin("more_clients_than_places_are_told") else {
        return;
    };
    let vm = idle(dir.path());
    let mut clients: Vec<_> = (0..8).map(|_| vm.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(STATUS)["status"]["state"], "running");
    }
    let mut surplus = vm.connect();
    assert_eq!(surplus.answer().unwrap()["error"]["code"], "busy");
    assert_eq!(surplus.answer(), None);
    let told = vm.ctl("status").expect_code(BAD_INPUT);
    told.assert_said("8 connections are open already");
    drop(clients);
    vm.stop();
}

#[test]
fn after_a_kill_the_socket_is_stale_and_the_next_start_takes_it() {
    let Some(dir) = begin("after_a_kill_the_socket_is_stale_and_the_next_start_takes_it") else {
        return;
    };
    for _ in 0..3 {
        let mut vm = idle(dir.path());
        vm.guest.ask("v", &small().verified(0));
        vm.guest.signal(Signal::KILL);
        let socket = vm.socket;
        assert_eq!(vm.guest.end().status.code(), None);
        assert_eq!(entries(dir.path()), ["control"]);
        let told = ctl("status", &socket).expect_code(BAD_INPUT);
        told.assert_said("control: no VM listens here");
    }
    let vm = idle(dir.path());
    assert_eq!(vm.status()["status"]["state"], "running");
    vm.stop();
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_socket_in_use_is_left_to_its_vm() {
    let Some(dir) = begin("a_socket_in_use_is_left_to_its_vm") else {
        return;
    };
    let mut vm = idle(dir.path());
    let second = small().run(&["--control", text(&vm.socket)]);
    let done = talk(&second, "x0\n").expect_code(125);
    done.assert_said("the control socket cannot be made: ");
    done.assert_said("control: in use by a running VM");
    assert_eq!(done.output, "");
    // A paused one is running, too.
    vm.ctl("pause").expect_code(0);
    talk(&second, "x0\n").expect_code(125);
    vm.ctl("resume").expect_code(0);
    vm.guest.ask("v", &small().verified(0));
    vm.stop();
}

#[test]
fn a_guest_that_ends_takes_its_socket_along() {
    let Some(dir) = begin("a_guest_that_ends_takes_its_socket_along") else {
        return;
    };
    let mut vm = idle(dir.path());
    use std::os::unix::fs::PermissionsExt as _;
    let mode = vm.socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut waiting = vm.connect();
    vm.guest.send("x7\n");
    vm.guest.end().expect_code(7);
    assert_eq!(waiting.answer(), None);
    assert_eq!(entries(dir.path()), [""; 0]);
}
