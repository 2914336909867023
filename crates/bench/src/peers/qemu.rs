//! QEMU's microvm machine: captured by QMP `stop` and a migration into a file, restored by `-incoming`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::PeerError;
use super::connection::Connection;
use super::contender::{Captured, Contender, Explained, FirstWords, TurnFiles, UNTOLD, quoted};
use crate::lifecycle::LifecycleRequest;
use crate::monitor::Monitor;

/// As fast as it can: by default a migration is throttled to 128 MiB a second.
const BANDWIDTH_BYTES_PER_SECOND: u64 = 1 << 40;
/// Time between two looks for what is not announced.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

pub(super) struct Qemu {
    pub(super) program: PathBuf,
    /// Bounds every wait.
    pub(super) limit: Duration,
}

impl Qemu {
    fn machine(request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        let words = [
            "-M",
            "microvm,accel=kvm",
            "-cpu",
            // KVM refuses to set this register where it is emulated itself; the guest does not look at it.
            "host,-arch-capabilities",
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ];
        let mut all: Vec<OsString> = words.map(Into::into).into();
        let mut qmp = OsString::from("unix:");
        qmp.push(without_commas(&files.socket));
        qmp.push(",server=on,wait=off");
        all.extend([
            "-m".into(),
            format!("{}M", request.memory_bytes >> 20).into(),
            "-smp".into(),
            request.vcpus.to_string().into(),
            "-qmp".into(),
            qmp,
            "-kernel".into(),
            files.kernel.clone().into(),
            "-append".into(),
            request.guest.command_line().into(),
        ]);
        all
    }

    fn stream(files: &TurnFiles) -> PathBuf {
        files.snapshot.join("migration")
    }

    fn written(files: &TurnFiles) -> PathBuf {
        files.snapshot.join("written")
    }

    /// What QEMU has a shell do with the stream. QEMU calls a migration completed when it has handed the
    /// last bytes to the pipe; the second file appears once they are in the first.
    fn sink(files: &TurnFiles) -> String {
        format!(
            "exec:cat > {} && : > {}",
            quoted(Self::stream(files).as_os_str()),
            quoted(Self::written(files).as_os_str())
        )
    }

    fn preparation() -> [Value; 3] {
        [
            json!({"execute": "qmp_capabilities"}),
            json!({"execute": "migrate-set-capabilities", "arguments": {
                "capabilities": [{"capability": "events", "state": true}]}}),
            json!({"execute": "migrate-set-parameters", "arguments": {
                "max-bandwidth": BANDWIDTH_BYTES_PER_SECOND}}),
        ]
    }

    fn status() -> Value {
        json!({"execute": "query-status"})
    }

    fn go_on() -> Value {
        json!({"execute": "cont"})
    }

    fn migration(files: &TurnFiles) -> [Value; 2] {
        [
            json!({"execute": "stop"}),
            json!({"execute": "migrate", "arguments": {"uri": Self::sink(files)}}),
        ]
    }
}

/// QEMU's options are separated by commas; one that belongs to a value is doubled.
fn without_commas(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

impl Contender for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn start(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        Self::machine(request, files)
    }

    fn capture(&self, mut monitor: Monitor, files: &TurnFiles) -> Result<Captured, PeerError> {
        std::fs::create_dir(&files.snapshot).map_err(PeerError::file(&files.snapshot))?;
        let mut qmp = Qmp::open(&files.socket, self.limit, &mut monitor)?;
        for command in Self::preparation() {
            qmp.execute(&command)?;
        }
        let requested = Instant::now();
        for command in Self::migration(files) {
            qmp.execute(&command)?;
        }
        qmp.wait_for_migration()?;
        let written = Self::written(files);
        while !written.exists() {
            if requested.elapsed() > self.limit {
                return Err(PeerError::NotWritten {
                    path: Self::stream(files),
                    limit: self.limit,
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let elapsed = requested.elapsed();
        let peak_rss_bytes = monitor.peak_rss_bytes();
        std::fs::remove_file(&written).map_err(PeerError::file(&written))?;
        Ok(Captured {
            elapsed,
            peak_rss_bytes,
        })
    }

    fn restore(&self, request: &LifecycleRequest, files: &TurnFiles) -> Vec<OsString> {
        let mut all = Self::machine(request, files);
        let source = format!("exec:cat {}", quoted(Self::stream(files).as_os_str()));
        all.extend(["-incoming".into(), source.into()]);
        all
    }

    /// A guest that was captured while it stood still stands still once it is restored.
    fn resume(&self, monitor: &mut Monitor, files: &TurnFiles) -> Result<(), PeerError> {
        let mut qmp = Qmp::open(&files.socket, self.limit, monitor)?;
        qmp.execute(&Self::preparation()[0])?;
        let began = Instant::now();
        while qmp.execute(&Self::status())?["status"] == "inmigrate" {
            if began.elapsed() > self.limit {
                return Err(PeerError::NotRestored { limit: self.limit });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        qmp.execute(&Self::go_on()).map(|_| ())
    }

    fn first_words(&self) -> FirstWords {
        UNTOLD
    }

    fn requests(&self, files: &TurnFiles) -> Vec<Explained> {
        let explained = |step: &str, command: &Value| Explained {
            step: step.to_owned(),
            command: format!("QMP {command}"),
        };
        let before = Self::preparation();
        let timed = Self::migration(files);
        let restore = [Self::status(), Self::go_on()];
        let before = before.iter().map(|one| explained("before capture", one));
        let timed = timed.iter().map(|one| explained("capture", one));
        let restore = restore.iter().map(|one| explained("restore", one));
        before.chain(timed).chain(restore).collect()
    }
}

/// QEMU's machine protocol: a JSON document per line.
struct Qmp {
    connection: Connection,
}

impl Qmp {
    fn open(socket: &Path, limit: Duration, monitor: &mut Monitor) -> Result<Self, PeerError> {
        let connection = Connection::open(socket, limit, || !monitor.has_ended())?;
        let mut qmp = Self { connection };
        // The greeting.
        qmp.next()?;
        Ok(qmp)
    }

    fn next(&mut self) -> Result<Value, PeerError> {
        let line = self.connection.line()?;
        serde_json::from_str(&line).map_err(|source| PeerError::Answer {
            of: "QMP",
            text: line,
            source,
        })
    }

    /// Sends a command and waits for its answer; events in between do not matter.
    fn execute(&mut self, command: &Value) -> Result<Value, PeerError> {
        self.connection.send(&format!("{command}\n"))?;
        loop {
            let answer = self.next()?;
            if let Some(error) = answer.get("error") {
                return Err(PeerError::Refused {
                    request: command.to_string(),
                    why: error.to_string(),
                });
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    fn wait_for_migration(&mut self) -> Result<(), PeerError> {
        loop {
            let event = self.next()?;
            match event.pointer("/data/status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some(status @ ("failed" | "cancelled")) => {
                    return Err(PeerError::Refused {
                        request: "migrate".to_owned(),
                        why: format!("the migration {status}"),
                    });
                }
                _ => {}
            }
        }
    }
}
