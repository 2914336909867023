//! Each test confines a process of its own: this test binary, started again for one named deed.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::thread::CapabilitySet;

use super::{confine, confine_thread, confinement_support};
use crate::confinement::{ConfinedThread, Confinement};

/// Names the deed in the process that a test starts.
const DEED: &str = "NVX_TEST_DEED";
/// The directory that the deed has.
const PLACE: &str = "NVX_TEST_PLACE";
const DONE: &str = "the deed was done";

#[test]
#[ignore = "only run by other tests, as their child process"]
fn child() {
    let (Some(deed), Some(place)) = (std::env::var_os(DEED), std::env::var_os(PLACE)) else {
        return;
    };
    let (deed, place) = (deed.into_string().expect("text"), PathBuf::from(place));
    let inside = place.join("inside");
    let sockets = place.join("sockets");
    confine(&Confinement {
        directories: vec![&inside],
        removable_in: vec![&sockets],
        filter_system_calls: !["no filter", "attributes"].contains(&deed.as_str()),
    })
    .expect("confined");
    act(&deed, &place);
    println!("\n{DONE}");
}

fn act(deed: &str, place: &Path) {
    let denied = |result: io::Result<()>| {
        let kind = result.expect_err("a refusal").kind();
        assert_eq!(kind, io::ErrorKind::PermissionDenied);
    };
    match deed {
        "files inside" => {
            let directory = place.join("inside/new");
            fs::create_dir(&directory).expect("made");
            fs::write(directory.join("file"), "text").expect("written");
            fs::rename(directory.join("file"), place.join("inside/moved")).expect("renamed");
            fs::remove_dir(&directory).expect("removed");
            assert_eq!(fs::read(place.join("inside/moved")).expect("read"), b"text");
        }
        "files outside" => {
            denied(fs::read(place.join("outside")).map(drop));
            denied(fs::write(place.join("outside"), ""));
            denied(fs::create_dir(place.join("new")));
            denied(fs::remove_file(place.join("outside")));
            denied(fs::read("/etc/passwd").map(drop));
            denied(fs::write(place.join("sockets/new"), ""));
        }
        "an open directory" => {
            let outside = std::env::current_dir().expect("here");
            denied(fs::write(outside.join("new"), ""));
            denied(fs::write("new", ""));
        }
        "remove a socket" => fs::remove_file(place.join("sockets/socket")).expect("removed"),
        "read own pages" => drop(fs::File::open("/proc/self/pagemap").expect("opened")),
        "start a thread" => {
            let answer = std::thread::spawn(|| 7).join().expect("joined");
            assert_eq!(answer, 7);
        }
        "narrow a thread" => {
            let worker = std::thread::spawn(|| {
                confine_thread(ConfinedThread::Vcpu).expect("narrowed");
                let memory = vec![1u8; 1 << 20];
                memory.iter().map(|byte| usize::from(*byte)).sum::<usize>()
            });
            assert_eq!(worker.join().expect("joined"), 1 << 20);
            // The others keep theirs.
            fs::write(place.join("inside/file"), "").expect("written");
        }
        "open in a narrow thread" => {
            let worker = std::thread::spawn(|| {
                confine_thread(ConfinedThread::Vcpu).expect("narrowed");
                fs::File::open("/dev/null").map(drop)
            });
            let _ = worker.join();
        }
        "execute" | "no filter" => {
            let error = Command::new("/bin/true").spawn().err();
            assert_eq!(
                error.map(|error| error.kind()),
                Some(io::ErrorKind::PermissionDenied)
            );
        }
        "signal another" => {
            // Only asks whether it could.
            let _ = rustix::process::test_kill_process(rustix::process::Pid::INIT);
        }
        "make a socket" => drop(std::os::unix::net::UnixDatagram::unbound()),
        "attributes" => {
            assert!(rustix::thread::no_new_privs().expect("known"));
            let ambient = CapabilitySet::CHOWN;
            assert!(!rustix::thread::capability_is_in_ambient_set(ambient).expect("known"));
            let core = rustix::process::getrlimit(rustix::process::Resource::Core);
            assert_eq!(core.maximum, Some(0));
        }
        _ => panic!("no deed {deed}"),
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        for directory in ["inside", "sockets"] {
            fs::create_dir(place.path().join(directory)).expect("made");
        }
        for file in ["outside", "sockets/socket"] {
            fs::write(place.path().join(file), "before").expect("written");
        }
        Self(place)
    }

    fn confined(&self, deed: &str) -> Output {
        Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "linux::confine::tests::child"])
            .args(["--ignored", "--nocapture"])
            .env(DEED, deed)
            .env(PLACE, self.0.path())
            .current_dir(self.0.path())
            .output()
            .expect("started")
    }
}

fn can(deed: &str) {
    let output = Place::new().confined(deed);
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{deed}: {text}{messages}");
    assert!(text.contains(DONE), "{deed}: {text}{messages}");
}

fn ends_naming(deed: &str, call: &str) {
    let output = Place::new().confined(deed);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), None, "{deed}: {messages}");
    assert_eq!(output.status.code(), Some(125), "{deed}: {messages}");
    assert!(
        messages.contains(&format!("({call})")),
        "{deed}: {messages}"
    );
    assert!(messages.contains("--no-seccomp"), "{deed}: {messages}");
}

fn paths_are_confined() -> bool {
    let confined = confinement_support().paths;
    if !confined {
        println!("skipped: this kernel has no Landlock");
    }
    confined
}

#[test]
fn what_a_machine_needs_remains() {
    for deed in [
        "files inside",
        "read own pages",
        "remove a socket",
        "start a thread",
        "narrow a thread",
    ] {
        can(deed);
    }
}

#[test]
fn nothing_outside_the_declared_directories_is_reached() {
    if paths_are_confined() {
        can("files outside");
        can("an open directory");
    }
}

#[test]
fn attributes_are_given_up() {
    can("attributes");
}

#[test]
fn without_the_filter_paths_are_still_confined() {
    if paths_are_confined() {
        can("no filter");
    }
}

#[test]
fn a_refused_call_is_named() {
    ends_naming("signal another", "kill");
    ends_naming("make a socket", "socket");
    ends_naming("open in a narrow thread", "openat");
}

#[test]
fn nothing_can_be_executed() {
    let output = Place::new().confined("execute");
    // The standard library blocks all signals around a start, so that the kernel ends the process by itself.
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
}
