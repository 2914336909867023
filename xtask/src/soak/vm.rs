//! A monitor's process with the built-in guest in it, and what is known of that guest.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nvx_probe_guest::{ProbeParams, checksum};

/// Bounds every wait; far above what anything takes.
const LIMIT: Duration = Duration::from_secs(120);

/// What a guest is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFacts {
    pub params: ProbeParams,
    pub memory_bytes: u64,
    /// Of the present fill.
    pub seed: u32,
    /// Drawn at boot; lives in guest RAM only.
    pub nonce: String,
    /// Lines taken.
    pub count: u32,
}

/// A process that has ended.
pub struct Ended {
    pub status: ExitStatus,
    pub messages: String,
}

/// A running monitor; dropping it kills it.
pub struct Vm {
    child: Child,
    lines: Receiver<String>,
    messages: Option<std::thread::JoinHandle<String>>,
    program: PathBuf,
    pub socket: PathBuf,
    pub facts: GuestFacts,
}

impl Vm {
    /// Boots a guest.
    pub fn boot(
        program: &Path,
        backend: &str,
        socket: &Path,
        params: ProbeParams,
        memory_bytes: u64,
        rest: &[&OsStr],
    ) -> Result<Self> {
        let facts = GuestFacts {
            params,
            memory_bytes,
            seed: params.seed,
            nonce: String::new(),
            count: 0,
        };
        let mut command = Command::new(program);
        command
            .args(["run", "--backend", backend])
            .args(["--memory", &memory_bytes.to_string()])
            .args(["--probe", &params.to_string()])
            .args(rest);
        let mut vm = Self::spawn(program, command, socket, facts)?;
        let ready = vm.line("PROBE-READY")?;
        vm.facts.nonce = field(&ready, "nonce")?.to_owned();
        ensure!(field(&ready, "count")? == "0", "{ready}");
        Ok(vm)
    }

    /// Restores a guest, which must be the one that was captured.
    pub fn restore(
        program: &Path,
        snapshot: &Path,
        socket: &Path,
        facts: &GuestFacts,
        rest: &[&OsStr],
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("restore").arg(snapshot).args(rest);
        let mut vm = Self::spawn(program, command, socket, facts.clone())?;
        let said = vm.line("PROBE-RESTORED")?;
        vm.check_identity(&said)?;
        Ok(vm)
    }

    fn spawn(
        program: &Path,
        mut command: Command,
        socket: &Path,
        facts: GuestFacts,
    ) -> Result<Self> {
        let mut child = command
            .arg("--control")
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let output = child.stdout.take().context("no standard output")?;
        let mut errors = child.stderr.take().context("no standard error")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // Random bytes of a hostile guest are no UTF-8.
            for line in BufReader::new(output).split(b'\n') {
                let Ok(line) = line else { return };
                if sender
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    return;
                }
            }
        });
        let messages = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        Ok(Self {
            child,
            lines,
            messages: Some(messages),
            program: program.to_owned(),
            socket: socket.to_owned(),
            facts,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self, marker: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.starts_with(marker) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("no line {marker} within {LIMIT:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.wait()?;
                    bail!(
                        "the guest ended ({}) instead of saying {marker}: {}",
                        ended.status,
                        ended.messages
                    );
                }
            }
        }
    }

    /// Sends a line to the guest.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no standard input")?;
        writeln!(input, "{line}").context("the guest takes no line")?;
        self.facts.count += 1;
        Ok(())
    }

    fn ask(&mut self, line: &str, marker: &str) -> Result<String> {
        self.send(line)?;
        let said = self.line(marker)?;
        let count = field(&said, "count")?;
        ensure!(
            count == self.facts.count.to_string(),
            "{said}: count should be {}",
            self.facts.count
        );
        Ok(said)
    }

    fn check_identity(&self, said: &str) -> Result<()> {
        let GuestFacts { nonce, count, .. } = &self.facts;
        ensure!(
            field(said, "nonce")? == nonce && field(said, "count")? == count.to_string(),
            "{said}: should be nonce={nonce} count={count}"
        );
        Ok(())
    }

    /// `d`: the guest fills its pages with the next seed.
    pub fn dirty(&mut self) -> Result<()> {
        let said = self.ask("d", "PROBE-DIRTIED")?;
        self.facts.seed = self.facts.seed.wrapping_add(1);
        ensure!(
            field(&said, "seed")? == self.facts.seed.to_string(),
            "{said}: seed should be {}",
            self.facts.seed
        );
        Ok(())
    }

    /// `v`: every word is what it should be, by the guest's own comparison and by the host's checksum.
    pub fn verify(&mut self) -> Result<()> {
        let said = self.ask("v", "PROBE-VERIFY")?;
        let GuestFacts {
            params,
            memory_bytes,
            seed,
            ..
        } = &self.facts;
        let sum = checksum(*seed, params.span(*memory_bytes));
        let wanted = format!("PROBE-VERIFY ok checksum={sum:08x} seed={seed} ");
        ensure!(said.starts_with(&wanted), "{said}: should be {wanted}");
        Ok(())
    }

    /// `h`: the guest hits ports and memory at random.
    pub fn hammer(&mut self) -> Result<()> {
        self.ask("h", "PROBE-HAMMERED").map(drop)
    }

    /// Runs `nvx WORDS` for this VM's control socket.
    pub fn control(&self, words: &[&OsStr]) -> Result<Output> {
        self.control_command(words)
            .output()
            .context("cannot run nvx")
    }

    pub fn control_command(&self, words: &[&OsStr]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .arg("--control")
            .arg(&self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill nvx")
    }

    /// SIGTERM, after which a monitor ends by itself.
    pub fn terminate(&mut self) -> Result<()> {
        let id = self.id().to_string();
        let status = Command::new("kill").args(["-TERM", &id]).status();
        ensure!(status.context("cannot run kill")?.success(), "kill failed");
        Ok(())
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) -> Result<Ended> {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for nvx")? {
                break status;
            }
            ensure!(Instant::now() < deadline, "nvx does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        let messages = self.messages.take().and_then(|thread| thread.join().ok());
        Ok(Ended {
            status,
            messages: messages.unwrap_or_default(),
        })
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // After a regular end both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn field<'a>(line: &'a str, name: &str) -> Result<&'a str> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
        .with_context(|| format!("no {name}= in '{line}'"))
}
