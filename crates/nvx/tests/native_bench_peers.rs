//! The tests of `nvx bench peers` on KVM: beside a real QEMU where there is one, and beside a double of
//! Firecracker, which speaks its API and has a guest that answers as the probe guest does.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use support::process::{self, Finished, arguments};
use support::{begin, entries, skip, text};

const BAD_INPUT: i32 = 2;
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const METRICS: usize = 8;

/// `nvx bench peers` of a small guest with its files in `scratch`.
fn peers(scratch: &Path, more: &[&str]) -> Finished {
    let common = [
        "bench",
        "peers",
        "--backend",
        "kvm",
        "--memory",
        "16M",
        "--fill",
        "top:16",
        "--samples",
        "2",
        "--timeout",
        "40",
        "--scratch",
    ];
    let all = common
        .into_iter()
        .chain([text(scratch)])
        .chain(more.iter().copied());
    process::run(&arguments(all, []))
}

/// Asserts that every monitor has every metric with as many samples as were asked for.
fn assert_whole(result: &Value, names: &[&str]) {
    assert_eq!(result["schema"], "nvx.peers");
    assert_eq!(result["kernel_blake3"].as_str().unwrap().len(), 64);
    let peers = result["peers"].as_array().unwrap();
    let found: Vec<&str> = peers
        .iter()
        .map(|peer| peer["name"].as_str().unwrap())
        .collect();
    assert_eq!(found, names);
    for peer in peers {
        let metrics = peer["metrics"].as_object().unwrap();
        assert_eq!(metrics.len(), METRICS, "{peer}");
        for (name, series) in metrics {
            let samples = series["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 2, "{name}");
            assert!(
                samples.iter().all(|sample| sample.as_f64().unwrap() > 0.0),
                "{name}"
            );
        }
    }
}

#[test]
fn qemu_runs_the_same_guest() {
    let Some(directory) = begin("qemu_runs_the_same_guest") else {
        return;
    };
    if !Path::new(QEMU).exists() {
        skip("qemu_runs_the_same_guest", "QEMU is not installed");
        return;
    }
    let done = peers(directory.path(), &["--qemu", QEMU, "--json"]).expect_code(0);
    let result: Value = serde_json::from_str(&done.output).unwrap();
    assert_whole(&result, &["nvx", "qemu"]);
    assert!(
        entries(directory.path()).is_empty(),
        "nothing is left behind"
    );
}

#[test]
fn firecracker_is_asked_in_its_own_words() {
    let Some(directory) = begin("firecracker_is_asked_in_its_own_words") else {
        return;
    };
    let scratch = directory.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let double = Double::install(directory.path(), "");
    let output = directory.path().join("result.json");
    let more = [
        "--firecracker",
        text(&double.program),
        "--warmups",
        "0",
        "--output",
        text(&output),
    ];
    peers(&scratch, &more)
        .expect_code(0)
        .line_with("restore to next output");
    let result = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    assert_whole(&result, &["nvx", "firecracker"]);
    assert!(entries(&scratch).is_empty(), "nothing is left behind");
    let one_turn = [
        "configured",
        "PATCH /vm",
        "PUT /snapshot/create",
        "PUT /snapshot/load",
    ];
    assert_eq!(double.log(), [one_turn, one_turn].concat());
}

#[test]
fn what_firecracker_refuses_is_told() {
    let Some(directory) = begin("what_firecracker_refuses_is_told") else {
        return;
    };
    for (refused, step) in [
        ("/snapshot/create", "capture"),
        ("/snapshot/load", "restore"),
    ] {
        let place = directory.path().join(step);
        std::fs::create_dir(&place).unwrap();
        let double = Double::install(&place, refused);
        let done = peers(&place, &["--firecracker", text(&double.program)]).expect_code(BAD_INPUT);
        done.assert_said(&format!("firecracker: {step}: PUT {refused}"));
        done.assert_said("not today");
    }
}

#[test]
fn peers_that_cannot_be_run_are_named() {
    let Some(directory) = begin("peers_that_cannot_be_run_are_named") else {
        return;
    };
    let here = directory.path();
    let missing = here.join("missing");
    for option in ["--qemu", "--firecracker"] {
        peers(here, &[option, text(&missing)])
            .expect_code(BAD_INPUT)
            .assert_said(&format!("{option} {}", missing.display()));
    }
    let no_program = here.join("text");
    std::fs::write(&no_program, "text").unwrap();
    peers(here, &["--qemu", text(&no_program)])
        .expect_code(BAD_INPUT)
        .assert_said("Permission denied");
    let double = Double::install(here, "");
    let firecracker = ["--firecracker", text(&double.program)];
    let soft = ["bench", "peers", "--backend", "soft"];
    process::run(&arguments(soft.into_iter().chain(firecracker), []))
        .expect_code(BAD_INPUT)
        .assert_said("--backend soft");
    // A program that ends before its guest is ready.
    peers(here, &["--firecracker", "/bin/true"])
        .expect_code(BAD_INPUT)
        .assert_said("firecracker: start: the monitor ended");
}

#[test]
fn explaining_measures_nothing() {
    let Some(directory) = begin("explaining_measures_nothing") else {
        return;
    };
    let double = Double::install(directory.path(), "");
    let more = ["--firecracker", text(&double.program), "--explain"];
    let done = peers(directory.path(), &more).expect_code(0);
    for words in [
        "--config-file",
        "API PUT /snapshot/load",
        "nvx run",
        "nvx restore",
    ] {
        done.line_with(words);
    }
    assert!(double.log().is_empty());
}

/// A program that stands in for Firecracker.
struct Double {
    program: PathBuf,
    log: PathBuf,
}

impl Double {
    /// Puts one into `directory`; it refuses requests to `refused`. It is this test program, told by its
    /// environment to be the double.
    fn install(directory: &Path, refused: &str) -> Self {
        let double = Self {
            program: directory.join("firecracker"),
            log: directory.join("log"),
        };
        let script = format!(
            "#!/bin/sh\n\
             [ \"$1\" = --version ] && echo 'Firecracker double' && exit\n\
             export DOUBLE_ARGUMENTS=\"$*\" DOUBLE_LOG='{}' DOUBLE_REFUSES='{refused}'\n\
             exec '{}' --exact serves_as_a_firecracker --ignored --nocapture\n",
            double.log.display(),
            std::env::current_exe().unwrap().display()
        );
        std::fs::write(&double.program, script).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&double.program, executable).unwrap();
        double
    }

    /// What was asked of all its processes.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn note(event: &str) {
    let mut options = std::fs::OpenOptions::new();
    let mut log = options
        .create(true)
        .append(true)
        .open(variable("DOUBLE_LOG"))
        .unwrap();
    writeln!(log, "{event}").unwrap();
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").unwrap();
    output.flush().unwrap();
}

/// The double itself. Without its environment there is nothing to do.
#[test]
#[ignore = "is no test: the program that stands in for Firecracker"]
fn serves_as_a_firecracker() {
    let line = variable("DOUBLE_ARGUMENTS");
    let words: Vec<&str> = line.split(' ').collect();
    let option = |name: &str| Some(words[words.iter().position(|word| *word == name)? + 1]);
    let Some(socket) = option("--api-sock") else {
        return;
    };
    let listener = UnixListener::bind(socket).unwrap();
    // The test harness may have begun a line.
    say("");
    let count = Arc::new(AtomicU64::new(0));
    if let Some(file) = option("--config-file") {
        let configuration: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(
            configuration["machine-config"],
            json!({"vcpu_count": 1, "mem_size_mib": 16})
        );
        assert_eq!(
            configuration["boot-source"]["boot_args"],
            "fill=top:16 seed=1"
        );
        let kernel = configuration["boot-source"]["kernel_image_path"]
            .as_str()
            .unwrap();
        assert!(std::fs::read(kernel).unwrap().starts_with(b"\x7fELF"));
        note("configured");
        say("PROBE-READY nonce=0 count=0");
        run_guest(&count);
    }
    for stream in listener.incoming() {
        serve(stream.unwrap(), &count);
    }
}

/// Answers lines as the probe guest does.
fn run_guest(count: &Arc<AtomicU64>) {
    let count = Arc::clone(count);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line.is_empty() {
                continue;
            }
            let taken = count.fetch_add(1, Ordering::Relaxed) + 1;
            match line.as_str() {
                "v" => say(&format!(
                    "PROBE-VERIFY ok checksum=00ab seed=1 count={taken}"
                )),
                _ => say("PROBE-WHAT"),
            }
        }
    });
}

fn serve(stream: UnixStream, count: &Arc<AtomicU64>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some((request, body)) = read_request(&mut reader) {
        note(&request);
        let refused = variable("DOUBLE_REFUSES");
        let answer = match refused.is_empty() || !request.ends_with(&refused) {
            true => {
                carry_out(&request, &body, count);
                "HTTP/1.1 204 No Content\r\nServer: Firecracker API\r\n\r\n".to_owned()
            }
            false => {
                let why = json!({"fault_message": "not today"}).to_string();
                let length = why.len();
                format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\n\r\n{why}")
            }
        };
        (&stream).write_all(answer.as_bytes()).unwrap();
    }
}

/// Method and target, and the body.
fn read_request(reader: &mut impl std::io::BufRead) -> Option<(String, Value)> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|length| *length > 0)?;
    let request = line.strip_suffix(" HTTP/1.1\r\n").unwrap().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        match header.trim_end().split_once(": ") {
            None => break,
            Some(("Content-Length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some((request, serde_json::from_slice(&body).unwrap()))
}

fn carry_out(request: &str, body: &Value, count: &Arc<AtomicU64>) {
    let file = |value: &Value| PathBuf::from(value.as_str().unwrap());
    match request {
        "PATCH /vm" => assert_eq!(body["state"], "Paused"),
        "PUT /snapshot/create" => {
            assert_eq!(body["snapshot_type"], "Full");
            let taken = count.load(Ordering::Relaxed).to_string();
            std::fs::write(file(&body["snapshot_path"]), taken).unwrap();
            std::fs::write(file(&body["mem_file_path"]), [1; 4096]).unwrap();
        }
        "PUT /snapshot/load" => {
            assert_eq!(
                (&body["mem_backend"]["backend_type"], &body["resume_vm"]),
                (&json!("File"), &json!(true))
            );
            assert!(file(&body["mem_backend"]["backend_path"]).exists());
            let taken = std::fs::read_to_string(file(&body["snapshot_path"])).unwrap();
            count.store(taken.parse().unwrap(), Ordering::Relaxed);
            run_guest(count);
        }
        other => panic!("{other} is not among the requests"),
    }
}
