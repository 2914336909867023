//! NVX beside other monitors: the same probe guest, memory and volume, in turns.
//!
//! A turn is: start the guest in a new process, capture it, restore it in another new process, and have it
//! prove that it is the same guest with the same RAM. Every time is taken by the observer, since each
//! monitor's own clock begins and ends somewhere else. The monitors take turns in mirrored rounds, as builds
//! do ([`crate::compare`]).
//!
//! Monitors differ in what they promise when they say that a snapshot is there: some have synced it to the
//! device, some have not. So a capture is told twice: until the monitor says so, and until the snapshot's
//! files are synced, which the observer does where the monitor has not.

mod connection;
mod contender;
mod firecracker;
mod nvx;
mod qemu;
mod table;
mod turn;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::compare::turns;
use crate::guest_image::{GuestImageError, digest, probe_image};
use crate::host::{ExecutionFacts, HostFingerprint};
use crate::lifecycle::LifecycleRequest;
use crate::monitor::MonitorError;
use crate::statistics::{median, nearest_rank, sigma};
use crate::timestamp::iso_8601;
use crate::work_dir::WorkDir;

pub use connection::ConnectionError;
pub use contender::Explained;
use contender::{Contender, TurnFiles, command_line};
use firecracker::Firecracker;
use nvx::Nvx;
use qemu::Qemu;
pub use table::{explanation, text};
use turn::turn;

/// The value of `schema`.
pub const PEERS_SCHEMA: &str = "nvx.peers";
/// The value of `schema_version`.
pub const PEERS_SCHEMA_VERSION: u32 = 1;
/// The back end that NVX must use: what carries out the guests of the others, too.
pub const PEERS_BACKEND: &str = "kvm";

/// A monitor beside NVX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// QEMU's microvm machine.
    Qemu,
    /// Firecracker.
    Firecracker,
}

impl PeerKind {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 2] = [Self::Qemu, Self::Firecracker];

    /// Its name, which is also its option on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Firecracker => "firecracker",
        }
    }

    /// The name of its program where a system has one.
    pub fn usual_program(self) -> &'static str {
        match self {
            Self::Qemu => "qemu-system-x86_64",
            Self::Firecracker => "firecracker",
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct PeersPlan {
    /// NVX and the guest.
    pub request: LifecycleRequest,
    /// The others' programs.
    pub peers: Vec<(PeerKind, PathBuf)>,
    /// Rounds that are thrown away first.
    pub warmups: u32,
    /// Samples of each monitor.
    pub samples: u32,
    /// How guest code is carried out.
    pub execution: ExecutionFacts,
}

/// What is measured of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerMetric {
    /// Just before the process's creation to the guest's ready line, in ms.
    StartMs,
    /// The request to the monitor's word that the snapshot is there, in ms.
    CaptureMs,
    /// The same, until its files are synced, in ms.
    CaptureSyncedMs,
    /// Just before the process's creation to the restored guest's next output, in ms.
    RestoreMs,
    /// Peak resident set at the ready line, in MiB.
    StartPeakRssMib,
    /// Peak resident set after the capture, in MiB.
    CapturePeakRssMib,
    /// Peak resident set at the restored guest's next output, in MiB.
    RestorePeakRssMib,
    /// What the snapshot takes of the volume, in MiB.
    SnapshotDiskMib,
}

impl PeerMetric {
    /// Every metric.
    pub const ALL: [Self; 8] = [
        Self::StartMs,
        Self::CaptureMs,
        Self::CaptureSyncedMs,
        Self::RestoreMs,
        Self::StartPeakRssMib,
        Self::CapturePeakRssMib,
        Self::RestorePeakRssMib,
        Self::SnapshotDiskMib,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::StartMs => "process start to ready (ms)",
            Self::CaptureMs => "capture (ms)",
            Self::CaptureSyncedMs => "capture, synced (ms)",
            Self::RestoreMs => "restore to next output (ms)",
            Self::StartPeakRssMib => "peak RSS, started (MiB)",
            Self::CapturePeakRssMib => "peak RSS, captured (MiB)",
            Self::RestorePeakRssMib => "peak RSS, restored (MiB)",
            Self::SnapshotDiskMib => "snapshot on disk (MiB)",
        }
    }
}

/// One metric of one monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerSeries {
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
    /// The median.
    pub p50: f64,
    /// Nearest rank.
    pub p25: f64,
    /// Standard deviation; absent for a single sample.
    pub sigma: Option<f64>,
}

impl PeerSeries {
    fn of(samples: Vec<f64>) -> Self {
        Self {
            p50: median(&samples).unwrap_or_default(),
            p25: nearest_rank(&samples, 0.25).unwrap_or_default(),
            sigma: sigma(&samples),
            samples,
        }
    }
}

/// One monitor and its samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerResult {
    /// `nvx`, `qemu` or `firecracker`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// BLAKE3 of the program, hexadecimal.
    pub program_blake3: String,
    /// The first line that it answers `--version` with.
    pub version: String,
    /// What is run, step by step.
    pub commands: Vec<Explained>,
    /// The samples.
    pub metrics: BTreeMap<PeerMetric, PeerSeries>,
}

/// A whole comparison with peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeersResult {
    /// [`PEERS_SCHEMA`].
    pub schema: String,
    /// [`PEERS_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When it began, ISO 8601 in UTC.
    pub timestamp_utc: String,
    /// The monitors took turns on one host.
    pub interleaved: bool,
    /// Whether guest code was emulated.
    pub emulated: bool,
    /// BLAKE3 of the guest's ELF file, hexadecimal.
    pub kernel_blake3: String,
    /// Guest RAM.
    pub memory_mib: u64,
    /// How many vCPUs.
    pub processors: u32,
    /// What the probe guest was asked to do.
    pub probe: String,
    /// The host.
    pub host: HostFingerprint,
    /// NVX first.
    pub peers: Vec<PeerResult>,
}

/// Why there is no comparison with peers.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// NVX uses another back end than the others.
    #[error(
        "--backend {backend}: the other monitors run guests with {PEERS_BACKEND}, and nothing else is \
         comparable"
    )]
    Backend {
        /// The back end.
        backend: String,
    },
    /// Nothing to compare with.
    #[error(
        "no other monitor: neither --qemu nor --firecracker is given, and none is installed as \
         qemu-system-x86_64 or firecracker"
    )]
    NoPeer,
    /// A program cannot be run.
    #[error("--{option} {}: {what}", path.display())]
    Program {
        /// The option that names it.
        option: &'static str,
        /// The program.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The scratch directory cannot be used.
    #[error("--scratch {}", path.display())]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program does not give its guest.
    #[error("--program: its guest")]
    Guest(#[from] GuestImageError),
    /// A turn failed.
    #[error("{name}: {step}")]
    Turn {
        /// The monitor.
        name: &'static str,
        /// Which part of the turn.
        step: &'static str,
        /// What happened.
        source: Box<PeerError>,
    },
    /// It was asked to end.
    #[error("interrupted")]
    Interrupted,
}

/// What went wrong with a monitor.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The process or its guest failed.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// Its socket failed.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// It refused a request.
    #[error("{request} was refused: {why}")]
    Refused {
        /// The request.
        request: String,
        /// Its answer.
        why: String,
    },
    /// An answer makes no sense.
    #[error("{of} answered '{text}'")]
    Answer {
        /// The protocol.
        of: &'static str,
        /// The answer.
        text: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A snapshot was not written in time.
    #[error("{} was not written within {} s", path.display(), limit.as_secs())]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// A snapshot was not read in time.
    #[error("was still reading the snapshot after {} s", limit.as_secs())]
    NotRestored {
        /// How long was waited.
        limit: Duration,
    },
    /// The guest's answer lacks a field.
    #[error("the guest's line '{line}' has no {field}")]
    Field {
        /// The line.
        line: String,
        /// What it lacks.
        field: &'static str,
    },
    /// NVX wrote no records of its capture.
    #[error("no profile records of the capture")]
    NoRecords,
    /// The resident set could not be read.
    #[error("the resident set of the process could not be read")]
    NoResidentSet,
    /// The restored guest is another one.
    #[error("the restored guest is another: {what} was {before}, is {after}")]
    NotTheSame {
        /// What differs.
        what: &'static str,
        /// Before the capture.
        before: String,
        /// After the restore.
        after: String,
    },
    /// A file cannot be used.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl PeerError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}

fn contenders(plan: &PeersPlan) -> Vec<Box<dyn Contender>> {
    let limit = plan.request.limit;
    let nvx: Box<dyn Contender> = Box::new(Nvx {
        program: plan.request.program.clone(),
    });
    let others = plan.peers.iter().map(|(kind, program)| {
        let program = program.clone();
        match kind {
            PeerKind::Qemu => Box::new(Qemu { program, limit }) as Box<dyn Contender>,
            PeerKind::Firecracker => Box::new(Firecracker { program, limit }),
        }
    });
    [nvx].into_iter().chain(others).collect()
}

/// The plan's monitors and what would be run of each, with `directory` as the turn's own.
///
/// # Errors
/// A program cannot be run here.
pub fn explain(plan: &PeersPlan, directory: &Path) -> Result<Vec<PeerResult>, PeersError> {
    if plan.request.backend != PEERS_BACKEND {
        return Err(PeersError::Backend {
            backend: plan.request.backend.clone(),
        });
    }
    if plan.peers.is_empty() {
        return Err(PeersError::NoPeer);
    }
    let files = TurnFiles::in_directory(directory);
    contenders(plan)
        .iter()
        .map(|contender| describe(contender.as_ref(), &plan.request, &files))
        .collect()
}

fn describe(
    contender: &dyn Contender,
    request: &LifecycleRequest,
    files: &TurnFiles,
) -> Result<PeerResult, PeersError> {
    let program = contender.program();
    let option = match contender.name() {
        "nvx" => "program",
        peer => peer,
    };
    let wrong = |what: String| PeersError::Program {
        option,
        path: program.to_owned(),
        what,
    };
    let bytes = std::fs::read(program).map_err(|error| wrong(error.to_string()))?;
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| wrong(error.to_string()))?;
    let version = String::from_utf8_lossy(&output.stdout);
    let first_line = version.lines().next().unwrap_or_default().to_owned();
    if !output.status.success() || first_line.is_empty() {
        return Err(wrong(format!(
            "does not tell its version ({})",
            output.status
        )));
    }
    let explained = |step: &str, arguments: &[std::ffi::OsString]| Explained {
        step: step.to_owned(),
        command: command_line(program, arguments),
    };
    let mut commands = vec![explained("start", &contender.start(request, files))];
    commands.extend(contender.requests(files));
    let restore = explained("restore", &contender.restore(request, files));
    let place = commands.iter().position(|one| one.step == "restore");
    commands.insert(place.unwrap_or(commands.len()), restore);
    Ok(PeerResult {
        name: contender.name().to_owned(),
        program: program.to_owned(),
        program_blake3: digest(&bytes),
        version: first_line,
        commands,
        metrics: BTreeMap::new(),
    })
}

/// Measures the monitors in turns. `progress` gets how many turns are done and how many there are, and
/// answers whether to go on.
///
/// # Errors
/// A monitor cannot be run or fails, or `progress` says no.
pub fn run_peers(
    plan: &PeersPlan,
    progress: &mut dyn FnMut(u32, u32) -> bool,
) -> Result<PeersResult, PeersError> {
    let request = &plan.request;
    let scratch = request.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let failed = |source| PeersError::Scratch {
        path: scratch.clone(),
        source,
    };
    let work = WorkDir::create(&scratch).map_err(failed)?;
    let directory = work.path().join("turn");
    let mut peers = explain(plan, &directory)?;
    let image = probe_image(&request.program, work.path())?;
    let host = HostFingerprint::of_this_host(&scratch, plan.execution).map_err(failed)?;
    let timestamp_utc = iso_8601(SystemTime::now());
    let contenders = contenders(plan);
    let mut samples: Vec<BTreeMap<PeerMetric, Vec<f64>>> = vec![BTreeMap::new(); peers.len()];
    let total = (plan.warmups + plan.samples) * peers.len() as u32;
    let mut done = 0;
    for round in 0..plan.warmups + plan.samples {
        for place in turns(peers.len(), round) {
            if !progress(done, total) {
                return Err(PeersError::Interrupted);
            }
            std::fs::create_dir(&directory).map_err(failed)?;
            let turn = turn(contenders[place].as_ref(), request, &directory, &image);
            std::fs::remove_dir_all(&directory).map_err(failed)?;
            let turn = turn?;
            done += 1;
            if round >= plan.warmups {
                for (metric, sample) in turn {
                    samples[place].entry(metric).or_default().push(sample);
                }
            }
        }
    }
    for (peer, samples) in peers.iter_mut().zip(samples) {
        let series = samples.into_iter();
        peer.metrics = series
            .map(|(metric, of)| (metric, PeerSeries::of(of)))
            .collect();
    }
    Ok(PeersResult {
        schema: PEERS_SCHEMA.to_owned(),
        schema_version: PEERS_SCHEMA_VERSION,
        timestamp_utc,
        interleaved: true,
        emulated: host.platform(&request.backend).ends_with("-emulated"),
        kernel_blake3: digest(&image),
        memory_mib: request.memory_bytes >> 20,
        processors: request.vcpus.into(),
        probe: request.guest.probe_text(),
        host,
        peers,
    })
}
