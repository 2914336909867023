//! One VM's life, as a seed has it.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nvx_probe_guest::{Fill, ProbeParams};

use super::leaks::Holdings;
use super::random::Random;
use super::vm::{GuestFacts, Vm};

/// Exit code of `nvx run` and `nvx restore` for bad input (doc/exit-codes.md).
const BAD_INPUT: i32 = 125;
/// Exit code of the other commands for bad input and for what a VM refuses.
const REFUSED: i32 = 2;
/// Exit code of a VM that a client or SIGTERM ended.
const ENDED: i32 = 143;

/// What was done on one back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    rounds: u64,
    boots: u64,
    dirtied: u64,
    captures: u64,
    restores: u64,
    kills: u64,
    kills_in_capture: u64,
    published_before_kill: u64,
    faults: u64,
    most: Holdings,
    most_besides_ram_bytes: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds: {} boots, {} fills, {} captures, {} restores, {} kills, {} of them in a capture \
             ({} after its commit), {} faults refused; at most {} descriptors, {} threads, {} KiB resident \
             besides guest RAM",
            self.rounds,
            self.boots,
            self.dirtied,
            self.captures,
            self.restores,
            self.kills,
            self.kills_in_capture,
            self.published_before_kill,
            self.faults,
            self.most.descriptors,
            self.most.threads,
            self.most_besides_ram_bytes >> 10,
        )
    }
}

/// Where guest RAM lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ram {
    Anonymous,
    Scratch,
    BesideSnapshot,
}

/// A snapshot and the guest that is in it.
#[derive(Clone)]
struct Saved {
    path: PathBuf,
    facts: GuestFacts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Dirty,
    Hammer,
    Pause,
    CaptureAndContinue,
    CaptureAndRestore,
    GuestRequest,
    Kill,
    KillInCapture,
    TerminateInCapture,
    Stop,
    RefusedCapture,
    DamagedSnapshot,
}

const STEPS: [Step; 16] = [
    Step::Dirty,
    Step::Dirty,
    Step::Hammer,
    Step::Pause,
    Step::CaptureAndContinue,
    Step::CaptureAndContinue,
    Step::CaptureAndRestore,
    Step::CaptureAndRestore,
    Step::GuestRequest,
    Step::GuestRequest,
    Step::Kill,
    Step::KillInCapture,
    Step::TerminateInCapture,
    Step::Stop,
    Step::RefusedCapture,
    Step::DamagedSnapshot,
];

/// A round under way.
pub struct Round<'a> {
    program: &'a Path,
    backend: &'a str,
    place: PathBuf,
    random: Random,
    figures: &'a mut Figures,
    params: ProbeParams,
    memory_bytes: u64,
    ram: Ram,
    /// The present VM was given a place for what its guest requests.
    has_destination: bool,
    vm: Option<Vm>,
    saved: Option<Saved>,
    made: u32,
    log: Vec<String>,
}

impl<'a> Round<'a> {
    pub fn new(
        program: &'a Path,
        backend: &'a str,
        parent: &Path,
        mut random: Random,
        figures: &'a mut Figures,
    ) -> Result<Self> {
        let place = parent.join("round");
        fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let memory_bytes = random.choose(&[8, 16, 24, 40]) << 20;
        let pages = 1 + random.below(512) as u32;
        let fill = match random.below(4) {
            0 => Fill::All,
            1 => Fill::Alternate,
            2 => Fill::Top(pages),
            _ => Fill::Spread(pages),
        };
        let params = ProbeParams {
            fill,
            seed: random.below(1 << 31) as u32,
        };
        let ram = random.choose(&[Ram::Anonymous, Ram::Scratch, Ram::BesideSnapshot]);
        Ok(Self {
            program,
            backend,
            place,
            random,
            figures,
            params,
            memory_bytes,
            ram,
            has_destination: false,
            vm: None,
            saved: None,
            made: 0,
            log: vec![format!("{ram:?} {} MiB {fill}:", memory_bytes >> 20)],
        })
    }

    /// Lives it, and tells what was done.
    pub fn run(mut self) -> Result<String> {
        self.figures.rounds += 1;
        let steps = 3 + self.random.below(6);
        for _ in 0..steps {
            let step = self.random.choose(&STEPS);
            self.log.push(format!("{step:?}"));
            self.step(step)
                .and_then(|()| self.check())
                .with_context(|| self.log.join(" "))?;
        }
        self.end().with_context(|| self.log.join(" "))?;
        Ok(self.log.join(" "))
    }

    fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Dirty => {
                self.figures.dirtied += 1;
                self.vm()?.dirty()
            }
            // One of its accesses requests a snapshot, which would end a VM that has a place for it.
            Step::Hammer => {
                self.vm()?;
                if self.has_destination {
                    self.vm()?.verify()
                } else {
                    self.vm()?.hammer()
                }
            }
            Step::Pause => {
                for action in ["pause", "resume"] {
                    let done = self.vm()?.control(&["ctl".as_ref(), action.as_ref()])?;
                    ensure!(done.status.success(), "ctl {action}: {}", done.status);
                }
                Ok(())
            }
            Step::CaptureAndContinue => self.capture(true),
            Step::CaptureAndRestore => {
                self.capture(false)?;
                let ended = self.vm()?.wait()?;
                ensure!(
                    ended.status.success(),
                    "{}: {}",
                    ended.status,
                    ended.messages
                );
                self.restore()
            }
            Step::GuestRequest => self.guest_request(),
            Step::Kill => {
                self.figures.kills += 1;
                self.vm()?.kill()?;
                self.vm()?.wait()?;
                self.vm = None;
                Ok(())
            }
            Step::KillInCapture => self.end_in_capture(true),
            Step::TerminateInCapture => self.end_in_capture(false),
            Step::Stop => {
                let done = self.vm()?.control(&["ctl".as_ref(), "stop".as_ref()])?;
                ensure!(done.status.success(), "ctl stop: {}", done.status);
                let ended = self.vm()?.wait()?;
                self.vm = None;
                ensure!(
                    ended.status.code() == Some(ENDED),
                    "{}: {}",
                    ended.status,
                    ended.messages
                );
                Ok(())
            }
            Step::RefusedCapture => self.refused_capture(),
            Step::DamagedSnapshot => self.damaged_snapshot(),
        }
    }

    /// The VM; one is restored, or booted where there is no snapshot yet, if none runs.
    fn vm(&mut self) -> Result<&mut Vm> {
        if self.vm.is_none() {
            if self.saved.is_some() {
                self.restore()?;
            } else {
                self.boot()?;
            }
        }
        self.vm.as_mut().context("no VM")
    }

    fn boot(&mut self) -> Result<()> {
        self.figures.boots += 1;
        let socket = self.place.join("control");
        let destination = self.place.join("asked");
        let scratch = self.place.clone();
        let mut rest = vec![OsStr::new("--snapshot-root"), scratch.as_os_str()];
        self.has_destination = self.ram == Ram::BesideSnapshot;
        match self.ram {
            Ram::Anonymous => {}
            Ram::Scratch => rest.extend([OsStr::new("--scratch"), scratch.as_os_str()]),
            Ram::BesideSnapshot => rest.extend([OsStr::new("--snapshot"), destination.as_os_str()]),
        }
        let vm = Vm::boot(
            self.program,
            self.backend,
            &socket,
            self.params,
            self.memory_bytes,
            &rest,
        )?;
        self.vm = Some(vm);
        Ok(())
    }

    /// Restores the last snapshot in a new process.
    fn restore(&mut self) -> Result<()> {
        self.vm = None;
        self.has_destination = self.random.below(2) == 0;
        self.figures.restores += 1;
        let saved = self.saved.as_ref().context("no snapshot")?;
        let socket = self.place.join("control");
        let destination = self.place.join("asked");
        let mut rest = vec![OsStr::new("--snapshot-root"), self.place.as_os_str()];
        if self.has_destination {
            rest.extend([OsStr::new("--snapshot"), destination.as_os_str()]);
        }
        let mut vm = Vm::restore(self.program, &saved.path, &socket, &saved.facts, &rest)?;
        vm.verify()?;
        self.vm = Some(vm);
        Ok(())
    }

    fn new_destination(&mut self) -> PathBuf {
        self.made += 1;
        self.place.join(format!("snap{}", self.made))
    }

    /// Takes `path` as the last snapshot, and removes the one before.
    fn keep(&mut self, path: PathBuf, facts: GuestFacts) -> Result<()> {
        self.figures.captures += 1;
        if let Some(old) = self.saved.replace(Saved { path, facts }) {
            fs::remove_dir_all(&old.path)
                .with_context(|| format!("cannot remove {}", old.path.display()))?;
        }
        Ok(())
    }

    fn capture(&mut self, continues: bool) -> Result<()> {
        let destination = self.new_destination();
        let mut words = vec![OsStr::new("capture"), destination.as_os_str()];
        if continues {
            words.push(OsStr::new("--continue"));
        }
        let vm = self.vm()?;
        let done = vm.control(&words)?;
        ensure!(
            done.status.success(),
            "capture {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        let facts = vm.facts.clone();
        self.keep(destination, facts)
    }

    /// The guest asks by itself; a VM without a destination refuses and its guest goes on.
    fn guest_request(&mut self) -> Result<()> {
        let vm = self.vm()?;
        vm.send("s")?;
        let facts = vm.facts.clone();
        if !self.has_destination {
            return self.vm()?.verify();
        }
        let asked = self.place.join("asked");
        let ended = self.vm()?.wait()?;
        ensure!(
            ended.status.success(),
            "{}: {}",
            ended.status,
            ended.messages
        );
        let destination = self.new_destination();
        fs::rename(&asked, &destination)?;
        self.keep(destination, facts)?;
        self.restore()
    }

    /// The monitor ends at a random moment of a capture: there is a whole snapshot or none.
    fn end_in_capture(&mut self, kill: bool) -> Result<()> {
        let destination = self.new_destination();
        let delay = Duration::from_micros(self.random.below(60_000));
        let vm = self.vm()?;
        let words = [
            "capture".as_ref(),
            destination.as_os_str(),
            "--continue".as_ref(),
        ];
        let client = vm.control_command(&words).spawn();
        let client = client.context("cannot run nvx capture")?;
        std::thread::sleep(delay);
        let facts = vm.facts.clone();
        if kill {
            vm.kill()?;
        } else {
            vm.terminate()?;
        }
        let ended = vm.wait()?;
        self.vm = None;
        let told = client.wait_with_output()?;
        if kill {
            self.figures.kills += 1;
            self.figures.kills_in_capture += 1;
        } else {
            ensure!(
                ended.status.code() == Some(ENDED),
                "{}: {}",
                ended.status,
                ended.messages
            );
        }
        if !destination.exists() {
            ensure!(
                told.status.code() == Some(REFUSED),
                "the client says {} of a capture that is not there",
                told.status
            );
            return Ok(());
        }
        self.figures.published_before_kill += u64::from(kill);
        self.keep(destination, facts)?;
        self.restore()
    }

    /// A destination that exists is not replaced, and the guest goes on.
    fn refused_capture(&mut self) -> Result<()> {
        self.figures.faults += 1;
        let taken = self.place.join("taken");
        fs::create_dir(&taken)?;
        let words = ["capture".as_ref(), taken.as_os_str(), "--continue".as_ref()];
        let done = self.vm()?.control(&words)?;
        ensure!(
            done.status.code() == Some(REFUSED),
            "a capture to what exists ended with {}",
            done.status
        );
        fs::remove_dir(&taken).context("what was there before the capture")
    }

    /// A damaged copy of the last snapshot is refused, with a message and without anything left.
    fn damaged_snapshot(&mut self) -> Result<()> {
        if self.saved.is_none() {
            self.capture(true)?;
        }
        self.figures.faults += 1;
        let copy = self.place.join("damaged");
        fs::create_dir(&copy)?;
        let saved = self.saved.as_ref().context("no snapshot")?;
        for entry in fs::read_dir(&saved.path)? {
            let entry = entry?;
            fs::copy(entry.path(), copy.join(entry.file_name()))?;
        }
        let file = copy.join(
            self.random
                .choose(&["manifest.json", "state.bin", "memory.bin"]),
        );
        self.damage(&file)?;
        let mut restore = Command::new(self.program)
            .arg("restore")
            .arg(&copy)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while restore.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                // It was accepted, and its guest waits for input.
                restore.kill()?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let done = restore.wait_with_output()?;
        let messages = String::from_utf8_lossy(&done.stderr);
        ensure!(
            done.status.code() == Some(BAD_INPUT) && messages.contains("nvx: "),
            "{} damaged: {}: {messages}",
            file.display(),
            done.status
        );
        fs::remove_dir_all(&copy)?;
        Ok(())
    }

    fn damage(&mut self, file: &Path) -> Result<()> {
        let length = fs::metadata(file)?.len();
        // A changed byte of guest RAM is what only a check of all of it finds.
        let is_memory = file.ends_with("memory.bin");
        match self.random.below(if is_memory { 3 } else { 4 }) {
            0 => {
                let shorter = self.random.below(length);
                fs::OpenOptions::new()
                    .write(true)
                    .open(file)?
                    .set_len(shorter)?;
            }
            1 => fs::remove_file(file)?,
            2 => {
                fs::remove_file(file)?;
                fs::create_dir(file)?;
            }
            _ => {
                let mut bytes = fs::read(file)?;
                let at = self.random.below(length) as usize;
                bytes[at] ^= 1 << self.random.below(8);
                fs::write(file, bytes)?;
            }
        }
        Ok(())
    }

    /// The guest is what it should be, and its monitor holds no more than it may.
    fn check(&mut self) -> Result<()> {
        let Some(vm) = &mut self.vm else {
            return Ok(());
        };
        vm.verify()?;
        let holdings = Holdings::of(vm.id())?;
        holdings.check(vm.facts.memory_bytes)?;
        self.figures.most = self.figures.most.max(holdings);
        let besides = holdings
            .resident_bytes
            .saturating_sub(vm.facts.memory_bytes);
        let most = &mut self.figures.most_besides_ram_bytes;
        *most = besides.max(*most);
        Ok(())
    }

    /// Ends the VM; the next start in the directory removes what killed ones left behind.
    fn end(&mut self) -> Result<()> {
        self.saved = None;
        self.vm = None;
        self.ram = Ram::Scratch;
        self.boot()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Some(name) = self.stale_file()? {
            ensure!(Instant::now() < deadline, "{name} is not removed");
            std::thread::sleep(Duration::from_millis(5));
        }
        let vm = self.vm()?;
        vm.verify()?;
        vm.send("x0")?;
        let ended = vm.wait()?;
        ensure!(
            ended.status.success(),
            "{}: {}",
            ended.status,
            ended.messages
        );
        ensure!(
            !self.place.join("control").exists(),
            "the control socket is left"
        );
        if let Some(name) = self.stale_file()? {
            anyhow::bail!("{name} is left");
        }
        fs::remove_dir_all(&self.place).context("cannot remove the round's directory")
    }

    fn stale_file(&self) -> Result<Option<String>> {
        for entry in fs::read_dir(&self.place)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(".nvx-") {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}
