//! A lifecycle run: every suite's samples, one after the other, into one result.
//!
//! Suites follow one another (cold starts, captures, restores of the last measured snapshot), each after
//! its own warm-ups. The result is handed out while the run lasts, so that a run which is
//! interrupted leaves one that says so and can go on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::guest::{LinuxGuest, PreparedGuest, prepare};
use crate::guest_image::{GuestImageError, digest};
use crate::host::{ExecutionFacts, HostFingerprint};
use crate::lifecycle::{LifecycleError, LifecycleRequest};
use crate::page_cache::{PageCacheError, make_cold};
use crate::result::{
    BuildIdentity, CAPTURE_TIMING, CaptureResult, Controls, LIFECYCLE_SCHEMA,
    LIFECYCLE_SCHEMA_VERSION, LIFECYCLE_SUITE, LifecycleResult, RestoreCell, StartResult,
    TEARDOWN_TIMEOUT_SECONDS,
};
use crate::sampling::{READY_MARKER, RESTORED_MARKER, Sampler};
use crate::storage::StorageWatch;
use crate::timestamp::iso_8601;
use crate::work_dir::WorkDir;

/// Version of the microVM ABI that the built-in guest and its ports make up.
pub const MICROVM_ABI_VERSION: u32 = 2;

/// The result is handed out no more often than this, and so rarely that it takes a twentieth of the time:
/// it holds every sample, so that handing it out costs more the longer the run is.
const KEEP_INTERVAL: Duration = Duration::from_millis(500);
const KEEP_COSTS: u32 = 20;

/// State of the page cache at a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// The snapshot's files are cached.
    Warm,
    /// They are not, which is checked before every sample.
    Cold,
}

impl CacheState {
    /// The word in a result.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }
}

/// Restores of one size with one state of the page cache, beside those of the main suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixCell {
    /// Guest RAM in bytes.
    pub memory_bytes: u64,
    /// The page cache.
    pub cache: CacheState,
}

/// What a run consists of.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The build and its guest. `scratch` must be set.
    pub request: LifecycleRequest,
    /// Samples of each suite that are thrown away first.
    pub warmups: u32,
    /// Samples of each suite that count.
    pub runs: u32,
    /// Page cache at the restores of the main suite.
    pub restore_cache: CacheState,
    /// Restores of further sizes and page-cache states.
    pub matrix: Vec<MatrixCell>,
    /// The measured build's commit.
    pub commit: Option<String>,
    /// What disturbs the run on purpose, as the user said it.
    pub disturbances: Vec<String>,
    /// How guest code is carried out.
    pub execution: ExecutionFacts,
}

impl RunPlan {
    fn caches(&self) -> impl Iterator<Item = CacheState> {
        let further = self.matrix.iter().map(|cell| cell.cache);
        [self.restore_cache].into_iter().chain(further)
    }

    /// `warm`, `cold` or `both`.
    fn cache_word(&self) -> &'static str {
        let first = self.restore_cache;
        match self.caches().all(|cache| cache == first) {
            true => first.word(),
            false => "both",
        }
    }
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The suite.
    pub suite: &'a str,
    /// Samples taken so far in the whole run, warm-ups included.
    pub done: u32,
    /// Samples of the whole run.
    pub total: u32,
    /// Index of the measured sample that comes next; none for a warm-up.
    pub sample: Option<u32>,
}

/// Whoever looks on while a run lasts.
pub trait Watcher {
    /// A sample is about to be taken.
    fn before(&mut self, step: Step<'_>);
    /// The result so far; an error ends the run.
    ///
    /// # Errors
    /// The result cannot be kept.
    fn keep(&mut self, result: &LifecycleResult) -> std::io::Result<()>;
    /// Whether the run shall end early.
    fn is_interrupted(&mut self) -> bool;
}

/// Why a run gave no complete result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The scratch directory cannot be used.
    #[error("--scratch {}", path.display())]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program cannot be read.
    #[error("--program {}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program does not give its guest.
    #[error("--program: its guest")]
    Guest(#[source] GuestImageError),
    /// A file of the guest cannot be used.
    #[error(transparent)]
    GuestFile(GuestImageError),
    /// A cold page cache makes no sense where there is no device.
    #[error("--cache cold: {} is in memory, where nothing is ever cold", path.display())]
    ColdInMemory {
        /// The scratch directory.
        path: PathBuf,
    },
    /// A sample failed.
    #[error("{suite}, {sample}")]
    Sample {
        /// The suite.
        suite: String,
        /// Which one.
        sample: String,
        /// What happened.
        source: Box<LifecycleError>,
    },
    /// A sample that was to be cold is not.
    #[error("{suite}: the sample is rejected")]
    Cache {
        /// The suite.
        suite: String,
        /// Why.
        source: PageCacheError,
    },
    /// The result cannot be kept.
    #[error("cannot write the result")]
    Keep(#[source] std::io::Error),
    /// The result to go on with is of another run.
    #[error("--resume: {what} differs: it was {was}, is {is}")]
    OtherRun {
        /// What differs.
        what: String,
        /// In the earlier run.
        was: String,
        /// Now.
        is: String,
    },
    /// The run was asked to end.
    #[error("interrupted; the result so far says that it is incomplete")]
    Interrupted,
}

/// Runs a plan, from the start or from where `resumed` stopped.
///
/// # Errors
/// A sample fails, or the run is interrupted; what was handed to `watcher` is all there is then.
pub fn run_lifecycle(
    plan: &RunPlan,
    resumed: Option<LifecycleResult>,
    watcher: &mut dyn Watcher,
) -> Result<LifecycleResult, RunError> {
    let scratch = plan
        .request
        .scratch
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let failed = |source| RunError::Scratch {
        path: scratch.clone(),
        source,
    };
    let work = WorkDir::create(&scratch).map_err(failed)?;
    let prepared = prepare(&plan.request.guest, &plan.request.program, work.path());
    let prepared = prepared.map_err(|error| match error {
        GuestImageError::Input { .. } => RunError::GuestFile(error),
        of_program => RunError::Guest(of_program),
    })?;
    let mut result = describe(plan, &scratch, &prepared)?;
    if plan.caches().any(|cache| cache == CacheState::Cold) && result.host.scratch.in_memory {
        return Err(RunError::ColdInMemory { path: scratch });
    }
    if let Some(resumed) = resumed {
        result = take_over(result, resumed)?;
    }
    let mut run = Run {
        plan,
        sampler: Sampler {
            request: LifecycleRequest {
                guest: prepared.guest,
                ..plan.request.clone()
            },
            began: Instant::now(),
        },
        watch: StorageWatch::start(&scratch),
        work,
        watcher,
        result,
        done: 0,
    };
    run.sampler.began = run.watch.began();
    let outcome = run.all_suites();
    let Run {
        watch,
        mut result,
        watcher,
        ..
    } = run;
    result.storage_telemetry = Some(watch.finish());
    result.controls.complete = outcome.is_ok();
    result.warnings = crate::warnings::of(&result);
    watcher.keep(&result).map_err(RunError::Keep)?;
    outcome.map(|()| result)
}

fn describe(
    plan: &RunPlan,
    scratch: &Path,
    prepared: &PreparedGuest,
) -> Result<LifecycleResult, RunError> {
    let request = &plan.request;
    let program = |source| RunError::Program {
        path: request.program.clone(),
        source,
    };
    let host = HostFingerprint::of_this_host(scratch, plan.execution).map_err(|source| {
        RunError::Scratch {
            path: scratch.to_owned(),
            source,
        }
    })?;
    let bytes = std::fs::read(&request.program).map_err(program)?;
    let platform = host.platform(&request.backend);
    let linux = request.guest.linux();
    Ok(LifecycleResult {
        schema: LIFECYCLE_SCHEMA.to_owned(),
        schema_version: LIFECYCLE_SCHEMA_VERSION,
        timestamp_utc: iso_8601(SystemTime::now()),
        controls: Controls {
            suite: LIFECYCLE_SUITE.to_owned(),
            complete: false,
            validated: false,
            disturbed: !plan.disturbances.is_empty(),
            disturbances: plan.disturbances.clone(),
            emulated: platform.ends_with("-emulated"),
            commit: plan.commit.clone(),
            warmups: plan.warmups,
            runs: plan.runs,
            memory_mib: request.memory_bytes >> 20,
            platform,
            backend: request.backend.clone(),
            microvm_abi_version: MICROVM_ABI_VERSION,
            processors: request.vcpus.into(),
            guest: request.guest.kind().to_owned(),
            probe: request.guest.probe_text(),
            kernel: linux.map(|linux| linux.kernel.clone()),
            initrd: linux.and_then(|linux| linux.initrd().map(Path::to_owned)),
            command_line: linux.map(|linux| linux.command_line.clone()),
            contents: linux.map(LinuxGuest::contents).unwrap_or_default(),
            teardown_mode: "guest-exit".to_owned(),
            teardown_timeout_seconds: TEARDOWN_TIMEOUT_SECONDS,
            timeout_seconds: request.limit.as_secs(),
            marker: READY_MARKER.to_owned(),
            restore_marker: RESTORED_MARKER.to_owned(),
            snapshot_capture_timing: CAPTURE_TIMING.to_owned(),
            snapshot_restore_guest_exit_prequeued: true,
            snapshot_profile: true,
            cache_state: plan.cache_word().to_owned(),
            scratch_directory: host.scratch.directory.clone(),
            ram_file: request.ram_file.to_string(),
            writeback: request.writeback.to_string(),
        },
        host,
        build: BuildIdentity {
            program: request.program.clone(),
            program_blake3: digest(&bytes),
            kernel_blake3: prepared.kernel_blake3.clone(),
            initramfs_blake3: prepared.initramfs_blake3.clone(),
        },
        backends: Default::default(),
        snapshot_capture: Default::default(),
        snapshot_restore: Default::default(),
        restore_matrix: Vec::new(),
        storage_telemetry: None,
        warnings: Vec::new(),
    })
}

/// Goes on with an earlier result of the same plan.
fn take_over(
    fresh: LifecycleResult,
    mut earlier: LifecycleResult,
) -> Result<LifecycleResult, RunError> {
    let controls = |result: &LifecycleResult| {
        let mut controls = result.controls.clone();
        (controls.complete, controls.validated) = (false, false);
        controls
    };
    let (was, is) = (&earlier.build, &fresh.build);
    let initramfs = |build: &BuildIdentity| build.initramfs_blake3.clone().unwrap_or_default();
    for (what, was, is) in [
        ("the build", &was.program_blake3, &is.program_blake3),
        ("the guest", &was.kernel_blake3, &is.kernel_blake3),
        ("the initramfs", &initramfs(was), &initramfs(is)),
        (
            "the host",
            &earlier.host.fingerprint,
            &fresh.host.fingerprint,
        ),
    ] {
        if was != is {
            return Err(RunError::OtherRun {
                what: what.to_owned(),
                was: was.clone(),
                is: is.clone(),
            });
        }
    }
    if let Some((what, was, is)) = first_difference(&controls(&earlier), &controls(&fresh)) {
        return Err(RunError::OtherRun { what, was, is });
    }
    earlier.controls = controls(&earlier);
    earlier.storage_telemetry = None;
    Ok(earlier)
}

/// The first member in which two sections differ, and its two values.
fn first_difference(earlier: &Controls, fresh: &Controls) -> Option<(String, String, String)> {
    let section = |controls| serde_json::to_value(controls).unwrap_or_default();
    let (earlier, fresh) = (section(earlier), section(fresh));
    let names = [&earlier, &fresh].map(|section| section.as_object().map(serde_json::Map::keys));
    let mut names = names.into_iter().flatten().flatten();
    let differs = |name: &&String| earlier.get(*name) != fresh.get(*name);
    let name = names.find(differs)?;
    let value = |section: &serde_json::Value| match section.get(name) {
        Some(value) => value.to_string(),
        None => "not told".to_owned(),
    };
    Some((format!("controls.{name}"), value(&earlier), value(&fresh)))
}

struct Run<'a> {
    plan: &'a RunPlan,
    sampler: Sampler,
    watch: StorageWatch,
    work: WorkDir,
    watcher: &'a mut dyn Watcher,
    result: LifecycleResult,
    done: u32,
}

impl Run<'_> {
    fn all_suites(&mut self) -> Result<(), RunError> {
        self.cold_starts()?;
        let snapshot = self.captures()?;
        self.restores(&snapshot)?;
        remove(&snapshot)?;
        self.matrix()
    }

    fn total(&self) -> u32 {
        (3 + self.plan.matrix.len() as u32) * (self.plan.warmups + self.plan.runs)
    }

    /// Takes the samples of a suite that are still missing; `keep` puts them into the result.
    fn suite<T>(
        &mut self,
        suite: &str,
        mut samples: Vec<T>,
        mut take: impl FnMut(&mut Self, u32) -> Result<T, RunError>,
        mut keep: impl FnMut(&mut LifecycleResult, &[T]),
    ) -> Result<(), RunError> {
        let Self { plan, .. } = *self;
        let taken = samples.len() as u32;
        if taken >= plan.runs {
            self.done += plan.warmups + plan.runs;
            return Ok(());
        }
        self.done += taken;
        let mut due = Instant::now() + KEEP_INTERVAL;
        for number in 0..plan.warmups + plan.runs - taken {
            let sample = number.checked_sub(plan.warmups).map(|index| index + taken);
            self.watcher.before(Step {
                suite,
                done: self.done,
                total: self.total(),
                sample,
            });
            let before = self.watch.read();
            let one = match take(self, number) {
                _ if self.watcher.is_interrupted() => Err(RunError::Interrupted),
                taken => taken,
            };
            let one = match one {
                Ok(one) => one,
                Err(error) => {
                    keep(&mut self.result, &samples);
                    return Err(error);
                }
            };
            self.done += 1;
            let Some(index) = sample else { continue };
            self.watch.record(suite, index, before);
            samples.push(one);
            if Instant::now() >= due {
                let begin = Instant::now();
                keep(&mut self.result, &samples);
                self.result.storage_telemetry = Some(self.watch.so_far());
                self.watcher.keep(&self.result).map_err(RunError::Keep)?;
                due = Instant::now() + KEEP_INTERVAL.max(begin.elapsed() * KEEP_COSTS);
            }
        }
        keep(&mut self.result, &samples);
        Ok(())
    }

    fn cold_starts(&mut self) -> Result<(), RunError> {
        let backend = self.plan.request.backend.clone();
        let earlier = self.result.backends.get(&backend).map(StartResult::samples);
        self.suite(
            "cold_start",
            earlier.unwrap_or_default(),
            |run, number| {
                run.sampler
                    .cold_start()
                    .map_err(sample_error("cold start", number))
            },
            |result, samples| {
                result
                    .backends
                    .insert(backend.clone(), StartResult::of(samples.to_vec()));
            },
        )
    }

    /// Returns the last measured snapshot.
    fn captures(&mut self) -> Result<PathBuf, RunError> {
        let backend = self.plan.request.backend.clone();
        let earlier = self
            .result
            .snapshot_capture
            .get(&backend)
            .map(CaptureResult::samples);
        let snapshot = self.work.path().join("snapshot");
        let place = snapshot.clone();
        self.suite(
            "generation",
            earlier.unwrap_or_default(),
            move |run, number| {
                remove(&place)?;
                run.sampler
                    .capture(&place)
                    .map_err(sample_error("generation", number))
            },
            |result, samples| {
                result
                    .snapshot_capture
                    .insert(backend.clone(), CaptureResult::of(samples.to_vec()));
            },
        )?;
        if !snapshot.exists() {
            // A resumed run has all captures, but their last snapshot went with its work directory.
            self.sampler
                .capture(&snapshot)
                .map_err(sample_error("snapshot to restore", 0))?;
        }
        Ok(snapshot)
    }

    fn restores(&mut self, snapshot: &Path) -> Result<(), RunError> {
        let backend = self.plan.request.backend.clone();
        let earlier = self
            .result
            .snapshot_restore
            .get(&backend)
            .map(StartResult::samples);
        self.suite(
            "restore",
            earlier.unwrap_or_default(),
            |run, number| {
                bring_into(run.plan.restore_cache, "restore", snapshot)?;
                run.sampler
                    .restore(snapshot)
                    .map_err(sample_error("restore", number))
            },
            |result, samples| {
                result
                    .snapshot_restore
                    .insert(backend.clone(), StartResult::of(samples.to_vec()));
            },
        )
    }

    /// Restores of every further size and cache state; cells of one size follow one another and share a
    /// snapshot.
    fn matrix(&mut self) -> Result<(), RunError> {
        for cells in self
            .plan
            .matrix
            .chunk_by(|a, b| a.memory_bytes == b.memory_bytes)
        {
            let Some(MatrixCell { memory_bytes, .. }) = cells.first().copied() else {
                continue;
            };
            let mut sampler = self.sampler.clone();
            sampler.request.memory_bytes = memory_bytes;
            let snapshot = self.work.path().join(format!("snapshot-{memory_bytes}"));
            let is_missing = |of: &MatrixCell| {
                cell(&self.result, memory_bytes, of.cache)
                    .is_none_or(|cell| cell.result.time.samples_ms.len() < self.plan.runs as usize)
            };
            if cells.iter().any(is_missing) {
                sampler
                    .capture(&snapshot)
                    .map_err(sample_error("snapshot of the matrix", 0))?;
            }
            for of in cells {
                self.matrix_cell(&sampler, &snapshot, of.cache)?;
            }
            remove(&snapshot)?;
        }
        Ok(())
    }

    fn matrix_cell(
        &mut self,
        sampler: &Sampler,
        snapshot: &Path,
        cache: CacheState,
    ) -> Result<(), RunError> {
        let memory_bytes = sampler.request.memory_bytes;
        let suite = format!("restore {} MiB {}", memory_bytes >> 20, cache.word());
        let earlier = cell(&self.result, memory_bytes, cache).map(|cell| cell.result.samples());
        self.suite(
            &suite,
            earlier.unwrap_or_default(),
            |_, number| {
                bring_into(cache, &suite, snapshot)?;
                sampler
                    .restore(snapshot)
                    .map_err(sample_error(&suite, number))
            },
            |result, samples| {
                let new = StartResult::of(samples.to_vec());
                let matches = |cell: &RestoreCell| is_cell(cell, memory_bytes, cache);
                match result.restore_matrix.iter_mut().find(|cell| matches(cell)) {
                    Some(cell) => cell.result = new,
                    None => result.restore_matrix.push(RestoreCell {
                        memory_mib: memory_bytes >> 20,
                        cache_state: cache.word().to_owned(),
                        result: new,
                    }),
                }
            },
        )
    }
}

fn is_cell(cell: &RestoreCell, memory_bytes: u64, cache: CacheState) -> bool {
    cell.memory_mib == memory_bytes >> 20 && cell.cache_state == cache.word()
}

fn cell(result: &LifecycleResult, memory_bytes: u64, cache: CacheState) -> Option<&RestoreCell> {
    result
        .restore_matrix
        .iter()
        .find(|cell| is_cell(cell, memory_bytes, cache))
}

/// Drops the snapshot's files from the page cache where they are to be cold, and makes sure that they are.
/// Warm ones need nothing: the capture or the warm-up has just used them.
fn bring_into(cache: CacheState, suite: &str, snapshot: &Path) -> Result<(), RunError> {
    if cache == CacheState::Warm {
        return Ok(());
    }
    chill(snapshot).map_err(|source| RunError::Cache {
        suite: suite.to_owned(),
        source,
    })
}

fn chill(snapshot: &Path) -> Result<(), PageCacheError> {
    let failed = |what| move |source| PageCacheError::System { what, source };
    for entry in std::fs::read_dir(snapshot).map_err(failed("list"))? {
        let path = entry.map_err(failed("list"))?.path();
        make_cold(&File::open(path).map_err(failed("open"))?)?;
    }
    Ok(())
}

fn sample_error(suite: &str, number: u32) -> impl FnOnce(LifecycleError) -> RunError {
    let (suite, sample) = (suite.to_owned(), format!("process {}", number + 1));
    move |source| RunError::Sample {
        suite,
        sample,
        source: Box::new(source),
    }
}

fn remove(snapshot: &Path) -> Result<(), RunError> {
    match std::fs::remove_dir_all(snapshot) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(RunError::Scratch {
            path: snapshot.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}
