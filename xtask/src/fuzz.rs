//! `cargo xtask fuzz`: libFuzzer on the targets of crate `fuzz-targets`.
//!
//! The programs are those of `fuzz/`, laid out as cargo-fuzz wants them, so `cargo fuzz run TARGET` works
//! too. Here they are built by plain Cargo: the coverage that libFuzzer needs comes from compiler flags that
//! are stable, so neither cargo-fuzz nor a nightly compiler has to be there, only a C++ compiler for
//! libFuzzer itself. Address sanitizer, which needs a nightly compiler, is left out: the crates under test
//! forbid `unsafe`.
//!
//! What is learnt stays in `target/fuzz-corpus`, apart from the tree's inputs: a later run goes on from
//! there, and a finding is kept by copying its input into `fuzz/corpus`.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::dist::TARGET as HOST;
use crate::workspace::{Workspace, cargo};

/// Coverage that libFuzzer steers by: counters per edge, their addresses, and operands of comparisons.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=4";

/// What to try and for how long.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask fuzz --seconds 600 --jobs 2      every target for ten minutes, two at a time\n  \
    cargo xtask fuzz --seconds 60 manifest tar   two targets\n  \
    cargo xtask fuzz manifest --input FILE       one input again, as after a finding")]
pub struct Options {
    /// Targets; all if none is named.
    targets: Vec<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How many targets run at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// Try this input only, with one target.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Print the targets' names.
    #[arg(long)]
    list: bool,
}

/// Runs the targets; the exit code is 1 if one found something.
pub fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let known = targets(workspace)?;
    if options.list {
        println!("{}", known.join("\n"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(other) = options.targets.iter().find(|name| !known.contains(name)) {
        bail!("no fuzz target '{other}' (known: {})", known.join(", "));
    }
    let wanted = if options.targets.is_empty() {
        &known
    } else {
        &options.targets
    };
    if let Some(input) = &options.input {
        let [name] = &options.targets[..] else {
            bail!("--input needs exactly one target");
        };
        let programs = build(workspace, wanted)?;
        let status = Command::new(programs.join(name))
            .arg(input)
            .status()
            .with_context(|| format!("cannot run {name}"))?;
        return Ok(exit_code(status.success()));
    }
    let programs = build(workspace, wanted)?;
    let mut found_something = false;
    println!(
        "{:<16} {:>12} {:>9} {:>8} {:>9}  result",
        "target", "executions", "coverage", "inputs", "peak MiB"
    );
    for batch in wanted.chunks(usize::from(options.jobs)) {
        let runs = batch
            .iter()
            .map(|name| Run::start(workspace, &programs, name, options.seconds))
            .collect::<Result<Vec<_>>>()?;
        for run in runs {
            found_something |= !run.finish()?;
        }
    }
    Ok(exit_code(!found_something))
}

fn exit_code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Names of the targets, which are those of their programs' files.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let directory = workspace.root.join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in
        fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?
    {
        let file = PathBuf::from(entry?.file_name());
        if let Some(name) = file.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the programs and gives their directory.
fn build(workspace: &Workspace, names: &[String]) -> Result<PathBuf> {
    let target_dir = workspace.target_dir.join("fuzz");
    let mut command = cargo();
    // The target is named so that build scripts and procedural macros are built without the flags.
    command
        .args(["build", "--release", "--target", HOST])
        .args(names.iter().flat_map(|name| ["--bin", name.as_str()]))
        .env("RUSTFLAGS", RUSTFLAGS)
        .env("CARGO_TARGET_DIR", &target_dir)
        .current_dir(workspace.root.join("fuzz"));
    let status = command.status().context("cannot run cargo build")?;
    if !status.success() {
        bail!("the fuzz targets cannot be built; libFuzzer needs a C++ compiler (g++ or clang++)");
    }
    Ok(target_dir.join(HOST).join("release"))
}

/// A target that is being run.
struct Run {
    name: String,
    child: Child,
    log: PathBuf,
    artifacts: PathBuf,
}

impl Run {
    fn start(workspace: &Workspace, programs: &Path, name: &str, seconds: u32) -> Result<Self> {
        let place = |kind: &str| -> Result<PathBuf> {
            let path = workspace.target_dir.join(kind).join(name);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
            Ok(path)
        };
        let corpus = place("fuzz-corpus")?;
        let artifacts = place("fuzz-artifacts")?;
        let log = artifacts.join("log");
        let file =
            fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let child = Command::new(programs.join(name))
            .arg(corpus)
            .arg(workspace.root.join("fuzz/corpus").join(name))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            // One input may take so long on a loaded machine; a hang takes forever.
            .args(["-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            artifacts,
        })
    }

    /// Waits, prints the target's line, and returns whether nothing was found.
    fn finish(mut self) -> Result<bool> {
        let status = self.child.wait().context("cannot wait for a target")?;
        let file = fs::File::open(&self.log)
            .with_context(|| format!("cannot read {}", self.log.display()))?;
        let mut said = Said::default();
        for line in BufReader::new(file).split(b'\n') {
            said.hear(&String::from_utf8_lossy(&line?));
        }
        let Said {
            executions,
            coverage,
            inputs,
            peak_mib,
            artifact,
        } = said;
        let good = status.success();
        let result = match artifact {
            _ if good => "nothing found".to_owned(),
            Some(input) => format!(
                "FOUND: {input}; again: cargo xtask fuzz {} --input {input}",
                self.name
            ),
            None => format!("{status}: see {}", self.log.display()),
        };
        println!(
            "{:<16} {executions:>12} {coverage:>9} {inputs:>8} {peak_mib:>9}  {result}",
            self.name
        );
        std::io::stdout().flush()?;
        if good {
            // What an earlier run found is not this one's; its log is of no more use.
            let _ = fs::remove_file(&self.log);
            let _ = fs::remove_dir(&self.artifacts);
        }
        Ok(good)
    }
}

/// What libFuzzer says of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    executions: u64,
    coverage: u64,
    inputs: u64,
    peak_mib: u64,
    artifact: Option<String>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let number = |text: &str| {
            let digits = text.trim_start().split(['/', ' ']).next()?;
            digits.parse::<u64>().ok()
        };
        let after = |label: &str| line.split_once(label).map(|(_, rest)| rest);
        let value = |label: &str| after(label).and_then(number);
        if let Some(coverage) = value(" cov: ") {
            self.coverage = coverage;
        }
        if let Some(inputs) = value(" corp: ") {
            self.inputs = inputs;
        }
        if let Some(executions) = value("stat::number_of_executed_units:") {
            self.executions = executions;
        }
        if let Some(peak_mib) = value("stat::peak_rss_mb:") {
            self.peak_mib = peak_mib;
        }
        if let Some(path) = after("Test unit written to ") {
            self.artifact = Some(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_s_figures_are_read() {
        let mut said = Said::default();
        for line in [
            "INFO: Seed: 12",
            "#2\tINITED cov: 31 ft: 40 corp: 3/12b exec/s: 0 rss: 30Mb",
            "#2000\tDONE   cov: 131 ft: 340 corp: 33/1200b lim: 64 exec/s: 0 rss: 30Mb",
            "stat::number_of_executed_units: 2000",
            "stat::peak_rss_mb:              44",
        ] {
            said.hear(line);
        }
        let wanted = Said {
            executions: 2000,
            coverage: 131,
            inputs: 33,
            peak_mib: 44,
            artifact: None,
        };
        assert_eq!(said, wanted);
    }

    #[test]
    fn a_finding_is_named() {
        let mut said = Said::default();
        said.hear("artifact_prefix='/t/'; Test unit written to /t/crash-12");
        assert_eq!(said.artifact.as_deref(), Some("/t/crash-12"));
    }
}
