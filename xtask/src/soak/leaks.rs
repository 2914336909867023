//! What a monitor's process holds, and one that lives long enough for a leak to show.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nvx_probe_guest::ProbeParams;

use super::vm::Vm;

/// Open files of a VM with a control socket and a client; what is above was not closed.
const DESCRIPTORS_MAX: usize = 48;
/// The watcher and helpers of a capture, besides the main thread.
const THREADS_MAX: usize = 12;
/// What a monitor may have resident besides guest RAM, in bytes.
pub const MONITOR_MAX_BYTES: u64 = 32 << 20;
/// Captures after which a long-lived VM's memory has its size.
const WARM_UP: u64 = 4;
/// What a long-lived VM may grow by afterwards, in bytes: an allocator's freedom, not a leak per capture.
const GROWTH_MAX_BYTES: u64 = 4 << 20;
const VETERAN_RAM_BYTES: u64 = 16 << 20;

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub descriptors: usize,
    pub threads: usize,
    /// Resident memory in bytes, guest RAM included.
    pub resident_bytes: u64,
}

impl Holdings {
    /// Asks the kernel (proc_pid_fd(5), proc_pid_task(5), proc_pid_status(5)).
    pub fn of(pid: u32) -> Result<Self> {
        let place = PathBuf::from(format!("/proc/{pid}"));
        let count = |name: &str| -> Result<usize> {
            let path = place.join(name);
            let entries = std::fs::read_dir(&path);
            Ok(entries
                .with_context(|| format!("cannot list {}", path.display()))?
                .count())
        };
        let status = std::fs::read_to_string(place.join("status")).context("no status")?;
        let resident_kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB"))
            .and_then(|number| number.parse::<u64>().ok())
            .context("no VmRSS in the status")?;
        Ok(Self {
            descriptors: count("fd")?,
            threads: count("task")?,
            resident_bytes: resident_kib << 10,
        })
    }

    /// Within the bounds of one VM.
    pub fn check(&self, memory_bytes: u64) -> Result<()> {
        let within = self.descriptors <= DESCRIPTORS_MAX
            && self.threads <= THREADS_MAX
            && self.resident_bytes <= memory_bytes + MONITOR_MAX_BYTES;
        ensure!(within, "too much for one VM: {self:?}");
        Ok(())
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
        }
    }
}

/// A VM that lives through all rounds and is captured in each.
pub struct Veteran {
    vm: Vm,
    place: PathBuf,
    backend: String,
    captures: u64,
    baseline: Option<Holdings>,
}

impl Veteran {
    pub fn start(program: &Path, backend: &str, place: &Path) -> Result<Self> {
        let place = place.join(format!("veteran-{backend}"));
        std::fs::create_dir(&place)?;
        let params: ProbeParams = "fill=spread:64,seed=1".parse()?;
        let rest = [OsStr::new("--snapshot-root"), place.as_os_str()];
        let socket = place.join("control");
        let vm = Vm::boot(program, backend, &socket, params, VETERAN_RAM_BYTES, &rest)?;
        Ok(Self {
            vm,
            place,
            backend: backend.to_owned(),
            captures: 0,
            baseline: None,
        })
    }

    /// Once more dirtied, captured and verified.
    pub fn serve(&mut self) -> Result<()> {
        self.one_turn()
            .with_context(|| format!("the VM on {} that lives through all rounds", self.backend))
    }

    fn one_turn(&mut self) -> Result<()> {
        let snapshot = self.place.join("snap");
        self.vm.dirty()?;
        let words = [
            "capture".as_ref(),
            snapshot.as_os_str(),
            "--continue".as_ref(),
        ];
        let done = self.vm.control(&words)?;
        ensure!(
            done.status.success(),
            "capture {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        self.captures += 1;
        self.vm.verify()?;
        std::fs::remove_dir_all(&snapshot)?;
        let now = Holdings::of(self.vm.id())?;
        match self.baseline {
            None if self.captures > WARM_UP => self.baseline = Some(now),
            None => {}
            Some(then) => {
                let same = now.descriptors <= then.descriptors
                    && now.threads <= then.threads
                    && now.resident_bytes <= then.resident_bytes + GROWTH_MAX_BYTES;
                ensure!(
                    same,
                    "leaks: {then:?} after {WARM_UP} captures, {now:?} after {}",
                    self.captures
                );
            }
        }
        Ok(())
    }

    /// Ends it, and tells of it in one line.
    pub fn finish(mut self) -> Result<String> {
        let now = Holdings::of(self.vm.id())?;
        let then = self.baseline.unwrap_or(now);
        self.vm.send("x0")?;
        let ended = self.vm.wait()?;
        ensure!(
            ended.status.success(),
            "{}: {}",
            ended.status,
            ended.messages
        );
        let left = std::fs::read_dir(&self.place)?.count();
        ensure!(left == 0, "{left} files left in {}", self.place.display());
        std::fs::remove_dir(&self.place)?;
        Ok(format!(
            "{}: one VM, {} captures: descriptors {} -> {}, threads {} -> {}, resident {} -> {} KiB",
            self.backend,
            self.captures,
            then.descriptors,
            now.descriptors,
            then.threads,
            now.threads,
            then.resident_bytes >> 10,
            now.resident_bytes >> 10
        ))
    }
}
