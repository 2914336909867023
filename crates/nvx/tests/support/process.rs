//! The built binary as a process under observation.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::IN_LINUX_GUEST_LANE;

/// Bounds every wait. Far above what anything takes, because machines that run tests are slow; the one
/// of lane linux-guest is emulated.
const LIMIT: Duration = Duration::from_secs(if IN_LINUX_GUEST_LANE { 300 } else { 90 });
/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(1);
/// The file that standard output goes to.
const OUTPUT: &str = "output";
/// The file that standard error goes to.
const MESSAGES: &str = "messages";

/// Words, then paths, as arguments.
pub fn arguments<'a>(
    words: impl IntoIterator<Item = &'a str>,
    paths: impl IntoIterator<Item = &'a Path>,
) -> Vec<OsString> {
    let words = words.into_iter().map(OsString::from);
    words.chain(paths.into_iter().map(Into::into)).collect()
}

/// The binary under test. Where the tests run in another machine than they were built on, they are told.
pub fn binary() -> OsString {
    std::env::var_os("NVX_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_nvx").into())
}

/// The binary with these arguments, its standard input a pipe.
pub fn nvx(arguments: &[OsString]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::piped());
    command
}

/// Starts the binary with its console on a pipe.
pub fn start(arguments: &[OsString]) -> Process {
    Process::spawn(nvx(arguments))
}

/// Runs the binary without input to its end.
pub fn run(arguments: &[OsString]) -> Finished {
    let mut command = nvx(arguments);
    command.stdin(Stdio::null());
    Process::spawn(command).end()
}

/// Runs the binary to its end with `input` for the guest, which must lead to that end.
pub fn talk(arguments: &[OsString], input: &str) -> Finished {
    let mut process = start(arguments);
    process.send(input);
    process.end()
}

/// A process that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// Standard output: the guest's, for most commands.
    pub output: String,
    /// Standard error: the monitor's messages.
    pub messages: String,
}

impl Finished {
    /// Asserts the exit code.
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// The monitor's messages but the one in which the back end says what it is.
    pub fn events(&self) -> String {
        let is_event = |line: &&str| !line.starts_with("nvx: back end ");
        self.messages
            .split_inclusive('\n')
            .filter(is_event)
            .collect()
    }

    /// Asserts that a message has `part` in it.
    pub fn assert_said(&self, part: &str) {
        assert!(self.messages.contains(part), "no {part:?} in {self:?}");
    }

    /// The guest's first line that starts with `marker`.
    pub fn line(&self, marker: &str) -> &str {
        let mut lines = self.output.lines();
        lines
            .find(|line| line.starts_with(marker))
            .unwrap_or_else(|| panic!("no {marker:?} in {self:?}"))
    }

    /// The first line of the output that has `part` in it.
    pub fn line_with(&self, part: &str) -> &str {
        let mut lines = self.output.lines();
        lines
            .find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("no {part:?} in {self:?}"))
    }
}

/// A running process; dropping it kills it.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    files: TempDir,
    /// How much of the output [`Process::line`] has taken, in bytes.
    taken_bytes: usize,
}

impl Process {
    /// Starts `command` with its outputs in files; standard input is what the command says.
    pub fn spawn(command: Command) -> Self {
        let files = tempfile::tempdir().unwrap();
        let output = File::create(files.path().join(OUTPUT)).unwrap();
        Self::spawn_in(files, command, output)
    }

    /// The same with standard output to something else than a file.
    pub fn spawn_to(command: Command, output: impl Into<Stdio>) -> Self {
        let files = tempfile::tempdir().unwrap();
        File::create(files.path().join(OUTPUT)).unwrap();
        Self::spawn_in(files, command, output)
    }

    fn spawn_in(files: TempDir, mut command: Command, output: impl Into<Stdio>) -> Self {
        let messages = File::create(files.path().join(MESSAGES)).unwrap();
        let mut child = command.stdout(output).stderr(messages).spawn().unwrap();
        Self {
            input: child.stdin.take(),
            child,
            files,
            taken_bytes: 0,
        }
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.files.path().join(name)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Standard output so far.
    pub fn output(&self) -> String {
        self.read(OUTPUT)
    }

    /// Standard error so far.
    pub fn messages(&self) -> String {
        self.read(MESSAGES)
    }

    /// Sends input to the guest. A process that has ended does not take it, which its end tells.
    pub fn send(&mut self, input: &str) {
        if let Some(pipe) = &mut self.input {
            let _ = pipe.write_all(input.as_bytes());
        }
    }

    /// Ends the guest's input.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for the guest's next line that starts with `marker`.
    pub fn line(&mut self, marker: &str) -> String {
        let what = format!("a line {marker:?}");
        self.wait_for(&what, |process| {
            let output = process.output();
            let fresh = &output[process.taken_bytes..];
            let mut end = process.taken_bytes;
            for line in fresh.split_inclusive('\n') {
                end += line.len();
                if line.ends_with('\n') && line.starts_with(marker) {
                    process.taken_bytes = end;
                    return Some(line.trim_end().to_owned());
                }
            }
            None
        })
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

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Most memory that the process has had resident (`VmHWM`, proc_pid_status(5)), in bytes; none if
    /// it has ended.
    pub fn peak_resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }

    /// Asserts that the process has not ended.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {:?}", self.messages());
    }

    /// Waits for a message with `part` in it.
    pub fn message(&mut self, part: &str) {
        let what = format!("a message {part:?}");
        self.wait_for(&what, |process| {
            process.messages().contains(part).then_some(())
        });
    }

    /// Waits until `look` finds something; `what` is for the message if it does not.
    pub fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            // Looked at after the end too: the last line may come together with it.
            let ended = self.child.try_wait().unwrap();
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "no {what}; status {ended:?}, output {:?}, messages {:?}",
                self.output(),
                self.messages()
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        // As long as nobody has waited for it the id is still its own.
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }
    }

    /// Waits for the process to end by itself.
    pub fn end(mut self) -> Finished {
        let status = self.wait_for("an end", |process| process.child.try_wait().unwrap());
        Finished {
            status,
            output: self.output(),
            messages: self.messages(),
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
