//! What a user is told when a control socket, a root for snapshots or a client's wish cannot be had:
//! the exit code, and the words that must be there. No guest runs in most of these, so the back end
//! that every machine has is enough.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use support::mounts::Tmpfs;
use support::{MIB, Probe, arguments, begin, entries, restore, run, skip, text};

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
        assert_eq!(done.output, "", "{row}");
        assert!(!done.messages.contains("panicked"), "{row}");
    }
}

fn words(line: &str) -> Vec<OsString> {
    arguments(line.split_ascii_whitespace(), [])
}

fn small() -> Probe {
    Probe::new("fill=top:16,seed=1", SMALL)
}

fn with_control(socket: &Path) -> Vec<OsString> {
    small().run(&["--control", text(socket)])
}

fn status_of(socket: &Path) -> Vec<OsString> {
    arguments(["ctl", "status", "--control"], [socket])
}

#[test]
fn command_lines_of_control_that_make_no_sense() {
    check(&[
        (
            words("run --snapshot-root x"),
            FAILED,
            &["--control <PATH>"],
        ),
        (words("run --control"), FAILED, &["--control <PATH>"]),
        (
            words("restore x --snapshot-root y"),
            FAILED,
            &["--control <PATH>"],
        ),
        (words("restore x --continue"), FAILED, &["--snapshot <DIR>"]),
        (
            words("run --backend soft --backend kvm"),
            FAILED,
            &["--backend"],
        ),
        (
            words("run --backend kvn"),
            FAILED,
            &["'kvn'", "auto, kvm, whp, soft"],
        ),
        (words("ctl"), BAD_INPUT, &["<ACTION>", "--control <PATH>"]),
        (words("ctl status"), BAD_INPUT, &["--control <PATH>"]),
        (words("ctl --control x"), BAD_INPUT, &["<ACTION>"]),
        (
            words("ctl reboot --control x"),
            BAD_INPUT,
            &["'reboot'", "status, pause, resume, stop"],
        ),
        (
            words("ctl paus --control x"),
            BAD_INPUT,
            &["a similar value exists: 'pause'"],
        ),
        (words("ctl status stop --control x"), BAD_INPUT, &["'stop'"]),
        (words("capture"), BAD_INPUT, &["<DIR>", "--control <PATH>"]),
        (words("capture snap"), BAD_INPUT, &["--control <PATH>"]),
        (words("capture --control x"), BAD_INPUT, &["<DIR>"]),
        (
            words("capture snap --control x --continue=yes"),
            BAD_INPUT,
            &["'yes'"],
        ),
        (
            words("capture snap --control no/such/socket"),
            BAD_INPUT,
            &["no/such/socket: no VM listens here"],
        ),
    ]);
}

#[test]
fn sockets_that_cannot_be_made() {
    let Some(dir) = begin("sockets_that_cannot_be_made") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    symlink(at("nowhere"), at("link")).unwrap();
    let long = at(&"x".repeat(120));
    let length = format!(
        "{} bytes are too long for a socket (at most 107)",
        text(&long).len()
    );
    let before = entries(dir.path());
    let cannot = "the control socket cannot be made: ";
    check(&[
        (with_control(&long), FAILED, &[cannot, &length]),
        (
            with_control(&at("missing/socket")),
            FAILED,
            &[
                cannot,
                "missing/socket: cannot open the socket's directory: No such file",
            ],
        ),
        (
            with_control(&at("file/socket")),
            FAILED,
            &[
                cannot,
                "file/socket: cannot open the socket's directory: Not a directory",
            ],
        ),
        (
            with_control(&at("file")),
            FAILED,
            &[cannot, "file: exists and is not a socket"],
        ),
        (
            with_control(&at("directory")),
            FAILED,
            &["directory: exists and is not a socket"],
        ),
        // What a link leads to is not asked: a socket would be made there.
        (
            with_control(&at("link")),
            FAILED,
            &["link: exists and is not a socket"],
        ),
        (
            with_control(Path::new("/proc/socket")),
            FAILED,
            &[cannot, "/proc/socket: cannot create"],
        ),
        (with_control(Path::new("")), FAILED, &["--control"]),
    ]);
    assert_eq!(entries(dir.path()), before);
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "content");
    // The same of a restore, which then does not look at its snapshot.
    let control = |socket: &Path| restore(&at("missing"), &["--control", text(socket)]);
    check(&[
        (
            control(&at("file")),
            FAILED,
            &["file: exists and is not a socket"],
        ),
        (control(&at("socket")), FAILED, &["missing: does not exist"]),
    ]);
    assert_eq!(entries(dir.path()), before);
}

#[test]
fn a_socket_on_a_read_only_file_system() {
    let name = "a_socket_on_a_read_only_file_system";
    if begin(name).is_none() {
        return;
    }
    let Some(tmpfs) = Tmpfs::mount("ro,size=64k") else {
        return skip(name, "mounting needs root");
    };
    check(&[(
        with_control(&tmpfs.join("socket")),
        FAILED,
        &["socket: cannot create the socket: Read-only file system"],
    )]);
}

#[test]
fn a_stale_socket_on_a_read_only_file_system() {
    let name = "a_stale_socket_on_a_read_only_file_system";
    if begin(name).is_none() {
        return;
    }
    let Some(tmpfs) = Tmpfs::mount("size=64k") else {
        return skip(name, "mounting needs root");
    };
    drop(UnixListener::bind(tmpfs.join("socket")).unwrap());
    tmpfs.remount("ro");
    check(&[
        (
            with_control(&tmpfs.join("socket")),
            FAILED,
            &["socket: cannot remove the stale socket: Read-only file system"],
        ),
        (
            status_of(&tmpfs.join("socket")),
            BAD_INPUT,
            &["socket: no VM listens here"],
        ),
    ]);
}

#[test]
fn roots_that_cannot_be_used() {
    let Some(dir) = begin("roots_that_cannot_be_used") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    let root = |name: &str| {
        let (socket, root) = (at("socket"), at(name));
        small().run(&["--control", text(&socket), "--snapshot-root", text(&root)])
    };
    check(&[
        (
            root("missing"),
            FAILED,
            &["snapshot root ", "missing: does not exist"],
        ),
        (
            root("dangling"),
            FAILED,
            &["snapshot root ", "dangling: does not exist"],
        ),
        (
            root("file"),
            FAILED,
            &["snapshot root ", "file: is a regular file, not a directory"],
        ),
        (
            root("file/below"),
            FAILED,
            &["snapshot root ", "file/below: "],
        ),
    ]);
    assert_eq!(entries(dir.path()), ["dangling", "file"]);
}

#[test]
fn where_no_vm_listens() {
    let Some(dir) = begin("where_no_vm_listens") else {
        return;
    };
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "content").unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    let long = at(&"x".repeat(120));
    let nobody = "no VM listens here: ";
    check(&[
        (
            status_of(&at("missing")),
            BAD_INPUT,
            &["missing: ", nobody, "No such file"],
        ),
        (
            status_of(&at("stale")),
            BAD_INPUT,
            &["stale: ", nobody, "Connection refused"],
        ),
        (status_of(&at("file")), BAD_INPUT, &["file: ", nobody]),
        (status_of(dir.path()), BAD_INPUT, &[nobody]),
        (
            status_of(&long),
            BAD_INPUT,
            &["too long for a socket (at most 107)"],
        ),
        (status_of(Path::new("")), BAD_INPUT, &["--control"]),
        (
            arguments(["capture", "snap", "--control"], [at("stale").as_path()]),
            BAD_INPUT,
            &["stale: ", nobody],
        ),
    ]);
    // A client removes nothing.
    assert_eq!(entries(dir.path()), ["file", "stale"]);
}

#[test]
fn what_answers_is_no_vm() {
    let Some(dir) = begin("what_answers_is_no_vm") else {
        return;
    };
    let endless = "x".repeat(1 << 20);
    let newer = r#"{"version":2,"done":{}}"#.to_owned() + "\n";
    for (index, (answer, expected)) in [
        ("", "the VM ended before it answered"),
        ("half an answer", "the VM ended before it answered"),
        ("hello\n", "the VM's answer cannot be read: "),
        ("{}\n", "the VM's answer cannot be read: "),
        (
            newer.as_str(),
            "answers in version 2 of the protocol, this is version 1",
        ),
        (
            endless.as_str(),
            "the VM's answer is longer than 65536 bytes",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = dir.path().join(format!("socket-{index}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = answer.to_owned();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            // A client that has read enough hangs up.
            let _ = stream.write_all(answer.as_bytes());
            request
        });
        check(&[(status_of(&socket), BAD_INPUT, &[expected])]);
        assert_eq!(
            server.join().unwrap(),
            "{\"version\":1,\"command\":\"status\"}\n"
        );
    }
}
