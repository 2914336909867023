//! What a writeback strategy costs: time, and bytes on the device.
//!
//! A *run* makes (or takes) a RAM file, dirties a [`Pattern`] of its pages through a shared view, brings
//! them to the device by one strategy and syncs the file. Each run is a process of its own, so that
//! none inherits another's memory, and a device that vanishes under a mapping, which ends the process,
//! ends one run and not the measurement. A *round* is one run of each strategy with each pattern; every
//! other round goes backwards, so that a drift of the machine meets all of them alike. Rounds of warm-up
//! are left out.
//!
//! What reaches the device is read from the block layer's own counters, once before the pages are
//! dirtied and once after the file has been synced and the counter stands still. Write
//! amplification is those bytes over the file's size: 1.00 says that each page was written once.
//! Counters belong to devices, not to processes, so other writers count too; a run during which the
//! device never came to rest, or wrote more than the run can account for, says so.

#[cfg(target_os = "linux")]
mod linux;
mod pattern;
mod report;
mod run;
#[cfg(windows)]
mod windows;
mod zero_scan;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nvx_host::{Directory, OpenError};
use nvx_memory::{
    AccessError, GuestAddress, LayoutError, MapError, PAGE_SIZE_BYTES, RamFile, RamFileChoice,
    RamFileError, RamLayout, RamRange, WritebackChoice, WritebackError, file_system_name,
};
use thiserror::Error;

#[cfg(target_os = "linux")]
use linux as os;
pub use pattern::{Pattern, UnknownPattern};
pub use report::{Cell, Report, Summary, ZeroDetection};
pub use run::{Sample, single_run};
#[cfg(windows)]
use windows as os;

/// How often it is looked whether a run has ended or is to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Space that a file system needs besides the RAM file, for its own records.
const SPARE_BYTES: u64 = 1 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct WritebackRequest {
    /// The program that carries out one run per process, given [`RunRequest::arguments`].
    pub program: PathBuf,
    /// Where new RAM files are made.
    pub directory: PathBuf,
    /// Size of guest RAM and of the file, in bytes.
    pub size_bytes: u64,
    /// A form of new files; or prepared files: one that is used again for all runs, or one for each run
    /// in their order.
    pub ram_files: Vec<RamFileChoice>,
    /// The strategies.
    pub writebacks: Vec<WritebackChoice>,
    /// The patterns.
    pub patterns: Vec<Pattern>,
    /// Measured rounds, at least 1.
    pub samples: u32,
    /// Rounds before them.
    pub warmups: u32,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRequest {
    /// Where a new RAM file is made.
    pub directory: PathBuf,
    /// Size of guest RAM and of the file, in bytes.
    pub size_bytes: u64,
    /// Which file.
    pub ram_file: RamFileChoice,
    /// The strategy.
    pub writeback: WritebackChoice,
    /// The dirty pages.
    pub pattern: Pattern,
}

impl RunRequest {
    /// The arguments by which `nvx bench writeback` carries out this run alone.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        vec![
            "bench".into(),
            "writeback".into(),
            "--single-run".into(),
            "--dir".into(),
            self.directory.clone().into(),
            "--memory".into(),
            self.size_bytes.to_string().into(),
            "--ram-file".into(),
            self.ram_file.to_argument(),
            "--writeback".into(),
            self.writeback.to_string().into(),
            "--pattern".into(),
            self.pattern.to_string().into(),
        ]
    }
}

/// How far a measurement has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Runs that have ended.
    pub done: usize,
    /// All runs.
    pub total: usize,
    /// The strategy of the run that begins.
    pub writeback: WritebackChoice,
    /// Its pattern.
    pub pattern: &'a Pattern,
    /// Whether it is a warm-up.
    pub warmup: bool,
}

/// Who looks on while a measurement lasts.
pub trait Onlooker {
    /// A run begins.
    fn before(&mut self, progress: Progress<'_>);
    /// Whether the measurement is to end. Asked often, also during a run, which is then given up.
    fn is_interrupted(&mut self) -> bool;
}

/// Why nothing, or no more, could be measured.
#[derive(Debug, Error)]
pub enum WritebackBenchError {
    /// The size is 0 or no multiple of the page size.
    #[error(
        "a RAM file of {size_bytes} bytes is not a whole number of pages of {PAGE_SIZE_BYTES} bytes"
    )]
    Unaligned {
        /// The size in bytes.
        size_bytes: u64,
    },
    /// Nothing to measure was named.
    #[error("no {what} to measure")]
    Nothing {
        /// What is missing.
        what: &'static str,
    },
    /// RAM files of more than one form, or new and prepared ones, were named.
    #[error("--ram-file takes either one of dense, sparse and auto, or paths")]
    MixedRamFiles,
    /// There is neither one prepared file nor one per run.
    #[error(
        "{runs} runs need one prepared RAM file, which is used again, or {runs}; {files} are given"
    )]
    FileCount {
        /// The number of runs, warm-ups included.
        runs: usize,
        /// The number of prepared files.
        files: usize,
    },
    /// The directory cannot be opened.
    #[error("no directory for RAM files")]
    Directory(#[source] OpenError),
    /// The directory's file system does not tell of itself.
    #[error("cannot inspect the file system of {}", directory.display())]
    Inspect {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not fit.
    #[error("{} has {available_bytes} bytes left, but a RAM file needs {needed_bytes}", directory.display())]
    TooSmall {
        /// The directory.
        directory: PathBuf,
        /// What an unprivileged user can still write, in bytes.
        available_bytes: u64,
        /// What is needed, in bytes.
        needed_bytes: u64,
    },
    /// There is no RAM file.
    #[error("no RAM file to measure with")]
    RamFile(#[from] RamFileError),
    /// Guest RAM cannot be laid out.
    #[error("no layout for guest RAM")]
    Layout(#[from] LayoutError),
    /// Guest RAM cannot be mapped.
    #[error("cannot map guest RAM")]
    Map(#[from] MapError),
    /// Guest RAM cannot be written.
    #[error("cannot dirty guest RAM")]
    Access(#[from] AccessError),
    /// The writeback failed.
    #[error("cannot write guest RAM back")]
    Writeback(#[from] WritebackError),
    /// The file cannot be synced.
    #[error("cannot sync RAM file {}", name.display())]
    Sync {
        /// The file.
        name: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The device's counters were there and are not any more.
    #[error("cannot read the counters of device {device}")]
    Counters {
        /// The device.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// The process of a run could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process of a run failed.
    #[error("{message} ({status})")]
    Run {
        /// What it wrote to standard error.
        message: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// The process of a run cannot be waited for.
    #[error("cannot wait for a run's process")]
    Wait(#[source] io::Error),
    /// The onlooker wanted an end.
    #[error("interrupted")]
    Interrupted,
    /// The process of a run gave no result.
    #[error("a run's result cannot be read")]
    Result(#[source] serde_json::Error),
}

/// Measures.
///
/// If a run fails, or the onlooker wants an end, after at least one run was measured, the report holds
/// what was measured and says that it is incomplete, and why.
///
/// # Errors
/// [`WritebackBenchError`]: the request is unfit, or the first measured run failed.
pub fn measure(
    request: &WritebackRequest,
    onlooker: &mut dyn Onlooker,
) -> Result<Report, WritebackBenchError> {
    check(request)?;
    let directory = Directory::open_following(&request.directory_of_files())
        .map_err(WritebackBenchError::Directory)?;
    let file_system = file_system_name(&directory);
    let runs = request.runs();
    let mut cells = request.cells();
    let mut stop = None;
    for (done, run) in runs.iter().enumerate() {
        onlooker.before(Progress {
            done,
            total: runs.len(),
            writeback: run.request.writeback,
            pattern: &run.request.pattern,
            warmup: run.warmup,
        });
        match run_in_process(&request.program, &run.request, onlooker) {
            Ok(_) if run.warmup => {}
            Ok(sample) => {
                if let Some(cell) = cells.get_mut(run.cell) {
                    cell.samples.push(sample);
                }
            }
            Err(error) if cells.iter().all(|cell| cell.samples.is_empty()) => return Err(error),
            Err(error) => {
                let reason = format!("run {} of {}: {error}", done + 1, runs.len());
                stop = Some((error, reason));
                break;
            }
        }
    }
    let zeros = match &stop {
        Some((WritebackBenchError::Interrupted, _)) => None,
        _ => Some(zero_scan::measure(request.size_bytes)?),
    };
    let incomplete = stop.map(|(_, reason)| reason);
    Ok(Report::new(request, file_system, cells, zeros, incomplete))
}

/// One run of the plan.
struct Planned {
    cell: usize,
    warmup: bool,
    request: RunRequest,
}

impl WritebackRequest {
    fn cells(&self) -> Vec<Cell> {
        let each = self.patterns.iter().flat_map(|pattern| {
            let writebacks = self.writebacks.iter();
            writebacks.map(|writeback| Cell::new(*pattern, *writeback, self.size_bytes))
        });
        each.collect()
    }

    fn runs(&self) -> Vec<Planned> {
        let cells = self.cells();
        let rounds = self.warmups + self.samples;
        let mut runs = Vec::new();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..cells.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let (Some(cell), Some(file)) = (cells.get(index), self.file_of_run(runs.len()))
                else {
                    continue;
                };
                runs.push(Planned {
                    cell: index,
                    warmup: round < self.warmups,
                    request: RunRequest {
                        directory: self.directory.clone(),
                        size_bytes: self.size_bytes,
                        ram_file: file.clone(),
                        writeback: cell.writeback,
                        pattern: cell.pattern,
                    },
                });
            }
        }
        runs
    }

    fn file_of_run(&self, run: usize) -> Option<&RamFileChoice> {
        match self.ram_files.as_slice() {
            [only] => Some(only),
            files => files.get(run),
        }
    }

    fn run_count(&self) -> usize {
        let rounds = (self.warmups + self.samples) as usize;
        rounds * self.patterns.len() * self.writebacks.len()
    }

    /// Where the files lie that are measured.
    fn directory_of_files(&self) -> PathBuf {
        match self.ram_files.first() {
            Some(RamFileChoice::Prepared(path)) => match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            },
            _ => self.directory.clone(),
        }
    }
}

/// Finds what is unfit before anything is written.
fn check(request: &WritebackRequest) -> Result<(), WritebackBenchError> {
    let size_bytes = request.size_bytes;
    if size_bytes == 0 || !size_bytes.is_multiple_of(PAGE_SIZE_BYTES) {
        return Err(WritebackBenchError::Unaligned { size_bytes });
    }
    layout(size_bytes)?;
    for (empty, what) in [
        (request.writebacks.is_empty(), "strategy"),
        (request.patterns.is_empty(), "pattern"),
        (request.samples == 0, "sample"),
        (request.ram_files.is_empty(), "RAM file"),
    ] {
        if empty {
            return Err(WritebackBenchError::Nothing { what });
        }
    }
    let prepared: Vec<&Path> = request.ram_files.iter().filter_map(prepared_path).collect();
    if prepared.is_empty() {
        if request.ram_files.len() > 1 {
            return Err(WritebackBenchError::MixedRamFiles);
        }
        return check_directory(request);
    }
    if prepared.len() != request.ram_files.len() {
        return Err(WritebackBenchError::MixedRamFiles);
    }
    let runs = request.run_count();
    if prepared.len() != 1 && prepared.len() != runs {
        return Err(WritebackBenchError::FileCount {
            runs,
            files: prepared.len(),
        });
    }
    for path in prepared {
        RamFile::open_prepared(path, size_bytes)?;
    }
    Ok(())
}

fn prepared_path(choice: &RamFileChoice) -> Option<&Path> {
    match choice {
        RamFileChoice::Prepared(path) => Some(path),
        _ => None,
    }
}

fn check_directory(request: &WritebackRequest) -> Result<(), WritebackBenchError> {
    let path = &request.directory;
    let directory = Directory::open_following(path).map_err(WritebackBenchError::Directory)?;
    let inspect = |source| WritebackBenchError::Inspect {
        directory: path.clone(),
        source,
    };
    // Files of a file system without nameless ones may be left from a run that was killed.
    nvx_host::remove_stale(&directory).map_err(inspect)?;
    let available_bytes = os::available_bytes(path).map_err(inspect)?;
    let needed_bytes = request.size_bytes.saturating_add(SPARE_BYTES);
    if available_bytes < needed_bytes {
        return Err(WritebackBenchError::TooSmall {
            directory: path.clone(),
            available_bytes,
            needed_bytes,
        });
    }
    if let Some(choice) = request.ram_files.first() {
        RamFile::obtain(choice, path, request.size_bytes)?;
    }
    Ok(())
}

fn layout(size_bytes: u64) -> Result<RamLayout, LayoutError> {
    RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes,
        file_offset_bytes: 0,
    }])
}

fn run_in_process(
    program: &Path,
    run: &RunRequest,
    onlooker: &mut dyn Onlooker,
) -> Result<Sample, WritebackBenchError> {
    let child = Command::new(program)
        .args(run.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| WritebackBenchError::Start {
            program: program.to_owned(),
            source,
        })?;
    let result = wait(child, onlooker);
    if let Err(WritebackBenchError::Interrupted) = &result {
        // A run that was given up leaves its file where the file system knows no nameless ones. What
        // cannot be removed now is at the next start.
        if let Ok(directory) = Directory::open_following(&run.directory) {
            let _ = nvx_host::remove_stale(&directory);
        }
    }
    let output = result?;
    if !output.status.success() {
        // Ctrl-C may reach the run first.
        if onlooker.is_interrupted() {
            return Err(WritebackBenchError::Interrupted);
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("nvx: ");
        return Err(WritebackBenchError::Run {
            message: if message.is_empty() {
                "the run's process said nothing".to_owned()
            } else {
                message.to_owned()
            },
            status: output.status,
        });
    }
    serde_json::from_slice(&output.stdout).map_err(WritebackBenchError::Result)
}

/// Waits for a run to end; ends it if the onlooker wants that. What a run writes fits into its pipes.
fn wait(mut child: Child, onlooker: &mut dyn Onlooker) -> Result<Output, WritebackBenchError> {
    loop {
        let ended = child.try_wait().map_err(WritebackBenchError::Wait)?;
        if ended.is_some() {
            return child.wait_with_output().map_err(WritebackBenchError::Wait);
        }
        if onlooker.is_interrupted() {
            // It may have ended just now.
            let _ = child.kill();
            child.wait().map_err(WritebackBenchError::Wait)?;
            return Err(WritebackBenchError::Interrupted);
        }
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
