//! Process 1 of a guest.
//!
//! The main thread takes [`Event`]s, one after the other, from threads that each wait for one thing: the
//! control line, the end of processes, clients. So what happens has one order, and a restore is repaired
//! before anything that comes after it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nvx_machine::control_line::{
    Clock, ConsoleMode, ENTROPY_BYTES, FromGuest, GENERATION_BYTES, ToGuest,
};
use rustix::process::{Pid, Signal};
use rustix::system::RebootCommand;

use super::control::ControlLine;
use super::mounts::{self, MountError};
use super::reaper::Reaper;
use super::relay::{InputRelay, OutputRelay};
use super::rendezvous::Clients;
use super::{repair, terminal};
use crate::SnapshotOutcome;
use crate::config::{self, InitConfig, ModuleLoad};

/// The status of a guest whose init failed.
const FAILED: u8 = 125;
/// The status of a command that cannot be run, as shells have it.
const NOT_EXECUTABLE: u8 = 126;
/// The status of a command that is not there, as shells have it.
const NOT_FOUND: u8 = 127;
/// How long the command after a restore may hold up those who wait for the repair.
const ON_RESTORE_TIMEOUT: Duration = Duration::from_secs(20);

/// What the main thread takes.
pub(super) enum Event {
    /// The monitor said something.
    Told(ToGuest),
    /// A process ended.
    Ended { pid: Pid, status: u8 },
    /// Somebody waits for what becomes of a request for a snapshot.
    Client {
        stream: UnixStream,
        /// The request is its own; else it is to be made here.
        asks_itself: bool,
    },
}

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("the configuration {} cannot be read", config::CONFIG)]
    Config(#[source] io::Error),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("the kernel module {file} cannot be loaded")]
    Module { file: String, source: io::Error },
    #[error("the working directory {directory} cannot be entered")]
    WorkingDirectory {
        directory: String,
        source: io::Error,
    },
    #[error("the console {} cannot be used", terminal::CONSOLE)]
    Console(#[source] io::Error),
    #[error("{program} cannot be run")]
    Command { program: String, source: io::Error },
    #[error("a thread cannot be started")]
    Thread(#[source] io::Error),
}

impl InitError {
    fn status(&self) -> u8 {
        match self {
            Self::Command { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Command { .. } => NOT_EXECUTABLE,
            _ => FAILED,
        }
    }

    /// The error and what caused it, in one line.
    fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text += &format!(": {error}");
            source = error.source();
        }
        text
    }
}

/// Whether this process is the init of a guest that nvx packed.
#[must_use]
pub fn is_init() -> bool {
    std::process::id() == 1 && Path::new("/").join(config::CONFIG).exists()
}

/// Does what process 1 does. Returns, with an exit status, only if the machine cannot be powered off.
pub fn run_init() -> u8 {
    // Before it there is no control line to complain on.
    let mounted = mounts::mount_all();
    let control = ControlLine::open();
    let result = mounted
        .map_err(InitError::from)
        .and_then(|()| Init::start(&control))
        .map(Init::run);
    let status = result.unwrap_or_else(|error| {
        let reason = error.chain();
        control.send(&FromGuest::Failed { reason });
        error.status()
    });
    control.send(&FromGuest::Exit { status });
    control.drain();
    power_off(status)
}

fn power_off(status: u8) -> u8 {
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    status
}

fn read_config() -> io::Result<InitConfig> {
    let file = File::open(Path::new("/").join(config::CONFIG))?;
    let mut text = Vec::new();
    file.take(config::MAX_BYTES).read_to_end(&mut text)?;
    let config: InitConfig = serde_json::from_slice(&text)?;
    if config.version != config::VERSION || config.command.is_empty() {
        return Err(io::Error::other("not of this build"));
    }
    Ok(config)
}

fn load_modules(modules: &[ModuleLoad]) -> Result<(), InitError> {
    for module in modules {
        let load = || -> io::Result<()> {
            let file = File::open(&module.file)?;
            match rustix::system::finit_module(&file, c"", 0) {
                // Built in, or loaded by another one.
                Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        load().map_err(|source| InitError::Module {
            file: module.file.clone(),
            source,
        })?;
        // Its memory is the guest's RAM.
        let _ = fs::remove_file(&module.file);
    }
    Ok(())
}

/// The console as the command has it.
enum ConsoleUse {
    Terminal,
    Stream {
        input: InputRelay,
        output: OutputRelay,
    },
}

struct Init<'a> {
    control: &'a ControlLine,
    console: File,
    console_use: ConsoleUse,
    reaper: Reaper,
    command: Pid,
    events: Receiver<Event>,
    /// Those who asked for a snapshot that is not decided.
    asking: Clients,
    /// The monitor was asked by the control line and has not answered.
    has_asked: bool,
    /// Those whose snapshot was restored, until the copy is repaired.
    restored: Clients,
    on_restore: Option<String>,
    /// The command after a restore that is running, and when it began.
    restoring: Option<(Pid, Instant)>,
}

impl<'a> Init<'a> {
    /// Prepares the guest and starts the command.
    fn start(control: &'a ControlLine) -> Result<Self, InitError> {
        let config = read_config().map_err(InitError::Config)?;
        // A guest can do without either.
        let _ = rustix::system::sethostname(config.host_name.as_bytes());
        let _ = nvx_host::bring_loopback_up();
        load_modules(&config.modules)?;
        let directory = &config.working_directory;
        std::env::set_current_dir(directory).map_err(|source| InitError::WorkingDirectory {
            directory: directory.clone(),
            source,
        })?;
        let console = terminal::open(terminal::CONSOLE).map_err(InitError::Console)?;
        let (sender, events) = mpsc::channel();
        control.listen(sender.clone()).map_err(InitError::Thread)?;
        if control.is_open() {
            // Without it everything but a snapshot from inside is still possible.
            let _ = Clients::listen(sender.clone());
        }
        let reaper = Reaper::new();
        let (command, console_use) = start_command(&config, &console, &reaper)?;
        reaper.run(sender).map_err(InitError::Thread)?;
        let init = Self {
            control,
            console,
            console_use,
            reaper,
            command,
            events,
            asking: Clients::default(),
            has_asked: false,
            restored: Clients::default(),
            on_restore: config.on_restore,
            restoring: None,
        };
        init.tell_ready();
        Ok(init)
    }

    /// Serves events until the command has ended, and gives its status.
    fn run(mut self) -> u8 {
        let status = loop {
            let event = match self.restoring {
                None => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some((_, begin)) => {
                    let left = ON_RESTORE_TIMEOUT.saturating_sub(begin.elapsed());
                    self.events.recv_timeout(left)
                }
            };
            match event {
                Ok(Event::Told(message)) => self.take_message(message),
                Ok(Event::Ended { pid, status }) if pid == self.command => break status,
                Ok(Event::Ended { pid, status }) => self.take_end(pid, status),
                Ok(Event::Client {
                    stream,
                    asks_itself,
                }) => self.take_client(stream, asks_itself),
                Err(RecvTimeoutError::Timeout) => {
                    self.notice(
                        "the command given by --on-restore takes too long; it is not waited for",
                    );
                    self.repair_is_complete();
                }
                // The reaper holds a sender as long as the command runs.
                Err(RecvTimeoutError::Disconnected) => break FAILED,
            }
        };
        if let ConsoleUse::Stream { output, .. } = self.console_use {
            output.finish();
        }
        terminal::drain(&self.console);
        status
    }

    fn tell_ready(&self) {
        let mode = match self.console_use {
            ConsoleUse::Terminal => ConsoleMode::Terminal,
            ConsoleUse::Stream { .. } => ConsoleMode::Stream,
        };
        self.control.send(&FromGuest::Ready { mode });
    }

    fn notice(&self, text: &str) {
        let text = text.to_owned();
        self.control.send(&FromGuest::Notice { text });
    }

    fn take_client(&mut self, stream: UnixStream, asks_itself: bool) {
        self.asking.add(stream);
        // One snapshot answers all who ask for it.
        if !asks_itself && !self.has_asked {
            self.control.send(&FromGuest::Snapshot);
            self.has_asked = true;
        }
    }

    fn take_message(&mut self, message: ToGuest) {
        match message {
            ToGuest::Restored {
                generation,
                entropy,
                clock,
            } => self.take_restore(&generation, &entropy, clock),
            ToGuest::Size { columns, rows } => {
                // Nothing depends on it.
                let _ = terminal::set_size(&self.console, columns, rows);
            }
            ToGuest::Signal { number } => {
                if let Some(signal) = Signal::from_named_raw(i32::from(number)) {
                    // It may just have ended.
                    let _ = rustix::process::kill_process_group(self.command, signal);
                }
            }
            ToGuest::Snapshot { taken } => {
                self.has_asked = false;
                self.asking.answer(if taken {
                    SnapshotOutcome::Source
                } else {
                    SnapshotOutcome::Refused
                });
            }
            ToGuest::InputEnd { bytes } => {
                if let ConsoleUse::Stream { input, .. } = &self.console_use {
                    input.end_after(bytes);
                }
            }
        }
    }

    fn take_restore(
        &mut self,
        generation: &[u8; GENERATION_BYTES],
        entropy: &[u8; ENTROPY_BYTES],
        clock: Clock,
    ) {
        let begin = Instant::now();
        self.has_asked = false;
        self.restored.take_over(&mut self.asking);
        match repair::repair(entropy, clock) {
            Ok(()) => {
                let elapsed_us = begin.elapsed().as_micros() as u64;
                self.control.send(&FromGuest::Repaired { elapsed_us });
            }
            Err(error) => self.notice(&format!("the restored copy is not repaired: {error}")),
        }
        self.tell_ready();
        self.restoring = None;
        let Some(script) = &self.on_restore else {
            return self.repair_is_complete();
        };
        let generation: String = generation
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        match self.start_on_restore(script, &generation) {
            Ok(pid) => self.restoring = Some((pid, begin)),
            Err(error) => {
                self.notice(&format!(
                    "the command given by --on-restore cannot be run: {error}"
                ));
                self.repair_is_complete();
            }
        }
    }

    fn start_on_restore(&self, script: &str, generation: &str) -> io::Result<Pid> {
        let output = self.console.try_clone()?;
        let errors = self.console.try_clone()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .env("PATH", config::DEFAULT_PATH)
            .env("NVX_GENERATION", generation)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        nvx_host::lead_session(&mut command, false);
        self.reaper.start(&mut command)
    }

    fn take_end(&mut self, pid: Pid, status: u8) {
        if self.restoring.is_none_or(|(restoring, _)| restoring != pid) {
            // An orphan.
            return;
        }
        if status != 0 {
            self.notice(&format!(
                "the command given by --on-restore ended with status {status}"
            ));
        }
        self.repair_is_complete();
    }

    fn repair_is_complete(&mut self) {
        self.restoring = None;
        self.restored.answer(SnapshotOutcome::Restored);
    }
}

fn start_command(
    config: &InitConfig,
    console: &File,
    reaper: &Reaper,
) -> Result<(Pid, ConsoleUse), InitError> {
    let (program, arguments) = config
        .command
        .split_first()
        .ok_or_else(|| InitError::Config(io::ErrorKind::InvalidData.into()))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(config.environment.iter().map(|(name, value)| (name, value)));
    let console_use = if config.terminal {
        connect_terminal(&mut command, console)
    } else {
        connect_stream(&mut command, console)
    }
    .map_err(InitError::Console)?;
    nvx_host::lead_session(&mut command, config.terminal);
    let pid = reaper
        .start(&mut command)
        .map_err(|source| InitError::Command {
            program: program.clone(),
            source,
        })?;
    Ok((pid, console_use))
}

fn connect_terminal(command: &mut Command, console: &File) -> io::Result<ConsoleUse> {
    terminal::make_terminal(console)?;
    command
        .stdin(console.try_clone()?)
        .stdout(console.try_clone()?)
        .stderr(console.try_clone()?);
    Ok(ConsoleUse::Terminal)
}

fn connect_stream(command: &mut Command, console: &File) -> io::Result<ConsoleUse> {
    terminal::make_raw(console)?;
    let (stdin, input) = io::pipe()?;
    let (output, stdout) = io::pipe()?;
    let stderr = stdout.try_clone()?;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(ConsoleUse::Stream {
        input: InputRelay::start(console.try_clone()?, input)?,
        output: OutputRelay::start(output, console.try_clone()?)?,
    })
}
