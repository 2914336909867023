//! The floor program does what its measurement claims: the guest that it captures and restores is the same
//! guest with the same memory.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest life of one monitor.
const LIMIT: Duration = Duration::from_secs(30);

fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}

/// Why the floor program cannot be built and run here.
fn obstacle() -> Option<String> {
    let compiler = Command::new("cc")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if let Err(error) = compiler {
        return Some(format!("no C compiler `cc` ({error})"));
    }
    let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    kvm.err()
        .map(|error| format!("/dev/kvm cannot be opened ({error})"))
}

struct Floor {
    program: PathBuf,
    probe: PathBuf,
    directory: TempDir,
}

impl Floor {
    /// Builds the program and the guest in a directory below `parent`.
    fn new(parent: &Path) -> Self {
        let directory = TempDir::new_in(parent).unwrap();
        let program = directory.path().join("floor-program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("floor");
        let files = ["floor.c", "machine.c", "publish.c", "state.c"];
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"])
            .arg(&program)
            .args(files.map(|file| source.join(file)))
            .status()
            .unwrap();
        assert!(status.success());
        let probe = directory.path().join("probe.elf");
        std::fs::write(&probe, nvx_probe_guest::image().unwrap()).unwrap();
        Self {
            program,
            probe,
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn boot(&self, fill: &str, memory_mib: u64, snapshot: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("boot").arg(&self.probe).arg(fill);
        command.arg("--memory").arg(memory_mib.to_string());
        command.arg("--ram-dir").arg(self.directory.path());
        command.arg("--snapshot").arg(snapshot);
        command
    }

    fn restore(&self, snapshot: &Path, destination: Option<&Path>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("restore").arg(snapshot);
        if let Some(destination) = destination {
            command.arg("--snapshot").arg(destination);
        }
        command
    }
}

/// Runs a monitor to its end with `input` typed on the console; gives exit code and output.
fn run(command: &mut Command, input: &str) -> (Option<i32>, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut console = child.stdin.take().unwrap();
    console.write_all(input.as_bytes()).unwrap();
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the floor program did not end within {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let mut output = String::new();
    // The few lines fit into the pipe, so nothing is lost by reading them now.
    child.stdout.unwrap().read_to_string(&mut output).unwrap();
    (status.code(), output)
}

/// The nonce in a line such as `PROBE-READY nonce=... count=0`.
fn nonce(output: &str) -> &str {
    let start = output.find("nonce=").unwrap();
    &output[start..start + 22]
}

fn captures_and_restores(parent: &Path, fill: &str, memory_mib: u64) {
    let floor = Floor::new(parent);
    let (first, second) = (floor.path("first"), floor.path("second"));

    let (code, ready) = run(&mut floor.boot(fill, memory_mib, &first), "s\n");
    assert_eq!(code, Some(0));
    assert!(ready.starts_with("PROBE-READY"), "{ready}");

    let (code, restored) = run(&mut floor.restore(&first, None), "v\nx3\n");
    assert_eq!(code, Some(3));
    assert!(restored.starts_with("PROBE-RESTORED"), "{restored}");
    assert!(restored.contains("PROBE-VERIFY ok"), "{restored}");
    assert_eq!(nonce(&ready), nonce(&restored));

    // The copy must hold what the base held and what was written since.
    let (code, dirtied) = run(&mut floor.restore(&first, Some(&second)), "d\ns\n");
    assert_eq!(code, Some(0));
    assert!(dirtied.contains("PROBE-DIRTIED seed=8"), "{dirtied}");
    let (code, again) = run(&mut floor.restore(&second, None), "v\nx0\n");
    assert_eq!(code, Some(0));
    assert!(again.contains("PROBE-VERIFY ok"), "{again}");
    assert!(again.contains("seed=8"), "{again}");
    assert_eq!(nonce(&ready), nonce(&again));

    // Neither changed the first snapshot.
    let (_, restored) = run(&mut floor.restore(&first, None), "v\nx0\n");
    assert!(restored.contains("seed=7"), "{restored}");
}

#[test]
fn linked_and_copied_captures_keep_memory() {
    if let Some(reason) = obstacle() {
        return skip("linked_and_copied_captures_keep_memory", &reason);
    }
    captures_and_restores(Path::new("/dev/shm"), "fill=top:256 seed=7", 128);
    captures_and_restores(
        Path::new(env!("CARGO_TARGET_TMPDIR")),
        "fill=spread:64 seed=7",
        32,
    );
}

#[test]
fn memory_beyond_the_gap_is_a_second_slot() {
    if let Some(reason) = obstacle() {
        return skip("memory_beyond_the_gap_is_a_second_slot", &reason);
    }
    captures_and_restores(Path::new("/dev/shm"), "fill=top:16 seed=7", 4096);
}

#[test]
fn without_a_destination_a_request_is_refused() {
    if let Some(reason) = obstacle() {
        return skip("without_a_destination_a_request_is_refused", &reason);
    }
    let floor = Floor::new(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut command = Command::new(&floor.program);
    command.arg("boot").arg(&floor.probe).arg("fill=top:1");
    let (code, output) = run(&mut command, "s\nx0\n");
    assert_eq!(code, Some(0));
    assert!(output.contains("PROBE-REFUSED"), "{output}");
}
