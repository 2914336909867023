//! Measuring builds in turns.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use nvx_memory::{RamFileChoice, WritebackChoice};

use super::{
    BuildSamples, COMPARISON_SCHEMA, COMPARISON_SCHEMA_VERSION, ComparisonResult, MetricKind,
    TestPlan, program_format,
};
use crate::guest::{Guest, PreparedGuest, prepare};
use crate::guest_image::{GuestImageError, digest};
use crate::host::{ExecutionFacts, HostFingerprint};
use crate::lifecycle::{LifecycleError, LifecycleRequest};
use crate::result::{CaptureSample, StartSample};
use crate::sampling::Sampler;
use crate::timestamp::iso_8601;
use crate::work_dir::WorkDir;

/// A build that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBuild {
    /// Its name.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    /// Its commit.
    pub commit: Option<String>,
}

/// What is compared and how.
#[derive(Clone, Debug)]
pub struct ComparePlan {
    /// The builds; the first is the base.
    pub builds: Vec<NamedBuild>,
    /// What they run; its program is not used.
    pub request: LifecycleRequest,
    /// Rounds of each build that are thrown away first.
    pub warmups: u32,
    /// Samples of each build; even, since rounds are mirrored.
    pub samples: u32,
    /// Whether one build is compared with itself.
    pub aa: bool,
    /// The tests.
    pub tests: TestPlan,
    /// How guest code is carried out.
    pub execution: ExecutionFacts,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// Fewer than two builds, or the same twice.
    #[error("--build: {what}")]
    Builds {
        /// What is wrong.
        what: String,
    },
    /// A build cannot be run here.
    #[error("--build {name}={}: {what}", path.display())]
    Build {
        /// Its name.
        name: String,
        /// Its program.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The tests cannot reach significance.
    #[error("--samples {samples}: no test could be significant; needs at least {needed}")]
    TooFew {
        /// What was asked for.
        samples: u32,
        /// What is needed.
        needed: usize,
    },
    /// The rounds are mirrored.
    #[error("--samples {samples}: must be even, since every other round is mirrored")]
    Odd {
        /// What was asked for.
        samples: u32,
    },
    /// The scratch directory cannot be used.
    #[error("--scratch {}", path.display())]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A build does not give its guest.
    #[error("--build {name}: its guest")]
    Guest {
        /// The build.
        name: String,
        /// Why.
        source: GuestImageError,
    },
    /// A file of the guest cannot be used.
    #[error(transparent)]
    GuestFile(GuestImageError),
    /// The builds bring different guests along, so that their times are of different work.
    #[error(
        "incomparable: the guest (kernel_blake3) of {first} is {first_guest}, of {other} {other_guest}"
    )]
    OtherGuest {
        /// The first build.
        first: String,
        /// Its guest.
        first_guest: String,
        /// Another.
        other: String,
        /// Its guest.
        other_guest: String,
    },
    /// A sample failed.
    #[error("build {name}")]
    Sample {
        /// The build.
        name: String,
        /// What happened.
        source: Box<LifecycleError>,
    },
    /// The resident set of a process could not be read, or its guest did not end.
    #[error("build {name}: no {metric} could be measured")]
    Unmeasured {
        /// The build.
        name: String,
        /// The metric.
        metric: &'static str,
    },
    /// The comparison was asked to end.
    #[error("interrupted")]
    Interrupted,
}

/// Checks builds before anything is measured.
///
/// # Errors
/// Fewer than two builds, a name or a file twice, or one that cannot be run here.
pub fn check_builds(builds: &[NamedBuild], aa: bool) -> Result<Vec<BuildSamples>, CompareError> {
    let wrong = |what: String| CompareError::Builds { what };
    if builds.len() < 2 {
        return Err(wrong("two builds are needed".to_owned()));
    }
    let mut described: Vec<BuildSamples> = Vec::new();
    for build in builds {
        if described.iter().any(|earlier| earlier.name == build.name) {
            return Err(wrong(format!("the name {} is there twice", build.name)));
        }
        let bytes =
            std::fs::read(&build.program).map_err(|error| fault(build, error.to_string()))?;
        check_program(build, &bytes)?;
        let program_blake3 = digest(&bytes);
        let twin = described
            .iter()
            .find(|earlier| earlier.program_blake3 == program_blake3);
        if let (Some(twin), false) = (twin, aa) {
            return Err(wrong(format!(
                "{} and {} are the same file; --aa compares a build with itself",
                twin.name, build.name
            )));
        }
        described.push(BuildSamples {
            name: build.name.clone(),
            program: build.program.clone(),
            program_blake3,
            kernel_blake3: String::new(),
            commit: build.commit.clone(),
            samples: BTreeMap::new(),
        });
    }
    Ok(described)
}

fn fault(build: &NamedBuild, what: String) -> CompareError {
    CompareError::Build {
        name: build.name.clone(),
        path: build.program.clone(),
        what,
    }
}

fn check_program(build: &NamedBuild, bytes: &[u8]) -> Result<(), CompareError> {
    if !bytes.starts_with(program_format::MAGIC) {
        return Err(fault(build, "not an executable program".to_owned()));
    }
    let own = std::env::current_exe()
        .and_then(std::fs::File::open)
        .and_then(|mut file| {
            let mut header = [0; program_format::MACHINE.end];
            io::Read::read_exact(&mut file, &mut header)?;
            Ok(header)
        });
    let other_machine =
        own.is_ok_and(|own| bytes.get(program_format::MACHINE) != own.get(program_format::MACHINE));
    if other_machine {
        return Err(fault(build, "of another processor architecture".to_owned()));
    }
    let executable = nvx_host::check_executable(&build.program);
    executable.map_err(|error| fault(build, format!("not executable: {error}")))
}

/// Measures the builds in turns and judges them. `progress` gets how many processes' rounds are done and
/// how many there are, and answers whether to go on.
///
/// # Errors
/// A build or a sample fails, or `progress` says no.
pub fn run_comparison(
    plan: &ComparePlan,
    progress: &mut dyn FnMut(u32, u32) -> bool,
) -> Result<ComparisonResult, CompareError> {
    let mut builds = check_builds(&plan.builds, plan.aa)?;
    if let Err(needed) = plan.tests.check(plan.samples as usize, builds.len() - 1) {
        return Err(CompareError::TooFew {
            samples: plan.samples,
            needed,
        });
    }
    if !plan.samples.is_multiple_of(2) {
        return Err(CompareError::Odd {
            samples: plan.samples,
        });
    }
    let scratch = plan
        .request
        .scratch
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let failed = |source| CompareError::Scratch {
        path: scratch.clone(),
        source,
    };
    let work = WorkDir::create(&scratch).map_err(failed)?;
    let prepared = find_guests(&plan.request.guest, &mut builds, work.path())?;
    let request = LifecycleRequest {
        guest: prepared.guest.clone(),
        ..plan.request.clone()
    };
    let host = HostFingerprint::of_this_host(&scratch, plan.execution).map_err(failed)?;
    let timestamp_utc = iso_8601(SystemTime::now());
    let total = (plan.warmups + plan.samples) * builds.len() as u32;
    let mut done = 0;
    for round in 0..plan.warmups + plan.samples {
        for place in turns(builds.len(), round) {
            if !progress(done, total) {
                return Err(CompareError::Interrupted);
            }
            let build = &mut builds[place];
            let turn = turn(&request, build, work.path())?;
            done += 1;
            if round < plan.warmups {
                continue;
            }
            for (metric, sample) in turn {
                build.samples.entry(metric).or_default().push(sample);
            }
        }
    }
    let emulated = host.platform(&plan.request.backend).ends_with("-emulated");
    let commit = |index: usize| {
        plan.builds
            .get(index)
            .and_then(|build| build.commit.clone())
    };
    Ok(ComparisonResult {
        schema: COMPARISON_SCHEMA.to_owned(),
        schema_version: COMPARISON_SCHEMA_VERSION,
        timestamp_utc,
        interleaved: true,
        base_commit: commit(0).unwrap_or_default(),
        candidate_commit: commit(1).unwrap_or_default(),
        metrics: BTreeMap::new(),
        tests: plan.tests.clone(),
        aa: plan.aa,
        emulated,
        host,
        subject: subject(&plan.request, &prepared),
        builds,
        verdicts: Vec::new(),
    }
    .judged())
}

/// Gets the guest that all builds run. A Linux guest is made of the same files for all of them: what is to be
/// packed for it, the first build packs. The probe guest each build brings along, and it must be the same one.
fn find_guests(
    guest: &Guest,
    builds: &mut [BuildSamples],
    work: &Path,
) -> Result<PreparedGuest, CompareError> {
    let get = |build: &BuildSamples| {
        prepare(guest, &build.program, work).map_err(|source| match source {
            GuestImageError::Input { .. } => CompareError::GuestFile(source),
            source => CompareError::Guest {
                name: build.name.clone(),
                source,
            },
        })
    };
    let Some((first, others)) = builds.split_first_mut() else {
        return Err(CompareError::Builds {
            what: "two builds are needed".to_owned(),
        });
    };
    let prepared = get(first)?;
    first.kernel_blake3.clone_from(&prepared.kernel_blake3);
    for other in others.iter_mut() {
        other.kernel_blake3 = match guest {
            Guest::Probe(_) => get(other)?.kernel_blake3,
            Guest::Linux(_) => prepared.kernel_blake3.clone(),
        };
    }
    match others
        .iter()
        .find(|other| other.kernel_blake3 != first.kernel_blake3)
    {
        Some(other) => Err(CompareError::OtherGuest {
            first: first.name.clone(),
            first_guest: first.kernel_blake3.clone(),
            other: other.name.clone(),
            other_guest: other.kernel_blake3.clone(),
        }),
        None => Ok(prepared),
    }
}

fn subject(request: &LifecycleRequest, prepared: &PreparedGuest) -> BTreeMap<String, String> {
    let mut facts = vec![
        ("backend", request.backend.clone()),
        ("guest", request.guest.kind().to_owned()),
        ("memory_mib", (request.memory_bytes >> 20).to_string()),
        ("processors", request.vcpus.to_string()),
    ];
    match &request.guest {
        Guest::Probe(probe) => facts.push(("probe", probe.to_string())),
        Guest::Linux(linux) => {
            facts.push(("command_line", linux.command_line.clone()));
            facts.push(("kernel_blake3", prepared.kernel_blake3.clone()));
            let initramfs = prepared.initramfs_blake3.clone();
            facts.extend(initramfs.map(|digest| ("initramfs_blake3", digest)));
        }
    }
    // Named only if asked for: results of before are of the same subject.
    if request.ram_file != RamFileChoice::Auto {
        facts.push(("ram_file", request.ram_file.to_string()));
    }
    if request.writeback != WritebackChoice::Auto {
        facts.push(("writeback", request.writeback.to_string()));
    }
    let owned = facts.into_iter();
    owned
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Who takes which turn in a round: every other round is mirrored.
pub(crate) fn turns(builds: usize, round: u32) -> Vec<usize> {
    match round % 2 {
        0 => (0..builds).collect(),
        _ => (0..builds).rev().collect(),
    }
}

/// One cold start, one capture and one restore of a build.
fn turn(
    request: &LifecycleRequest,
    build: &BuildSamples,
    work: &Path,
) -> Result<Vec<(MetricKind, f64)>, CompareError> {
    let sampler = Sampler {
        request: LifecycleRequest {
            program: build.program.clone(),
            ..request.clone()
        },
        began: Instant::now(),
    };
    let failed = |source| CompareError::Sample {
        name: build.name.clone(),
        source: Box::new(source),
    };
    let snapshot = work.join("snapshot");
    let cold = sampler.cold_start().map_err(failed)?;
    let capture = sampler.capture(&snapshot).map_err(failed)?;
    let restore = sampler.restore(&snapshot).map_err(failed)?;
    std::fs::remove_dir_all(&snapshot).map_err(|source| CompareError::Scratch {
        path: snapshot.clone(),
        source,
    })?;
    values(&cold, &capture, &restore)
        .into_iter()
        .map(|(metric, value)| match value {
            Some(value) if value > 0.0 => Ok((metric, value)),
            _ => Err(CompareError::Unmeasured {
                name: build.name.clone(),
                metric: metric.ending(),
            }),
        })
        .collect()
}

fn values(
    cold: &StartSample,
    capture: &CaptureSample,
    restore: &StartSample,
) -> [(MetricKind, Option<f64>); 8] {
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    [
        (MetricKind::ColdStart, Some(cold.elapsed_ms)),
        (MetricKind::SnapshotGeneration, Some(capture.generation_ms)),
        (MetricKind::SnapshotRestore, Some(restore.elapsed_ms)),
        (MetricKind::ColdStartGuestExitTeardown, cold.teardown_ms),
        (
            MetricKind::SnapshotRestoreGuestExitTeardown,
            restore.teardown_ms,
        ),
        (MetricKind::ColdStartPeakRss, mib(cold.peak_rss_bytes)),
        (
            MetricKind::SnapshotGenerationPeakRss,
            mib(capture.peak_rss_bytes),
        ),
        (
            MetricKind::SnapshotRestorePeakRss,
            mib(restore.peak_rss_bytes),
        ),
    ]
}
