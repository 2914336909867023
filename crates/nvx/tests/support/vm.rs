//! A guest under control: its process, its control socket, and clients of that.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::process::{Finished, Process, arguments, nvx, run, start};
use super::text;

/// Bounds every wait of a client.
const LIMIT: Duration = Duration::from_secs(90);

/// A running guest that was started with `--control`.
pub struct Vm {
    pub guest: Process,
    pub socket: PathBuf,
}

impl Vm {
    /// Starts `command` with its socket in `directory`, and waits for the guest's line `ready`.
    pub fn start(command: &[OsString], directory: &Path, ready: &str) -> Self {
        let mut vm = Self::spawn(command, directory);
        vm.guest.line(ready);
        vm
    }

    /// The same for a guest that says nothing: waits until a client can be heard.
    pub fn start_mute(command: &[OsString], directory: &Path) -> Self {
        let mut vm = Self::spawn(command, directory);
        let socket = vm.socket.clone();
        vm.guest.wait_for("a control socket", |_| {
            UnixStream::connect(&socket).is_ok().then_some(())
        });
        vm
    }

    /// Starts `command` with its socket in `directory`, and waits for nothing.
    pub fn spawn(command: &[OsString], directory: &Path) -> Self {
        let socket = directory.join("control");
        let mut all = command.to_vec();
        all.extend(["--control".into(), socket.clone().into()]);
        Self {
            guest: start(&all),
            socket,
        }
    }

    /// Runs `nvx ctl ACTION` to its end.
    pub fn ctl(&self, action: &str) -> Finished {
        ctl(action, &self.socket)
    }

    /// What `nvx ctl status --json` says.
    pub fn status(&self) -> Value {
        let words = ["ctl", "status", "--json", "--control"];
        let done = run(&arguments(words, [self.socket.as_path()])).expect_code(0);
        serde_json::from_str(&done.output).unwrap()
    }

    /// Runs `nvx capture` to its end.
    pub fn capture(&self, destination: &Path, rest: &[&str]) -> Finished {
        run(&self.capture_command(destination, rest))
    }

    /// Starts `nvx capture`.
    pub fn start_capture(&self, destination: &Path, rest: &[&str]) -> Process {
        Process::spawn(nvx(&self.capture_command(destination, rest)))
    }

    fn capture_command(&self, destination: &Path, rest: &[&str]) -> Vec<OsString> {
        let mut all = arguments(["capture", text(destination)], []);
        all.extend(["--control".into(), self.socket.clone().into()]);
        all.extend(rest.iter().map(Into::into));
        all
    }

    /// A raw connection.
    pub fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Client {
            answers: BufReader::new(stream.try_clone().unwrap()),
            stream,
        }
    }

    /// Ends the VM by `nvx ctl stop`.
    pub fn stop(self) -> Finished {
        self.ctl("stop").expect_code(0);
        let done = self.guest.end().expect_code(143);
        assert_eq!(done.events(), "nvx: stopped by a control client\n");
        assert!(!self.socket.exists());
        done
    }
}

/// Runs `nvx ctl ACTION` on this socket.
pub fn ctl(action: &str, socket: &Path) -> Finished {
    run(&arguments(["ctl", action, "--control"], [socket]))
}

/// A connection to a control socket that may be used for nonsense.
pub struct Client {
    pub stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Client {
    /// Sends bytes; false if the VM has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next answer; `None` at the end of the connection.
    pub fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
            // What was unread when the connection was closed is lost.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Sends a request line and reads the answer to it.
    pub fn ask(&mut self, request: &str) -> Value {
        assert!(self.send(format!("{request}\n").as_bytes()));
        self.answer().unwrap()
    }
}
