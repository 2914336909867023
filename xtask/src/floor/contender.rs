//! The programs that are compared, and how each does a row's work.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::process::Monitor;
use super::profile::{self, Generation};
use super::rows::{FILLED_MIB, Row, Work};

/// The guest's seed; any will do, but it is the same for all.
const SEED: u32 = 7;

/// A program to compare.
pub enum Contender {
    /// The C program.
    Floor(PathBuf),
    /// The static nvx.
    Nvx(PathBuf),
    /// A QEMU, which only boots.
    Qemu(PathBuf),
}

/// One measurement.
#[derive(Debug, Default)]
pub struct Sample {
    /// In the row's unit.
    pub value: f64,
    /// The sync of the parent directory, for captures.
    pub parent_ms: Option<f64>,
    /// The phases of a capture.
    pub phases: Vec<(String, f64)>,
}

impl From<Generation> for Sample {
    fn from(generation: Generation) -> Self {
        Self {
            value: generation.total_ms,
            parent_ms: generation.parent_ms,
            phases: generation.phases,
        }
    }
}

impl Contender {
    /// Name as printed.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Floor(_) => "floor",
            Self::Nvx(_) => "nvx",
            Self::Qemu(_) => "qemu",
        }
    }

    /// Whether it can do the work at all.
    pub fn can(&self, work: Work) -> bool {
        match self {
            Self::Floor(_) | Self::Nvx(_) => true,
            Self::Qemu(_) => matches!(work, Work::Boot | Work::BootMemory),
        }
    }

    /// Does the row's work once, in the empty directory `scratch`.
    pub fn sample(&self, row: &Row, probe: &Path, scratch: &Path) -> Result<Sample> {
        let snapshot = scratch.join("snapshot");
        let again = scratch.join("again");
        match row.work {
            Work::Boot | Work::BootForCapture | Work::BootMemory => {
                let destination = (row.work == Work::BootForCapture).then_some(snapshot.as_path());
                self.start(self.boot(row, probe, destination), "PROBE-READY", row.work)
            }
            Work::Generation => self.capture(row, probe, &snapshot),
            Work::Restore | Work::RestoreMemory => {
                self.capture(row, probe, &snapshot)?;
                self.start(self.restore(&snapshot, None), "PROBE-RESTORED", row.work)
            }
            Work::Recapture => {
                self.capture(row, probe, &snapshot)?;
                let mut monitor = Monitor::spawn(&mut self.restore(&snapshot, Some(&again)))?;
                monitor.wait_for("PROBE-RESTORED")?;
                monitor.send("d\n")?;
                monitor.wait_for("PROBE-DIRTIED")?;
                self.request_capture(monitor)
            }
        }
    }

    /// Starts a monitor, waits for the marker, and ends the guest.
    fn start(&self, mut command: Command, marker: &str, work: Work) -> Result<Sample> {
        let mut monitor = Monitor::spawn(&mut command)?;
        let elapsed = monitor.wait_for(marker)?;
        let value = match work {
            Work::BootMemory => monitor.peak_rss_mib()? - FILLED_MIB,
            Work::RestoreMemory => monitor.peak_rss_mib()?,
            _ => elapsed.as_secs_f64() * 1e3,
        };
        if !matches!(self, Self::Qemu(_)) {
            monitor.send("x0\n")?;
            monitor.finish()?;
        }
        Ok(Sample {
            value,
            ..Sample::default()
        })
    }

    /// Boots a guest and captures it into `snapshot`.
    fn capture(&self, row: &Row, probe: &Path, snapshot: &Path) -> Result<Sample> {
        let mut monitor = Monitor::spawn(&mut self.boot(row, probe, Some(snapshot)))?;
        monitor.wait_for("PROBE-READY")?;
        self.request_capture(monitor)
    }

    fn request_capture(&self, mut monitor: Monitor) -> Result<Sample> {
        monitor.send("s\n")?;
        match monitor.wait_for_any(&["PROBE-REFUSED", "PROBE-UNAVAILABLE", "PROBE-CONTINUED"])? {
            Some((2, _)) => monitor.send("x0\n")?,
            Some(_) => bail!("the capture was refused"),
            // A capture that the source does not survive.
            None => {}
        }
        let said = monitor.finish()?;
        match self {
            Self::Floor(_) => floor_times(&said),
            _ => profile::generation(&said),
        }
        .map(Sample::from)
    }

    fn boot(&self, row: &Row, probe: &Path, snapshot: Option<&Path>) -> Command {
        let command_line = format!("fill={} seed={SEED}", row.fill);
        let mebibytes = row.memory_mib;
        match self {
            Self::Floor(program) => {
                let mut command = Command::new(program);
                command.arg("boot").arg(probe).arg(command_line);
                command.arg("--memory").arg(mebibytes.to_string());
                if let Some(snapshot) = snapshot {
                    let parent = snapshot.parent().unwrap_or(Path::new("."));
                    command.arg("--ram-dir").arg(parent);
                    command.arg("--snapshot").arg(snapshot);
                }
                command
            }
            Self::Nvx(program) => {
                let mut command = Command::new(program);
                command.args(["run", "--guest", "probe", "--vcpus", "1", "--probe"]);
                command.arg(command_line.replace(' ', ","));
                command.arg("--memory").arg(format!("{mebibytes}M"));
                with_snapshot(&mut command, snapshot);
                command
            }
            Self::Qemu(program) => {
                let mut command = Command::new(program);
                command.args(["-M", "microvm", "-enable-kvm", "-nodefaults", "-no-reboot"]);
                // The build machine's KVM refuses ARCH_CAPABILITIES.
                command.args(["-cpu", "host,-arch-capabilities", "-display", "none"]);
                command.arg("-m").arg(format!("{mebibytes}M"));
                command.args(["-serial", "stdio", "-append", &command_line, "-kernel"]);
                command.arg(probe);
                command
            }
        }
    }

    fn restore(&self, snapshot: &Path, destination: Option<&Path>) -> Command {
        let (Self::Floor(program) | Self::Nvx(program) | Self::Qemu(program)) = self;
        let mut command = Command::new(program);
        command.arg("restore").arg(snapshot);
        if let Self::Nvx(_) = self {
            with_snapshot(&mut command, destination);
        } else if let Some(destination) = destination {
            command.arg("--snapshot").arg(destination);
        }
        command
    }
}

/// Declares where nvx may publish, and asks for records of a capture's phases where there will be one.
fn with_snapshot(command: &mut Command, snapshot: Option<&Path>) {
    if let Some(snapshot) = snapshot {
        command
            .arg("--snapshot")
            .arg(snapshot)
            .env("NVX_PROFILE", "1");
    }
}

/// Reads the floor program's line of times.
fn floor_times(text: &str) -> Result<Generation> {
    let line = text.lines().find(|line| line.starts_with('{'));
    let times: Value = serde_json::from_str(line.context("the floor printed no times")?)?;
    let time = |name: &str| {
        let value = times[name].as_f64();
        value.with_context(|| format!("the floor printed no {name}"))
    };
    Ok(Generation {
        total_ms: time("total_ms")?,
        parent_ms: Some(time("parent_ms")?),
        phases: vec![
            ("state".to_owned(), time("state_ms")?),
            ("files".to_owned(), time("file_ms")?),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_times_are_read() {
        let line = "{\"state_ms\":0.1,\"file_ms\":2.5,\"total_ms\":2.6,\"parent_ms\":0.2}\n";
        let times = floor_times(line).unwrap();
        assert_eq!((times.total_ms, times.parent_ms), (2.6, Some(0.2)));
        assert!(floor_times("").is_err());
        assert!(floor_times("{\"state_ms\":0.1}").is_err());
    }

    #[test]
    fn nvx_command_line() {
        let row = &super::super::rows::ROWS[0];
        let nvx = Contender::Nvx("nvx".into());
        let command = nvx.boot(row, Path::new("p"), Some(Path::new("d/s")));
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        assert_eq!(
            words.join(" "),
            "run --guest probe --vcpus 1 --probe fill=top:1,seed=7 --memory 128M --snapshot d/s"
        );
    }
}
