//! Starting `nvx.exe`, talking to its guest, and waiting for its end, each with a limit.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Bounds every wait.
const LIMIT: Duration = Duration::from_secs(90);

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub output: String,
    pub messages: String,
}

impl Finished {
    /// Asserts the exit code.
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Asserts that a message has `part` in it.
    pub fn assert_said(&self, part: &str) {
        assert!(self.messages.contains(part), "no {part:?} in {self:?}");
    }

    /// The output's first line that starts with `marker`.
    pub fn line(&self, marker: &str) -> &str {
        let mut lines = self.output.lines();
        lines
            .find(|line| line.starts_with(marker))
            .unwrap_or_else(|| panic!("no {marker:?} in {self:?}"))
    }
}

/// A running process; dropping it kills it.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    messages: Receiver<String>,
    seen: String,
}

/// Starts `nvx.exe`.
pub fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Process {
    start_by(Command::new(env!("CARGO_BIN_EXE_nvx")).args(arguments))
}

/// Starts a command.
pub fn start_by(command: &mut Command) -> Process {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (line_sender, lines) = channel();
    let output = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = line_sender.send(line);
        }
    });
    let (message_sender, messages) = channel();
    let mut errors = child.stderr.take().unwrap();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        let _ = message_sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    Process {
        input: child.stdin.take(),
        child,
        lines,
        messages,
        seen: String::new(),
    }
}

/// Runs `nvx.exe` to its end.
pub fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Finished {
    talk(arguments, "")
}

/// Runs `nvx.exe` to its end, with this input.
pub fn talk<A: AsRef<OsStr>>(arguments: &[A], input: &str) -> Finished {
    let mut process = start(arguments);
    process.send(input);
    process.end()
}

impl Process {
    /// Sends input. A process that has ended does not take it, which its end tells.
    pub fn send(&mut self, input: &str) {
        if let Some(pipe) = &mut self.input {
            let _ = pipe.write_all(input.as_bytes());
        }
    }

    /// Waits for the next line that starts with `marker`.
    pub fn line(&mut self, marker: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push_str(&line);
                    self.seen.push('\n');
                    if line.starts_with(marker) {
                        return line;
                    }
                }
                Err(error) => self.give_up(marker, error),
            }
        }
    }

    fn give_up(&mut self, marker: &str, error: RecvTimeoutError) -> ! {
        let _ = self.child.kill();
        let messages = self.messages.recv_timeout(LIMIT).unwrap_or_default();
        panic!(
            "no {marker:?} ({error}) in {:?}; messages {messages:?}",
            self.seen
        )
    }

    /// Sends a line and waits for the answer that starts with `marker`.
    pub fn ask(&mut self, line: &str, marker: &str) -> String {
        self.send(&format!("{line}\n"));
        self.line(marker)
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process by force, as a crash does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to end by itself; its input stays open.
    pub fn end(mut self) -> Finished {
        let deadline = Instant::now() + LIMIT;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            if Instant::now() > deadline {
                self.give_up("end", RecvTimeoutError::Timeout);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            self.seen.push_str(&line);
            self.seen.push('\n');
        }
        Finished {
            code,
            output: std::mem::take(&mut self.seen),
            messages: self.messages.recv_timeout(LIMIT).unwrap_or_default(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a regular end both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of `name=` in a line of the probe guest.
pub fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let found = line.split(' ').find_map(|word| {
        let (key, value) = word.split_once('=')?;
        (key == name).then_some(value)
    });
    found.unwrap_or_else(|| panic!("no {name} in {line:?}"))
}

/// Names in a directory, sorted.
pub fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Text of a path that tests made.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Arguments that start a small probe on this file's back end, followed by `rest`.
pub fn probe<'a>(backend: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "run",
        "--backend",
        backend,
        "--memory",
        "16M",
        "--probe",
        "fill=top:64,seed=7",
    ];
    all.extend(rest);
    all
}
