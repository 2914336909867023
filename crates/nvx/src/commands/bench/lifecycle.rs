//! `nvx bench lifecycle`, `show` and `disturb`.

use crate::exit::ExitCode;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nvx_bench::accept::{AcceptError, accept, attempt_file, check_writable, write_json};
use nvx_bench::disturb::{Disturbance, Disturber, disturb, stop_at_end_of_input};
use nvx_bench::host::HostFingerprint;
use nvx_bench::result::LifecycleResult;
use nvx_bench::validate::{ACCEPTED_MEMORY_MIB, MIN_RUNS};
use nvx_bench::{
    CacheState, Guest, LifecycleRequest, MatrixCell, RunPlan, Step, Watcher, read_lifecycle,
    run_lifecycle, show,
};
use nvx_host::{Termination, TerminationSignals};

use super::subject::{check_memory, guest, subject};
use crate::cli::{Cache, DisturbArgs, LifecycleArgs, ShowArgs};
use crate::commands::perf::validation_text;
use crate::exit::Failure;
use crate::output;

/// A disturbance gets going before the sample that it is to disturb first.
const DISTURBANCE_LEAD: Duration = Duration::from_millis(500);

/// Measures, and with `--accept` judges.
pub fn run(args: LifecycleArgs) -> Result<ExitCode, Failure> {
    // Before any thread is started: they inherit the mask.
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    let plan = plan(&args).map_err(Failure::input)?;
    check_disturbances(&args).map_err(Failure::input)?;
    match &args.accept {
        Some(directory) => run_accepted(&args, &plan, &signals, directory),
        None => run_once(&args, &plan, &signals),
    }
}

fn plan(args: &LifecycleArgs) -> anyhow::Result<RunPlan> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program's own file")?,
    };
    let guest = guest(&args.subject, &args.linux)?;
    let (request, execution) = subject(&args.subject, guest, program)?;
    for memory in &args.memories {
        check_memory(*memory, &request.guest).context("--memories")?;
    }
    let matrix = matrix(args, request.memory_bytes);
    Ok(RunPlan {
        request,
        warmups: args.subject.warmups,
        runs: args.samples,
        restore_cache: match args.cache {
            Cache::Cold => CacheState::Cold,
            Cache::Warm | Cache::Both => CacheState::Warm,
        },
        matrix,
        commit: args.commit.clone(),
        disturbances: args.disturb.iter().map(Disturbance::to_string).collect(),
        execution,
    })
}

/// The restores beside the main suite's: of `--memories` in each state of the page cache that is asked for,
/// and of `--memory` in the one that the main suite leaves out.
fn matrix(args: &LifecycleArgs, memory_bytes: u64) -> Vec<MatrixCell> {
    let caches: &[CacheState] = match args.cache {
        Cache::Warm => &[CacheState::Warm],
        Cache::Cold => &[CacheState::Cold],
        Cache::Both => &[CacheState::Warm, CacheState::Cold],
    };
    let cells = |memory_bytes| {
        caches.iter().map(move |cache| MatrixCell {
            memory_bytes,
            cache: *cache,
        })
    };
    let left_out = matches!(args.cache, Cache::Both).then_some(MatrixCell {
        memory_bytes,
        cache: CacheState::Cold,
    });
    let further = args
        .memories
        .iter()
        .copied()
        .filter(|memory| *memory != memory_bytes);
    left_out
        .into_iter()
        .chain(further.flat_map(cells))
        .collect()
}

/// Refuses a disturbance that would never begin, and whose result would say that it was disturbed.
fn check_disturbances(args: &LifecycleArgs) -> anyhow::Result<()> {
    let too_late = |one: &&Disturbance| one.from_sample > args.samples;
    match args.disturb.iter().find(too_late) {
        Some(one) => anyhow::bail!("--disturb {one}: there are only {} captures", args.samples),
        None => Ok(()),
    }
}

fn run_once(
    args: &LifecycleArgs,
    plan: &RunPlan,
    signals: &TerminationSignals,
) -> Result<ExitCode, Failure> {
    let resumed = match args.resume {
        true => Some(read_lifecycle(&args.output).map_err(Failure::input)?),
        false => None,
    };
    check_output(&args.output).map_err(Failure::input)?;
    let mut watcher = Onlooker::new(&args.output, args, plan, signals);
    let outcome = run_lifecycle(plan, resumed, &mut watcher);
    let interrupted = watcher.interrupted;
    drop(watcher);
    let result = match (outcome, interrupted) {
        (Ok(result), _) => result,
        (Err(error), Some(termination)) => {
            output::message(&format!("{error}: {}", args.output.display()));
            return Ok(ExitCode::from(termination.exit_code()));
        }
        (Err(error), None) => return Err(Failure::input(error)),
    };
    if args.json {
        output::json(&result).map_err(Failure::monitor)?;
    } else {
        output::result(&show::text(&result));
        output::message(&format!("the result is {}", args.output.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn run_accepted(
    args: &LifecycleArgs,
    plan: &RunPlan,
    signals: &TerminationSignals,
    directory: &Path,
) -> Result<ExitCode, Failure> {
    check_acceptable(args, &plan.request).map_err(Failure::input)?;
    let scratch = plan
        .request
        .scratch
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    let host = HostFingerprint::of_this_host(&scratch, plan.execution)
        .with_context(|| format!("--scratch {}", scratch.display()))
        .map_err(Failure::input)?;
    let platform = host.platform(&plan.request.backend);
    let mut interrupted = None;
    let outcome = accept(directory, &platform, |attempt| {
        output::message(&format!("attempt {attempt}, of platform {platform}"));
        let mut watcher =
            Onlooker::new(&directory.join(attempt_file(attempt)), args, plan, signals);
        let result = run_lifecycle(plan, None, &mut watcher);
        interrupted = watcher.interrupted;
        result
    });
    let acceptance = match (outcome, interrupted) {
        (Ok(acceptance), _) => acceptance,
        (Err(AcceptError::Measure(error)), Some(termination)) => {
            output::message(&error.to_string());
            return Ok(ExitCode::from(termination.exit_code()));
        }
        (Err(error), _) => return Err(Failure::input(error)),
    };
    if args.json {
        output::json(&acceptance).map_err(Failure::monitor)?;
    } else {
        for (index, validation) in acceptance.attempts.iter().enumerate() {
            output::result(&format!(
                "attempt {}: {}",
                index + 1,
                validation_text(validation)
            ));
        }
        match &acceptance.accepted {
            Some(path) => output::result(&format!("accepted: {}\n", path.display())),
            None => output::result("nothing was accepted\n"),
        }
    }
    Ok(ExitCode::from(acceptance.exit_code()))
}

/// Refuses a place where no result can be put, before minutes are spent on it.
pub(super) fn check_output(path: &Path) -> anyhow::Result<()> {
    check_writable(path).with_context(|| format!("--output {}", path.display()))
}

/// Refuses what no result could be accepted of, before minutes are spent on it.
fn check_acceptable(args: &LifecycleArgs, request: &LifecycleRequest) -> anyhow::Result<()> {
    if let Guest::Linux(_) = request.guest {
        anyhow::bail!("--kernel: only results of the probe guest are accepted");
    }
    if request.memory_bytes != ACCEPTED_MEMORY_MIB << 20 {
        anyhow::bail!("--memory: only results of {ACCEPTED_MEMORY_MIB} MiB are accepted");
    }
    if u64::from(args.samples) < MIN_RUNS {
        anyhow::bail!(
            "--samples {}: fewer than {MIN_RUNS} are never accepted",
            args.samples
        );
    }
    if matches!(args.cache, Cache::Cold) {
        anyhow::bail!("--cache cold: only results of warm restores are accepted");
    }
    Ok(())
}

/// Shows progress, keeps the result, and disturbs where that is asked for.
struct Onlooker<'a> {
    file: PathBuf,
    line: output::ProgressLine,
    began: Instant,
    signals: &'a TerminationSignals,
    interrupted: Option<Termination>,
    waiting: Vec<Disturbance>,
    disturbers: Vec<Disturber>,
    scratch: PathBuf,
}

impl<'a> Onlooker<'a> {
    fn new(
        file: &Path,
        args: &LifecycleArgs,
        plan: &RunPlan,
        signals: &'a TerminationSignals,
    ) -> Self {
        Self {
            file: file.to_owned(),
            line: output::ProgressLine::new(),
            began: Instant::now(),
            signals,
            interrupted: None,
            waiting: args.disturb.clone(),
            disturbers: Vec::new(),
            scratch: plan
                .request
                .scratch
                .clone()
                .unwrap_or_else(std::env::temp_dir),
        }
    }

    fn disturb(&mut self, step: Step<'_>) {
        if step.suite != "generation" {
            self.disturbers.clear();
            return;
        }
        let Some(sample) = step.sample else { return };
        let due = |disturbance: &Disturbance| sample + 1 >= disturbance.from_sample;
        let (now, later) = self.waiting.drain(..).partition(due);
        self.waiting = later;
        let now: Vec<Disturbance> = now;
        for disturbance in now {
            let started = std::env::current_exe()
                .and_then(|program| Disturber::start(&program, disturbance, &self.scratch));
            match started {
                Ok(disturber) => {
                    self.disturbers.push(disturber);
                    std::thread::sleep(DISTURBANCE_LEAD);
                }
                Err(error) => output::message(&format!("cannot disturb ({disturbance}): {error}")),
            }
        }
    }
}

impl Watcher for Onlooker<'_> {
    fn before(&mut self, step: Step<'_>) {
        self.disturb(step);
        let sample = match step.sample {
            Some(index) => format!("sample {}", index + 1),
            None => "warm-up".to_owned(),
        };
        let left = remaining(self.began.elapsed(), step.done, step.total);
        self.line.show(&format!(
            "{}/{} {}, {sample}{left}",
            step.done + 1,
            step.total,
            step.suite
        ));
    }

    fn keep(&mut self, result: &LifecycleResult) -> std::io::Result<()> {
        write_json(&self.file, result)
    }

    fn is_interrupted(&mut self) -> bool {
        self.interrupted = self.interrupted.or_else(|| self.signals.take());
        self.interrupted.is_some()
    }
}

/// How long the rest takes if it goes on like this.
pub(super) fn remaining(elapsed: Duration, done: u32, total: u32) -> String {
    if done == 0 {
        return String::new();
    }
    let left = elapsed.mul_f64(f64::from(total.saturating_sub(done)) / f64::from(done));
    format!(", about {} s left", left.as_secs() + 1)
}

/// Shows a result.
pub fn show(args: &ShowArgs) -> Result<ExitCode, Failure> {
    let result = read_lifecycle(&args.result).map_err(Failure::input)?;
    match &args.html {
        Some(path) => {
            let page = nvx_bench::html::page(&result);
            std::fs::write(path, page)
                .with_context(|| format!("cannot write {}", path.display()))
                .map_err(Failure::input)?;
        }
        None => output::result(&show::text(&result)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Disturbs until standard input ends.
pub fn run_disturbance(args: &DisturbArgs) -> Result<ExitCode, Failure> {
    let stop = stop_at_end_of_input(args.seconds.map(Duration::from_secs));
    disturb(args.kind, &args.dir, args.rate, &stop)
        .with_context(|| format!("--dir {}", args.dir.display()))
        .map_err(Failure::input)?;
    Ok(ExitCode::SUCCESS)
}
